"""Restores of one rank: queued by the engine's admission, begun together, waited for layer by layer.

A restore moves

    queued ──start──► begun ──submit──► copying ──every byte arrived──► arrived ──(its whole batch)──► acknowledged
      └─ reset of the engine's cache ──► (gone: its lease is given back)

SGLang has a restore's pages in its tree before a byte landed, and cannot take them out again. So nothing that the
Cache Manager does may fail a restore: its lease is held until it is begun here, a begin that a broken channel lost is
said again by the session that follows, and the copies run from a mapping that outlives the Manager. A queued restore is
never cancelled, since other requests may match its pages. Only a fault of the copy itself is left: its destination is
unknown then, and the engine must end (`EngineFault`).

The scheduler's thread queues, starts, waits and takes acknowledgements; copying threads submit what waits for its turn.
`_lock` guards the batches. Lock order: `_lock`, then a lease table's, then a backend's.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

import numpy as np

from orbitkv.adapter.attachment import Attachment
from orbitkv.adapter.copies import Copies
from orbitkv.adapter.plans import Blocks, RestorePlan
from orbitkv.adapter.session import SchedulerSession
from orbitkv.client import Lease, ranges_of
from orbitkv.errors import EngineFault, OrbitKVError
from orbitkv.timeline import Stage, Timeline
from orbitkv.transfer import STALL_SECONDS, Restore, Transfer

IN_FLIGHT_MAX = 8  # restores that the backend holds at once; the rest of a batch follows as they end
SETS_MIN = 3  # layer sets that rotate; one more is made whenever the oldest is still in use


class LoadState(Enum):
    """State of one restore; see the module's text for the moves."""

    QUEUED = "queued"
    BEGUN = "begun"
    COPYING = "copying"
    ARRIVED = "arrived"


@dataclass
class Load:
    """One restore: a lease, which of its pages are copied, and the engine pages that they go to."""

    request: str
    session: SchedulerSession
    attachment: Attachment
    lease: Lease
    places: np.ndarray  # int64 ordinals of the lease's pages, increasing
    pages: Blocks
    state: LoadState = LoadState.QUEUED
    plan: RestorePlan | None = None
    restore: Restore | None = None
    passed: int = -1  # the last engine layer that the forward has passed


@dataclass
class LayerSet:
    """The restores that one batch's forward waits for. `index` names the batch that has it now."""

    index: int = -1
    loads: list[Load] = field(default_factory=list)

    @property
    def busy(self) -> bool:
        """Return whether a restore of it has not arrived."""
        return any(load.state is not LoadState.ARRIVED for load in self.loads)


