"""Publishing on the scheduler side: which blocks are copied out, and who holds them meanwhile.

A batch of blocks moves

    collected (touched) ──reserve──► asked ──answer──► planned ──all ranks copied──► given back
                                   │ refused, no answer within the call deadline, session lost, reset
                                   └──────────────────────────────────────────► given back; a late grant is abandoned

- Only confirmed full blocks are taken: the engine has processed the output of a step that came after the blocks were
  filled, so that neither a rejected draft, a step in flight nor a block shared with a neighbour that is still being
  filled is ever published.
- A source is held by a reference of the block pool from its collection until every rank reported that it no longer
  reads it. So a request ends and is preempted without waiting, and the blocks cannot be written again before. The way
  back goes through the engine alone: a dead Manager pins no block.
- Everything runs on the scheduler's thread. Nothing here waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from orbitkv.adapter.plans import PublishPlan
from orbitkv.adapter.publishing import COPY_PAGES, RESERVE_PAGES_MAX, OpenReserve, ReserveTable
from orbitkv.adapter.session import SchedulerSession
from orbitkv.adapter.stats import Stats
from orbitkv.client import Grant
from orbitkv.vllm.plans import Progress
from orbitkv.vllm.pool import BlockPool

QUIET_SECONDS = 0.25  # a reserve that is unanswered for so long stops the collecting: the Manager may be stopped
COPYING_SHARE = 2  # nothing is collected while copies hold one in this many of the engine's blocks
PRESSED_SHARE = 4  # an engine runs out when less than one in this many of its blocks is free


@dataclass
class Tracked:
    """A request's blocks. `admitted` are the tokens that counted as computed when it was admitted, once they are known.

    What was admitted is confirmed only by the output of a later step: the blocks of a device hit may still be filled by
    a neighbour in the very step that admitted the request.
    """

    epoch: int
    restored: range  # page indexes that came from the Cache Manager
    blocks: Sequence[int]
    admitted: int | None = None
    next: int = 0


@dataclass
class Batch:
    """Pages that are held together: page i lies in block `blocks[i]` and has `keys[i]`."""

    blocks: list[int] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)


@dataclass
class Planned:
    """Pages of an open reserve that workers read; `ranks` is how many have read them."""

    pages: Batch
    opened: OpenReserve[Batch]
    ranks: int = 0


@dataclass
class Publisher:
    """See the module's text. `world` is how many ranks report each batch."""

    page_tokens: int
    world: int
    deadline_seconds: float
    stats: Stats
    volatile_pages: int = 0  # trailing full pages of a request that are not final yet
    clock: Callable[[], float] = time.monotonic
    pool: BlockPool | None = None
    due: dict[str, int] = field(default_factory=dict)  # request to the computed tokens below which it has nothing new
    _tracked: dict[str, Tracked] = field(default_factory=dict)
    _collected: Batch = field(default_factory=Batch)
    _busy: set[bytes] = field(default_factory=set)
    _planned: dict[int, Planned] = field(default_factory=dict)
    _held: int = 0
    _copying: int = 0  # blocks that workers read
    _draining: bool = False  # nothing is collected until an answer or the end of a copy makes room
    _reserves: ReserveTable[Batch] = field(init=False)

    def __post_init__(self) -> None:
        self._reserves = ReserveTable(self.deadline_seconds, self.stats, self._give_back, self.clock)

    @property
    def held(self) -> int:
        """Return how many blocks are held."""
        return self._held

    @property
    def pending(self) -> bool:
        """Return whether a later step is needed to finish what was begun."""
        return bool(self._held)

    def admit(self, request: str, *, epoch: int, restored: range, blocks: Sequence[int]) -> None:
        """Begin to follow a request that was given blocks; also after a preemption."""
        self._tracked[request] = Tracked(epoch, restored, blocks)
        self.due[request] = 0

    def update_blocks(self, request: str, blocks: Sequence[int]) -> None:
        """Take the engine's complete list of the request's blocks."""
        if tracked := self._tracked.get(request):
            tracked.blocks = blocks

    def forget(self, request: str) -> None:
        """Stop following a preempted request: its blocks are the engine's again, held ones stay held."""
        self._tracked.pop(request, None)
        self.due.pop(request, None)

    def collect(self, progress: Progress, epoch: int) -> None:
        """Take the confirmed full pages that were not taken before, and say when there may be more."""
        tracked = self._tracked.get(progress.request)
        if tracked is None:
            return
        if tracked.epoch != epoch:
            self.forget(progress.request)
            return
        if tracked.admitted is None:
            tracked.admitted = progress.computed
        self._take_pages(progress, tracked)
        self.due[progress.request] = max(
            tracked.admitted + 1, (tracked.next + 1 + self.volatile_pages) * self.page_tokens
        )

    def _take_pages(self, progress: Progress, tracked: Tracked) -> None:
        full = min(self._final_pages(progress, tracked), len(tracked.blocks))
        while tracked.next < full:
            index = tracked.next
            if index not in tracked.restored and not self._take(progress.hashes[index], tracked.blocks[index]):
                return
            tracked.next = index + 1

    def finish(self, progress: Progress, epoch: int) -> None:
        """Take what is left of a request that ends now; its blocks go back to the engine right after."""
        tracked = self._tracked.get(progress.request)
        if tracked is not None and tracked.admitted is not None and tracked.epoch == epoch:
            self.collect(progress, epoch)
            if (skipped := self._final_pages(progress, tracked) - tracked.next) > 0:
                self.stats.count("save_skipped", skipped)
        self.forget(progress.request)

    def _final_pages(self, progress: Progress, tracked: Tracked) -> int:
        """Return how many leading pages of the request can no longer change."""
        if tracked.admitted is None or progress.confirmed <= tracked.admitted:
            return 0
        return min(progress.confirmed // self.page_tokens - self.volatile_pages, len(progress.hashes))

    def end_pass(self, session: SchedulerSession | None) -> list[PublishPlan]:
        """Take answers, give up on overdue ones, ask for what was collected; return the plans of this step."""
        pressed = bool(self._reserves.unanswered) and self._pressed()
        steps = []
        for opened, plans in self._reserves.review(session, pressed=pressed):
            self._plan(opened, plans)
            steps += plans
        self._ask(session)
        self._draining = session is not None and not self._may_ask(session)
        self.stats.gauge("pending_save_requests", self._reserves.open)
        return steps

    def copied(self, ticket: int, ranks: int) -> None:
        """Count ranks that no longer read a batch's blocks; give them back when it was the last one."""
        planned = self._planned.get(ticket)
        if planned is None:
            return
        planned.ranks += ranks
        if planned.ranks < self.world:
            return
        del self._planned[ticket]
        self._copying -= len(planned.pages.blocks)
        self._give_back(planned.pages)
        self._reserves.ended(planned.opened)

    def release_unplanned(self) -> None:
        """Give back everything that no worker reads."""
        self._give_back(self._take_collected())
        self._reserves.give_up()

    def _take(self, key: bytes, block: int) -> bool:
        """Hold one block; return False at a bound, where the page is taken in a later step or not at all."""
        assert self.pool is not None
        if key in self._busy or block == 0:
            return True
        if len(self._collected.keys) >= self._pages_max():
            return False
        self.pool.touch([self.pool.blocks[block]])
        self._held += 1
        self._busy.add(key)
        self._collected.blocks.append(block)
        self._collected.keys.append(key)
        return True

    def _pages_max(self) -> int:
        """Return how many pages may be collected now. A silent or slow Manager must not tie up the engine's blocks."""
        if self._draining:
            return 0
        unanswered = self._reserves.unanswered
        if unanswered and self.clock() - unanswered[0].since >= QUIET_SECONDS:
            return 0
        return COPY_PAGES if self._reserves.silent else RESERVE_PAGES_MAX

    def _take_collected(self) -> Batch:
        collected, self._collected = self._collected, Batch()
        return collected

    def _give_back(self, batch: Batch) -> None:
        if batch.blocks:
            assert self.pool is not None
            # The tail goes first, as the engine itself does: a prefix is worth more than what follows it.
            self.pool.free_blocks([self.pool.blocks[block] for block in reversed(batch.blocks)])
            self._held -= len(batch.blocks)
            self._busy.difference_update(batch.keys)

    def _ask(self, session: SchedulerSession | None) -> None:
        if not self._collected.keys:
            return
        if session is None:
            # Nobody to publish to: the pages are recomputed when they are needed again.
            self.stats.count("save_skipped", len(self._collected.keys))
            self._give_back(self._take_collected())
        elif self._may_ask(session):
            batch = self._take_collected()
            sources = np.array(batch.blocks, dtype=np.int64)
            self._reserves.ask(session, session.namespace, b"".join(batch.keys), sources, batch)

    def _may_ask(self, session: SchedulerSession) -> bool:
        """Return whether nothing keeps another reserve back. Otherwise answers or copies must come first."""
        assert self.pool is not None
        return self._reserves.may_ask(session) and self._copying * COPYING_SHARE < len(self.pool.blocks)

    def _pressed(self) -> bool:
        assert self.pool is not None
        return self.pool.get_num_free_blocks() * PRESSED_SHARE < len(self.pool.blocks)

    def _plan(self, opened: OpenReserve[Batch], plans: list[PublishPlan]) -> None:
        """Note what workers read from now on; give the others back at once."""
        blocks, keys = opened.batch.blocks, opened.batch.keys
        others = np.flatnonzero(opened.reserve.grants != Grant.GRANTED)
        self._give_back(Batch([blocks[i] for i in others], [keys[i] for i in others]))
        granted = opened.reserve.granted()
        for plan in plans:
            pages = Batch(plan.blocks.tolist(), [keys[i] for i in granted[plan.ordinals]])
            self._copying += len(pages.blocks)
            self._planned[plan.ticket] = Planned(pages, opened)
