"""The golden round trip: proof that bytes come back as they went, on the engine's own tensors.

A worker fills one spare block of every layer with a pattern, publishes it, restores it into another block and compares
every byte. It goes through the engine's view of its tensors, not through the addresses that the copies use, so that a
layout that was read wrongly shows. The page lives in a private namespace that is dropped at the end.

At start every block is spare. After a reconnection the scheduler side lends two free blocks (`GoldenDesk`), and the
instance gives no hits before every rank has passed.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from orbitkv.client import CacheManagerClient, Grant, State
from orbitkv.errors import OrbitKVError, TransferError
from orbitkv.transfer import CopyPlan, KVLayout, Transfer, TransferBackend
from orbitkv.vllm.logs import LOGGER
from orbitkv.vllm.plans import GoldenLoan, GoldenResult
from orbitkv.vllm.pool import BlockPool

RETRY_SECONDS = 1.0  # after a round trip that could not run
SPARE_BLOCKS = 2

log = logging.getLogger(LOGGER)


class PageAccess(Protocol):
    """Reads and writes one block of one layer through the engine's own view of its tensors."""

    def write(self, layer: int, block: int, content: npt.NDArray[np.uint8]) -> None:
        """Put `content` into the block."""
        ...

    def read(self, layer: int, block: int) -> npt.NDArray[np.uint8]:
        """Return the block's bytes."""
        ...


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


@dataclass(frozen=True)
class GoldenCheck:
    """One rank's round trip. `seconds` bounds every wait for the Cache Manager; a copy is waited for until it ends."""

    client: CacheManagerClient
    backend: TransferBackend
    layout: KVLayout
    pages: PageAccess
    seconds: float

    def run(self, source: int, target: int) -> GoldenResult:
        """Run it between two blocks that nobody else uses. Faults of the channel mean "not run"."""
        seed = secrets.token_bytes(16)
        try:
            if self.client.wait_arenas(1, self.seconds) < 1:
                return GoldenResult.NOT_RUN
            self._fill(seed, source, target)
            try:
                return self._round_trip(seed, source, target)
            finally:
                self._blank(source, target)
        except OrbitKVError as fault:
            log.warning("the golden round trip could not run: %s", fault)
            return GoldenResult.NOT_RUN

    def _fill(self, seed: bytes, source: int, target: int) -> None:
        for index, layer in enumerate(self.layout.layers):
            content = pattern(seed, index, layer.block_bytes)
            self.pages.write(index, source, content)
            self.pages.write(index, target, ~content)

    def _blank(self, source: int, target: int) -> None:
        for index, layer in enumerate(self.layout.layers):
            for block in (source, target):
                self.pages.write(index, block, np.zeros(layer.block_bytes, np.uint8))

    def _round_trip(self, seed: bytes, source: int, target: int) -> GoldenResult:
        namespace = self.client.open_private(self.layout.slice_bytes)
        try:
            key = hashlib.sha256(seed).digest()
            rank, offset = namespace.slices[0].rank, namespace.slices[0].offset
            reserve = self.client.reserve(namespace, key, instance="", wait_us=int(self.seconds * 1e6))
            if not reserve.answered or list(reserve.grants) != [Grant.GRANTED]:
                reserve.drop()
                return GoldenResult.NOT_RUN
            if not self._copy(self.backend.publish, source, reserve.locations(0), offset):
                self.client.abandoned(reserve.reservation, rank, [(0, 1)])
                return GoldenResult.NOT_RUN
            self.client.committed(reserve.reservation, rank, [(0, 1)])
            query = self.client.query(namespace, key, instance="", wait_us=int(self.seconds * 1e6))
            if query.state is not State.READY or query.lease is None:
                query.cancel()
                return GoldenResult.NOT_RUN
            query.lease.begin(1)
            arrived = self._copy(self.backend.restore, target, query.lease.locations(0), offset)
            self.client.restored(query.lease.id, rank, arrived, self.layout.slice_bytes if arrived else 0, [(0, 1)])
            if not arrived:
                return GoldenResult.NOT_RUN
            return self._compare(seed, target)
        finally:
            self.client.close_private()

    def _compare(self, seed: bytes, target: int) -> GoldenResult:
        for index, layer in enumerate(self.layout.layers):
            if not np.array_equal(self.pages.read(index, target), pattern(seed, index, layer.block_bytes)):
                log.error("layer %s came back with other bytes in the golden round trip", layer.name)
                return GoldenResult.MISMATCH
        return GoldenResult.PASSED

    def _copy(
        self, submit: Callable[..., Transfer], block: int, locations: npt.NDArray[np.uint64], offset: int
    ) -> bool:
        done = threading.Event()
        plan = CopyPlan(self.layout, np.array([block], np.int64), np.ascontiguousarray(locations[:1]), offset)
        options: dict[str, Any] = {"after": None} if submit == self.backend.publish else {}
        try:
            transfer = submit(plan, on_done=lambda _: done.set(), **options)
        except TransferError as fault:
            log.warning("the golden round trip could not copy: %s", fault)
            return False
        # I2: the blocks are blanked, reported and given back only after the terminal result, however long it takes.
        if not done.wait(self.seconds):
            log.warning(
                "a copy of the golden round trip has not ended after %g s: its two blocks stay lent until it does. "
                "Real copies may be ahead of it in the queue",
                self.seconds,
            )
            done.wait()
        return transfer.ok


def pattern(seed: bytes, layer: int, size: int) -> npt.NDArray[np.uint8]:
    """Return the bytes of one layer: every layer's differ, and so does every run's."""
    return np.random.default_rng([layer, *seed]).integers(0, 256, size, dtype=np.uint8)
