"""Publishes of a device backend: one after the other, in chunks of which at most two are on the device.

Before each chunk the thread steps aside while a restore waits or copies, for at most YIELD_SECONDS, so that publishes
never starve; what a chunk has before it on the link is bounded either way.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import replace
from functools import partial

import numpy as np

from orbitkv._faults import FAULTS
from orbitkv.errors import DeviceError, TransferError
from orbitkv.transfer._bounds import QUEUE_MAX, YIELD_SECONDS, over_bound
from orbitkv.transfer._common import Common, Done, Job
from orbitkv.transfer._plan import CopyPlan
from orbitkv.transfer._restores import Restores
from orbitkv.transfer._transfer import Publish

PUBLISH_CHUNK_BYTES = 32 << 20  # handed over at once, unless one page is larger: 0.6 ms of the link
CHUNKS_MAX = 2  # on the device at once: one copies while the next is handed over

log = logging.getLogger("orbitkv.transfer")


class Unknown(Exception):
    """The device faulted, so the end of what was handed over will never be known."""


class Publishes:
    """See the module's text. `run` is the body of its thread."""

    def __init__(self, common: Common, stream: int, restores: Restores) -> None:
        self._common = common
        self._stream = stream
        self._restores = restores
        self._queue: deque[Job] = deque()
        self._moved: float | None = None  # when the running publish last made progress
        self.refused = 0  # plans refused at a bound of the queue
        self.late_publish_batches = 0  # chunks that went on after YIELD_SECONDS although a restore waited

    def oldest(self) -> float | None:
        """Return when the running publish last made progress. The caller holds `changed`."""
        return self._moved

    def submit(self, plan: CopyPlan, on_done: Done) -> Publish:
        """Queue a publish of what the engine has launched so far. TransferError: nothing of it will be copied."""
        begin = time.monotonic()
        plan.check()
        publish = Publish(plan)
        job = self._common.accept([publish], on_done, False, begin)
        # Chunks are pages in the order of the arena, where neighbours adjoin.
        order = np.argsort(job.group.hosts, kind="stable")
        job.group = replace(job.group, blocks=job.group.blocks[order], hosts=job.group.hosts[order])
        self._common.enter(job, partial(self._take, job))
        return publish

    def run(self) -> None:
        """Copy one publish after the other until the backend closes, and fail those that have not begun by then."""
        while (job := self._next()) is not None:
            self._publish(job)
        with self._common.changed:
            unbegun = list(self._queue)
            self._queue.clear()
        for job in unbegun:
            self._end(job, False, None)

    def _take(self, job: Job) -> None:
        """Queue a publish. The caller holds `changed`."""
        if full := over_bound(self._queue, job, QUEUE_MAX):
            self.refused += 1
            raise TransferError(full)
        self._queue.append(job)

    def _next(self) -> Job | None:
        common = self._common
        with common.changed:
            self._moved = None
            common.changed.wait_for(lambda: common.closing or bool(self._queue))
            if common.closing:
                return None
            job = self._queue.popleft()
            self._moved = time.monotonic()
            common.begin(job)
            return job

    def _publish(self, job: Job) -> None:
        """Copy one publish and report its end, unless that will never be known."""
        flight: deque[int] = deque()
        first: float | None = None
        try:
            try:
                first = self._hand_over(job, flight)
            except FAULTS as fault:
                # I10: a page that stays unpublished is recomputed.
                log.warning("a publish of %d pages failed, they stay unpublished: %s", job.group.pages, fault)
                self._drain(job, flight)
            while flight:
                self._await(job, flight)
        except Unknown:
            return
        if self._common.settle(job):
            self._end(job, first is not None, first)

    def _hand_over(self, job: Job, flight: deque[int]) -> float:
        """Hand over every chunk and return when the first had ended. Unknown: the device faulted."""
        common, pages = self._common, job.group.pages
        if common.fault is not None:
            raise TransferError(f"{common.fault}; nothing more is copied")
        common.prepare(job, self._stream)
        count = max(1, PUBLISH_CHUNK_BYTES // job.group.layout.slice_bytes)
        ended: float | None = None
        for at in range(0, pages, count):
            self._step_aside()
            if len(flight) == CHUNKS_MAX:
                self._await(job, flight)
                ended = ended or time.monotonic()
            began = time.monotonic()
            job.handed = True
            past = min(at + count, pages)
            if common.verifier is not None:
                job.copies += common.verifier.before_publish(job.checked, at, past, self._stream)
            job.copies += common.mover.submit_pages(job.prepared, at, past, self._stream)
            flight.append(common.recorded(self._stream))
            job.submit_seconds += time.monotonic() - began
        self._await(job, flight)
        return ended or time.monotonic()

    def _drain(self, job: Job, flight: deque[int]) -> None:
        """Put an event after what was handed over of a publish that failed: its pages are in use until then (I2)."""
        if not job.handed:
            return
        try:
            flight.append(self._common.recorded(self._stream))
        except DeviceError as fault:
            self._common.lose(f"a publish of {job.group.pages} pages was handed over", fault)
            raise Unknown from fault

    def _await(self, job: Job, flight: deque[int]) -> None:
        """Wait for the oldest chunk on the device."""
        try:
            self._common.driver.synchronize(flight[0])
        except DeviceError as fault:
            self._common.lose(f"a publish of {job.group.pages} pages ran", fault)
            raise Unknown from fault
        self._common.events.give([flight.popleft()])
        with self._common.changed:
            self._moved = time.monotonic()

    def _step_aside(self) -> None:
        with self._common.changed:
            if not self._common.changed.wait_for(lambda: not self._restores.busy(), YIELD_SECONDS):
                self.late_publish_batches += 1

    def _end(self, job: Job, ok: bool, first: float | None) -> None:
        times = None if first is None else job.times(first)
        for part in job.parts:
            part.end(ok, times)
        self._common.let_go(job)
