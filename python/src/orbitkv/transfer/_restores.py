"""Restores of a device backend: groups handed over in the forward's order, followed by its streams, and watched.

A group moves

    queued ──first in turn──► begun ──every step handed over──► handed ──last event──► ended
                                    │ a call failed before anything was handed over ──────► ended (failed)
                                    │ a call failed later: an event after what was ───────► ended (failed)
                                    └─ the device faulted ──► (lost: no result, see Common.lose)

What is handed over at once, with one event, is a *unit*: the first step, then as many steps as make UNIT_BYTES. Short
restores would otherwise be handed over more slowly than they are copied.

Where no other group is being handed over, the caller hands over the first FIRST_OPERATIONS itself, since a thread that
takes turns with the engine's at the interpreter needs longer for a step than its copy takes; the submitting thread does
the rest beside the forward.

The engine's thread never waits for a copy: it waits until the step is handed over, which it nearly always is, and lets
its stream wait for the step's event.

Lock order: none is nested. `Common.changed` guards the queue and what is begun, a progress's own lock its events.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from orbitkv._faults import FAULTS
from orbitkv.errors import DeviceError, EngineFault, TransferError
from orbitkv.transfer._bounds import QUEUE_MAX, over_bound
from orbitkv.transfer._common import Common, Done, Job, LayerHook
from orbitkv.transfer._plan import Blocks, CopyPlan, KVLayout, check_group
from orbitkv.transfer._transfer import STALL_SECONDS, CopyTimes, Restore

BEGUN_MAX = 32  # groups that are begun at once: each holds an event a step
BEGUN_BYTES_MAX = 8 << 30  # bytes of these, unless one group alone has more
FIRST_OPERATIONS = 1024  # that the caller hands over, about 1 ms; a unit that passes it is still finished
UNIT_BYTES = 16 << 20  # that are handed over at once, unless one step has more: 0.3 ms of the link

NO_PAGES: Blocks = np.empty(0, np.int64)

log = logging.getLogger("orbitkv.transfer")


class Progress:
    """The steps of one group that were handed over, and their events as long as somebody may wait for them."""

    def __init__(self, common: Common) -> None:
        self._common = common
        self._changed = threading.Condition()
        self._events: list[int] = []  # one a unit, and one more after what was handed over of a unit that failed
        self._unit_of: list[int] = []  # the unit of each step that was handed over
        self._past: list[int] = []  # the step after each unit
        self._followed: dict[int, int] = {}  # how many steps each of the engine's streams comes after
        self._complete: bool | None = None  # whether all steps were handed over, once nothing more is
        self._ended = False

    def add(self, event: int, past: int) -> None:
        """Enter the event of one more unit, which ends before step `past`; one that an interrupt repeats adds none."""
        with self._changed:
            self._unit_of.extend([len(self._events)] * (past - len(self._unit_of)))
            self._past.append(past)
            self._events.append(event)
            self._changed.notify_all()

    def close(self, complete: bool, drain: int | None = None) -> None:
        """Say that nothing more is handed over; `drain` is an event after what was, when a unit of it failed."""
        with self._changed:
            if drain is not None:
                self._events.append(drain)
            self._complete = complete
            self._changed.notify_all()

    def wait_step(self, step: int) -> int | None:
        """Wait until a step was handed over and return its unit's event; None when it never will be."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._unit_of) > step or self._complete is not None)
            return self._events[self._unit_of[step]] if len(self._unit_of) > step else None

    def wait_closed(self) -> tuple[bool, int | None]:
        """Wait until nothing more is handed over; return whether all was, and the last event."""
        with self._changed:
            self._changed.wait_for(lambda: self._complete is not None)
            return self._complete is True, self._events[-1] if self._events else None

    def follow_step(self, step: int) -> None:
        """Let the engine's current stream come after a step that was handed over. EngineFault: it cannot.

        Events are in the order of one stream, so that of a unit stands for those before it.
        """
        self._common.raise_fault()
        if self._ended:
            return
        stream = self._common.site.current_stream()
        if self._followed.get(stream, 0) <= step:
            self._follow(stream, self._unit_of[step])

    def follow_all(self) -> None:
        """Let the engine's current stream come after everything that was handed over. EngineFault: it cannot."""
        self._common.raise_fault()
        if not self._ended and self._events:
            self._follow(self._common.site.current_stream(), len(self._events) - 1)

    def end(self) -> list[int]:
        """Say that everything that was handed over has ended; return the events, for which nobody will wait."""
        with self._changed:
            self._ended = True
            events, self._events = self._events, []
            return events

    def _follow(self, stream: int, unit: int) -> None:
        with self._changed:
            if self._ended:
                return  # Every byte is in place, or none was ever on its way.
            past = self._past[unit] if unit < len(self._past) else len(self._unit_of) + 1  # The one after a failure.
            if self._followed.get(stream, 0) >= past:
                return
            try:
                self._common.driver.bind()
                self._common.driver.wait(stream, self._events[unit])
            except DeviceError as fault:
                raise EngineFault(f"the engine cannot be made to wait for its restored pages: {fault}") from fault
            self._followed[stream] = past


