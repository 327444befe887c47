"""Restores and publishes of one rank: submitted to the backend, counted, and reported by the thread that copied.

A terminal result goes to the Cache Manager at once, never through the engine, which may be idle or gone. Whoever
submits says what to do when a copy ended; a copy that was not submitted has been reported when the call returns.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from orbitkv.adapter.attachment import Attachment, RankPlace
from orbitkv.adapter.backends import BackendChoice
from orbitkv.adapter.golden import GoldenCheck, GoldenResult, PageAccess, TensorCheck
from orbitkv.adapter.logs import LOGGER
from orbitkv.adapter.plans import PublishPlan, RestorePlan, SlicePlace, slice_of
from orbitkv.adapter.settings import Settings
from orbitkv.adapter.stats import Stats
from orbitkv.client import CacheManagerClient
from orbitkv.errors import ConfigurationError, OrbitKVError
from orbitkv.timeline import Stage, Timeline
from orbitkv.transfer import CopyPlan, CopyTimes, KVLayout, Restore, Transfer

POISON = 0x5A

log = logging.getLogger(LOGGER)


@dataclass
class Copies:
    """See the module's text. Thread-safe: it has no state of its own beside the statistics."""

    settings: Settings
    place: RankPlace
    layout: KVLayout
    pages: PageAccess
    timeline: Timeline
    stats: Stats
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        if self.settings.fault.on:
            log.warning("FAULT INJECTION is on (%s): this rank computes wrong output on purpose", self.settings.fault)

    def restore(
        self,
        attachment: Attachment,
        slices: tuple[SlicePlace, ...],
        plans: Sequence[RestorePlan],
        ended: Callable[[RestorePlan, Transfer], None] = lambda _, __: None,
    ) -> list[Restore]:
        """Submit restores of begun leases, those of one engine step, as one group.

        OrbitKVError when nothing was submitted: every plan has been reported, and `ended` is not called.
        """
        begin = self.clock()
        if self.settings.fault.poison_destination:
            self._poison(plans)
        submitted: dict[int, RestorePlan] = {}  # by the identity of the copies' plan, which its transfer keeps

        def done(transfer: Transfer) -> None:
            plan = submitted[id(transfer.plan)]
            try:
                attachment.restored(plan.lease, transfer.ok, plan.pages)
                self._count_restore(transfer, begin)
            finally:
                ended(plan, transfer)

        try:
            place = slice_of(slices, self.place.slice_rank)
            copies = [
                CopyPlan(self.layout, plan.blocks, plan.locations[place.part], place.offset, plan.request)
                for plan in plans
            ]
            submitted.update((id(copy), plan) for copy, plan in zip(copies, plans, strict=True))
            restores = attachment.backend.restore(copies, on_done=done)
        except OrbitKVError:
            for plan in plans:
                attachment.restored(plan.lease, False, plan.pages)
                self.stats.count("load_failure")
            raise
        if self.timeline.enabled:
            for copy in copies:
                self.timeline.record(Stage.RESTORE_SUBMIT, copy.request, pages=copy.pages, bytes=copy.bytes)
        return restores

    def publish(
        self,
        attachment: Attachment,
        slices: tuple[SlicePlace, ...],
        plan: PublishPlan,
        ended: Callable[[bool], None],
    ) -> None:
        """Submit a publish of pages that the engine has launched the writing of.

        `ended(ok)` is called once: nobody reads the plan's blocks any more.
        """
        begin = self.clock()
        ranges = [(int(plan.ordinals[0]), len(plan.ordinals))]

        def done(transfer: Transfer) -> None:
            # The report goes first: whoever learns of the end no longer claims the reservation.
            try:
                if transfer.ok:
                    attachment.committed(plan.reservation, ranges)
                else:
                    attachment.abandoned(plan.reservation, ranges)
                self._count_publish(transfer, begin)
            finally:
                ended(transfer.ok)

        try:
            place = slice_of(slices, self.place.rank)
            copies = CopyPlan(self.layout, plan.blocks, plan.locations[place.part], place.offset)
            attachment.backend.publish(copies, on_done=done)
        except OrbitKVError as fault:
            log.warning("publish of %d pages: %s; they stay unpublished", len(plan.blocks), fault)
            attachment.abandoned(plan.reservation, ranges)
            self.stats.count("save_failure", len(plan.blocks))
            ended(False)

    def prove(self, attachment: Attachment, source: int, target: int) -> GoldenResult:
        """Run the golden round trip between two blocks that nobody else uses."""
        seconds = self.settings.call_seconds
        check = GoldenCheck(attachment.backend, self.layout, self.pages, seconds, attachment.client, attachment.tell)
        return check.run(source, target)

    def prove_alone(self, source: int, target: int, choice: BackendChoice) -> GoldenResult:
        """Run a round trip between two such blocks through memory of this process, without a Cache Manager."""
        backend = choice.make()
        try:
            return TensorCheck(backend, self.layout, self.pages, self.settings.call_seconds).run(source, target)
        finally:
            backend.close()

    def corrupt(self, layer: int, plan: RestorePlan) -> None:
        """Invert one restored layer when that fault is injected, on the calling thread's stream."""
        if self.settings.fault.corrupt_restore:
            self.overwrite(layer, plan, lambda content: ~content)

    def overwrite(self, layer: int, plan: RestorePlan, change: Callable[[np.ndarray], np.ndarray]) -> None:
        """Change the bytes of a restore's blocks in one layer, for an injected fault."""
        for block in plan.blocks.tolist():
            self.pages.write(layer, block, change(self.pages.read(layer, block)))

    def _poison(self, plans: Sequence[RestorePlan]) -> None:
        for plan in plans:
            for layer in range(len(self.layout.layers)):
                self.overwrite(layer, plan, lambda content: np.full_like(content, POISON))
        self.pages.settle()

    def _count_restore(self, transfer: Transfer, begin: float) -> None:
        self.stats.count("load_success" if transfer.ok else "load_failure")
        if transfer.ok:
            self.stats.count("load_bytes", transfer.bytes)
            self.stats.observe("load_duration_seconds", self.clock() - begin)
            self.stats.observe("load_blocks", transfer.plan.pages)
        fields: dict[str, int | str] = {}
        if (times := transfer.times) is not None:
            self.stats.observe("restore_build_seconds", times.build_seconds)
            self.stats.observe("restore_submit_seconds", times.submit_seconds)
            self.stats.observe("restore_first_layer_seconds", times.first_layer_seconds)
            self.stats.observe("restore_last_layer_seconds", times.last_layer_seconds)
            self.stats.observe("restore_copies", times.copies)
            self.stats.observe("restore_pieces", times.pieces)
            fields = fields_of(times)
        self.timeline.record(Stage.GPU_READY, transfer.plan.request, success=transfer.ok, **fields)

    def _count_publish(self, transfer: Transfer, begin: float) -> None:
        if transfer.ok:
            self.stats.count("save_success", transfer.plan.pages)
            self.stats.count("save_bytes", transfer.bytes)
            self.stats.observe("save_duration_seconds", self.clock() - begin)
            self.stats.observe("save_blocks", transfer.plan.pages)
        else:
            self.stats.count("save_failure", transfer.plan.pages)


