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

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from orbitkv.adapter.plans import PublishPlan
from orbitkv.adapter.publishing import COPY_PAGES, PRESSED_SECONDS, RESERVE_PAGES_MAX, RESERVES_MAX, publish_plans
from orbitkv.adapter.session import SchedulerSession
from orbitkv.adapter.stats import Stats
from orbitkv.client import Grant, Reserve
from orbitkv.errors import OrbitKVError
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
    """Collected pages: their keys' reserve, block ids and when they were asked for."""

    session: SchedulerSession
    reserve: Reserve
    blocks: list[int]
    keys: list[bytes]
    asked: float


@dataclass
class Planned:
    """Blocks that workers read, for a reservation of a session."""

    blocks: list[int]
    keys: list[bytes]
    session: SchedulerSession
    reservation: int
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
    _blocks: list[int] = field(default_factory=list)
    _keys: list[bytes] = field(default_factory=list)
    _busy: set[bytes] = field(default_factory=set)
    _asked: list[Batch] = field(default_factory=list)
    _planned: dict[int, Planned] = field(default_factory=dict)
    _held: int = 0
    _copying: int = 0  # blocks that workers read
    _draining: bool = False  # a bound was reached: nothing is collected until copies end
    _silent: bool = False  # the last reserve was given up unanswered: the next one is a probe of COPY_PAGES pages
    _tickets: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

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
        plans = [plan for batch in self._answered(session) for plan in self._plan(batch)]
        self._ask(session)
        self._draining = session is not None and self._at_bound(session)
        self.stats.gauge("pending_save_requests", len(self._asked) + len(self._planned))
        return plans

    def copied(self, ticket: int, ranks: int) -> None:
        """Count ranks that no longer read a batch's blocks; give them back when it was the last one."""
        planned = self._planned.get(ticket)
        if planned is None:
            return
        planned.ranks += ranks
        if planned.ranks < self.world:
            return
        del self._planned[ticket]
        self._copying -= len(planned.blocks)
        self._give_back(planned.blocks, planned.keys)
        if all(other.reservation != planned.reservation for other in self._planned.values()):
            planned.session.reservations.discard(planned.reservation)

    def release_unplanned(self) -> None:
        """Give back everything that no worker reads."""
        self._give_back(self._blocks, self._keys)
        self._blocks, self._keys = [], []
        for batch in self._asked:
            self._give_up(batch)
        self._asked = []

    def _take(self, key: bytes, block: int) -> bool:
        """Hold one block; return False at a bound, where the page is taken in a later step or not at all."""
        assert self.pool is not None
        if key in self._busy or block == 0:
            return True
        if len(self._keys) >= self._pages_max():
            return False
        self.pool.touch([self.pool.blocks[block]])
        self._held += 1
        self._busy.add(key)
        self._blocks.append(block)
        self._keys.append(key)
        return True

    def _pages_max(self) -> int:
        """Return how many pages may be collected now. A silent or slow Manager must not tie up the engine's blocks."""
        if self._draining:
            return 0
        if self._asked and (self._silent or self.clock() - self._asked[0].asked >= QUIET_SECONDS):
            return 0
        return COPY_PAGES if self._silent else RESERVE_PAGES_MAX

    def _give_back(self, blocks: list[int], keys: list[bytes]) -> None:
        if blocks:
            assert self.pool is not None
            # The tail goes first, as the engine itself does: a prefix is worth more than what follows it.
            self.pool.free_blocks([self.pool.blocks[block] for block in reversed(blocks)])
            self._held -= len(blocks)
            self._busy.difference_update(keys)

    def _ask(self, session: SchedulerSession | None) -> None:
        if not self._keys:
            return
        if session is None:
            # Nobody to publish to: the pages are recomputed when they are needed again.
            self.stats.count("save_skipped", len(self._keys))
            self._give_back(self._blocks, self._keys)
            self._blocks, self._keys = [], []
            return
        if self._at_bound(session):
            return
        blocks, keys = self._blocks, self._keys
        self._blocks, self._keys = [], []
        try:
            reserve = session.client.reserve(session.namespace, b"".join(keys), instance=session.instance, wait_us=0)
        except OrbitKVError as fault:
            self._fail(session, fault, blocks, keys)
            return
        self._asked.append(Batch(session, reserve, blocks, keys, self.clock()))

    def _at_bound(self, session: SchedulerSession) -> bool:
        """Return whether answers or copies must come before more is asked for."""
        assert self.pool is not None
        return (
            len(self._asked) >= RESERVES_MAX
            or len(self._asked) + len(session.reservations) >= session.reservations_max
            or self._copying * COPYING_SHARE >= len(self.pool.blocks)
        )

    def _answered(self, session: SchedulerSession | None) -> list[Batch]:
        """Return the batches whose answer came; give up on those that are overdue or whose session is gone."""
        now = self.clock()
        patience = PRESSED_SECONDS if self._asked and self._pressed() else self.deadline_seconds
        ready, waiting = [], []
        for batch in self._asked:
            if batch.session is not session:
                self._give_up(batch)
                continue
            try:
                batch.reserve.refresh()
            except OrbitKVError as fault:
                self._fail(batch.session, fault, batch.blocks, batch.keys)
                continue
            if batch.reserve.answered:
                self._silent = False
                ready.append(batch)
            elif now - batch.asked >= patience:
                self._silent = True
                self._give_up(batch)
            else:
                waiting.append(batch)
        self._asked = waiting
        return ready

    def _pressed(self) -> bool:
        assert self.pool is not None
        return self.pool.get_num_free_blocks() * PRESSED_SHARE < len(self.pool.blocks)

    def _fail(self, session: SchedulerSession, fault: OrbitKVError, blocks: list[int], keys: list[bytes]) -> None:
        """Give back what cannot be published. A full table of the Manager's is a bound, not a fault of the session."""
        session.fail(fault)
        self.stats.count("save_skipped" if session.alive else "save_failure", len(keys))
        self._give_back(blocks, keys)

    def _give_up(self, batch: Batch) -> None:
        """Give the sources back although the reserve is unanswered; the client abandons a grant that still comes."""
        batch.reserve.drop()
        self._give_back(batch.blocks, batch.keys)
        self.stats.count("save_failure", len(batch.keys))

    def _plan(self, batch: Batch) -> list[PublishPlan]:
        """Split the granted pages into batches for the workers; give the others back at once."""
        reserve = batch.reserve
        granted = reserve.granted()
        if len(granted) and not batch.session.own(reserve.reservation):
            # A later session has named what workers write into, and this is not among it: the Manager takes it back.
            self._give_up(batch)
            return []
        others = np.flatnonzero(reserve.grants != Grant.GRANTED)
        self._give_back([batch.blocks[i] for i in others], [batch.keys[i] for i in others])
        if len(granted) == 0:
            return []
        plans = publish_plans(reserve, np.array(batch.blocks, dtype=np.int64), batch.session.parts, self._tickets)
        for plan in plans:
            keys = [batch.keys[i] for i in granted[plan.ordinals]]
            self._copying += len(plan.blocks)
            self._planned[plan.ticket] = Planned(plan.blocks.tolist(), keys, batch.session, reserve.reservation)
        return plans
