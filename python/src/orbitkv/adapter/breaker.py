"""The breaker: after three unanswered queries in a row there are no questions, and so no hits, for one second."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from orbitkv.adapter.logs import LOGGER

UNANSWERED_MAX = 3
OPEN_SECONDS = 1.0

log = logging.getLogger(LOGGER)


@dataclass
class Breaker:
    """Counts unanswered queries. Used by one thread."""

    opened: int = 0  # how often it opened
    _unanswered: int = 0
    _until: float = 0.0

    def allows(self, now: float) -> bool:
        """Return whether a query may be sent."""
        return now >= self._until

    def answered(self) -> None:
        """Record an answer: the row of unanswered ones ends."""
        self._unanswered = 0

    def unanswered(self, now: float) -> bool:
        """Record that a query's wait passed without an answer; return whether the breaker is open now.

        After its second the next query is a probe: one more without an answer opens the breaker again.
        """
        self._unanswered += 1
        if self._unanswered < UNANSWERED_MAX:
            return False
        if self._unanswered == UNANSWERED_MAX:
            log.warning(
                "the Cache Manager left %d queries in a row unanswered: no external hits until it answers. It may be "
                "stopped or overloaded (see `orbitkv status`); a slow machine needs a longer orbitkv.query_wait_us",
                UNANSWERED_MAX,
            )
        self._until = now + OPEN_SECONDS
        self.opened += 1
        return True
