"""Reserves: extents to publish pages into, as the scheduler side holds them.

A reserve whose answer comes late is taken with `refresh`, or dropped: what a dropped one was granted, or is granted
afterwards by the thread that reads, is abandoned, so no slice stays reserved (a rank that drops a save must abandon).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from orbitkv import _wire
from orbitkv._pages import Locations, Namespace, expand
from orbitkv._query import Operations
from orbitkv._reply import Message, Reply
from orbitkv.errors import ChannelClosed, ChannelError, ProtocolError, Refused

GRANTED = int(_wire.Grant.GRANTED)


class Reserve:
    """One reserve. For one thread at a time, but its answer may arrive on any.

    Once `answered`: `grants` has one `Grant` number a key, `reservation` is zero when nothing was granted, and the
    granted pages are numbered from zero in key order (their ordinals).
    """

    def __init__(self, session: Operations, operation: int, namespace: Namespace, keys: int) -> None:
        self.operation = operation
        self.answered = False
        self.grants: npt.NDArray[np.uint8] = np.zeros(0, np.uint8)
        self.reservation = 0
        self.pages = 0
        self._session = session
        self._namespace = namespace
        self._keys = keys
        self._runs: list[_wire.Run] = []
        self._lock = threading.Lock()
        self._reply: Reply | None = None
        self._dropped = False
        self._head: Message | None = None  # the answer's first part, as soon as it arrived

    def submit(self, parts: Sequence[Message]) -> None:
        """Send the reserve; only the client calls this."""
        self._reply = self._session.channel.submit(parts, Reply(self._arrived))

    def refresh(self, wait_us: int | None = 0) -> bool:
        """Take an answer that came, waiting at most `wait_us` for it (None: no bound of its own); return `answered`.

        Refused when the Manager refused the reserve, ChannelClosed when the channel closed before the answer.
        """
        if self._reply is None:
            return self.answered
        if wait_us != 0:
            self._session.channel.wait(self._reply, None if wait_us is None else wait_us / 1e6)
        else:
            self._session.channel.drain()
        if self._reply.complete:
            self._take()
        return self.answered

    def granted(self) -> npt.NDArray[np.int64]:
        """Return the indices of the granted keys; entry i belongs to ordinal i."""
        return np.flatnonzero(self.grants == GRANTED)

    def locations(self, part: int = 0) -> Locations:
        """Return where one part of each granted page lies (arena << 48 | offset), by ordinal."""
        return expand(self._runs, part, self._namespace.part_bytes[part], self.pages)

    def drop(self) -> None:
        """Give up slices that no copy was told of: those that were granted, or are granted when the answer comes."""
        with self._lock:
            if self._dropped:
                return
            self._dropped = True
            head = self._head
            self._reply = None
        self._abandon(head)

    def _arrived(self, parts: list[Message]) -> None:
        """Abandon the grants of a dropped reserve; called by the thread that reads."""
        with self._lock:
            self._head = parts[0]
            dropped = self._dropped
        if dropped:
            self._abandon(parts[0])

    def _abandon(self, head: Message | None) -> None:
        if not isinstance(head, _wire.Reserved) or not head.reservation or not self._namespace.writes:
            return
        try:
            everything = [(0, head.pages)]
            self._session.channel.report(_wire.Abandoned(head.reservation, self._namespace.rank, everything))
        except ChannelClosed:
            return  # The Manager frees what no living session accounts for.

    def _take(self) -> None:
        """Adopt a complete answer."""
        reply, self._reply = self._reply, None
        if reply is None:
            return
        try:
            parts = [part for part in self._session.channel.value(reply) if isinstance(part, _wire.Reserved)]
            grants = [run for part in parts for run in part.grants]
            counts = np.array([count for _, count in grants], np.int64)
            if int(counts.sum()) != self._keys or parts[0].operation != self.operation:
                raise ProtocolError(
                    f"the answer of reserve {self.operation} covers {counts.sum()} of {self._keys} keys"
                )
        except (Refused, ChannelError):
            self._session.forget(self.operation)
            raise
        self.grants = np.repeat(np.array([grant for grant, _ in grants], np.uint8), counts)
        self._runs = [run for part in parts for run in part.runs]
        self.pages, self.reservation = parts[0].pages, parts[0].reservation
        self.answered = True
        self._session.forget(self.operation)
