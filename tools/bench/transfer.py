"""Rates of the transfer backends on a CUDA device, without an engine and without a Manager.

Usage: PYTHONPATH=python/src:tools python -m bench.transfer [--backend direct,kernel] [--json FILE] [--quick]

A prefix lies page-first in host memory, one extent a page, and layer-first on the device, one range a layer, as engines
hold it. A row is one direction of one shape: its time is that from the call which submits until the terminal result,
with an event for each unit of layers, and `of plain` is the share that one plain copy of as many bytes takes of it,
timed in the same way beside each of the row's copies. Blocks of the device are `ascending` or `descending` with the
extents, or `scattered`. `build` and `submit` are the processor's time for planning and handing over, `copies` what the
driver is given once adjacent pieces are merged. Every row is measured twice, the second time in the opposite order of
rows; all figures are medians. Bytes are compared before a row counts.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import platform
import queue
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path

import numpy as np

from orbitkv.client import Arena
from orbitkv.transfer import CopyPlan, DeviceSite, KVLayout, LayerLayout, Transfer, TransferBackend, make_backend
from orbitkv.transfer._cuda import CudaDriver
from orbitkv.transfer._driver import Driver

SEED = 6
SAMPLES = 5  # of a row in each order of rows
WARM_UP = 2  # copies before those that count
SPARE_BLOCKS = 64  # of the device beside those that the prefix takes
WAIT_SECONDS = 120.0
MADV_POPULATE_WRITE = 23  # linux/mman.h; the standard library names it only in later Pythons
ORDERS = ("ascending", "scattered", "descending")
RESTORE, PUBLISH = "restore", "publish"


@dataclass(frozen=True)
class Shape:
    """A prefix: so many pages, each with a piece of the same size in every layer."""

    name: str
    layers: int
    piece_bytes: int
    pages: int

    @property
    def slice_bytes(self) -> int:
        """Return the bytes of one page over all layers."""
        return self.layers * self.piece_bytes

    @property
    def bytes(self) -> int:
        """Return the bytes of the prefix."""
        return self.pages * self.slice_bytes


SHAPES = (
    Shape("8K of Qwen3-8B, pages of 64", 36, 256 << 10, 128),
    Shape("8K of Qwen3-8B, pages of 16", 36, 64 << 10, 512),
    Shape("16 KiB pieces, as with TP8", 36, 16 << 10, 512),
    Shape("8 KiB pieces, as with TP8", 36, 8 << 10, 1024),
)
QUICK = (Shape("tiny", 4, 64 << 10, 16),)


@dataclass
class Row:
    """One line of the table. Times are in seconds, one entry a copy; `copies` and `pieces` are of the last one."""

    backend: str
    shape: Shape
    order: str
    direction: str
    seconds: list[float] = field(default_factory=list)
    plain_seconds: list[float] = field(default_factory=list)
    build_seconds: list[float] = field(default_factory=list)
    submit_seconds: list[float] = field(default_factory=list)
    first_layer_seconds: list[float] = field(default_factory=list)
    copies: int = 0
    pieces: int = 0
    thread: str = ""

    def add(self, seconds: float, plain: float, transfer: Transfer) -> None:
        """Take one measured copy and the plain one beside it."""
        self.seconds.append(seconds)
        self.plain_seconds.append(plain)
        times = transfer.times
        if times is not None:
            self.build_seconds.append(times.build_seconds)
            self.submit_seconds.append(times.submit_seconds)
            self.first_layer_seconds.append(times.first_layer_seconds)
            self.copies, self.pieces, self.thread = times.copies, times.pieces, times.thread

    def figures(self) -> dict[str, object]:
        """Return everything that was measured and what follows from it, by names with units."""
        taken, plain = statistics.median(self.seconds), statistics.median(self.plain_seconds)
        return {
            "bench": "transfer",
            **asdict(self),
            "bytes": self.shape.bytes,
            "n": len(self.seconds),
            "median_seconds": taken,
            "gb_per_s": self.shape.bytes / taken / 1e9,
            "plain_gb_per_s": self.shape.bytes / plain / 1e9,
            "of_plain": plain / taken,
            "build_ms": median_ms(self.build_seconds),
            "submit_ms": median_ms(self.submit_seconds),
            "first_layer_ms": median_ms(self.first_layer_seconds),
        }


class Prefix:
    """The memory of one shape: an arena with a known content, the engine's blocks on the device, a plain range.

    The plain range is registered by itself, so that one copy may take all of it.
    """

    def __init__(self, driver: Driver, shape: Shape) -> None:
        self.driver = driver
        self.shape = shape
        self.blocks = shape.pages + SPARE_BLOCKS
        self.arena = Arena(1, -1, shape.bytes, populated(shape.bytes))
        words = self.arena.view.view(np.uint64)
        words[:] = np.arange(1, len(words) + 1, dtype=np.uint64)  # No piece is like another, and none is like nothing.
        self.plain = populated(shape.bytes)
        driver.register(int(self.plain.ctypes.data), shape.bytes)
        self.device = driver.allocate(shape.slice_bytes * self.blocks)
        self.stream = driver.create_stream(0)
        self.event = driver.create_event()
        layers = [
            LayerLayout(f"layer.{n}", self.place(n, 0), self.blocks, piece, piece, n * piece, n)
            for n, piece in enumerate([shape.piece_bytes] * shape.layers)
        ]
        self.layout = KVLayout(tuple(layers), self.blocks, shape.slice_bytes, None)
        self.site = DeviceSite(driver, lambda: self.stream, lambda: [self.stream])

    def close(self) -> None:
        """Give the device's memory back."""
        self.driver.free(self.device)
        self.driver.unregister(int(self.plain.ctypes.data))
        self.driver.destroy_event(self.event)
        self.driver.destroy_stream(self.stream)

    def place(self, layer: int, block: int) -> int:
        """Return the device's address of a block in a layer."""
        return self.device + (layer * self.blocks + block) * self.shape.piece_bytes

    def plan(self, order: str) -> CopyPlan:
        """Return the plan of the whole prefix; its extents are adjacent and ascend."""
        blocks = np.arange(self.shape.pages, dtype=np.int64)
        if order == "descending":
            blocks = blocks[::-1].copy()
        elif order == "scattered":
            blocks = np.random.default_rng(SEED).permutation(self.blocks)[: self.shape.pages].astype(np.int64)
        offsets = np.arange(self.shape.pages, dtype=np.uint64) * np.uint64(self.shape.slice_bytes)
        return CopyPlan(self.layout, blocks, np.uint64(self.arena.id << 48) | offsets)

    def plain_copy(self, direction: str) -> float:
        """Return the seconds of one copy of as many bytes as the prefix has."""
        ends = [self.device, int(self.plain.ctypes.data)]
        target, source = ends if direction == RESTORE else ends[::-1]
        return self.copy(target, source, self.shape.bytes)

    def copy(self, target: int, source: int, size: int) -> float:
        """Copy once and wait; return the seconds from the submission to the end."""
        arrays = [np.array([value], np.uint64) for value in (target, source, size)]
        begun = time.perf_counter()
        self.driver.copy_batch(arrays[0], arrays[1], arrays[2], self.stream)
        self.driver.record(self.event, self.stream)
        self.driver.synchronize(self.event)
        return time.perf_counter() - begun

    def check(self, backend: TransferBackend, plan: CopyPlan) -> None:
        """Restore, look at the last piece of the prefix, take it out of the arena and publish it back.

        SystemExit when a byte is wrong, since no figure would mean anything.
        """
        piece = self.shape.piece_bytes
        original = self.arena.view[-piece:].copy()
        timed(lambda done: backend.restore([plan], on_done=done))
        read = self.plain[:piece]
        self.copy(int(read.ctypes.data), self.place(self.shape.layers - 1, int(plan.blocks[-1])), piece)
        restored = bool((read == original).all())
        self.arena.view[-piece:] = 0
        timed(lambda done: backend.publish(plan, on_done=done))
        if not restored or not bool((self.arena.view[-piece:] == original).all()):
            raise SystemExit(f"{backend.name} {'restored' if not restored else 'published'} wrong bytes: no figures")


