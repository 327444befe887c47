"""The scheduler side of a golden round trip after a reconnection: two free blocks are lent to every worker.

At start every block is spare. Later the scheduler side lends two free blocks through a step's plan, and the instance
gives no hits before every rank has passed.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from orbitkv.adapter.golden import GoldenResult
from orbitkv.adapter.logs import LOGGER
from orbitkv.vllm.plans import GoldenLoan
from orbitkv.vllm.pool import BlockPool

RETRY_SECONDS = 1.0  # after a round trip that could not run
SPARE_BLOCKS = 2

log = logging.getLogger(LOGGER)


@dataclass
class GoldenDesk:
    """Scheduler side: lends blocks, counts results. `proven` is the incarnation that every rank has proved."""

    world: int
    deadline_seconds: float
    clock: Callable[[], float] = time.monotonic
    pool: BlockPool | None = None
    proven: bytes = b""
    _refused: bytes = b""
    _loan: GoldenLoan | None = None
    _blocks: list[Any] = field(default_factory=list)
    _incarnation: bytes = b""
    _since: float = 0.0
    _not_before: float = 0.0
    _due: bytes = b""  # the life that `_due_since` is about
    _due_since: float = 0.0
    _ranks: int = 0
    _worst: GoldenResult = GoldenResult.PASSED
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def pending(self, incarnation: bytes) -> bool:
        """Return whether steps are needed for a round trip with this life of the Manager; empty: it is absent.

        A loan that is out needs them for at most the call deadline: a rank that is silent is no reason to step. So does
        one that cannot be made yet, since the instance is not complete, no two blocks are free or the last round trip
        could not run: counted once for a life, from the first time that the engine has nothing else to do.
        """
        now = self.clock()
        if self._loan is not None:
            return now - self._since < self.deadline_seconds
        if incarnation in (b"", self.proven, self._refused):
            return False
        if incarnation != self._due:
            self._due, self._due_since = incarnation, now
        return now - self._due_since < self.deadline_seconds

    def lend(self, incarnation: bytes) -> GoldenLoan | None:
        """Return a new loan when this incarnation is not proved yet and two blocks are free."""
        now = self.clock()
        if incarnation in (self.proven, self._refused) or self._loan is not None or now < self._not_before:
            return None
        if self.pool is None or self.pool.get_num_free_blocks() < SPARE_BLOCKS:
            return None
        self._blocks = self.pool.get_new_blocks(SPARE_BLOCKS)
        self._loan = GoldenLoan(next(self._numbers), self._blocks[0].block_id, self._blocks[1].block_id)
        self._incarnation, self._since, self._ranks, self._worst = incarnation, now, 0, GoldenResult.PASSED
        return self._loan

    def result(self, loan: int, ranks: int, result: GoldenResult) -> None:
        """Count the ranks that are through; the last one ends the loan and decides."""
        if self._loan is None or self._loan.loan != loan or self.pool is None:
            return
        self._ranks += ranks
        self._worst = max(self._worst, result)
        if self._ranks < self.world:
            return
        self.pool.free_blocks(self._blocks)
        self._loan, self._blocks = None, []
        if self._worst is GoldenResult.PASSED:
            self.proven = self._incarnation
            log.info("golden round trip passed on every rank")
        elif self._worst is GoldenResult.MISMATCH:
            self._refused = self._incarnation
            log.error("a golden round trip brought back other bytes: no external hits with this Cache Manager")
        else:
            self._not_before = self.clock() + RETRY_SECONDS