class DeviceRestore(Restore):
    """A restore whose layers are reached once they are handed over; waiting for one makes the engine's stream wait."""

    def __init__(self, plan: CopyPlan, progress: Progress) -> None:
        super().__init__(plan)
        self._progress = progress

    def wait_layer(self, layer: int, timeout: float = STALL_SECONDS) -> bool:
        """Let the engine's current stream come after a layer's bytes; see Restore.wait_layer."""
        if not super().wait_layer(layer, timeout):
            return False
        self._progress.follow_step(int(self.plan.layout.layer_steps[layer]))
        return True

    def join(self, timeout: float = STALL_SECONDS) -> bool:
        """Let the engine's current stream come after every byte that is on its way; see Restore.join."""
        layers = len(self.plan.layout.layers)
        self._wait(lambda: self._layers == layers or self._over, timeout, "was not handed over")
        self._progress.follow_all()
        return self._layers == layers and not self.failed


@dataclass(frozen=True, eq=False)
class RestoreGroup:
    """The restores of one engine step."""

    job: Job
    restores: Sequence[DeviceRestore]
    progress: Progress


class Restores:
    """See the module's text. `run_submissions` and `run_watch` are the bodies of its two threads."""

    def __init__(
        self,
        common: Common,
        stream: int,
        on_layer: LayerHook | None,
        first_operations: int = FIRST_OPERATIONS,
        unit_bytes: int = UNIT_BYTES,
    ) -> None:
        self._common = common
        self._first_operations = first_operations
        self._unit_bytes = unit_bytes
        self._stream = stream
        self._on_layer = on_layer
        self._queue: deque[RestoreGroup] = deque()
        self._begun: deque[RestoreGroup] = deque()
        self._handing = False  # whether a group is being handed over, by whichever thread
        self._rest: RestoreGroup | None = None  # what a caller has begun to hand over, for the submitting thread
        self._submitting = True
        self._watcher = 0  # the thread that gives back what a mover may wait for, so it hands nothing over
        self.refused = 0  # plans refused at a bound of the queue

    def busy(self) -> bool:
        """Return whether a group waits or copies. The caller holds `changed`."""
        return bool(self._queue or self._begun)

    def oldest(self) -> float | None:
        """Return when the oldest group without an end was submitted. The caller holds `changed`."""
        begins = [groups[0].job.begin for groups in (self._queue, self._begun) if groups]
        return min(begins, default=None)

    def submit(self, plans: Sequence[CopyPlan], on_done: Done) -> list[Restore]:
        """Queue a group. TransferError: nothing of it will be copied."""
        begin = time.monotonic()
        check_group(plans)
        progress = Progress(self._common)
        restores = [DeviceRestore(plan, progress) for plan in plans]
        job = self._common.accept(restores, on_done, True, begin)
        group = RestoreGroup(job, restores, progress)
        if self._common.enter(job, partial(self._take, group)):
            self._hand_over_first(group)
        return list(restores)

    def _take(self, group: RestoreGroup) -> bool:
        """Queue a group, or begin it at once; return whether its caller hands it over. The caller holds `changed`."""
        if full := over_bound([waiting.job for waiting in self._queue], group.job, QUEUE_MAX):
            self.refused += len(group.job.parts)
            raise TransferError(full)
        at_once = self._first_operations > 0 and self._is_next(group.job)
        if at_once:
            self._begin(group)
        else:
            self._queue.append(group)
        return at_once

    def _is_next(self, job: Job) -> bool:
        """Return whether no older group is still to be handed over. The caller holds `changed`."""
        if threading.get_ident() == self._watcher:
            return False
        return not self._queue and not self._handing and self._room_to_begin(job)

    def _hand_over_first(self, group: RestoreGroup) -> None:
        """Hand over a group's first steps in the calling thread, and leave the rest to the submitting one."""
        done = False
        try:
            done = self._submit_group(group, self._first_operations)
        finally:
            with self._common.changed:
                self._handing = not done
                self._rest = None if done else group
                self._common.changed.notify_all()

    def run_submissions(self) -> None:
        """Hand over group after group until the backend closes and none is left."""
        while (group := self._next()) is not None:
            self._submit_group(group)
            with self._common.changed:
                self._handing = False
                self._common.changed.notify_all()
        with self._common.changed:
            self._submitting = False
            self._common.changed.notify_all()

    def run_watch(self) -> None:
        """Watch group after group until the last that was handed over has ended."""
        self._watcher = threading.get_ident()
        while (group := self._next_begun()) is not None:
            try:
                self._watch(group)
            except DeviceError as fault:
                self._common.lose(f"a restore of {group.job.group.pages} pages ran", fault)
                self._remove(group)

    def _next(self) -> RestoreGroup | None:
        """Wait for a group to go on with, or to begin; None when the backend closes and there is none."""
        with self._common.changed:
            self._common.changed.wait_for(self._may_go_on)
            group, self._rest = self._rest, None
            if group is None and self._queue:
                group = self._queue.popleft()
                self._begin(group)
                self._common.changed.notify_all()  # The watcher may have looked before this group was begun.
            return group

    def _may_go_on(self) -> bool:
        """Return whether the submitting thread has something to do, or nothing for good. The caller holds `changed`."""
        if self._rest is not None or self._handing:
            return self._rest is not None
        return self._room_to_begin(self._queue[0].job) if self._queue else self._common.closing

    def _begin(self, group: RestoreGroup) -> None:
        """Enter a group that is handed over next. The caller holds `changed`."""
        self._handing = True
        self._begun.append(group)
        self._common.begin(group.job)

    def _room_to_begin(self, job: Job) -> bool:
        if not self._begun or self._common.fault is not None:
            return True
        size = sum(group.job.bytes for group in self._begun) + job.bytes
        return len(self._begun) < BEGUN_MAX and size <= BEGUN_BYTES_MAX

    def _next_begun(self) -> RestoreGroup | None:
        with self._common.changed:
            self._common.changed.wait_for(lambda: bool(self._begun) or not self._submitting)
            return self._begun[0] if self._begun else None

    def _submit_group(self, group: RestoreGroup, operations: int | None = None) -> bool:
        """Hand a group over, or steps of it until they are so many operations; return whether that was the end of it.

        Whatever fails, the group's end is decided by the watcher.
        """
        job, progress = group.job, group.progress
        try:
            if self._common.fault is not None:
                raise TransferError(f"{self._common.fault}; nothing more is copied")
            if not self._hand_over(group, operations):
                return False
            progress.close(True)
        except FAULTS as fault:
            log.warning("a restore of %d pages failed, they are recomputed: %s", job.group.pages, fault)
            self._drain(group)
            for restore in group.restores:
                restore.stop()
        return True

    def _hand_over(self, group: RestoreGroup, operations: int | None) -> bool:
        job, common = group.job, self._common
        common.mover.bind()
        if job.step == 0:
            common.prepare(job, self._stream)
        else:
            job.thread += f" and {threading.current_thread().name}"
        began = time.monotonic()
        steps = len(job.group.layout.steps)
        job.handed = True
        while job.step < steps and (operations is None or job.copies < operations):
            self._hand_over_unit(group, unit_end(job.group.layout, job.group.pages, job.step, self._unit_bytes))
        job.submit_seconds += time.monotonic() - began
        return job.step == steps

    def _hand_over_unit(self, group: RestoreGroup, past: int) -> None:
        job, common = group.job, self._common
        first, steps = job.step, job.group.layout.steps
        job.copies += common.mover.submit_steps(job.prepared, first, past, self._stream)
        if past == len(steps) and common.verifier is not None:
            job.copies += common.verifier.after_restore(job.checked, self._stream)
        group.progress.add(common.recorded(self._stream), past)
        job.step = past
        for restore in group.restores:
            restore.advance(steps[past - 1][1] - steps[first][0])

    def _drain(self, group: RestoreGroup) -> None:
        """Let the watcher wait for what was handed over of a group that failed, before it says so (I2)."""
        drain = None
        if group.job.handed:
            try:
                drain = self._common.recorded(self._stream)
            except DeviceError as fault:
                self._common.lose(f"a restore of {group.job.group.pages} pages was handed over", fault)
        group.progress.close(False, drain)

    def _watch(self, group: RestoreGroup) -> None:
        """Wait for a group's copies and report their end. DeviceError: it will never be known."""
        job, driver = group.job, self._common.driver
        first = job.begin
        steps = job.group.layout.steps
        for step in range(1 if self._on_layer is None else len(steps)):
            event = group.progress.wait_step(step)
            if event is None:
                break
            driver.synchronize(event)
            first = time.monotonic() if step == 0 else first
            self._tell_layers(group, range(*steps[step]))
        complete, last = group.progress.wait_closed()
        if last is not None:
            driver.synchronize(last)
        bad = self._wrong_pages(job) if complete else None
        if self._common.settle(job):
            self._end(group, job.times(first) if bad is not None else None, bad)
        self._remove(group)

    def _tell_layers(self, group: RestoreGroup, layers: range) -> None:
        if self._on_layer is None:
            return
        for restore in group.restores:
            for layer in layers:
                try:
                    self._on_layer(restore, layer)
                except FAULTS:  # Whoever listens may fail; the copy has not.
                    log.exception("layer %d of a restore could not be told", layer)

    def _wrong_pages(self, job: Job) -> Blocks | None:
        """Return the positions in the group of pages that came with other bytes than were stored; None: not known."""
        if self._common.verifier is None:
            return NO_PAGES
        try:
            return self._common.verifier.result(job.checked)
        except DeviceError:
            raise
        except FAULTS:
            log.exception("a restore of %d pages could not be verified; its pages are recomputed", job.group.pages)
            return None

    def _end(self, group: RestoreGroup, times: CopyTimes | None, bad: Blocks | None) -> None:
        events = group.progress.end()
        first = 0
        for part in group.job.parts:
            past = first + part.transfer.plan.pages
            mine = None if bad is None else bad[(bad >= first) & (bad < past)] - first
            part.end(mine is not None and len(mine) == 0, times, mine)
            first = past
        self._common.let_go(group.job, events)

    def _remove(self, group: RestoreGroup) -> None:
        with self._common.changed:
            self._begun.remove(group)
            self._common.changed.notify_all()


def unit_end(layout: KVLayout, pages: int, first: int, least: int) -> int:
    """Return the step after the unit of a group of so many pages that begins with step `first`.

    A unit has `least` bytes, but for the first, which the forward waits for, and the last.
    """
    past, size = first + 1, pages * layout.step_bytes[first]
    while first > 0 and past < len(layout.steps) and size < least:
        size += pages * layout.step_bytes[past]
        past += 1
    return past
