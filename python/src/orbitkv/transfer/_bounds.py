"""What bounds the plans that wait for a backend, in each direction."""

from __future__ import annotations

from collections.abc import Collection, Sized
from typing import Protocol

QUEUE_MAX = 1024  # plans that wait in one direction
QUEUE_BYTES_MAX = 64 << 30  # bytes of the plans that wait in one direction
YIELD_SECONDS = 0.05  # the longest that one batch or chunk of a publish steps aside for restores


class Waiting(Protocol):
    """What one call submitted: some plans, and the bytes of all of them."""

    bytes: int

    @property
    def parts(self) -> Sized:
        """Return the plans."""
        ...


def over_bound(queue: Collection[Waiting], new: Waiting, most: int) -> str:
    """Say what waits in a queue of at most `most` plans that has no room for more; empty when there is room."""
    plans, size = sum(len(each.parts) for each in queue), sum(each.bytes for each in queue)
    if plans + len(new.parts) <= most and size + new.bytes <= QUEUE_BYTES_MAX:
        return ""
    return f"{plans} plans with {size} bytes wait already, so this one is refused"
