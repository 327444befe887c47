"""The client of the Cache Manager: one session of one process, usable without any engine.

    with CacheManagerClient(role=Role.WORKER) as client:
        client.attach("engine-1", 0, 1, slice_bytes=1 << 20, facts={"model": "..."})
        client.wait_arenas()

Threads: every method may be called from any thread. Whoever waits for an answer reads the socket itself. A second
thread, started with the first arena or notice, maps arenas, calls `on_arena` and says `mapped`, and calls `on_notice`;
neither ever holds up an answer. A client belongs to the process that made it and must not be used after a fork.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import NamedTuple, TypeVar

from orbitkv import __version__, _wire
from orbitkv._arenas import Arena, ArenaTable
from orbitkv._arguments import check_timeout, expect, writer_of
from orbitkv._channel import Channel
from orbitkv._connect import connect
from orbitkv._hints import Hints, Request, taken
from orbitkv._leases import LeaseState, LeaseTable
from orbitkv._pages import Namespace, Range, Slice, key_parts, namespace_of, ranges_of
from orbitkv._pushes import Pushes
from orbitkv._query import REVISION, Estimate, Lease, Operations, Query, State
from orbitkv._reply import Message, Reply
from orbitkv._reserve import Reserve
from orbitkv._wire import ALL_RANKS, KEY_BYTES, Grant, Hint, Notice, Outcome, Role, Status, Topic, Writer
from orbitkv.errors import (
    CallTimeout,
    ChannelClosed,
    ChannelError,
    ConfigurationError,
    ManagerUnavailable,
    ProtocolError,
    Refused,
)

__all__ = [
    "ALL_RANKS",
    "KEY_BYTES",
    "Arena",
    "CacheManagerClient",
    "Estimate",
    "Grant",
    "Lease",
    "LeaseState",
    "Limits",
    "Namespace",
    "Notice",
    "Outcome",
    "Query",
    "Range",
    "Reserve",
    "Role",
    "Slice",
    "State",
    "Status",
    "Topic",
    "Writer",
    "ranges_of",
]

M = TypeVar("M")
TIMEOUT_MS = 5000
CLOSED_SECONDS = 0.1  # how often a wait for arenas looks whether the channel closed
TOKENS_MAX = 8  # tokens that a resume tries; past it the oldest attempt is forgotten


class Limits(NamedTuple):
    """What the Manager said in its welcome."""

    frame_bytes_max: int
    operation_keys_max: int
    session_operations_max: int
    pool_bytes: int


class CacheManagerClient:
    """One session with the Cache Manager. Connects at once; a context manager that closes at its end.

    `socket` is a path, else see `orbitkv._connect`. `timeout_ms` bounds every call that has no bound of its own.
    `on_arena(arena)` runs before the arena is said to be mapped: an error of it means that the arena is unusable here.
    `on_notice(notice)` is called for pushes about reservations and instances; an error of it is logged. An exception of
    either that `orbitkv._faults` does not list closes the channel.
    `on_bound(name)` is called each time that a bound bites, under locks of the client: it may count and no more. The
    names are `messages_refused` (the channel's queue was full), `leases_forgotten` (too many begun ones) and
    `arenas_refused` (this process cannot map or register one, mostly for a limit of its memory).

    ManagerUnavailable when nobody answers, Refused when the Manager refuses the session (ABI, user, limits),
    ConfigurationError here and in every method for an argument of a wrong kind.
    """

    def __init__(
        self,
        socket: str | None = None,
        *,
        role: Role = Role.TOOL,
        name: str = "",
        timeout_ms: int = TIMEOUT_MS,
        on_arena: Callable[[Arena], None] | None = None,
        on_notice: Callable[[Notice], None] | None = None,
        on_bound: Callable[[str], None] | None = None,
    ) -> None:
        check_timeout(timeout_ms)
        count = on_bound or (lambda _: None)
        self.timeout_ms = timeout_ms
        self._arenas = ArenaTable()
        self._leases = LeaseTable(lambda: count("leases_forgotten"))
        self._queries: dict[int, Query] = {}
        self._hints = Hints()
        self._last = {_wire.Query: 0, _wire.Reserve: 0}  # the number of the last operation of each kind
        self._submitting = threading.Lock()
        connection, self.path = connect(socket)
        self._pushes = Pushes(self._arenas, on_arena, on_notice, lambda: count("arenas_refused"))
        try:
            self._channel = Channel(connection, self._pushed, lambda: count("messages_refused"))
        except (OSError, RuntimeError) as fault:  # No descriptor or thread is left.
            connection.close()
            raise ManagerUnavailable([(self.path, str(fault))]) from fault
        self._pushes.answer = self._channel.report
        self._pushes.end = self._channel.close
        self._session = Operations(self._channel, self._leases, self._forget)
        welcome = self._hello(role, name or f"orbitkv-python/{__version__} pid {os.getpid()}")
        self.incarnation = welcome.incarnation
        self.token = welcome.token
        self._tokens = [welcome.token]  # and those of clients that tried to resume this one and heard no answer
        self.limits = Limits(*welcome[3:])

    def __enter__(self) -> CacheManagerClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def alive(self) -> bool:
        """Return whether the channel is open. A closed one stays closed: make a new client."""
        return self._channel.closed is None

    @property
    def closed_because(self) -> str | None:
        """Return why the channel closed, or None while it is open."""
        return self._channel.closed

    @property
    def arenas(self) -> Mapping[int, Arena]:
        """Return the arenas mapped so far, by id."""
        return self._arenas

    @property
    def arenas_unusable_because(self) -> str | None:
        """Return why arenas that came cannot be used here, None when one of them can or none came."""
        return self._arenas.unusable_because

    @property
    def leases_in_use(self) -> list[int]:
        """Return the leases that were begun through this client and have not ended, for a resume."""
        return self._leases.in_use()

    def stop_pushes(self) -> None:
        """Map no further arenas and pass on no further notices; calls go on.

        An owner whose `on_arena` takes long says this first, then ends what runs in it, then closes.
        """
        self._pushes.stop()

    def close(self) -> None:
        """Close the session and unmap the arenas; memory that a copy still views stays until the copy ends."""
        self._channel.close()
        self._pushes.close()
        self._arenas.close()

    # Membership.

    def attach(
        self,
        instance: str,
        rank: int,
        world: int,
        *,
        slice_bytes: int,
        storage: bool = True,
        numa: int = -1,
        writer: Writer | str = Writer.HOST,
        backend: str = "host",
        facts: Mapping[str, str],
        epoch: int = 0,
    ) -> int:
        """Join an instance as one rank and return how many ranks are attached. Refused names a fact that differs.

        `slice_bytes` are the unpadded bytes of this rank's slice of one page. Arenas follow; see `wait_arenas`.
        """
        kind = writer_of(writer)
        expect(backend, str, "backend", "the name of a transfer backend, such as 'host'")
        size = slice_bytes if storage else 0
        message = _wire.Attach(instance, rank, world, storage, size, numa, kind, backend, epoch, facts)
        return self._call(message, _wire.Done).value

    def detach(self, instance: str) -> None:
        """Leave an instance; no copy of this process may run."""
        self._call(_wire.Detach(instance), _wire.Done)

    def wait_arenas(self, minimum: int = 1, timeout: float | None = None) -> int:
        """Wait until `minimum` arenas are mapped or `timeout` seconds passed; return how many are.

        The Manager then knows of them and may grant pages in them. ChannelError when it cannot be asked. A closed
        channel ends the wait: it brings none any more.
        """
        deadline = time.monotonic() + (self.timeout_ms / 1e3 if timeout is None else timeout)
        mapped = self._arenas.wait(minimum, 0.0)
        while mapped < minimum and self.alive and (left := deadline - time.monotonic()) > 0:
            mapped = self._arenas.wait(minimum, min(left, CLOSED_SECONDS))
        if mapped:
            self.ping()  # The answer to `mapped`, which has none of its own.
        return mapped

    def ping(self) -> None:
        """Return once the Manager has handled every frame that this client sent before."""
        self._call(_wire.Ping(0), _wire.Pong)

    def register(self, instance: str, rank: int = ALL_RANKS) -> Namespace:
        """Become the scheduler of an instance, or of one rank where each rank of it has its own.

        A rank's scheduler must run in the process that is attached as that rank. Refused with status NOT_READY until
        every rank attached.
        """
        return namespace_of(self._call(_wire.Register(instance, rank), _wire.Registered), rank)

    def new_epoch(self, instance: str, epoch: int, rank: int = ALL_RANKS) -> Namespace:
        """Replace the instance's namespace by one of another epoch (64 random bits); old pages are out of reach.

        `rank` is the one that the instance was registered with. Where each rank has a scheduler, every one calls this
        with the same epoch, and the first call moves the instance.
        """
        return namespace_of(self._call(_wire.Epoch(instance, epoch), _wire.Registered), rank)

    def open_private(self, slice_bytes: int) -> Namespace:
        """Open this session's own namespace of one slice, for the golden round trip."""
        return namespace_of(self._call(_wire.Private(True, slice_bytes), _wire.Registered))

    def close_private(self) -> None:
        """Drop this session's own namespace and its pages."""
        self._call(_wire.Private(False, 0), _wire.Done)

    def resume(
        self, token: bytes, leases: Sequence[int] = (), reservations: Sequence[int] = ()
    ) -> tuple[list[int], list[int]]:
        """Take over from an older session of this process what it still uses; the rest of that session is closed.

        Returns the leases and reservations taken over. Refused when the Manager does not know the token.
        """
        answer = self._call(_wire.Resume(token, tuple(leases), tuple(reservations)), _wire.Resumed)
        for lease in answer.leases:
            self._leases.adopt(lease)
        return list(answer.leases), list(answer.reservations)

    def resume_after(
        self, previous: CacheManagerClient, leases: Sequence[int] = (), reservations: Sequence[int] = ()
    ) -> tuple[list[int], list[int]]:
        """Resume an older client's session, or what a client holds whose resume of it was not answered."""
        self._check_previous(previous)
        try:
            for token in reversed(previous._tokens[1:]):
                try:
                    return self.resume(token, leases, reservations)
                except Refused as refusal:
                    if refusal.status != Status.UNKNOWN:
                        raise
            return self.resume(previous.token, leases, reservations)
        except ChannelError:
            # The Manager may have handed all over to this client, so whoever comes next asks for its token first.
            previous._tokens[1:] = [*previous._tokens[1:], self.token][1 - TOKENS_MAX :]
            raise

    def take_over(self, previous: CacheManagerClient, reservations: Sequence[int] = ()) -> tuple[list[int], list[int]]:
        """Close an older client of this process and resume its session with the leases that were begun through it.

        Each begin is said again, since the older connection may have lost it. Returns and raises like `resume`.
        """
        self._check_previous(previous)
        # Closed first: a begin either precedes what is claimed here, or fails and nothing is copied under it.
        previous._channel.close("a later session takes over")
        leases, taken = self.resume_after(previous, previous.leases_in_use, reservations)
        for lease in leases:
            for rank, pages in previous._leases.begun(lease).items():
                again = partial(self._channel.report, _wire.Begin(lease, rank, pages))
                self._leases.begin(lease, rank, pages, again)
        return leases, taken

    # Restoring.

    def query(
        self,
        namespace: Namespace,
        keys: bytes,
        *,
        instance: str,
        request: str = "",
        group: int = 0,
        wait_us: int | None = 1000,
        operation: int | None = None,
    ) -> Query:
        """Ask for the longest prefix of `keys` (32 bytes each) that is in memory, and wait at most `wait_us` for it.

        A query without an answer by then is UNANSWERED: `refresh` takes the answer later. With None the client's
        own timeout bounds the wait and CallTimeout ends it.

        `operation` is given where each rank has a scheduler: one number is one operation on all of them. It is greater
        than that of every earlier query of this client, and no reserve has it. A client draws its numbers or is given
        them.
        """
        self._check_keys(keys)
        parts = key_parts(keys)
        with self._submitting:
            query = Query(self._session, self._number(_wire.Query, operation), namespace)
            self._queries[query.operation] = query
            self._hints.asked(query.operation, Request(instance, request))
            whole = _wire.Query(
                query.operation, REVISION, 0, len(parts), namespace.handle, group, instance, request, parts[0]
            )
            try:
                self._retire(Request(instance, request))
                query.submit([whole._replace(part=i, keys=part) for i, part in enumerate(parts)])
            except ChannelError:
                self._forget(query.operation)
                raise
        if (
            query.refresh(self.timeout_ms * 1000 if wait_us is None else wait_us) is State.UNANSWERED
            and wait_us is None
        ):
            query.cancel()
            raise CallTimeout(f"a query of {len(keys) // KEY_BYTES} keys was not answered in {self.timeout_ms} ms")
        return query

    def warm_prefix(
        self, namespace: Namespace, keys: bytes, *, instance: str, request: str, wait_us: int | None = 1000
    ) -> bool:
        """Hint that `request` waits in the engine's queue and will ask for these keys (32 bytes each) of group 0.

        Pages that only a slower tier has are then read into memory, as far as no query is in the way. A hint promises
        nothing: ask with `query` as if it had not been given. That ends the hint, `cancel_warm` does, and 5 s do.

        Returns whether the Manager took it, which includes that there was nothing to read; False without asking when
        there are no keys, the request has a hint or an open query, or 16 hints are pending. Waits at most `wait_us`
        for the answer (None: the client's own timeout, whose end is CallTimeout): a hint whose answer has not come
        counts as taken. Refused, ChannelFull and ChannelClosed as for `query`; the engine serves the request all the
        same.
        """
        if not keys:
            return False
        self._check_keys(keys)
        expect(request, str, "request", "the engine's id of the request")
        if not request:
            raise ConfigurationError("request must be the engine's id of the request, got an empty text")
        who = Request(instance, request)
        parts = key_parts(keys)
        with self._submitting:
            for stale in self._hints.stale():
                self._channel.send(_wire.CancelWarm(stale))
            ticket = self._hints.take(who)
            if ticket is None:
                return False
            whole = _wire.Warm(ticket, 0, len(parts), namespace.handle, instance, request, parts[0])
            frames = [whole._replace(part=i, keys=part) for i, part in enumerate(parts)]
            try:
                reply = self._channel.submit(frames, Reply(partial(self._warmed, who, ticket)))
            except ChannelError:
                self._hints.drop(who, ticket)
                raise
        timeout_us = self.timeout_ms * 1000 if wait_us is None else wait_us
        if not self._channel.wait(reply, timeout_us / 1e6):
            if wait_us is None:
                self.cancel_warm(instance, request)
                raise CallTimeout(f"a hint of {len(keys) // KEY_BYTES} keys was not answered in {self.timeout_ms} ms")
            return True
        return taken(self._channel.value(reply))

    def cancel_warm(self, instance: str, request: str) -> None:
        """End the hint of a request that its engine will not serve; does nothing when it has none.

        Reads that have begun go on. ChannelClosed and ChannelFull mean that the Manager could not be told; it forgets
        the hint by itself.
        """
        self._retire(Request(instance, request))

    def restored(self, lease: int, rank: int, ok: bool, bytes_: int, ranges: Sequence[Range]) -> None:
        """Report the terminal result of a consumer's copy of pages of a begun lease; bytes are those that arrived.

        ChannelClosed when it cannot be told: the owner resumes and tells it on the new session.
        """
        pages = sum(count for _, count in ranges)
        pieces = range_parts(ranges)
        shares = [bytes_ * sum(count for _, count in piece) // pages for piece in pieces[:-1]]
        for piece, share in zip(pieces, [*shares, bytes_ - sum(shares)], strict=True):
            self._channel.report(_wire.Restored(lease, rank, ok, share, piece))

    # Publishing.

    def reserve(
        self,
        namespace: Namespace,
        keys: bytes,
        *,
        instance: str,
        group: int = 0,
        wait_us: int | None = 1000,
        operation: int | None = None,
    ) -> Reserve:
        """Ask for extents to publish the pages of `keys` into; waits, and takes an operation, like `query`."""
        self._check_keys(keys)
        parts = key_parts(keys)
        with self._submitting:
            reserve = Reserve(self._session, self._number(_wire.Reserve, operation), namespace, len(keys) // KEY_BYTES)
            whole = _wire.Reserve(
                reserve.operation, REVISION, 0, len(parts), namespace.handle, group, instance, parts[0]
            )
            reserve.submit([whole._replace(part=i, keys=part) for i, part in enumerate(parts)])
        if not reserve.refresh(self.timeout_ms * 1000 if wait_us is None else wait_us) and wait_us is None:
            reserve.drop()
            raise CallTimeout(f"a reserve of {len(keys) // KEY_BYTES} keys was not answered in {self.timeout_ms} ms")
        return reserve

    def committed(self, reservation: int, rank: int, ranges: Sequence[Range]) -> None:
        """Report that a rank's slices of these granted pages are complete. ChannelClosed when it cannot be told."""
        for piece in range_parts(ranges):
            self._channel.report(_wire.Committed(reservation, rank, piece))

    def abandoned(self, reservation: int, rank: int, ranges: Sequence[Range]) -> None:
        """Report that a rank's slices (ALL_RANKS: those never handed to a rank) will not be written."""
        for piece in range_parts(ranges):
            self._channel.report(_wire.Abandoned(reservation, rank, piece))

    # Inside.

    def _hello(self, role: Role, name: str) -> _wire.Welcome:
        try:
            return self._call(_wire.Hello(_wire.ABI, role, name), _wire.Welcome)
        except (Refused, ChannelError) as fault:
            self.close()
            if isinstance(fault, ChannelClosed) and self._channel.farewell is not None:
                raise self._channel.farewell from fault
            if isinstance(fault, ChannelClosed | CallTimeout):
                raise ManagerUnavailable([(self.path, str(fault))]) from fault
            raise

    def _call(self, message: Message, answer: type[M]) -> M:
        head = self._channel.call(message, self.timeout_ms / 1e3)[0]
        if not isinstance(head, answer):
            self._channel.close(f"the answer of {type(message).__name__} was a {type(head).__name__}")
            raise ProtocolError(
                f"the Manager answered {type(message).__name__.lower()} with {type(head).__name__.lower()}"
            )
        return head

    def _check_previous(self, previous: CacheManagerClient) -> None:
        expect(previous, CacheManagerClient, "previous", "the older client")
        if previous is self:
            raise ConfigurationError(
                "previous must be an older client, got the client itself: make a new one and let it take over"
            )

    def _check_keys(self, keys: bytes) -> None:
        expect(keys, bytes, "keys", f"bytes, {KEY_BYTES} for each key one behind the other")
        count, rest = divmod(len(keys), KEY_BYTES)
        if rest or not 0 < count <= self.limits.operation_keys_max:
            raise ProtocolError(
                f"an operation has 1 to {self.limits.operation_keys_max} keys of {KEY_BYTES} bytes, "
                f"got {len(keys)} bytes"
            )

    def _number(self, kind: type[_wire.Query | _wire.Reserve], given: int | None) -> int:
        """Return the number of the next operation; with `_submitting`, so that numbers are sent in their order."""
        number = max(self._last.values()) + 1 if given is None else given
        expect(number, int, "operation", "a whole number")
        if not self._last[kind] < number < 1 << 64:
            raise ConfigurationError(
                f"operation must be greater than {self._last[kind]}, that of this client's last "
                f"{kind.__name__.lower()}, and have at most 64 bits, got {number}"
            )
        self._last[kind] = number
        return number

    def _forget(self, operation: int) -> None:
        self._queries.pop(operation, None)
        self._hints.answered(operation)

    def _retire(self, request: Request) -> None:
        ticket = self._hints.drop(request)
        if ticket is not None:
            self._channel.send(_wire.CancelWarm(ticket))

    def _warmed(self, request: Request, ticket: int, parts: list[Message]) -> None:
        """Forget a hint that the Manager skipped or is done with; called by the thread that reads."""
        head = parts[0]
        if not isinstance(head, _wire.Warmed) or head.outcome is not Hint.ACCEPTED:
            self._hints.drop(request, ticket)

    def _pushed(self, message: Message, descriptor: int | None) -> None:
        """Handle what the Manager pushes; called by the thread that reads, so nothing here waits."""
        try:
            if isinstance(message, _wire.Revoke):
                lease = message.lease
                self._leases.revoke(lease, lambda yielded: self._channel.report(_wire.Revoked(lease, yielded)))
            elif isinstance(message, _wire.Ping):
                self._channel.report(_wire.Pong(message.nonce))
            elif isinstance(message, _wire.Arena) and descriptor is not None:
                self._pushes.arena(message, descriptor)
            elif isinstance(message, _wire.Notice):
                query = self._queries.get(message.id) if message.topic is Topic.QUERY else None
                if query is not None:
                    self._channel.complete(query.notice)
                self._pushes.notice(message)
            elif not isinstance(message, _wire.Pong):
                raise ProtocolError(f"the Manager pushed a {type(message).__name__.lower()}")
        except ChannelClosed:
            return  # Nobody is left to answer.


def range_parts(ranges: Sequence[Range]) -> list[Sequence[Range]]:
    """Return ranges cut into the parts that fit a frame."""
    size = _wire.FRAME_RANGES_MAX
    return [ranges[at : at + size] for at in range(0, len(ranges), size)]
