"""The golden round trip: proof that bytes come back as they went, on the engine's own tensors.

A worker fills one spare block of every layer with a pattern, publishes it, restores it into another block and compares
every byte. It goes through the engine's view of its tensors, not through the addresses that the copies use, so that a
layout that was read wrongly shows. The page lives in a private namespace that is dropped at the end.

At start every block is spare; later an adapter lends two free ones. An instance gives no hits before every rank passed.

On a device the pattern is written in the order of one stream, while forwards and copies have others: what the engine
launched is settled before the pattern is written, and the pattern before it is copied. The target is read after the
copy's terminal result.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from mmap import PAGESIZE, mmap
from typing import Protocol

import numpy as np
import numpy.typing as npt

from orbitkv._numa import NO_NODE
from orbitkv.adapter.logs import LOGGER
from orbitkv.adapter.reports import Report
from orbitkv.client import Arena, CacheManagerClient, Grant, State
from orbitkv.errors import EngineFault, OrbitKVError, TransferError, TransferStalled
from orbitkv.transfer import DIGEST_LAYER, CopyPlan, KVLayout, LayerLayout, Transfer, TransferBackend

LATE = (
    "a copy of the golden round trip has not ended after %g s: its two blocks stay lent until it does. "
    "Real copies may be ahead of it in the queue"
)
LOST = (EngineFault, TransferStalled)  # a copy may still write: the blocks stay as they are, and the engine ends

Locations = npt.NDArray[np.uint64]

log = logging.getLogger(LOGGER)


class GoldenResult(IntEnum):
    """Outcome of a golden round trip; the worst of all ranks counts."""

    PASSED = 0
    NOT_RUN = 1  # no channel or no arena yet: it may be tried again
    MISMATCH = 2  # a byte differed: the connector stays inert


class PageAccess(Protocol):
    """Reads and writes one block of one layer through the engine's own view of its tensors."""

    def write(self, layer: int, block: int, content: npt.NDArray[np.uint8]) -> None:
        """Put `content` into the block."""
        ...

    def read(self, layer: int, block: int) -> npt.NDArray[np.uint8]:
        """Return the block's bytes."""
        ...

    def settle(self) -> None:
        """Return once everything that was written is in place for every stream of the engine's device."""
        ...


@dataclass(frozen=True)
class RoundTrip:
    """The parts of a check: a pattern, copies there and back, a comparison. A copy slower than `seconds` is told."""

    backend: TransferBackend
    layout: KVLayout
    pages: PageAccess
    seconds: float

    @property
    def _layers(self) -> list[tuple[int, LayerLayout]]:
        """Return the engine's layers with their numbers. The digests' rows are left alone: a publish writes them."""
        return [(index, layer) for index, layer in enumerate(self.layout.layers) if layer.name != DIGEST_LAYER]

    def _fill(self, seed: bytes, source: int, target: int) -> None:
        # A forward that was launched before the blocks were lent may still write them, in the order of another stream.
        self.pages.settle()
        for index, layer in self._layers:
            content = pattern(seed, index, layer.block_bytes)
            self.pages.write(index, source, content)
            self.pages.write(index, target, ~content)
        self.pages.settle()

    def _blank(self, source: int, target: int) -> None:
        for index, layer in self._layers:
            for block in (source, target):
                self.pages.write(index, block, np.zeros(layer.block_bytes, np.uint8))
        self.pages.settle()

    def _compare(self, seed: bytes, target: int) -> GoldenResult:
        for index, layer in self._layers:
            if not np.array_equal(self.pages.read(index, target), pattern(seed, index, layer.block_bytes)):
                log.error("layer %s came back with other bytes in the golden round trip", layer.name)
                return GoldenResult.MISMATCH
        return GoldenResult.PASSED

    def _publish(self, block: int, locations: Locations, offset: int) -> GoldenResult:
        return self._ended(lambda plan: self.backend.publish(plan, on_done=ignore), block, locations, offset)

    def _restore(self, block: int, locations: Locations, offset: int) -> GoldenResult:
        return self._ended(lambda plan: self.backend.restore([plan], on_done=ignore)[0], block, locations, offset)

    def _ended(
        self, submit: Callable[[CopyPlan], Transfer], block: int, locations: Locations, offset: int
    ) -> GoldenResult:
        """Copy one block and return whether its bytes arrived, or differ by their digest.

        EngineFault and TransferStalled when nobody knows.
        """
        try:
            plan = CopyPlan(self.layout, np.array([block], np.int64), np.ascontiguousarray(locations[:1]), offset)
            transfer = submit(plan)
        except TransferError as fault:
            return not_run(fault)
        # I2: the blocks are blanked, reported and given back only after the terminal result, however long it takes.
        late = False
        while not transfer.done:
            try:
                transfer.wait_all(self.seconds)
            except TransferStalled:
                self.backend.check()
                if not late:
                    log.warning(LATE, self.seconds)
                late = True
        if len(transfer.bad):
            log.error("a page came back with another digest in the golden round trip")
            return GoldenResult.MISMATCH
        return GoldenResult.PASSED if transfer.ok else GoldenResult.NOT_RUN


