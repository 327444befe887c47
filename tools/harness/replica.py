"""An engine replica without an engine: ranks with KV memory of their own that publish and restore checked pages.

It does what an adapter does, in the same order of frames: a scheduler session asks, every rank's own session copies
through the host backend and reports. Destinations are poisoned first and every restored byte is compared.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from harness import oracle
from orbitkv.client import CacheManagerClient, Lease, Namespace, Role, State
from orbitkv.errors import OrbitKVError
from orbitkv.transfer import CopyPlan, HostBackend, KVLayout, Transfer, TransferBackend

COPY_LIMIT_S = 300.0
BATCH_PAGES = 512  # pages of one copy plan: the memory of a rank
Ordinals = npt.NDArray[np.int64]


class WrongBytes(AssertionError):
    """A restored byte differs from the oracle's."""


@dataclass(frozen=True)
class Shape:
    """What a replica looks like; equal shapes and facts share a namespace."""

    world: int = 1
    layers: int = 4
    layer_bytes: int = 8192
    blocks: int = BATCH_PAGES
    model: str = "oracle"
    facts: tuple[tuple[str, str], ...] = ()  # further facts of its namespace

    @property
    def slice_bytes(self) -> int:
        """Return the bytes of one rank's slice of a page."""
        return self.layers * self.layer_bytes


class Tensor:
    """The face of a torch tensor over numpy rows of blocks."""

    def __init__(self, rows: oracle.Bytes) -> None:
        self.shape = rows.shape
        self._rows = rows

    def stride(self) -> tuple[int, ...]:
        """Return the strides in elements, which are bytes here."""
        return self._rows.strides

    def element_size(self) -> int:
        """Return the bytes of an element."""
        return 1

    def data_ptr(self) -> int:
        """Return the address of the first byte."""
        return int(self._rows.ctypes.data)


class Rank:
    """One rank: KV memory, a backend, and a worker session that attached. `writer` says what writes into arenas."""

    writer = "host"

    def __init__(self, socket: str, instance: str, number: int, shape: Shape, **options: Any) -> None:
        self.number = number
        self.shape = shape
        self.layout, self.backend = self.open()
        try:
            self.client = CacheManagerClient(
                socket, role=Role.WORKER, on_arena=self.backend.register_arena, name=f"rank {number}", **options
            )
        except OrbitKVError:
            self.backend.close()
            raise
        facts = {"model": shape.model, "layers": str(shape.layers), **dict(shape.facts)}
        try:
            self.client.attach(
                instance,
                number,
                shape.world,
                slice_bytes=shape.slice_bytes,
                writer=self.writer,
                facts=facts,
                backend=self.backend.name,
            )
        except OrbitKVError:
            self.close()
            raise

    def open(self) -> tuple[KVLayout, TransferBackend]:
        """Make the KV memory; return its layout and the backend that copies."""
        shape = self.shape
        self.memory = np.zeros((shape.layers, shape.blocks, shape.layer_bytes), np.uint8)
        layout = KVLayout.from_tensors({f"layer.{i}": Tensor(self.memory[i]) for i in range(shape.layers)})
        return layout, HostBackend()

    def close(self) -> None:
        """End the copies, then the session."""
        self.backend.close()
        self.client.close()

    def fill(self, keys: bytes) -> Ordinals:
        """Write the oracle's slices into the first blocks and return those blocks."""
        rows = oracle.slices(keys, self.number, self.shape.slice_bytes)
        blocks = np.arange(len(rows))
        self.memory[:, blocks] = rows.reshape(len(rows), self.shape.layers, -1).transpose(1, 0, 2)
        return blocks

    def poison(self) -> None:
        """Let no block hold what a restore could bring."""
        self.memory[...] = oracle.POISON

    def check(self, keys: bytes, blocks: Ordinals) -> None:
        """Compare blocks with the oracle; WrongBytes names the first page that differs."""
        rows = self.memory[:, blocks].transpose(1, 0, 2).reshape(len(blocks), -1)
        wrong = np.flatnonzero((rows != oracle.slices(keys, self.number, self.shape.slice_bytes)).any(axis=1))
        if len(wrong):
            raise WrongBytes(f"rank {self.number}: {len(wrong)} of {len(blocks)} pages, the first is {wrong[0]}")


