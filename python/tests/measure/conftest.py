"""Measurements for tests: whatever happens in one, nothing of it is left running."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Protocol

import pytest

from harness.checkpoint import Checkpoint
from harness.measurement import Measurement

# The engine's loader reads shards here, as it does for a checkpoint of full size.
SHARDED = Checkpoint(intermediate=768, shard_bytes=4 << 20)
# No latency is judged here, so nothing has to cool down; counters are waited for all the same.
BRISK = ("--settle-seconds", "0.2")


class Measure(Protocol):
    """Makes a measurement into a folder of that name."""

    def __call__(self, name: str, *words: str) -> Measurement: ...


@pytest.fixture(scope="session")
def engine() -> str:
    """Return the engine of the environment that runs the tests."""
    return "sglang" if importlib.util.find_spec("sglang") else "vllm"


@pytest.fixture(scope="session")
def measure(engine: str, orbitkv_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measure]:
    """Return the maker of measurements; each is ended when the session ends."""
    assert orbitkv_binary.is_file()
    folder = tmp_path_factory.mktemp("measure")
    with ExitStack() as stack:

        def make(name: str, *words: str) -> Measurement:
            return stack.enter_context(closing(Measurement(engine, SHARDED, folder / name, *BRISK, *words)))

        yield make
