"""The device backend: copies by a CUDA device between its memory and arenas that are registered with it.

    caller's thread    checks a plan, records the engine's fences, begins      (restore, publish)
    orbitkv-restore    hands groups over to the load stream, unit by unit      (_restores)
    orbitkv-restored   waits for their events, reports ends                    (_restores)
    orbitkv-publish    hands chunks over to the save stream and waits for them (_publishes)

The load stream has the device's highest priority and the save stream its lowest. How bytes move is a mover's: the
copy engines' (`direct`) or a kernel's (`kernel`). A fault of the device ends the engine: what was handed over has no
terminal result then, and whoever waits gets EngineFault.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from orbitkv._arenas import Arena
from orbitkv.errors import DeviceError, TransferStalled
from orbitkv.transfer._common import Common, Done, LayerHook
from orbitkv.transfer._driver import DeviceSite
from orbitkv.transfer._mover import Mover
from orbitkv.transfer._plan import CopyPlan
from orbitkv.transfer._publishes import Publishes
from orbitkv.transfer._restores import FIRST_OPERATIONS, UNIT_BYTES, Restores
from orbitkv.transfer._transfer import STALL_SECONDS, Publish, Restore
from orbitkv.transfer._verifier import Verifier

log = logging.getLogger("orbitkv.transfer")

# What a faulted device may still read or write stays in memory until the process ends.
KEPT: list[Common] = []


class DeviceBackend:
    """See the module's text and orbitkv.transfer.TransferBackend. Thread-safe; a context manager.

    `on_layer(transfer, layer)` is called by the watching thread once a restored layer is in place.
    """

    def __init__(
        self,
        site: DeviceSite,
        mover: Mover[Any],
        *,
        verifier: Verifier[Any] | None = None,
        on_layer: LayerHook | None = None,
        clock: Callable[[], float] = time.monotonic,
        first_operations: int = FIRST_OPERATIONS,
        unit_bytes: int = UNIT_BYTES,
    ) -> None:
        """Make the streams and start the threads. DeviceError when the device has none.

        `first_operations` is how many of a restore its caller hands over, with 0 none; `unit_bytes` are handed over at
        once, with one event.
        """
        self.name = mover.name
        self._clock = clock
        site.driver.bind()
        lowest, highest = site.driver.priorities()
        self._streams = (site.driver.create_stream(highest), site.driver.create_stream(lowest))
        self._common = Common(site, mover, verifier)
        self._restores = Restores(self._common, self._streams[0], on_layer, first_operations, unit_bytes)
        self._publishes = Publishes(self._common, self._streams[1], self._restores)
        self._closing = threading.Lock()
        self._closed = False
        bodies = {
            "orbitkv-restore": self._restores.run_submissions,
            "orbitkv-restored": self._restores.run_watch,
            "orbitkv-publish": self._publishes.run,
        }
        self._threads = [
            threading.Thread(target=self._run, args=(body,), name=name, daemon=True) for name, body in bodies.items()
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> DeviceBackend:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def refused(self) -> int:
        """Return how many plans were refused at a bound of the queues."""
        return self._restores.refused + self._publishes.refused

    @property
    def late_publish_batches(self) -> int:
        """Return how many chunks of publishes went on beside restores, since they had waited long enough."""
        return self._publishes.late_publish_batches

    def register_arena(self, arena: Arena) -> None:
        """Lock an arena for the device, which takes time, and make it usable. ArenaError when it cannot be locked."""
        self._common.register(arena)

    def unregister_arena(self, arena: int) -> None:
        """Refuse the arena in later plans; it stays locked until the last copy that uses it has ended."""
        self._common.unregister(arena)

    def restore(self, plans: Sequence[CopyPlan], *, on_done: Done) -> list[Restore]:
        """Submit the restores of one engine step. TransferError: nothing was submitted."""
        return self._restores.submit(plans, on_done)

    def publish(self, plan: CopyPlan, *, on_done: Done) -> Publish:
        """Submit a publish of what the engine launched so far writes. TransferError: nothing was submitted."""
        return self._publishes.submit(plan, on_done)

    def check(self) -> None:
        """Raise EngineFault when the device faulted, TransferStalled when a copy has not moved for STALL_SECONDS."""
        self._common.raise_fault()
        with self._common.changed:
            since = [begin for begin in (self._restores.oldest(), self._publishes.oldest()) if begin is not None]
        if since and self._clock() - min(since) > STALL_SECONDS:
            raise TransferStalled(
                f"a copy by CUDA device {self._common.driver.index} has not ended in {STALL_SECONDS:g} s: the content "
                "of engine pages is unknown, so the engine must end. Restart it, and look for faults of the device in "
                "the kernel's log"
            )

    def close(self) -> None:
        """Finish accepted restores and the running publish, fail publishes that have not begun, let go of everything.

        After a fault of the device, or when copies do not end in STALL_SECONDS, what they use is kept instead.
        """
        with self._closing:
            if self._closed:
                return
            self._closed = True
            # I3: a copy that was begun is never aborted. A page that stays unpublished is recomputed (I10).
            with self._common.changed:
                self._common.closing = True
                self._common.changed.notify_all()
            deadline = time.monotonic() + STALL_SECONDS
            others = [thread for thread in self._threads if thread is not threading.current_thread()]
            for thread in others:
                thread.join(max(0.0, deadline - time.monotonic()))
            if self._common.fault is not None or any(thread.is_alive() for thread in others):
                log.error(
                    "copies by CUDA device %d did not end: the arenas stay locked until this process exits",
                    self._common.driver.index,
                )
                KEPT.append(self._common)
                return
            self._release()

    def _release(self) -> None:
        common = self._common
        try:
            common.driver.bind()
            common.registrations.close()
            common.forget_arenas()
            common.mover.close()
            if common.verifier is not None:
                common.verifier.close()
            common.events.close()
            for stream in self._streams:
                common.driver.destroy_stream(stream)
        except DeviceError as fault:
            log.warning("what the copies used on CUDA device %d was not all let go of: %s", common.driver.index, fault)

    def _run(self, body: Callable[[], None]) -> None:
        """Run the body of a thread with the device current in it."""
        try:
            self._common.mover.bind()
        except DeviceError as fault:
            self._common.lose("a thread was to use it", fault)
        body()