class Loads:
    """See the module's text. Also the layer counter that SGLang's memory pool asks (`set_consumer`, `wait_until`)."""

    def __init__(
        self,
        copies: Copies,
        layer_last: Sequence[int],
        timeline: Timeline,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`layer_last[l]` is the last layer of the copies' layout that engine layer l reads."""
        self.consumer_index = -1
        self._copies = copies
        self._layer_last = layer_last
        self._timeline = timeline
        self._clock = clock
        self._lock = threading.Condition()
        self._requests: set[str] = set()  # of restores that are not acknowledged
        self._queued: list[Load] = []
        self._batches: deque[list[Load]] = deque()  # started and not acknowledged, oldest first
        self._waiting: deque[Load] = deque()  # begun, for a place among those in flight
        self._in_flight = 0
        self._submitting = 0  # of these: not accepted by the backend yet
        self._sets = [LayerSet() for _ in range(SETS_MIN)]
        self._next = 0
        self._fault: str | None = None

    @property
    def sets(self) -> int:
        """Return how many layer sets there are."""
        return len(self._sets)

    def queue(self, load: Load) -> None:
        """Take a restore whose lease is held; the next `start` begins it."""
        self._queued.append(load)
        self._requests.add(load.request)

    def pending(self, request: str) -> bool:
        """Return whether a restore of the request is not acknowledged yet."""
        return request in self._requests

    def start(self) -> int:
        """Begin every queued restore and submit the copies; return the batch's consumer index, -1 without any."""
        if not self._queued:
            return -1
        batch, self._queued = self._queued, []
        for load in batch:
            self._begin(load)
        with self._lock:
            layers = self._free_set()
            layers.index, layers.loads = self._next, batch
            self._next += 1
            self._batches.append(batch)
            self._waiting.extend(batch)
        # SGLang's forward of an embedding or reward model does not call `set_consumer`; no other forward comes before.
        self.consumer_index = layers.index
        self._submit()
        return layers.index

    def set_consumer(self, index: int) -> None:
        """Say which batch the forward that begins now belongs to; decode batches keep the index of an older one."""
        self.consumer_index = index
        layers = self._set_of(index)
        if layers is not None and layers.busy and all(load.passed < 0 for load in layers.loads):
            self._timeline.record(Stage.FIRST_USE, layers.loads[0].request, requests=len(layers.loads))

    def wait_until(self, threshold: int) -> None:
        """Hold the forward until an engine layer's restored bytes are there. EngineFault when they cannot be."""
        layers = self._set_of(self.consumer_index)
        if layers is None or not layers.loads:
            return  # A stale index: that batch's set is another's by now, and its bytes arrived long ago.
        if all(load.passed >= threshold for load in layers.loads):
            return
        begin = self._clock()
        for load in layers.loads:
            if load.passed < threshold:
                self._pass_layer(load, threshold)
        self._copies.stats.observe("layer_wait_seconds", self._clock() - begin)

    def completed(self) -> int:
        """Return how many batches, from the oldest on, have arrived as a whole. EngineFault after a failed copy."""
        self._check()
        with self._lock:
            # I11: a batch is acknowledged only when every restore in it succeeded.
            for count, batch in enumerate(self._batches):
                if any(load.state is not LoadState.ARRIVED for load in batch):
                    return count
            return len(self._batches)

    def pop(self) -> list[str]:
        """Acknowledge the oldest batch, which has arrived; return its requests."""
        with self._lock:
            batch = self._batches.popleft()
        for load in batch:
            self._timeline.record(Stage.GPU_READY, load.request, success=True)
        requests = [load.request for load in batch]
        self._requests.difference_update(requests)
        return requests

    def wait_submitted(self) -> None:
        """Wait until the backend has accepted every begun restore, which it then finishes, closed or not."""
        with self._lock:
            self._lock.wait_for(lambda: self._fault or not (self._waiting or self._submitting), STALL_SECONDS)

    def quiesce(self) -> None:
        """Wait for every copy (I2) and forget all: the engine drops its tree, so what is queued need not land."""
        queued, self._queued = self._queued, []
        for load in queued:
            try:
                load.lease.unhold()
                load.lease.release()
            except OrbitKVError as fault:
                load.session.fail(fault)
        with self._lock:
            if not self._lock.wait_for(lambda: self._fault or not (self._in_flight or self._waiting), STALL_SECONDS):
                self._fault = f"restores did not end in {STALL_SECONDS:g} s"
        self._check()
        with self._lock:
            self._batches.clear()
        self._requests.clear()
        for layers in self._sets:
            layers.index, layers.loads = -1, []
        self.consumer_index = -1

    def _begin(self, load: Load) -> None:
        """Write the begin, before any copy is submitted; also for a channel that is closed (see the module's text)."""
        pages = int(load.places[-1]) + 1
        ranges = tuple(ranges_of(load.places))
        locations = tuple(load.lease.locations(part)[load.places] for part in range(load.session.parts))
        load.lease.begin(pages, closed_ok=True)
        load.plan = RestorePlan(load.request, load.lease.id, load.pages, locations, ranges)
        load.state = LoadState.BEGUN
        rest = ranges_of(np.setdiff1d(np.arange(pages), load.places))
        if rest:
            # The device has these meanwhile: nobody copies them, and their part of the lease ends here.
            load.attachment.restored(load.lease.id, False, rest)

    def _submit(self) -> None:
        """Submit what has a place among the restores in flight."""
        while True:
            with self._lock:
                if not self._waiting or self._in_flight >= IN_FLIGHT_MAX:
                    return
                load = self._waiting.popleft()
                self._in_flight += 1
                self._submitting += 1
            assert load.plan is not None
            try:
                restore = self._copies.restore(
                    load.attachment, load.session.slices, load.plan, partial(self._ended, load)
                )
            except OrbitKVError as fault:
                self._fail(load, str(fault))
                return
            with self._lock:
                self._submitting -= 1
                load.restore = restore
                if load.state is LoadState.BEGUN:
                    load.state = LoadState.COPYING
                self._lock.notify_all()

    def _ended(self, load: Load, transfer: Transfer) -> None:
        """Take a copy's terminal result, on the thread that copied."""
        if not transfer.ok:
            self._fail(load, "its copy failed")
            return
        with self._lock:
            load.state = LoadState.ARRIVED
            self._in_flight -= 1
            self._lock.notify_all()
        self._submit()

    def _fail(self, load: Load, reason: str) -> None:
        with self._lock:
            self._fault = fault_text(load, reason)
            self._in_flight -= 1
            self._lock.notify_all()

    def _pass_layer(self, load: Load, layer: int) -> None:
        fault = self._copies.settings.fault
        for each in range(load.passed + 1, layer + 1):
            if each != fault.skip_layer:
                self._wait(load, self._layer_last[each])
            self._timeline.record(Stage.LAYER_USED, load.request, layer=each)
            assert load.plan is not None
            first = self._layer_last[each - 1] + 1 if each else 0
            for stored in range(first, self._layer_last[each] + 1):
                self._copies.corrupt(stored, load.plan)
        load.passed = layer

    def _wait(self, load: Load, stored: int) -> None:
        with self._lock:
            self._lock.wait_for(lambda: load.restore is not None or self._fault, STALL_SECONDS)
        if load.restore is None:
            self._check()
            raise EngineFault(f"the restore of request {load.request} was not submitted in {STALL_SECONDS:g} s")
        # TransferStalled is not caught: the destination is unknown then.
        if not load.restore.wait_layer(stored):
            raise EngineFault(fault_text(load, "its copy failed"))

    def _check(self) -> None:
        if self._fault is not None:
            raise EngineFault(self._fault)

    def _free_set(self) -> LayerSet:
        """Return a set that nobody waits on: of those that rotate, else a new one."""
        if not self._sets[0].busy:
            self._sets.append(self._sets.pop(0))
        else:
            self._sets.append(LayerSet())
        return self._sets[-1]

    def _set_of(self, index: int) -> LayerSet | None:
        if index < 0:
            return None
        for layers in self._sets:
            if layers.index == index:
                return layers
        return None


def fault_text(load: Load, reason: str) -> str:
    """Return what is said when a restore that was promised did not happen."""
    return (
        f"the restore of {len(load.pages)} pages of request {load.request} cannot be finished ({reason}), and SGLang "
        "has them in its tree: their content is unknown, so the engine must end. Restart it, and report the log lines "
        "before this one"
    )