def fields_of(times: CopyTimes) -> dict[str, int | str]:
    """Return the times of a restore as fields of its timeline record, in whole microseconds."""
    return {
        "build_us": round(times.build_seconds * 1e6),
        "submit_us": round(times.submit_seconds * 1e6),
        "copies": times.copies,
        "pieces": times.pieces,
        "first_layer_us": round(times.first_layer_seconds * 1e6),
        "last_layer_us": round(times.last_layer_seconds * 1e6),
        "thread": times.thread,
    }


def refuse_start(result: GoldenResult, client: CacheManagerClient) -> None:
    """Stop an engine's start after a golden round trip that went wrong for good. ConfigurationError.

    That is one that brought back other bytes, or that found no arena because a limit of this process keeps each from
    being used: the engine would serve without hits and only its log would say why.
    """
    refuse_mismatch(result)
    fault = client.arenas_unusable_because
    if result is GoldenResult.NOT_RUN and fault is not None:
        raise ConfigurationError(
            f"this engine can use none of the arenas that the Cache Manager brought, so it would get no hits: {fault}"
        )


def refuse_mismatch(result: GoldenResult) -> None:
    """Stop an engine's start after a golden round trip that brought back other bytes. ConfigurationError."""
    if result is GoldenResult.MISMATCH:
        raise ConfigurationError(
            "the golden round trip brought back other bytes than it stored, so restored KV would be wrong. "
            "Start the engine without OrbitKV, and report its release, attention backend and KV layout."
        )
