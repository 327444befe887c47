"""The scheduler side's session: a client, the instance's namespace and the epoch that the engine is in."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from orbitkv.adapter.logs import LOGGER
from orbitkv.adapter.plans import SlicePlace
from orbitkv.adapter.settings import Settings
from orbitkv.client import ALL_RANKS, CacheManagerClient, Namespace, Role, Status
from orbitkv.errors import CallTimeout, ChannelFull, LeaseLost, OrbitKVError, Refused

# Faults and refusals of one call that say nothing about the session.
LOCAL_FAULTS = (LeaseLost, ChannelFull, CallTimeout)
LOCAL_REFUSALS = frozenset({Status.BUSY, Status.STALE})

log = logging.getLogger(LOGGER)


class Epoch:
    """The epoch of the instance's namespace: 0 until a reset, then 64 random bits, since two counters could meet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._value = 0

    @property
    def value(self) -> int:
        """Return the current epoch."""
        with self._lock:
            return self._value

    def move(self, value: int) -> None:
        """Enter another epoch."""
        with self._lock:
            self._value = value


class SchedulerSession:
    """One session of the scheduler side. The link's thread advances it, the scheduler's thread uses it."""

    def __init__(
        self,
        client: CacheManagerClient,
        instance: str,
        epoch: Epoch,
        lost: Callable[[], None],
        rank: int = ALL_RANKS,
    ) -> None:
        self.client = client
        self.instance = instance
        self._rank = rank
        self._epoch = epoch
        self._lost = lost
        self._namespace: Namespace | None = None
        self._broken = False
        self._lock = threading.Lock()  # decides between `own` and a take-over by a later session
        self._left = False
        self.reservations: set[int] = set()  # those that workers write into; the scheduler's thread changes it

    @property
    def incarnation(self) -> bytes:
        """Return the life of the Manager that this session is with."""
        return bytes(self.client.incarnation)

    @property
    def alive(self) -> bool:
        """Return whether the session can still be used."""
        return self.client.alive and not self._broken

    @property
    def registered(self) -> bool:
        """Return whether every rank attached and the namespace is that of the current epoch."""
        namespace = self._namespace
        return namespace is not None and namespace.epoch == self._epoch.value

    @property
    def namespace(self) -> Namespace:
        """Return the namespace; only a registered session has one."""
        if self._namespace is None:
            raise RuntimeError("the instance is not registered yet")
        return self._namespace

    @property
    def slices(self) -> tuple[SlicePlace, ...]:
        """Return where each storage rank's slice lies."""
        return tuple(SlicePlace(s.rank, s.part, s.offset, s.bytes) for s in self.namespace.slices)

    @property
    def parts(self) -> int:
        """Return how many parts a page has."""
        return len(self.namespace.part_bytes)

    @property
    def reservations_max(self) -> int:
        """Return how many reservations may be open: half of the Manager's table, the rest is for queries."""
        return max(1, self.client.limits.session_operations_max // 2)

    @classmethod
    def connect(
        cls,
        settings: Settings,
        instance: str,
        epoch: Epoch,
        lost: Callable[[], None],
        previous: SchedulerSession | None,
        on_bound: Callable[[str], None] | None = None,
        rank: int = ALL_RANKS,
    ) -> SchedulerSession:
        """Open a session. ManagerUnavailable, Refused and ChannelError say why not.

        `on_bound` counts the bounds of the client that bite, by name. `rank` is the one that it schedules for, where
        the ranks schedule their instance together.
        """
        client = CacheManagerClient(
            settings.socket,
            role=Role.SCHEDULER,
            name=f"scheduler of {instance}" + ("" if rank == ALL_RANKS else f", rank {rank}"),
            timeout_ms=settings.timeout_ms,
            on_bound=on_bound,
        )
        session = cls(client, instance, epoch, lost, rank)
        if previous is not None and previous.incarnation == session.incarnation:
            try:
                session.take_over(previous)
            except OrbitKVError:
                session.close()
                raise
        return session

    def advance(self) -> bool:
        """Register, and move the namespace to the engine's epoch. Not ready is no fault: a rank is still attaching."""
        if self.registered:
            return True
        epoch = self._epoch.value
        try:
            namespace = self._namespace or self.client.register(self.instance, self._rank)
            if namespace.epoch != epoch:
                namespace = self.client.new_epoch(self.instance, epoch, self._rank)
        except Refused as refusal:
            if refusal.status in (Status.NOT_READY, Status.UNKNOWN):
                return False
            raise
        self._namespace = namespace
        log.info(
            "instance %s: namespace %d, epoch %x, %d bytes a page",
            self.instance,
            namespace.handle,
            epoch,
            namespace.page_bytes,
        )
        return self.registered

    def own(self, reservation: int) -> bool:
        """Note a reservation that workers are about to write into.

        False: a later session has taken over without it, so that the Manager may give its extents to others.
        """
        with self._lock:
            if not self._left:
                self.reservations.add(reservation)
            return not self._left

    def leave(self) -> set[int]:
        """Return what workers write into, for a later session to claim; nothing is owned here from now on."""
        with self._lock:
            self._left = True
            return self.reservations

    def take_over(self, previous: SchedulerSession) -> None:
        """Claim what an earlier session with the same Manager still uses; the rest of that one is closed."""
        reservations = previous.leave()
        try:
            self.client.take_over(previous.client, sorted(reservations))
        except Refused as refusal:
            log.info("the earlier session cannot be resumed: %s", refusal)
            return
        self.reservations = reservations

    def fail(self, fault: OrbitKVError) -> None:
        """Take note of a fault on the scheduler's thread: the pages in question are recomputed (I10)."""
        if isinstance(fault, LOCAL_FAULTS) or (isinstance(fault, Refused) and fault.status in LOCAL_REFUSALS):
            log.debug("recomputing: %s", fault)
            return
        if not self._broken:
            log.warning("the Cache Manager's channel failed, its hits are recomputed until it is back: %s", fault)
        self._broken = True
        self._lost()

    def detach(self) -> None:
        """Say that nothing schedules the instance any more. OrbitKVError when it cannot be said."""
        if self._namespace is not None:
            self.client.detach(self.instance)

    def close(self) -> None:
        """Close the channel."""
        self.client.close()
