"""What one request has waited for its prefix, and whether waiting on pays.

A request's patience is one sum over its life: it is spent while the request is kept waiting, rests while a lease lies
ready for it, and never grows again. `load_wait_ms` bounds it, and what waiting is worth, which is known once the Cache
Manager estimates the arrival of the prefix and the engine's rate of prefill is known:

    arrival later than computing would end ──► waiting does not pay: stop at once
    arrival sooner                         ──► wait, at most as long as computing would take, and for the next page not
                                               much longer than twice what was estimated: past that, it was wrong
"""

from __future__ import annotations

import math
from dataclasses import dataclass

LATE_FACTOR = 2  # an arrival that takes so many times as long as was estimated is not waited for
LATE_SECONDS = 0.05  # and this beside it, for estimates of a few milliseconds: news comes in passes, and may be lost


@dataclass
class Patience:
    """Times are seconds of one clock. `since` is when the present wait began, None while there is none."""

    since: float | None = None
    spent: float = 0.0  # in earlier waits
    worth: float = math.inf  # all waits together, by what computing takes
    due: float = math.inf  # the same, by what was estimated
    missing: float = math.inf  # pages that the prefix lacked then

    def begin(self, now: float) -> None:
        """Begin to wait, unless it does."""
        if self.since is None:
            self.since = now

    def rest(self, now: float) -> None:
        """End the present wait: the answer is there."""
        self.spent, self.since = self.waited(now), None

    def waited(self, now: float) -> float:
        """Return the seconds that were spent."""
        return self.spent if self.since is None else self.spent + now - self.since

    def lasts(self, now: float, most: float) -> bool:
        """Return whether the request may wait longer, with `most` seconds for all its waits."""
        return self.since is None or self.waited(now) < min(most, self.worth, self.due)

    def pays(self, now: float, arrival: float, missing: int, computing: float) -> bool:
        """Weigh a wait of `arrival` seconds from now for `missing` pages against computing them; return if it pays."""
        waited = self.waited(now)
        if self.worth == math.inf:
            self.worth = waited + computing
        if missing < self.missing:  # Only pages that came prove that more will.
            self.due, self.missing = waited + LATE_FACTOR * arrival + LATE_SECONDS, missing
        return arrival <= computing
