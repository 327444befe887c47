"""Queries and their leases, as the caller holds them.

A query is one operation. Its answer may come late: the thread that reads enters the lease into the table at once, so
that a revoke finds it, and the caller takes the answer with `refresh`. A poll is sent when a notice came, or 50 ms
after the last answer in case the notice was lost: the polled state is the truth. `stop` ends the wait of one whose
pages are still on their way from a slower tier.

Lock order: a query's lock, then the lease table's, then the channel's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

from orbitkv import _wire
from orbitkv._channel import Channel
from orbitkv._leases import LeaseState, LeaseTable
from orbitkv._pages import Locations, Namespace, expand
from orbitkv._reply import Message, Reply
from orbitkv.errors import ChannelClosed, ChannelError, ProtocolError, Refused

POLL_SECONDS = 0.05  # the longest that a lost notice delays an answer
REVISION = 1


class State(Enum):
    """State of a query. Those from READY on are final."""

    UNANSWERED = "unanswered"  # no answer within the wait: take it later with refresh
    WAITING = "waiting"  # no room in a budget yet
    PREPARING = "preparing"  # being read from a slower tier
    READY = "ready"  # the lease covers the pages found; no lease when nothing was found
    BUSY = "busy"  # not admitted: an operation table of the Manager is full
    STALE = "stale"  # replaced or retired
    YIELDED = "yielded"  # revoked before it was begun
    CANCELLED = "cancelled"  # given up by this client

    @property
    def final(self) -> bool:
        """Return whether the state can no longer change."""
        return self not in (State.UNANSWERED, State.WAITING, State.PREPARING)


class Estimate(NamedTuple):
    """When a prefix that is being read will be there: seconds from the answer that said so, and pages that it lacks.

    Zero seconds are "not known".
    """

    seconds: float
    missing: int


class Operations(NamedTuple):
    """What queries and reserves share of their session."""

    channel: Channel
    leases: LeaseTable
    forget: Callable[[int], None]  # an operation that no notice can change any more


class Lease:
    """Strong references to the first `pages` pages of a query, until begun copies end or the lease is given back."""

    def __init__(self, session: Operations, lease: int, pages: int, runs: Sequence[_wire.Run], ns: Namespace) -> None:
        self._session = session
        self._runs = runs
        self._namespace = ns
        self.id = lease
        self.pages = pages

    @property
    def alive(self) -> bool:
        """Return whether it can be begun or has been."""
        return self._session.leases.state(self.id) is not None

    @property
    def begun(self) -> bool:
        """Return whether copies may run under it."""
        return self._session.leases.state(self.id) is LeaseState.ACTIVE

    def locations(self, part: int = 0) -> Locations:
        """Return where one part of each page lies (arena << 48 | offset), in prefix order."""
        return expand(self._runs, part, self._namespace.part_bytes[part], self.pages)

    def begin(self, pages: int, rank: int | None = None, *, closed_ok: bool = False) -> None:
        """Promise copies of the first `pages` pages by a consumer (None: by whom the session schedules for).

        The rest is released for it. The frame is written when this returns. LeaseLost, ChannelFull or ChannelClosed
        mean that nothing may be copied.

        With `closed_ok` only LeaseLost does: the copies may run although the Manager could not be told, because it
        keeps an unbegun lease while the session's process lives, and `CacheManagerClient.take_over` says the begin
        again. That is for an engine that cannot take back a promise.
        """
        if not 0 < pages <= self.pages:
            raise ProtocolError(f"a begin of {pages} pages does not fit lease {self.id:#x} of {self.pages}")
        who = self._namespace.rank if rank is None else rank
        message = _wire.Begin(self.id, who, pages)
        send = self._report if closed_ok else self._session.channel.send
        self._session.leases.begin(self.id, who, pages, lambda: send(message))

    def _report(self, message: Message) -> None:
        try:
            self._session.channel.report(message)
        except ChannelClosed:
            return  # Whoever takes over says it again.

    def release(self, rank: int | None = None) -> None:
        """Give an unbegun lease back; does nothing when it was begun, revoked or given back before."""
        message = _wire.Release(self.id, self._namespace.rank if rank is None else rank)
        try:
            self._session.leases.release(self.id, lambda: self._session.channel.report(message))
        except ChannelClosed:
            self._session.leases.forget(self.id)  # The Manager closes the session's unbegun leases itself.

    def hold(self) -> bool:
        """Keep it safe from revoke until `unhold`, which ends an engine's pass; False when it is lost already."""
        return self._session.leases.hold(self.id)

    def unhold(self) -> None:
        """Undo one `hold`."""
        self._session.leases.unhold(self.id)

    def ended(self) -> None:
        """Say that every consumer reported, so that a resume does not claim it."""
        self._session.leases.forget(self.id)


