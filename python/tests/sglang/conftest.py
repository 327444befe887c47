"""Real SGLang engines for tests: shared by all tests of one configuration."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.sglang import SglangPool


@pytest.fixture(scope="session")
def engines() -> Iterator[SglangPool]:
    """Return the pool of the session; it is empty again when the session ends."""
    pool = SglangPool()
    try:
        yield pool
    finally:
        pool.close()
