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
from collections.abc import Callable
from typing import Protocol

from orbitkv._arenas import Arena
from orbitkv._faults import FAULTS
from orbitkv.errors import TransferError
from orbitkv.transfer._pieces import Piece, copy_in, copy_out, pieces_of
from orbitkv.transfer._plan import CopyPlan
from orbitkv.transfer._transfer import Publish, Restore, Transfer

QUEUE_MAX = 1024  # plans that wait in one direction
QUEUE_BYTES_MAX = 64 << 30  # bytes of the plans that wait in one direction
YIELD_SECONDS = 0.05  # the longest that one publish batch steps aside for restores
GATE_SECONDS = 0.1  # how often a publish that waits for its sources looks whether the backend closes

log = logging.getLogger("orbitkv.transfer")

Done = Callable[[Transfer], None]
LayerHook = Callable[[Transfer, int], None]


class Gate(Protocol):
    """See orbitkv.transfer.Gate."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most `timeout` seconds; return whether the sources are written."""
        ...


class Job:
    """One accepted plan with its checked pieces."""

    def __init__(self, transfer: Transfer, pieces: list[Piece], after: Gate | None, on_done: Done) -> None:
        self.transfer = transfer
        self.pieces = pieces
        self.after = after
        self.on_done = on_done


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

    def restore(self, plan: CopyPlan, *, on_done: Done) -> Restore:
        """Queue arena-to-engine copies. TransferError when the plan is wrong or the queue is full."""
        transfer = Restore(plan)
        self._submit(self._restores, transfer, None, on_done)
        return transfer

    def publish(self, plan: CopyPlan, *, after: Gate | None = None, on_done: Done) -> Publish:
        """Queue engine-to-arena copies that start once `after` opens. TransferError as for restore."""
        transfer = Publish(plan)
        self._submit(self._publishes, transfer, after, on_done)
        return transfer

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

    def _submit(self, queue: deque[Job], transfer: Transfer, after: Gate | None, on_done: Done) -> None:
        plan = transfer.plan
        plan.check()
        with self._lock:
            self._check_open()
            arenas = dict(self._arenas)
        job = Job(transfer, pieces_of(plan, arenas), after, on_done)
        with self._lock:
            self._check_open()
            waiting = sum(other.transfer.plan.bytes for other in queue)
            if len(queue) >= self._queue_max or waiting + plan.bytes > QUEUE_BYTES_MAX:
                self.refused += 1
                raise TransferError(f"{len(queue)} plans with {waiting} bytes wait already, so this one is refused")
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
            self._finish(job, self._attempt(job, self._restore_layers))

    def _run_publishes(self) -> None:
        while (job := self._next(self._publishes)) is not None:
            self._finish(job, self._attempt(job, self._publish_layers))
        with self._lock:
            unbegun = list(self._publishes)
            self._publishes.clear()
        for job in unbegun:
            self._finish(job, False)

    def _attempt(self, job: Job, copy: Callable[[Job], None]) -> bool:
        try:
            copy(job)
        except FAULTS:  # I10: without its thread every later copy would stall, and a stalled copy ends the engine.
            log.exception("a copy of %d pages failed; its pages are recomputed", job.transfer.plan.pages)
            return False
        return True

    def _restore_layers(self, job: Job) -> None:
        for index, layer in enumerate(job.transfer.plan.layout.layers):
            self._pause(job, index)
            for piece in job.pieces:
                copy_in(piece, layer, job.transfer.plan.slice_offset)
            if self._on_layer is not None:
                self._on_layer(job.transfer, index)
            job.transfer.advance()

    def _publish_layers(self, job: Job) -> None:
        if not self._gate_opens(job):
            raise TransferError("the host backend closed before the sources were written")
        for index, layer in enumerate(job.transfer.plan.layout.layers):
            self._pause(job, index)
            for piece in job.pieces:
                self._step_aside()
                copy_out(piece, layer, job.transfer.plan.slice_offset)
            job.transfer.advance()

    def _pause(self, job: Job, layer: int) -> None:
        if self._before_layer is not None:
            self._before_layer(job.transfer, layer)
        if self._delay > 0:
            time.sleep(self._delay)

    def _step_aside(self) -> None:
        with self._lock:
            if not self._lock.wait_for(lambda: not self._restoring and not self._restores, YIELD_SECONDS):
                self.late_publish_batches += 1

    def _gate_opens(self, job: Job) -> bool:
        while job.after is not None and not job.after.wait(GATE_SECONDS):
            with self._lock:
                if self._closing:
                    return False
        return True

    def _finish(self, job: Job, ok: bool) -> None:
        """Record the result and report it at once; a report that cannot be sent is the reporter's to log."""
        job.transfer.finish(ok)
        try:
            job.on_done(job.transfer)
        except FAULTS:
            log.exception("the end of a copy of %d pages could not be reported", job.transfer.plan.pages)
