"""Real SGLang engines for tests: shared by all tests of one configuration."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from harness.sglang import SglangPool
from harness.sglang_rig import SglangRig


@pytest.fixture(scope="session")
def engines() -> Iterator[SglangPool]:
    """Return the pool of the session; it is empty again when the session ends."""
    pool = SglangPool()
    try:
        yield pool
    finally:
        pool.close()


@pytest.fixture(scope="session")
def rig(orbitkv_binary: Path, tmp_path_factory: pytest.TempPathFactory, engines: SglangPool) -> Iterator[SglangRig]:
    """Return an engine, a Manager and a gate in the engine's copying threads, shared by all tests with OrbitKV."""
    # The engines end first, and the Manager ends although an engine does not.
    with closing(SglangRig(orbitkv_binary, tmp_path_factory.mktemp("rig"), engines)) as rig, closing(engines):
        yield rig
