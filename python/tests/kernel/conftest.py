"""Kernels without a GPU: Triton's interpreter runs them, over a driver that does at once what it is told."""

from __future__ import annotations

import os

import pytest

# Triton reads this when it is imported, and an engine's environment may import it before any fixture runs.
os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(autouse=True)
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let few programs do all of the work, each in many turns: the interpreter's time is the programs' number."""
    monkeypatch.setattr("orbitkv.kernel.mover.PROGRAMS", 5)
    monkeypatch.setattr("orbitkv.kernel.verifier.PROGRAMS", 3)
