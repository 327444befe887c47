"""Fixtures for every Python test."""

from __future__ import annotations

from pathlib import Path

import pytest

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