class Replica:
    """All ranks of one instance and its scheduler session."""

    def __init__(
        self,
        socket: str,
        instance: str,
        shape: Shape | None = None,
        *,
        arenas: int = 1,
        make_rank: Callable[..., Rank] = Rank,
        **options: Any,
    ) -> None:
        self.instance = instance
        self.shape = shape or Shape()
        self.ranks: list[Rank] = []
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            self.scheduler = CacheManagerClient(socket, role=Role.SCHEDULER, name=instance, **options)
            for number in range(self.shape.world):
                self.ranks.append(make_rank(socket, instance, number, self.shape, **options))
            for rank in self.ranks:
                if rank.client.wait_arenas(arenas, COPY_LIMIT_S) < arenas:
                    raise OrbitKVError(f"rank {rank.number} got no arena: {rank.client.closed_because}")
            self.namespace = self.scheduler.register(instance)
            undo.pop_all()

    def __enter__(self) -> Replica:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every session and thread."""
        for rank in self.ranks:
            rank.close()
        if hasattr(self, "scheduler"):
            self.scheduler.close()

    def publish(self, keys: bytes, wait_us: int | None = None) -> int:
        """Publish pages and return how many were granted and committed by every rank."""
        saved = 0
        for part in batches(keys, self.shape.blocks):
            reserve = self.scheduler.reserve(self.namespace, part, instance=self.instance, wait_us=wait_us)
            if not reserve.answered:
                reserve.drop()
                continue
            granted = reserve.granted()
            if len(granted) == 0:
                continue
            transfers = []
            for rank in self.ranks:
                blocks = rank.fill(part)[granted]
                plan = CopyPlan(rank.layout, blocks, *located(self.namespace, rank.number, reserve.locations))
                report = Report(rank, reserve.reservation, len(granted))
                transfers.append((rank.backend.publish(plan, on_done=report.committed), report))
            for transfer, report in transfers:
                if not transfer.wait_all(COPY_LIMIT_S):
                    raise AssertionError("a publish failed in the backend")
                report.wait()
            for rank in self.ranks:
                rank.client.ping()  # Another session's query is not ordered behind the commit by anything else.
            saved += len(granted)
        return saved

    def restore(self, keys: bytes, *, expect: int | None = None, wait_us: int | None = None) -> int:
        """Restore the longest prefix of `keys`, check every byte of every rank, and return its pages."""
        query = self.scheduler.query(self.namespace, keys, instance=self.instance, wait_us=wait_us)
        if query.wait(COPY_LIMIT_S) is not State.READY or query.lease is None:
            query.cancel()
            if expect:
                raise AssertionError(f"expected {expect} pages, the query is {query.state.value}")
            return 0
        lease = query.lease
        if expect is not None and lease.pages != expect:
            lease.release()
            raise AssertionError(f"expected {expect} pages, the lease covers {lease.pages}")
        return self.take(lease, keys)

    def take(self, lease: Lease, keys: bytes) -> int:
        """Restore the pages of a lease, check every byte of every rank, and return their number."""
        lease.begin(lease.pages)
        for at in range(0, lease.pages, self.shape.blocks):
            count = min(self.shape.blocks, lease.pages - at)
            part = keys[at * 32 : (at + count) * 32]
            self._restore_part(lease.id, lease.locations, part, at, count)
        lease.ended()
        return lease.pages

    def _restore_part(self, lease: int, locations: Any, keys: bytes, first: int, count: int) -> None:
        transfers = []
        for rank in self.ranks:
            blocks = np.random.default_rng(first + count).permutation(self.shape.blocks)[:count]
            rank.poison()
            offsets, offset = located(self.namespace, rank.number, locations)
            plan = CopyPlan(rank.layout, blocks, offsets[first : first + count], offset)
            report = Report(rank, lease, count, first)
            transfers.append((rank, blocks, rank.backend.restore([plan], on_done=report.restored)[0], report))
        for rank, blocks, transfer, report in transfers:
            if not transfer.wait_all(COPY_LIMIT_S):
                raise AssertionError("a restore failed in the backend")
            rank.check(keys, blocks)
            report.wait()
            rank.client.ping()


class Report:
    """Tells the Manager of one rank's finished copy, from the thread that copied."""

    def __init__(self, rank: Rank, number: int, pages: int, first: int = 0) -> None:
        self._rank = rank
        self._number = number
        self._ranges = [(first, pages)]
        self._told = threading.Event()

    def committed(self, transfer: Transfer) -> None:
        """Report a publish."""
        with self._telling():
            tell = self._rank.client.committed if transfer.ok else self._rank.client.abandoned
            tell(self._number, self._rank.number, self._ranges)

    def restored(self, transfer: Transfer) -> None:
        """Report a restore."""
        with self._telling():
            self._rank.client.restored(self._number, self._rank.number, transfer.ok, transfer.bytes, self._ranges)

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._told.set()

    def wait(self) -> bool:
        """Wait until the report was sent or its sending failed."""
        return self._told.wait(COPY_LIMIT_S)


def located(namespace: Namespace, rank: int, locations: Any) -> tuple[npt.NDArray[np.uint64], int]:
    """Return the locations of the part that holds a rank's slice, and the slice's offset in it."""
    place = namespace.slice_of(rank)
    return locations(place.part), place.offset


def batches(keys: bytes, pages: int) -> Iterator[bytes]:
    """Yield keys in parts of at most `pages` pages."""
    for at in range(0, len(keys), pages * 32):
        yield keys[at : at + pages * 32]
