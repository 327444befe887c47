"""The lease table: which promises of the Cache Manager this process may still use.

    ready ──begin──► active ──ended──► gone
      ├──release──► gone
      └──revoke───► gone

One lock decides between `begin` and a revoke, and the frame that tells the Manager is queued under that lock, so that
the Manager reads the frames in the order in which the states changed. Sending never blocks, so the lock is short.
A held lease (its engine pass has not ended) answers a revoke with "in use". Only living leases have an entry, so the
table is bounded by the Manager's operations of a session and by ACTIVE_MAX. A revoke may overtake the answer that would
have made its lease known here: the lease is given back, and the table remembers that, so that the answer is no promise.
What was begun is kept with its lease: a connection that breaks may lose a begin, and who resumes says it again.

Lock order: the table's lock, then the channel's send lock. The table calls nothing else under its lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from orbitkv._wire import FRAME_IDS_MAX
from orbitkv.errors import LeaseLost

ACTIVE_MAX = FRAME_IDS_MAX  # begun leases kept for a resume; past it the oldest is forgotten, since it ended long ago
GONE_MAX = 1024  # leases that were given back before they were known; past it the oldest is forgotten


class LeaseState(Enum):
    """State of a living lease."""

    READY = "ready"
    ACTIVE = "active"


@dataclass
class Entry:
    """State and holds of one lease; guarded by the table's lock."""

    state: LeaseState = LeaseState.READY
    holds: int = 0


class LeaseTable:
    """All leases of one session. Thread-safe."""

    def __init__(self, on_forgotten: Callable[[], None] | None = None) -> None:
        self._lock = threading.Lock()
        self._on_forgotten = on_forgotten
        self._entries: dict[int, Entry] = {}
        self._active: dict[int, dict[int, int]] = {}  # begun pages of each rank
        self._gone: dict[int, None] = {}  # leases that were given back before they were known, oldest first
        self.forgotten = 0  # active leases dropped at ACTIVE_MAX
        self.yielded = 0  # leases that a revoke won

    def add(self, lease: int) -> None:
        """Enter the lease of a result, before its result is handed to anybody; one that was given back stays gone."""
        with self._lock:
            if lease not in self._gone:
                self._entries.setdefault(lease, Entry())

    def adopt(self, lease: int) -> None:
        """Enter a lease that a resume took over: it was begun."""
        with self._lock:
            self._entries[lease] = Entry(LeaseState.ACTIVE)
            self._remember(lease)

    def begun(self, lease: int) -> dict[int, int]:
        """Return how many pages each rank (or ALL_RANKS) has begun of a lease."""
        with self._lock:
            return dict(self._active.get(lease, {}))

    def state(self, lease: int) -> LeaseState | None:
        """Return the state, or None when the lease is gone."""
        with self._lock:
            entry = self._entries.get(lease)
            return entry.state if entry else None

    def begin(self, lease: int, rank: int, pages: int, send: Callable[[], None]) -> None:
        """Send and move to active; again for each rank that begins for itself.

        LeaseLost when a revoke or release won. What `send` raises leaves the lease ready.
        """
        with self._lock:
            entry = self._entries.get(lease)
            if entry is None:  # I5: a result is a promise only while its lease is held.
                raise LeaseLost(
                    f"lease {lease:#x} cannot be begun: it was revoked, released or has ended. "
                    "Recompute its pages or ask again."
                )
            send()
            entry.state = LeaseState.ACTIVE
            self._remember(lease)[rank] = pages

    def release(self, lease: int, send: Callable[[], None]) -> bool:
        """Give an unbegun lease back and send; return False when there was nothing to give back."""
        with self._lock:
            entry = self._entries.get(lease)
            if entry is None or entry.state is not LeaseState.READY:
                return False
            send()
            del self._entries[lease]
            return True

    def revoke(self, lease: int, answer: Callable[[bool], None]) -> bool:
        """Decide a revoke and answer it; return whether the lease was yielded, as one that is gone always is."""
        with self._lock:
            entry = self._entries.get(lease)
            yielded = entry is None or (entry.state is LeaseState.READY and entry.holds == 0)
            answer(yielded)
            if entry is None:
                self._gone[lease] = None
                if len(self._gone) > GONE_MAX:
                    del self._gone[next(iter(self._gone))]
            elif yielded:
                del self._entries[lease]
                self.yielded += 1
            return yielded

    def hold(self, lease: int) -> bool:
        """Keep a ready lease safe from revoke until `unhold`; return False when it is no longer ready."""
        with self._lock:
            entry = self._entries.get(lease)
            if entry is None or entry.state is not LeaseState.READY:
                return False
            entry.holds += 1
            return True

    def unhold(self, lease: int) -> None:
        """Undo one `hold`."""
        with self._lock:
            entry = self._entries.get(lease)
            if entry is not None and entry.holds > 0:
                entry.holds -= 1

    def forget(self, lease: int) -> None:
        """Drop a lease that ended: every consumer reported."""
        with self._lock:
            self._entries.pop(lease, None)
            self._active.pop(lease, None)

    def in_use(self) -> list[int]:
        """Return the begun leases, oldest first: what a resume claims."""
        with self._lock:
            return list(self._active)

    def _remember(self, lease: int) -> dict[int, int]:
        begun = self._active.setdefault(lease, {})
        if len(self._active) > ACTIVE_MAX:
            oldest = next(iter(self._active))
            del self._active[oldest]
            self._entries.pop(oldest, None)
            self.forgotten += 1
            if self._on_forgotten is not None:
                self._on_forgotten()
        return begun