@dataclass(frozen=True)
class GoldenCheck(RoundTrip):
    """One rank's round trip through the Cache Manager, for which no wait is longer than `seconds`.

    A copy is waited for until it ends. `tell` says how it ended, also when the channel breaks meanwhile: its page would
    stay in the Manager's books for as long as the process lives.
    """

    client: CacheManagerClient
    tell: Callable[[Report], None]

    def run(self, source: int, target: int) -> GoldenResult:
        """Run it between two blocks that nobody else uses. Faults of the channel mean "not run".

        EngineFault and TransferStalled when a copy may still write into the blocks: the engine must end.
        """
        seed = secrets.token_bytes(16)
        try:
            if self.client.wait_arenas(1, self.seconds) < 1:
                return GoldenResult.NOT_RUN
        except OrbitKVError as fault:
            return not_run(fault)
        self._fill(seed, source, target)
        try:
            result = self._round_trip(seed, source, target)
        except LOST:
            raise
        except OrbitKVError as fault:
            result = not_run(fault)
        self._blank(source, target)
        return result

    def _round_trip(self, seed: bytes, source: int, target: int) -> GoldenResult:
        # One that an earlier attempt was not answered about may be open, and would stay in the way of every later one.
        self.client.close_private()
        namespace = self.client.open_private(self.layout.slice_bytes)
        try:
            key = hashlib.sha256(seed).digest()
            rank, offset = namespace.slices[0].rank, namespace.slices[0].offset
            reserve = self.client.reserve(namespace, key, instance="", wait_us=int(self.seconds * 1e6))
            if not reserve.answered or list(reserve.grants) != [Grant.GRANTED]:
                reserve.drop()
                return GoldenResult.NOT_RUN
            reservation, page = reserve.reservation, [(0, 1)]
            if self._publish(source, reserve.locations(0), offset) is not GoldenResult.PASSED:
                self.tell(Report(lambda client: client.abandoned(reservation, rank, page), reservation=reservation))
                return GoldenResult.NOT_RUN
            self.tell(Report(lambda client: client.committed(reservation, rank, page), reservation=reservation))
            query = self.client.query(namespace, key, instance="", wait_us=int(self.seconds * 1e6))
            if query.state is not State.READY or query.lease is None:
                query.cancel()
                return GoldenResult.NOT_RUN
            query.lease.begin(1)
            lease = query.lease.id
            result = self._restore(target, query.lease.locations(0), offset)
            arrived = result is GoldenResult.PASSED
            copied = self.layout.slice_bytes if arrived else 0
            self.tell(Report(lambda client: client.restored(lease, rank, arrived, copied, page), lease=lease))
            return self._compare(seed, target) if arrived else result
        finally:
            self.client.close_private()


@dataclass(frozen=True)
class TensorCheck(RoundTrip):
    """One rank's round trip through memory of its own, while no Cache Manager is needed and none may be there."""

    def run(self, source: int, target: int) -> GoldenResult:
        """Run it between two blocks that nobody else uses. The backend must have no arena yet.

        EngineFault and TransferStalled when a copy may still write into the blocks: the engine must end.
        """
        seed = secrets.token_bytes(16)
        size = -(-self.layout.slice_bytes // PAGESIZE) * PAGESIZE
        # Whole pages of the machine's memory, since a device locks nothing less.
        memory = np.frombuffer(mmap(-1, size), np.uint8)
        self.backend.register_arena(Arena(0, NO_NODE, size, memory))
        place = np.zeros(1, np.uint64)
        self._fill(seed, source, target)
        result = self._publish(source, place, 0)
        if result is GoldenResult.PASSED:
            result = self._restore(target, place, 0)
        if result is GoldenResult.PASSED:
            result = self._compare(seed, target)
        self._blank(source, target)
        self.backend.unregister_arena(0)
        return result


def not_run(fault: OrbitKVError) -> GoldenResult:
    """Say why a check could not run, and return that."""
    log.warning("the golden round trip could not run: %s", fault)
    return GoldenResult.NOT_RUN


def ignore(_: Transfer) -> None:
    """Leave the end of a copy to whoever waits for it."""


def pattern(seed: bytes, layer: int, size: int) -> npt.NDArray[np.uint8]:
    """Return the bytes of one layer: every layer's differ, and so does every run's."""
    return np.random.default_rng([layer, *seed]).integers(0, 256, size, dtype=np.uint8)
