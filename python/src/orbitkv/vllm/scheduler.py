"""The side in vLLM's scheduler process: what is restored, what is published, and when the instance may be used.

Every method runs on the engine's scheduler thread and none waits longer than `orbitkv.query_wait_us`. The session with
the Cache Manager belongs to the link's thread; this side only reads it. The order of one pass:

    get_num_new_matched_tokens   `matched_tokens`   ask, hold the lease, promise
    update_state_after_alloc     `allocated`        write begin
    build_connector_meta         `build_plan`       take answers of reserves, ask for more, hand the work to the workers
    update_connector_output      `failed`           restore nothing more for requests whose restore failed
                                 `take_report`      give block references back
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from orbitkv.adapter.breaker import Breaker
from orbitkv.adapter.link import Link
from orbitkv.adapter.logs import LOGGER
from orbitkv.adapter.lookup import Ask, Lookup, Lookups
from orbitkv.adapter.plans import RestorePlan
from orbitkv.adapter.prefill import Prefill
from orbitkv.adapter.session import Epoch, SchedulerSession
from orbitkv.adapter.settings import Settings
from orbitkv.adapter.stats import Stats
from orbitkv.errors import OrbitKVError
from orbitkv.timeline import Stage, Timeline
from orbitkv.vllm.golden import GoldenDesk
from orbitkv.vllm.plans import Progress, StepPlan, StepReport
from orbitkv.vllm.pool import BlockPool
from orbitkv.vllm.publisher import Publisher
from orbitkv.vllm.steps import Steps

log = logging.getLogger(LOGGER)


@dataclass(frozen=True)
class Geometry:
    """What the scheduler side must know of the engine's cache. `volatile_pages` trailing pages are never final."""

    page_tokens: int
    world: int
    volatile_pages: int = 0


