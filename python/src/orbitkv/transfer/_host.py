"""The host backend: memory copies, layer by layer, in threads of their own.

One thread restores and one publishes, each from a bounded queue. Restores overtake publishes: before each batch the
publish thread steps aside while a restore waits or runs, for at most YIELD_SECONDS, so that publishes never starve.
The copying itself runs outside of the interpreter lock. A restore that was accepted is carried out even when the
backend closes, since an engine may have promised its bytes; a publish that has not begun then fails.

Lock order: none is nested. `_lock` guards the arenas, the queues and the counters; waiting is on its condition.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from orbitkv._arenas import Arena
from orbitkv._faults import FAULTS
from orbitkv.errors import TransferError
from orbitkv.transfer._bounds import QUEUE_MAX, YIELD_SECONDS, over_bound
from orbitkv.transfer._pieces import Piece, copy_in, copy_out, pieces_of
from orbitkv.transfer._plan import CopyPlan, LayerLayout, check_group
from orbitkv.transfer._transfer import CopyTimes, Publish, Restore, Transfer

log = logging.getLogger("orbitkv.transfer")

Done = Callable[[Transfer], None]
LayerHook = Callable[[Transfer, int], None]


class Part:
    """One accepted plan with its checked pieces, and what its copy reports."""

    def __init__(self, transfer: Transfer, pieces: list[Piece], on_done: Done) -> None:
        self.transfer = transfer
        self.pieces = pieces
        self.on_done = on_done
        self.sound = True  # until a copy of it fails
        self.first_layer = 0.0  # seconds of the clock when its first layer was in place


class Job:
    """What one call submitted: the restores of one engine step, or one publish."""

    def __init__(self, parts: list[Part], begin: float) -> None:
        self.parts = parts
        self.layers = parts[0].transfer.plan.layout.layers
        self.bytes = sum(part.transfer.plan.bytes for part in parts)
        self.begin = begin
        self.built = time.monotonic()

    def times(self, part: Part) -> CopyTimes:
        """Return the times of one of its plans, which has just ended."""
        now, layers = time.monotonic(), len(self.layers)
        return CopyTimes(
            build_seconds=self.built - self.begin,
            submit_seconds=0.0,  # Whoever copies with the processor has nobody to hand operations to.
            copies=sum(len(each.pieces) for each in self.parts) * layers,
            pieces=sum(each.transfer.plan.pages for each in self.parts) * layers,
            first_layer_seconds=part.first_layer - self.begin,
            last_layer_seconds=now - self.begin,
            thread=threading.current_thread().name,
        )


class HostBackend:
    """Copies by the CPU. Thread-safe; a context manager.

    `on_layer(transfer, layer)` is called by the copying thread once the last byte of a restored layer is in place, just
    before whoever waits for it is told.
    `layer_delay_us` sleeps before each layer and `before_layer(transfer, layer)` is called there by the copying
    thread: tests use them to make an engine that forgets a wait compute wrong tokens, or to hold a copy.
    """

    name = "host"

    def __init__(
        self,
        *,
        layer_delay_us: int = 0,
        on_layer: LayerHook | None = None,
        before_layer: LayerHook | None = None,
        queue_max: int = QUEUE_MAX,
    ) -> None:
        self._delay = layer_delay_us / 1e6
        self._on_layer = on_layer
        self._before_layer = before_layer
        self._queue_max = queue_max
        self._lock = threading.Condition()
        self._arenas: dict[int, Arena] = {}
        self._restores: deque[Job] = deque()
        self._publishes: deque[Job] = deque()
        self._restoring = False
        self._closing = False
        self.refused = 0  # plans refused at a bound of the queues
        self.late_publish_batches = 0  # batches that went on after YIELD_SECONDS although a restore waited
        self._threads = [
            threading.Thread(target=self._run_restores, name="orbitkv-restore", daemon=True),
            threading.Thread(target=self._run_publishes, name="orbitkv-publish", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> HostBackend:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def register_arena(self, arena: Arena) -> None:
        """Make an arena usable in plans."""
        with self._lock:
            self._arenas[arena.id] = arena

    def unregister_arena(self, arena: int) -> None:
        """Refuse the arena in later plans; plans that were accepted keep it mapped until they end."""
        with self._lock:
            self._arenas.pop(arena, None)

    def restore(self, plans: Sequence[CopyPlan], *, on_done: Done) -> list[Restore]:
        """Queue the restores of one engine step. TransferError when a plan is wrong or the queue is full: none is."""
        begin = time.monotonic()
        check_group(plans)
        restores = [Restore(plan) for plan in plans]
        self._submit(self._restores, restores, on_done, begin)
        return restores

    def publish(self, plan: CopyPlan, *, on_done: Done) -> Publish:
        """Queue engine-to-arena copies. TransferError as for restore."""
        begin = time.monotonic()
        plan.check()
        publish = Publish(plan)
        self._submit(self._publishes, [publish], on_done, begin)
        return publish

    def check(self) -> None:
        """Do nothing: whoever needs a layer waits for its bytes, and sees there that they do not come."""

    def close(self) -> None:
        """Finish accepted restores and the running publish, fail publishes that have not begun, join the threads.

        The arenas are let go of.
        """
        # I3: a copy that was begun is never aborted. A page that stays unpublished is recomputed (I10).
        with self._lock:
            self._closing = True
            self._lock.notify_all()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        # A view that stayed here would keep a dead Manager's memory mapped, which the next one cannot populate then.
        with self._lock:
            self._arenas.clear()

    def _submit(self, queue: deque[Job], transfers: Sequence[Transfer], on_done: Done, begin: float) -> None:
        with self._lock:
            self._check_open()
            arenas = dict(self._arenas)
        job = Job([Part(each, pieces_of(each.plan, arenas), on_done) for each in transfers], begin)
        with self._lock:
            self._check_open()
            if full := over_bound(queue, job, self._queue_max):
                self.refused += len(job.parts)
                raise TransferError(full)
            queue.append(job)
            self._lock.notify_all()

    def _check_open(self) -> None:
        if self._closing:
            raise TransferError("the host backend is closed")

    def _next(self, queue: deque[Job]) -> Job | None:
        """Wait for a job; None when the backend closes, which for restores comes after the last of them."""
        with self._lock:
            self._restoring = self._restoring and queue is not self._restores
            self._lock.notify_all()
            self._lock.wait_for(lambda: self._closing or len(queue) > 0)
            if not queue or (self._closing and queue is self._publishes):
                return None
            self._restoring = self._restoring or queue is self._restores
            return queue.popleft()

    def _run_restores(self) -> None:
        while (job := self._next(self._restores)) is not None:
            self._copy(job, self._restore_layer)

    def _run_publishes(self) -> None:
        while (job := self._next(self._publishes)) is not None:
            self._copy(job, self._publish_layer)
        with self._lock:
            unbegun = list(self._publishes)
            self._publishes.clear()
        for job in unbegun:
            for part in job.parts:
                self._finish(part, False)

    def _copy(self, job: Job, copy: Callable[[Part, int, LayerLayout], None]) -> None:
        """Copy layer by layer over all plans of a job; one that fails ends alone."""
        for index, layer in enumerate(job.layers):
            if self._delay > 0:
                time.sleep(self._delay)
            for part in job.parts:
                if part.sound and not self._attempt(part, partial(copy, part, index, layer)):
                    part.sound = False
                    self._finish(part, False)
        for part in job.parts:
            if part.sound:
                self._finish(part, True, job.times(part))

    def _attempt(self, part: Part, copy: Callable[[], None]) -> bool:
        try:
            copy()
        except FAULTS:  # I10: without its thread every later copy would stall, and a stalled copy ends the engine.
            log.exception("a copy of %d pages failed; its pages are recomputed", part.transfer.plan.pages)
            return False
        return True

    def _restore_layer(self, part: Part, index: int, layer: LayerLayout) -> None:
        restore = part.transfer
        assert isinstance(restore, Restore)
        if self._before_layer is not None:
            self._before_layer(restore, index)
        for piece in part.pieces:
            copy_in(piece, layer, restore.plan.slice_offset)
        if index == 0:
            part.first_layer = time.monotonic()
        if self._on_layer is not None:
            self._on_layer(restore, index)
        restore.advance()

    def _publish_layer(self, part: Part, index: int, layer: LayerLayout) -> None:
        if self._before_layer is not None:
            self._before_layer(part.transfer, index)
        for piece in part.pieces:
            self._step_aside()
            copy_out(piece, layer, part.transfer.plan.slice_offset)
        if index == 0:
            part.first_layer = time.monotonic()

    def _step_aside(self) -> None:
        with self._lock:
            if not self._lock.wait_for(lambda: not self._restoring and not self._restores, YIELD_SECONDS):
                self.late_publish_batches += 1

    def _finish(self, part: Part, ok: bool, times: CopyTimes | None = None) -> None:
        """Record the result and report it at once; a report that cannot be sent is the reporter's to log."""
        part.transfer.finish(ok, times)
        try:
            part.on_done(part.transfer)
        except FAULTS:
            log.exception("the end of a copy of %d pages could not be reported", part.transfer.plan.pages)
