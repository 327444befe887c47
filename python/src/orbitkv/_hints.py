"""Hints that a client has given and whose requests it has not asked for, at most `TICKETS_MAX`.

A ticket is the client's own note: the Manager says nothing more about a hint than its answer. It goes when the query of
its request comes, when the hint is cancelled or refused, and `STALE_SECONDS` later with the next hint; each time the
Manager is told, unless it is the one that refused. The table is the client's: its methods run under locks of the client
or on the thread that reads, and nothing here waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from orbitkv._reply import Message
from orbitkv._wire import Hint, Warmed
from orbitkv.errors import ProtocolError

TICKETS_MAX = 16
STALE_SECONDS = 5.0


class Request(NamedTuple):
    """What a hint and the query that follows it have in common."""

    instance: str
    name: str


class Hints:
    """Tickets by request, and the requests whose query is open."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last = 0
        self._tickets: dict[Request, tuple[int, float]] = {}  # the oldest first
        self._asked: dict[int, Request] = {}  # by the operation of a query that is not final

    def stale(self) -> list[int]:
        """Take the tickets off that nobody asked for in time, and return them."""
        with self._lock:
            since = self._clock() - STALE_SECONDS
            old = [request for request, (_, at) in self._tickets.items() if at <= since]
            return [self._tickets.pop(request)[0] for request in old]

    def take(self, request: Request) -> int | None:
        """Return a new ticket, or None while the request has one, is asked for, or no more may be pending."""
        with self._lock:
            if request in self._tickets or request in self._asked.values() or len(self._tickets) >= TICKETS_MAX:
                return None
            self._last += 1
            self._tickets[request] = (self._last, self._clock())
            return self._last

    def drop(self, request: Request, ticket: int | None = None) -> int | None:
        """Take a request's ticket off, if it is this one (None: whichever), and return it."""
        with self._lock:
            pending = self._tickets.get(request)
            if pending is None or (ticket is not None and pending[0] != ticket):
                return None
            del self._tickets[request]
            return pending[0]

    def asked(self, operation: int, request: Request) -> None:
        """Note that a query of a request begins."""
        with self._lock:
            self._asked[operation] = request

    def answered(self, operation: int) -> None:
        """Forget a query that is final."""
        with self._lock:
            self._asked.pop(operation, None)


def taken(parts: Sequence[Message]) -> bool:
    """Return whether the answer of a hint says that it was taken. ProtocolError when it is another answer."""
    head = parts[0]
    if not isinstance(head, Warmed):
        raise ProtocolError(f"the Manager answered warm with {type(head).__name__.lower()}")
    return head.outcome in (Hint.ACCEPTED, Hint.COMPLETE)
