"""What both directions of a device backend share: the device, the arenas, the events and the one fault.

`changed` guards the arenas, the fault, the closing and the queues of both directions, and whoever waits for any of them
waits on it. Calls of the driver are made outside of it. A group's own lock (see `_restores`) is taken alone.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from orbitkv._arenas import Arena
from orbitkv._faults import FAULTS
from orbitkv.errors import DeviceError, EngineFault, TransferError
from orbitkv.transfer._driver import Addresses, DeviceSite, Driver
from orbitkv.transfer._mover import Group, Mover
from orbitkv.transfer._pieces import checked_arena
from orbitkv.transfer._plan import LOCATION_ARENA_BIT, LOCATION_OFFSET_MASK, Blocks, CopyPlan
from orbitkv.transfer._registration import Registrations
from orbitkv.transfer._transfer import CopyTimes, Transfer
from orbitkv.transfer._verifier import Verifier

EVENTS_IDLE_MAX = 4096  # events that wait to be used again; more than these are destroyed

log = logging.getLogger("orbitkv.transfer")

Taken = TypeVar("Taken")
Done = Callable[[Transfer], None]
LayerHook = Callable[[Transfer, int], None]


class EventPool:
    """Events without timing, used again. Thread-safe. Whoever gives one back knows that nobody waits for it."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._lock = threading.Lock()
        self._idle: list[int] = []

    def take(self) -> int:
        """Return an event. DeviceError when the driver makes no more."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return self._driver.create_event()

    def give(self, events: Iterable[int]) -> None:
        """Take events back."""
        with self._lock:
            self._idle.extend(events)
            surplus = self._idle[EVENTS_IDLE_MAX:]
            del self._idle[EVENTS_IDLE_MAX:]
        self._destroy(surplus)

    def close(self) -> None:
        """Destroy the events that were given back."""
        with self._lock:
            idle, self._idle = self._idle, []
        self._destroy(idle)

    def _destroy(self, events: Iterable[int]) -> None:
        for event in events:
            with suppress(DeviceError):  # One that cannot be destroyed is the process's until it ends.
                self._driver.destroy_event(event)


@dataclass
class ArenaUse:
    """A registered arena: where its chunks begin, how many accepted plans use it, and whether it shall go."""

    arena: Arena
    borders: Addresses
    users: int = 0
    leaving: bool = False


class Part:
    """One accepted plan of a group."""

    def __init__(self, transfer: Transfer, on_done: Done) -> None:
        self.transfer = transfer
        self._on_done = on_done

    def end(self, ok: bool, times: CopyTimes | None = None, bad: Blocks | None = None) -> None:
        """Record the terminal result and report it at once; a report that cannot be sent is the reporter's to log."""
        self.transfer.finish(ok, times, bad)
        try:
            self._on_done(self.transfer)
        except FAULTS:
            log.exception("the end of a copy of %d pages could not be reported", self.transfer.plan.pages)


class Job:
    """What one call submitted in one direction, with what it holds until its copies have ended."""

    def __init__(self, parts: Sequence[Part], group: Group, arenas: Sequence[ArenaUse], begin: float) -> None:
        self.parts = parts
        self.group = group
        self.arenas = arenas
        self.begin = begin
        self.bytes = sum(part.transfer.plan.bytes for part in parts)
        self.fences: list[int] = []  # events that the engine's streams recorded when it was submitted
        self.prepared: Any = None
        self.checked: Any = None
        self.step = 0  # of a restore: the next that is handed over
        self.handed = False  # whether anything may have reached the device
        self.build_seconds = 0.0
        self.submit_seconds = 0.0
        self.copies = 0
        self.thread = ""

    def times(self, first: float) -> CopyTimes:
        """Return the times of a group that has just ended, the first of it at `first` on the monotonic clock."""
        return CopyTimes(
            build_seconds=self.build_seconds,
            submit_seconds=self.submit_seconds,
            copies=self.copies,
            pieces=self.group.pages * len(self.group.layout.layers),
            first_layer_seconds=first - self.begin,
            last_layer_seconds=time.monotonic() - self.begin,
            thread=self.thread,
        )