@dataclass
class SchedulerSide:
    """See the module's text."""

    settings: Settings
    geometry: Geometry
    epoch: Epoch
    link: Link[SchedulerSession]
    timeline: Timeline
    clock: Callable[[], float] = time.monotonic
    stats: Stats = field(default_factory=Stats)
    breaker: Breaker = field(default_factory=Breaker)
    _restores: list[tuple[SchedulerSession, RestorePlan]] = field(default_factory=list)
    _lost: list[int] = field(default_factory=list)
    _failed: set[str] = field(default_factory=set)  # requests whose restore failed: they compute everything
    # When the timeline's requests that have not computed yet were queued, in seconds of the clock.
    _unused: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.prefill = Prefill(self.geometry.page_tokens)
        self.steps = Steps(self.prefill)
        self.lookups = Lookups(self.settings, self.breaker, self.stats, self.timeline, self.prefill, self.clock)
        self.golden = GoldenDesk(self.geometry.world, self.settings.call_seconds, self.clock)
        self.publisher = Publisher(
            self.geometry.page_tokens,
            self.geometry.world,
            self.settings.call_seconds,
            self.stats,
            self.geometry.volatile_pages,
            self.clock,
        )

    def bind_pool(self, pool: BlockPool) -> None:
        """Take the engine's block pool: sources are held and golden blocks lent by reference."""
        self.publisher.pool = pool
        self.golden.pool = pool

    def queued(self, request: str) -> None:
        """Note a request that the engine accepted."""
        self.timeline.record(Stage.QUEUED, request)
        if self.timeline.enabled:
            self._unused[request] = self.clock()

    def matched_tokens(self, progress: Progress, device_tokens: int) -> int | None:
        """Return how many tokens beyond the device's own are restored in this step, or None for "not yet"."""
        local = device_tokens // self.geometry.page_tokens
        full = min(progress.tokens // self.geometry.page_tokens, len(progress.hashes))
        restorable = self._restorable(progress.tokens) - local
        session = self._usable()
        if session is None or restorable <= 0 or progress.request in self._failed:
            self.lookups.drop(progress.request)
            return 0
        hashes = progress.hashes
        ask = Ask(progress.request, local, full - local, lambda: b"".join(hashes[local:full]))
        found = self.lookups.answer(session, ask)
        return None if found is None else min(found, restorable) * self.geometry.page_tokens

    def allocated(self, request: str, external_tokens: int, blocks: Sequence[int]) -> None:
        """Begin the restore of an admitted request. The engine's own figure counts, not the earlier answer."""
        pages = external_tokens // self.geometry.page_tokens
        restored = range(0)
        if pages:
            restored = self._begin(request, self.lookups.take(request), pages, blocks)
        else:
            self.lookups.finish(request)
        self.publisher.admit(request, epoch=self.epoch.value, restored=restored, blocks=blocks)

    def build_plan(
        self, running: Sequence[Progress], blocks: Mapping[str, Sequence[int]], preempted: Sequence[str]
    ) -> StepPlan:
        """Return the step's work.

        `running` are the requests that compute in it and have reached what `publisher.due` says; `blocks` are complete
        block lists of those that were given blocks.
        """
        admitted = blocks.keys()
        for request in preempted:
            # A request that is preempted and resumed in one pass was admitted anew: its new blocks are followed.
            if request not in admitted:
                self.publisher.forget(request)
                self.lookups.finish(request)
        for request, ids in blocks.items():
            self.publisher.update_blocks(request, ids)
        epoch = self.epoch.value
        for progress in running:
            self.publisher.collect(progress, epoch)
            self._first_use(progress.request)
        plan = self._restore_plan(epoch)
        session = self._registered()
        if session is not None and plan.incarnation not in (b"", session.incarnation):
            session = None
        usable = session if session is not None and self._proven(session) else None
        plan.publishes = self.publisher.end_pass(usable)
        if session is not None:
            plan.incarnation, plan.slices = session.incarnation, session.slices
            plan.golden = self.golden.lend(session.incarnation)
        self.lookups.end_pass()
        self.lookups.gauge()
        return plan

    def take_report(self, report: StepReport) -> None:
        """Take what the workers reported for one step."""
        for ticket, ranks in report.copied.items():
            self.publisher.copied(ticket, ranks)
        for loan, (ranks, result) in report.golden.items():
            self.golden.result(loan, ranks, result)

    def failed(self, requests: Iterable[str]) -> None:
        """Promise nothing more to requests whose restore failed; they compute everything that the device lacks."""
        self._failed.update(requests)

    def finished(self, progress: Progress) -> None:
        """Let go of a request that ended or was aborted; its last full pages are published in later steps."""
        self.lookups.finish(progress.request)
        self._failed.discard(progress.request)
        self.publisher.finish(progress, self.epoch.value)
        self._unused.pop(progress.request, None)

    @property
    def pending(self) -> bool:
        """Return whether steps are needed although no request runs (OWNERSHIP 3); each reason has its own bound."""
        if self.publisher.pending:
            return True
        session = self.link.session
        return self.golden.pending(session.incarnation if session is not None else b"")

    def reset(self) -> bool:
        """Start a new epoch: every page that was published before is unreachable from now on."""
        epoch = secrets.randbits(64) or 1
        self.epoch.move(epoch)
        self.lookups.drop_all()
        self.publisher.release_unplanned()
        self.link.wake()
        log.info("the cache was reset: new epoch %x", epoch)
        return True

    def close(self) -> None:
        """Give everything back and end the link's thread."""
        self.lookups.drop_all()
        self.publisher.release_unplanned()
        self.link.stop()

    def _restorable(self, tokens: int) -> int:
        """Return the pages that may be restored: one token is left to compute, and volatile pages are left alone."""
        return max(0, (tokens - 1) // self.geometry.page_tokens - self.geometry.volatile_pages)

    def _registered(self) -> SchedulerSession | None:
        session = self.link.session
        return session if session is not None and session.registered else None

    def _usable(self) -> SchedulerSession | None:
        """Return the session whose bytes were proven by a golden round trip on every rank."""
        session = self._registered()
        return session if session is not None and self._proven(session) else None

    def _proven(self, session: SchedulerSession) -> bool:
        return self.golden.proven == session.incarnation

    def _begin(self, request: str, look: Lookup | None, pages: int, blocks: Sequence[int]) -> range:
        """Write `begin` before the plan leaves; what cannot be begun is reported as lost, never submitted.

        Return the indexes of the pages that come from the Cache Manager.
        """
        if look is None or look.lease is None or look.lease.pages < pages:
            log.error(
                "the engine restores %d pages of request %s that were not promised: all is recomputed", pages, request
            )
            self._lost.extend(blocks)
            return range(0)
        lease, restored = look.lease, range(look.ask.local, look.ask.local + pages)
        targets = list(blocks[restored.start : restored.stop])
        try:
            places = tuple(np.ascontiguousarray(lease.locations(part)[:pages]) for part in range(look.session.parts))
            lease.begin(pages)
        except OrbitKVError as fault:
            look.session.fail(fault)
            self.stats.count("load_failure")
            self._lost.extend(targets)
            return range(0)
        plan = RestorePlan(request, lease.id, np.array(targets, dtype=np.int64), places)
        self._restores.append((look.session, plan))
        return restored

    def _restore_plan(self, epoch: int) -> StepPlan:
        """Return a plan with the restores that were begun in this pass.

        They stay with the life of the Manager that they were begun with, also when its channel has closed since: the
        workers' mappings outlive it. A plan has one life, so restores of another one are lost.
        """
        begun, self._restores = self._restores, []
        lost, self._lost = self._lost, []
        plan = StepPlan(epoch=epoch, lost=lost)
        for session, restore in begun:
            if plan.incarnation not in (b"", session.incarnation):
                lost.extend(restore.blocks.tolist())
                continue
            plan.incarnation, plan.slices = session.incarnation, session.slices
            plan.restores.append(restore)
        return plan

    def _first_use(self, request: str) -> None:
        if (queued := self._unused.pop(request, None)) is not None:
            self.timeline.record(Stage.FIRST_USE, request, elapsed_us=round((self.clock() - queued) * 1e6))
