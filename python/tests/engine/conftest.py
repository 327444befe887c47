"""Real engines for tests: shared by all tests of one configuration."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from harness.pool import EnginePool
from harness.rig import Rig


@pytest.fixture(scope="session")
def engines() -> Iterator[EnginePool]:
    """Return the pool of the session; it is empty again when the session ends."""
    pool = EnginePool()
    try:
        yield pool
    finally:
        pool.close()


@pytest.fixture(scope="session")
def rig(orbitkv_binary: Path, tmp_path_factory: pytest.TempPathFactory, engines: EnginePool) -> Iterator[Rig]:
    """Return an engine, a Manager and a gate in the engine's copying threads, shared by all tests of faults."""
    # The engines end first, and the Manager ends although an engine does not.
    with closing(Rig(orbitkv_binary, tmp_path_factory.mktemp("rig"), engines)) as rig, closing(engines):
        yield rig