class Common:
    """See the module's text."""

    def __init__(self, site: DeviceSite, mover: Mover[Any], verifier: Verifier[Any] | None) -> None:
        self.site = site
        self.driver = site.driver
        self.mover = mover
        self.verifier = verifier
        self.changed = threading.Condition()
        self.events = EventPool(site.driver)
        self.registrations = Registrations(site.driver, site.serving)
        self.closing = False
        self.fault: str | None = None
        self._arenas: dict[int, ArenaUse] = {}
        self._flight: list[Job] = []  # begun, and their end is not known
        self._lost: list[Job] = []  # begun, and their end will never be known

    def register(self, arena: Arena) -> None:
        """Lock an arena and make it usable in plans. ArenaError when it cannot be locked."""
        self.registrations.register(arena)
        borders = np.concatenate((np.array([arena.address], np.uint64), self.registrations.borders(arena.id)))
        with self.changed:
            self._arenas[arena.id] = ArenaUse(arena, borders)

    def unregister(self, arena: int) -> None:
        """Refuse the arena in later plans, and let go of it once the last copy that uses it has ended."""
        with self.changed:
            use = self._arenas.pop(arena, None)
            if use is not None and use.users:
                use.leaving = True
                return
        self.registrations.unregister(arena)

    def forget_arenas(self) -> None:
        """Forget every arena: a view that stayed here would keep a dead Manager's memory mapped."""
        with self.changed:
            self._arenas.clear()

    def accept(self, transfers: Sequence[Transfer], on_done: Done, restore: bool, begin: float) -> Job:
        """Check plans against the arenas and return them as a job that holds those. TransferError when one is wrong."""
        plans = [transfer.plan for transfer in transfers]
        located = [locate(plan) for plan in plans]
        with self.changed:
            self.check_open()
            known = {number: use.arena for number, use in self._arenas.items()}
            used = sorted({number for place in located for number in place[2]})
            for (ids, offsets, numbers), plan in zip(located, plans, strict=True):
                for number in numbers:
                    checked_arena(number, offsets[ids == number], plan, known)
            arenas = [self._arenas[number] for number in used]
            for use in arenas:
                use.users += 1
        hosts = [
            addresses_of(ids, offsets, {use.arena.id: use.arena.address for use in arenas}) + plan.slice_offset
            for (ids, offsets, _), plan in zip(located, plans, strict=True)
        ]
        borders = np.sort(np.concatenate([use.borders for use in arenas]))
        blocks, places = np.concatenate([plan.blocks for plan in plans]), np.concatenate(hosts)
        group = Group(plans[0].layout, blocks, places.view(np.uint64), borders, restore)
        return Job([Part(transfer, on_done) for transfer in transfers], group, arenas, begin)

    def check_open(self) -> None:
        """Raise TransferError when nothing is accepted any more. The caller holds `changed`."""
        if self.fault is not None:
            raise TransferError(f"{self.fault}; nothing more is copied")
        if self.closing:
            raise TransferError(f"the {self.mover.name} backend is closed")

    def enter(self, job: Job, take: Callable[[], Taken]) -> Taken:
        """Fence a job and let `take` queue or begin it, holding `changed`; return what it returns.

        TransferError when nothing is accepted, or what `take` raises: nothing is held for the job then.
        """
        entered = False
        try:
            self.fence(job)
            with self.changed:
                self.check_open()
                taken = take()
                entered = True
                self.changed.notify_all()
        finally:
            if not entered:
                self.let_go(job)
        return taken

    def fence(self, job: Job) -> None:
        """Record on each of the engine's streams an event of the job's own. DeviceError when one cannot be."""
        self.driver.bind()
        for stream in self.site.fences():
            event = self.events.take()
            job.fences.append(event)
            self.driver.record(event, stream)

    def prepare(self, job: Job, stream: int) -> None:
        """Do what comes before a job's first copy: its plan, and the wait of the stream for its own fences.

        The stream waits right before the job's copies: an older job's, behind a newer fence, would wait for a forward
        that itself waits for the older job.
        """
        began = time.monotonic()
        job.thread = threading.current_thread().name
        job.prepared = self.mover.prepare(job.group)
        if self.verifier is not None:
            job.checked = self.verifier.prepare(job.group)
        job.build_seconds = time.monotonic() - began
        for event in job.fences:
            self.driver.wait(stream, event)

    def let_go(self, job: Job, events: Iterable[int] = ()) -> None:
        """Give back what a job holds: every copy of it has ended, or none was handed over."""
        # I3, I4: only here, so never while a copy may still run.
        self.events.give([*job.fences, *events])
        if job.prepared is not None:
            self.mover.release(job.prepared)
        if job.checked is not None and self.verifier is not None:
            self.verifier.release(job.checked)
        gone = []
        with self.changed:
            for use in job.arenas:
                use.users -= 1
                if use.leaving and use.users == 0:
                    gone.append(use.arena.id)
        for arena in gone:
            self.registrations.unregister(arena)

    def recorded(self, stream: int) -> int:
        """Return an event that stands for everything that the stream has. DeviceError when there is none."""
        event = self.events.take()
        try:
            self.driver.record(event, stream)
        except DeviceError:
            self.events.give([event])
            raise
        return event

    def begin(self, job: Job) -> None:
        """Enter a job that is about to be handed over. The caller holds `changed`."""
        self._flight.append(job)

    def settle(self, job: Job) -> bool:
        """Take a job out whose end is known; return whether it is still to be reported."""
        with self.changed:
            if job in self._lost:
                return False
            self._flight.remove(job)
            return True

    def lose(self, what: str, fault: DeviceError) -> None:
        """Record that the device faulted. The end of whatever was handed over and has no result stays unknown."""
        # I8: neither a result nor a report, so the extents stay reserved until the process has exited. What the jobs
        # hold is kept, too: the device may still read or write it.
        reason = f"CUDA device {self.driver.index} faulted while {what}: {fault}"
        with self.changed:
            if self.fault is None:
                self.fault = reason
                log.error("%s; the content of engine pages is unknown, so the engine must end", reason)
            lost = [job for job in self._flight if job.handed]
            self._flight = [job for job in self._flight if not job.handed]
            self._lost.extend(lost)
            self.changed.notify_all()
        for job in lost:
            for part in job.parts:
                part.transfer.lose(reason)

    def raise_fault(self) -> None:
        """Raise EngineFault when the device has faulted."""
        if self.fault is not None:
            raise EngineFault(f"{self.fault}; the content of engine pages is unknown: restart the engine")


def locate(plan: CopyPlan) -> tuple[Blocks, Blocks, list[int]]:
    """Return the arena of each page, its offset there, and which arenas these are."""
    ids = (plan.locations >> np.uint64(LOCATION_ARENA_BIT)).astype(np.int64)
    offsets = (plan.locations & LOCATION_OFFSET_MASK).astype(np.int64)
    first = int(ids[0])
    return ids, offsets, [first] if bool((ids == first).all()) else np.unique(ids).tolist()


def addresses_of(ids: Blocks, offsets: Blocks, bases: Mapping[int, int]) -> Blocks:
    """Return the address of each offset in its arena."""
    hosts = offsets.copy()
    for number, base in bases.items():
        hosts[ids == number] += base
    return hosts