def populated(size: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Return shared memory, as arenas are, whose pages exist; it lives as long as the array."""
    mapping = mmap.mmap(-1, size)
    mapping.madvise(MADV_POPULATE_WRITE)
    return np.frombuffer(mapping, np.uint8)


def timed(submit: Callable[[Callable[[Transfer], None]], object]) -> tuple[float, Transfer]:
    """Return the seconds from a submission to its terminal result, and the transfer. SystemExit when it failed."""
    ended: queue.SimpleQueue[tuple[float, Transfer]] = queue.SimpleQueue()
    begun = time.perf_counter()
    submit(lambda transfer: ended.put((time.perf_counter(), transfer)))
    end, transfer = ended.get(timeout=WAIT_SECONDS)
    if not transfer.ok:
        raise SystemExit(f"a copy of {transfer.plan.pages} pages failed: no figures")
    return end - begun, transfer


@contextmanager
def opened(name: str, prefix: Prefix) -> Iterator[TransferBackend]:
    """Yield a backend that has the prefix's arena."""
    backend = make_backend(name, layout=prefix.layout, site=prefix.site)
    try:
        backend.register_arena(prefix.arena)
        yield backend
        backend.unregister_arena(prefix.arena.id)
    finally:
        backend.close()


def measure(prefix: Prefix, backend: TransferBackend, row: Row, samples: int) -> None:
    """Measure one row, each copy beside a plain one."""
    plan = prefix.plan(row.order)
    prefix.check(backend, plan)

    def submit(done: Callable[[Transfer], None]) -> object:
        if row.direction == RESTORE:
            return backend.restore([plan], on_done=done)
        return backend.publish(plan, on_done=done)

    for sample in range(WARM_UP + samples):
        plain = prefix.plain_copy(row.direction)
        seconds, transfer = timed(submit)
        if sample >= WARM_UP:
            row.add(seconds, plain, transfer)


def table(driver: Driver, backends: Sequence[str], shapes: Sequence[Shape], samples: int) -> list[Row]:
    """Measure every row in both orders, print the table and return it."""
    every = [
        Row(backend, shape, order, way)
        for shape in shapes
        for backend in backends
        for order in ORDERS
        for way in (RESTORE, PUBLISH)
    ]
    for rows in (every, every[::-1]):
        for shape, alike in groupby(rows, lambda row: row.shape):
            with_memory(driver, shape, list(alike), samples)
    print(f"{'what':<30}{'backend':<9}{'blocks':<12}{'way':<9}{'n':>4}{'ms':>9}{'GB/s':>8}{'of plain':>10}", end="")
    print(f"{'build ms':>10}{'submit ms':>11}{'copies':>9}{'first ms':>10}")
    for row in every:
        print(line(row), flush=True)
    return every


def with_memory(driver: Driver, shape: Shape, rows: Sequence[Row], samples: int) -> None:
    """Measure the rows of a shape, one backend after the other, in memory of their own."""
    prefix = Prefix(driver, shape)
    try:
        for name, alike in groupby(rows, lambda row: row.backend):
            with opened(name, prefix) as backend:
                for row in alike:
                    measure(prefix, backend, row, samples)
    finally:
        prefix.close()


def line(row: Row) -> str:
    """Return a row as it is printed."""
    taken, plain = statistics.median(row.seconds), statistics.median(row.plain_seconds)
    return (
        f"{row.shape.name:<30}{row.backend:<9}{row.order:<12}{row.direction:<9}{len(row.seconds):>4}{taken * 1e3:>9.2f}"
        f"{row.shape.bytes / taken / 1e9:>8.1f}{plain / taken:>10.1%}{median_ms(row.build_seconds):>10.2f}"
        f"{median_ms(row.submit_seconds):>11.2f}{row.copies:>9}{median_ms(row.first_layer_seconds):>10.2f}"
    )


def median_ms(seconds: Sequence[float]) -> float:
    """Return a median in milliseconds; 0 of nothing."""
    return statistics.median(seconds) * 1e3 if seconds else 0.0


def machine() -> str:
    """Return what the figures of this machine stand under."""
    return f"{platform.machine()}, {len(os.sched_getaffinity(0))} processors, Python {platform.python_version()}"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Rates of the transfer backends on a CUDA device.")
    parser.add_argument("--backend", default="direct,kernel", help="one or several: direct, kernel")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--samples", type=int, default=SAMPLES, help=f"in each order of rows (default {SAMPLES})")
    parser.add_argument("--quick", action="store_true", help="a tiny prefix: does it work at all?")
    parser.add_argument("--json", type=Path, help="file to which each row is appended as one JSON object")
    options = parser.parse_args()
    driver = CudaDriver(options.device)
    driver.bind()
    print(f"{machine()}, device {options.device} at {driver.bus_id()}")
    rows = table(driver, options.backend.split(","), QUICK if options.quick else SHAPES, options.samples)
    if options.json:
        with options.json.open("a", encoding="utf-8") as out:
            for row in rows:
                out.write(json.dumps({"machine": machine(), **row.figures()}) + "\n")


if __name__ == "__main__":
    main()
