"""Restores of one rank: queued by the engine's admission, begun together, waited for layer by layer.

A restore moves

    queued ──start──► begun ──submit──► copying ──every byte arrived──► arrived ──(its whole batch)──► acknowledged
      └─ reset of the engine's cache ──► (gone: its lease is given back)

SGLang has a restore's pages in its tree before a byte landed, and cannot take them out again. So nothing that the
Cache Manager does may fail a restore: its lease is held until it is begun here, a begin that a broken channel lost is
said again by the session that follows, and the copies run from a mapping that outlives the Manager. A queued restore is
never cancelled, since other requests may match its pages. Only a fault of the copy itself is left: its destination is
unknown then, and the engine must end (`EngineFault`).

The restores of one batch are one group, copied layer by layer over all of them; a batch above the bounds is several,
one after the other. Each layer of the forward is put behind its bytes on the stream that reads them. Where the engine
asks for no layer, since it replays one graph of the whole forward, the batch is put behind all bytes before it begins.

The scheduler's thread queues, starts, waits and takes acknowledgements; copying threads submit what waits for its turn.
`_lock` guards the batches. Lock order: `_lock`, then a lease table's, then a backend's.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from orbitkv.adapter.attachment import Attachment
from orbitkv.adapter.copies import Copies
from orbitkv.adapter.plans import Blocks, RestorePlan
from orbitkv.adapter.session import SchedulerSession
from orbitkv.client import Lease, ranges_of
from orbitkv.errors import EngineFault, OrbitKVError
from orbitkv.sglang.waits import wait_ended
from orbitkv.timeline import Stage, Timeline
from orbitkv.transfer import STALL_SECONDS, Restore, Transfer, TransferBackend

IN_FLIGHT_MAX = 8  # restores that the backend holds at once; the next group follows as they end
IN_FLIGHT_BYTES_MAX = 8 << 30  # bytes of these, 0.15 s of a link of 55 GB/s; one restore above it goes alone
SETS_MIN = 3  # layer sets that rotate; one more is made whenever the oldest is still in use


class LoadState(Enum):
    """State of one restore; see the module's text for the moves."""

    QUEUED = "queued"
    BEGUN = "begun"
    COPYING = "copying"
    ARRIVED = "arrived"


@dataclass(eq=False)
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


@dataclass(eq=False)
class LayerSet:
    """The restores that one batch's forward waits for. `index` names the batch that has it now."""

    index: int = -1
    loads: list[Load] = field(default_factory=list)
    # For each of the engine's streams the last layer whose bytes come before what it is given next.
    ordered: dict[int, int] = field(default_factory=dict)
    used: int = -1  # the last layer that a forward has passed, on any of them
    must_ask: bool = False  # a forward began before every byte was there, so it has to ask for each layer

    @property
    def busy(self) -> bool:
        """Return whether a restore of it has not arrived."""
        return any(load.state is not LoadState.ARRIVED for load in self.loads)

    def take(self, index: int, loads: list[Load]) -> None:
        """Belong to a batch from now on, or to none."""
        self.index, self.loads, self.ordered, self.used, self.must_ask = index, loads, {}, -1, False


