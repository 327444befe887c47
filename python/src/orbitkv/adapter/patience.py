"""What one request has waited for its prefix, and whether waiting on pays.

A request's patience is one sum over its life: it is spent while the request is kept waiting, rests while a lease lies
ready for it, and never grows again. Two bounds end it: `load_wait_ms`, and what waiting is worth. The second is known
once the Cache Manager estimates the arrival of the prefix and the engine's rate of prefill is known:

    arrival later than computing would end ──► waiting does not pay: stop at once
    arrival sooner                         ──► wait, at most as long as computing takes, nor much longer than twice
                                               what the first estimate said: past that, it was wrong
"""

from __future__ import annotations

from dataclasses import dataclass

LATE_FACTOR = 2  # an arrival that takes so many times as long as was estimated is not waited for
LATE_SECONDS = 0.05  # and this beside it, for estimates of a few milliseconds: news comes in passes, and may be lost


@dataclass
class Patience:
    """Times are seconds of one clock. `since` is when the present wait began, None while there is none."""

    since: float | None = None
    spent: float = 0.0  # in earlier waits
    worth: float = float("inf")  # waiting that pays, in all

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
        return self.since is None or self.waited(now) < min(most, self.worth)

    def pays(self, now: float, arrival: float, computing: float) -> bool:
        """Weigh a wait of `arrival` seconds from now against computing; return whether it pays."""
        if self.worth == float("inf"):
            self.worth = self.waited(now) + min(computing, LATE_FACTOR * arrival + LATE_SECONDS)
        return arrival <= computing