class Query:
    """One query. For one thread at a time, but its answer may arrive on any."""

    def __init__(self, session: Operations, operation: int, namespace: Namespace) -> None:
        self.operation = operation
        self.revision = REVISION
        self.state = State.UNANSWERED
        self.pages = 0
        self.cut = False
        self.not_mapped = 0
        self.estimate = Estimate(0.0, 0)
        self.lease: Lease | None = None
        self._session = session
        self._namespace = namespace
        self._lock = threading.Lock()
        self._reply: Reply | None = None
        self._cancelled = False
        self._stopped = False
        self._leased = 0  # the lease of an answer that arrived, taken or not
        self._asked_at = time.monotonic()
        self.notice = Reply()

    def submit(self, parts: Sequence[Message]) -> None:
        """Send the query; only the client calls this."""
        self._reply = self._session.channel.submit(parts, Reply(self._arrived))

    @property
    def noticed(self) -> bool:
        """Return whether a notice came since the last answer: a poll that is sent now is answered with news."""
        if self._reply is None:
            self._session.channel.drain()
        return self._reply is None and self.notice.complete

    def refresh(self, wait_us: int | None = 0) -> State:
        """Take an answer that came, poll when it is time to, wait at most `wait_us` for it, and return the state.

        None waits without a bound of its own. Refused when the Manager refused the query, ChannelClosed when the
        channel closed before the answer.
        """
        if self.state.final:
            return self.state
        if self._reply is None:
            self._session.channel.drain()
            if not self.notice.complete and time.monotonic() - self._asked_at < POLL_SECONDS:
                return self.state
            self.notice = Reply()
            self._asked_at = time.monotonic()
            poll = _wire.Poll(self.operation, self.revision)
            self._reply = self._session.channel.submit([poll], Reply(self._arrived))
        if wait_us != 0:
            self._session.channel.wait(self._reply, None if wait_us is None else wait_us / 1e6)
        else:
            self._session.channel.drain()
        if self._reply.complete:
            self._take()
        return self.state

    def stop(self, wait_us: int | None = 0) -> State:
        """Take what is there: no further page is read, and the answer is the leading pages that are complete.

        The Manager is told once, by the first call that finds the query waiting or being read; its answer is taken, and
        waited for, like that of `refresh`, whose errors are this method's, too.
        """
        if self.state in (State.WAITING, State.PREPARING) and not self._stopped:
            stop = _wire.Stop(self.operation, self.revision)
            # The answer to a poll that is under way says less; a lease in it is that of this answer, too.
            self._reply = self._session.channel.submit([stop], Reply(self._arrived))
            self._stopped = True
        return self.refresh(wait_us)

    def wait(self, timeout: float) -> State:
        """Wait until the state is final or `timeout` seconds passed; return the state. Errors as for refresh."""
        deadline = time.monotonic() + timeout
        while not self.refresh(0).final:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            awaited = self._reply if self._reply is not None else self.notice
            self._session.channel.wait(awaited, min(left, POLL_SECONDS))
        return self.state

    def cancel(self) -> None:
        """Give the query up: an answer that comes later is dropped, and a lease that was not begun is given back."""
        with self._lock:
            self._cancelled = True
            lease = self._leased
        message = _wire.Cancel(self.operation, self.revision)
        try:
            if lease:
                self._session.leases.release(lease, lambda: self._session.channel.report(message))
            elif not self.state.final:
                self._session.channel.report(message)
        except ChannelClosed:
            self._session.leases.forget(lease)
        self._session.forget(self.operation)
        if not self.state.final:
            self.state = State.CANCELLED

    def _arrived(self, parts: list[Message]) -> None:
        """Enter the lease of an answer; called by the thread that reads."""
        head = parts[0]
        with self._lock:
            if isinstance(head, _wire.Result) and head.lease and not self._cancelled:
                self._leased = head.lease
                self._session.leases.add(head.lease)

    def _take(self) -> None:
        """Adopt a complete answer."""
        reply, self._reply = self._reply, None
        if reply is None:
            return
        try:
            parts = [part for part in self._session.channel.value(reply) if isinstance(part, _wire.Result)]
            head = parts[0]
            if head.operation != self.operation:
                raise ProtocolError(f"the answer of operation {head.operation} came for {self.operation}")
        except (Refused, ChannelError):
            self.state = State.CANCELLED
            self._session.forget(self.operation)
            raise
        self._asked_at = time.monotonic()
        self.state = State[head.outcome.name]
        self.pages, self.cut, self.not_mapped = head.pages, head.cut, head.not_mapped
        self.estimate = Estimate(head.expected_us / 1e6, head.missing)
        if head.lease:
            runs = [run for part in parts for run in part.runs]
            self.lease = Lease(self._session, head.lease, head.pages, runs, self._namespace)
        if self.state.final:
            self._session.forget(self.operation)
