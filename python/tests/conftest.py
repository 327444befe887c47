"""Fixtures for every Python test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from harness.ssd import Volume

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def repository() -> Path:
    """Return the root of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def orbitkv_binary() -> Path:
    """Return the built binary; a missing one is an error, since a skipped test would hide it."""
    binary = ROOT / "bin" / "orbitkv"
    if not binary.is_file():
        pytest.fail(f"{binary} is missing: run `make build` first")
    return binary


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Volume]:
    """Return an empty folder for the SSD tier; what is stalled at the end goes on, so that a Manager can end."""
    from harness.ssd import Volume

    volume = Volume(tmp_path / "ssd")
    yield volume
    volume.resume()