class Loads:
    """See the module's text. Also the layer counter that SGLang's memory pool asks (`set_consumer`, `wait_until`).

    `current_stream()` is the stream on which the calling thread of the engine launches, 0 where there are none.
    `layers_ask` says that a forward asks for each layer before it reads it.
    """

    def __init__(
        self,
        copies: Copies,
        timeline: Timeline,
        current_stream: Callable[[], int] = lambda: 0,
        layers_ask: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.consumer_index = -1
        self._copies = copies
        self._steps = copies.layout.steps
        self._timeline = timeline
        self._current_stream = current_stream
        self._layers_ask = layers_ask
        self._clock = clock
        self._lock = threading.Condition()
        self._requests: set[str] = set()  # of restores that are not acknowledged
        self._queued: list[Load] = []
        self._batches: deque[list[Load]] = deque()  # started and not acknowledged, oldest first
        self._waiting: deque[list[Load]] = deque()  # groups that are begun, for a place among those in flight
        self._in_flight: list[Load] = []
        self._submitting = 0  # of these: not accepted by the backend yet
        self._sets = [LayerSet() for _ in range(SETS_MIN)]
        self._next = 0
        self._asked = -1  # the last layer that any forward asked for, since a pool may have some that none reads
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
            layers.take(self._next, batch)
            self._next += 1
            self._batches.append(batch)
            self._waiting.extend(groups_of(batch, self._copies.layout.slice_bytes))
        # SGLang's forward of an embedding or reward model does not call `set_consumer`; no other forward comes before.
        self.consumer_index = layers.index
        self._submit()
        if not self._layers_ask:
            # The forward's stream waits for the one that is current here, before it begins.
            self._join(layers)
        return layers.index

    def set_consumer(self, index: int) -> None:
        """Say which batch the forward that begins now belongs to; decode batches keep the index of an older one.

        EngineFault when an earlier forward may have read pages before their bytes were there.
        """
        self._overtake(index)
        self.consumer_index = index
        layers = self._set_of(index)
        if layers is not None and layers.used < 0 and layers.busy:
            layers.must_ask = True
            self._timeline.record(Stage.FIRST_USE, layers.loads[0].request, requests=len(layers.loads))

    def wait_until(self, threshold: int) -> None:
        """Put the forward behind an engine layer's restored bytes. EngineFault when they will not be there."""
        self._asked = max(self._asked, threshold)
        layers = self._set_of(self.consumer_index)
        if layers is None or not layers.loads:
            return  # A stale index: that batch's set is another's by now, and its bytes arrived long ago.
        stream = self._current_stream()
        ordered = layers.ordered.get(stream, -1)
        if ordered >= threshold:
            return
        begin = self._clock()
        for layer in range(ordered + 1, threshold + 1):
            if layer != self._copies.settings.fault.skip_layer:
                for load in layers.loads:
                    self._wait_layer(load, layer)
            self._use(layers, layer)
        layers.ordered[stream] = threshold
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
        requests = [load.request for load in batch]
        self._requests.difference_update(requests)
        return requests

    def backends(self) -> list[TransferBackend]:
        """Return the backends that hold a restore, one for each life of the Manager at most."""
        with self._lock:
            return list({id(load.attachment): load.attachment.backend for load in self._in_flight}.values())

    def wait_submitted(self) -> None:
        """Wait until the backend has accepted every begun restore, which it then finishes, closed or not."""
        with self._lock:
            self._lock.wait_for(lambda: self._fault or not (self._waiting or self._submitting), STALL_SECONDS)

    def quiesce(self, check: Callable[[], None] = lambda: None) -> None:
        """Wait for every copy (I2) and forget all: the engine drops its tree, so what is queued need not land.

        `check` raises when a copy cannot end any more. EngineFault when one failed or does not end.
        """
        queued, self._queued = self._queued, []
        for load in queued:
            try:
                load.lease.unhold()
                load.lease.release()
            except OrbitKVError as fault:
                load.session.fail(fault)
        if not wait_ended(self._lock, lambda: bool(self._fault or not (self._in_flight or self._waiting)), check):
            self._fault = f"restores did not end in {STALL_SECONDS:g} s"
        self._check()
        with self._lock:
            self._batches.clear()
        self._requests.clear()
        for layers in self._sets:
            layers.take(-1, [])
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
        """Submit the groups that have a place among the restores in flight."""
        while (group := self._next_group()) is not None:
            loads = {load.lease.id: load for load in group}
            plans = [load.plan for load in group if load.plan is not None]

            def ended(plan: RestorePlan, transfer: Transfer, loads: dict[int, Load] = loads) -> None:
                self._ended(loads[plan.lease], transfer)

            try:
                restores = self._copies.restore(group[0].attachment, group[0].session.slices, plans, ended)
            except OrbitKVError as fault:
                self._fail(group, str(fault))
                return
            with self._lock:
                self._submitting -= len(group)
                for load, restore in zip(group, restores, strict=True):
                    load.restore = restore
                    if load.state is LoadState.BEGUN:
                        load.state = LoadState.COPYING
                self._lock.notify_all()

    def _next_group(self) -> list[Load] | None:
        """Take the group that is submitted next, None while it has no place."""
        with self._lock:
            if not self._waiting or self._fault is not None:
                return None
            group = self._waiting[0]
            pages = sum(len(load.pages) for load in (*self._in_flight, *group))
            full = len(self._in_flight) + len(group) > IN_FLIGHT_MAX
            if self._in_flight and (full or pages * self._copies.layout.slice_bytes > IN_FLIGHT_BYTES_MAX):
                return None
            self._waiting.popleft()
            self._in_flight.extend(group)
            self._submitting += len(group)
            return group

    def _ended(self, load: Load, transfer: Transfer) -> None:
        """Take a copy's terminal result, on the thread that copied."""
        if not transfer.ok:
            self._fail([load], "its copy failed")
            return
        with self._lock:
            load.state = LoadState.ARRIVED
            self._in_flight.remove(load)
            self._lock.notify_all()
        self._submit()

    def _fail(self, loads: list[Load], reason: str) -> None:
        with self._lock:
            self._fault = fault_text(loads[0], reason)
            for load in loads:
                self._in_flight.remove(load)
            self._lock.notify_all()

    def _overtake(self, index: int) -> None:
        """Put what is launched next behind the batches that it overtakes, before a forward of batch `index` begins.

        A decode graph asks for no layer, so a batch's restores are in order on every path before its first decode.
        """
        last = self._asked if self._asked >= 0 else len(self._steps) - 1
        for layers in self._sets:
            if not layers.loads or layers.used >= last or (layers.index == index and not layers.must_ask):
                continue
            used, must_ask = layers.used, layers.must_ask
            self._join(layers)
            if must_ask:
                raise EngineFault(
                    f"a forward read {len(layers.loads)} restored prefixes and asked for {used + 1} of their "
                    f"{last + 1} layers, so it may have computed with pages before their bytes were there: "
                    "start the engine with another --attention-backend, or without --radix-cache-backend orbitkv"
                )

    def _join(self, layers: LayerSet) -> None:
        """Put what the calling thread launches next behind every byte of a batch."""
        for load in layers.loads:
            if not self._submitted(load).join():
                raise EngineFault(fault_text(load, "its copy failed"))
        layers.ordered[self._current_stream()] = len(self._steps) - 1
        for layer in range(layers.used + 1, len(self._steps)):
            self._use(layers, layer)

    def _wait_layer(self, load: Load, layer: int) -> None:
        """Put the calling thread's stream behind one layer of a restore, after it was submitted."""
        # TransferStalled is not caught: the destination is unknown then.
        if not self._submitted(load).wait_layer(self._steps[layer][1] - 1):
            raise EngineFault(fault_text(load, "its copy failed"))

    def _submitted(self, load: Load) -> Restore:
        """Return the restore once the backend has it. EngineFault when it does not take it."""
        if load.restore is None:
            with self._lock:
                self._lock.wait_for(lambda: load.restore is not None or self._fault, STALL_SECONDS)
        if load.restore is None:
            self._check()
            raise EngineFault(f"the restore of request {load.request} was not submitted in {STALL_SECONDS:g} s")
        return load.restore

    def _use(self, layers: LayerSet, layer: int) -> None:
        """Note that a forward passed a layer of a batch, the first time that one does."""
        if layer <= layers.used:
            return
        layers.used = layer
        first, past = self._steps[layer]
        for load in layers.loads:
            self._timeline.record(Stage.LAYER_USED, load.request, layer=layer)
            assert load.plan is not None
            if load.restore is not None and layer == len(self._steps) - 1:
                self._copies.stats.observe("restore_resume_seconds", load.restore.age_seconds)
            for stored in range(first, past):
                self._copies.corrupt(stored, load.plan)

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


def groups_of(batch: list[Load], page_bytes: int) -> list[list[Load]]:
    """Cut a batch, which is one session's since one pass promised it, into groups that may be in flight."""
    groups: list[list[Load]] = []
    pages = 0
    for load in batch:
        last = groups[-1] if groups else []
        if not last or len(last) >= IN_FLIGHT_MAX or (pages + len(load.pages)) * page_bytes > IN_FLIGHT_BYTES_MAX:
            groups.append([])
            pages = 0
        groups[-1].append(load)
        pages += len(load.pages)
    return groups


def fault_text(load: Load, reason: str) -> str:
    """Return what is said when a restore that was promised did not happen."""
    return (
        f"the restore of {len(load.pages)} pages of request {load.request} cannot be finished ({reason}), and SGLang "
        "has them in its tree: their content is unknown, so the engine must end. Restart it, and report the log lines "
        "before this one"
    )
