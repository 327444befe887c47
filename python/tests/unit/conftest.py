"""What the unit tests of several packages share."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


class Kept(logging.Handler):
    """Keeps the text of every record."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one record."""
        self.lines.append(record.getMessage())


@pytest.fixture
def timeline_lines() -> Iterator[list[str]]:
    """Return the lines that timelines write from now on. Their logger hands them to no other."""
    log, kept = logging.getLogger("orbitkv.timeline"), Kept()
    before = log.level
    log.addHandler(kept)
    log.setLevel(logging.INFO)
    yield kept.lines
    log.removeHandler(kept)
    log.setLevel(before)
