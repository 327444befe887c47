"""Real engines for tests: shared by all tests of one configuration."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.pool import EnginePool


@pytest.fixture(scope="session")
def engines() -> Iterator[EnginePool]:
    """Return the pool of the session; it is empty again when the session ends."""
    pool = EnginePool()
    try:
        yield pool
    finally:
        pool.close()
