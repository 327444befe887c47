"""Qualify the copies of a host: exact bytes of every layout in both directions, and every wait of every stream.

Usage: PYTHONPATH=python/src:tools python3 -m qualify.transfers --device cuda [--output FILE]

What a page holds is a function of its key, everything else is poison, and whole memories are compared, so a byte beside
a page counts too. Controls leave one wait out and must notice it. With `--device cpu` the host backend is qualified;
fences need a device. No engine and no Cache Manager is needed, but torch is.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from harness import oracle
from orbitkv._arenas import Arena
from orbitkv.transfer import DIGEST_BYTES, DIGEST_LAYER, TransferBackend
from qualify import layouts, rank, steps
from qualify.layouts import Ordinals, Shape
from qualify.report import Figures, Report, Wrong

BLOCKS = 80
PAGES = 40
OFFSET = 8192  # of a rank's slice in its page, where it is not the first
SMALL_ARENA = 64 << 20
UNUSED_ARENA = 1 << 20  # one in which a case has no page
MARGIN = 8 << 20  # behind the last border in an arena that has some
LAYERS = {"cpu": 3, "cuda": 6}
BACKENDS = {"cpu": ("host",), "cuda": ("direct", "kernel")}


@dataclass(frozen=True)
class Bench:
    """Where bytes are qualified: the device and the shapes on it."""

    device: str
    seed: int

    @property
    def kind(self) -> str:
        """Return "cpu" or "cuda"."""
        return self.device.partition(":")[0]

    @contextlib.contextmanager
    def backend(self, name: str, memory: rank.Memory, arenas: list[Arena]) -> Iterator[TransferBackend]:
        """Yield a backend that knows the arenas."""
        backend = rank.make(name, memory, self.device)
        try:
            for each in arenas:
                backend.register_arena(each)
            yield backend
        finally:
            backend.close()


@dataclass(frozen=True)
class Places:
    """Pages in blocks and in arenas: arena number and first byte of each, in the pages' order."""

    blocks: Ordinals
    arenas: Ordinals
    begins: Ordinals
    offset: int

    def locations(self) -> Any:
        """Return them as plans name them."""
        return (self.arenas.astype(np.uint64) << np.uint64(48)) | self.begins.astype(np.uint64)

    def image(self, number: int, size: int, slices: oracle.Bytes) -> oracle.Bytes:
        """Return what an arena of poison holds once the pages are in it."""
        mine = np.flatnonzero(self.arenas == number)
        return layouts.image(size, oracle.POISON, ((int(self.begins[i]) + self.offset, slices[i]) for i in mine))


def place(pattern: str, shape: Shape, slice_bytes: int, seed: int, arena_bytes: int, border: int) -> Places:
    """Return where the pages of a case lie."""
    if pattern == "borders":
        begins = layouts.across_borders(slice_bytes, arena_bytes, border)[:PAGES]
        blocks = layouts.arrange("scattered", len(begins), shape.blocks, seed)
        return Places(blocks, np.zeros(len(begins), np.int64), begins, 0)
    offset = OFFSET if pattern == "runs" else 0
    extent = layouts.extent_bytes(slice_bytes) + offset
    pages = min(PAGES, arena_bytes // extent)
    begins = layouts.arrange(pattern, pages, arena_bytes // extent, seed) * extent
    arenas = np.arange(pages, dtype=np.int64) % 2 if pattern == "scattered" else np.zeros(pages, np.int64)
    return Places(layouts.arrange(pattern, pages, shape.blocks, seed + 1), arenas, begins, offset)


def exact_bytes(bench: Bench, name: str, shape: Shape, pattern: str) -> Figures:
    """Publish pages, look at every byte of the arenas, restore them elsewhere, look at every byte of the engine's."""
    source, target = rank.Memory(shape, bench.device), rank.Memory(shape, bench.device)
    slice_bytes = source.layout.slice_bytes
    border = rank.border(bench.device)
    size = border * 2 + MARGIN if pattern == "borders" else min(SMALL_ARENA, 4 * PAGES * slice_bytes)
    size = layouts.extent_bytes(size)
    places = place(pattern, shape, slice_bytes, bench.seed, size, border)
    slices = rank.contents(bench.seed, len(places.blocks), slice_bytes)
    device_slices = rank.upload(slices, bench.device)
    for layer in range(len(shape.tensors)):
        source.put(layer, rank.index(places.blocks, bench.device), device_slices)
    with rank.arena(0, size) as first, rank.arena(1, size if places.arenas.any() else UNUSED_ARENA) as second:
        arenas = [first, second]
        with bench.backend(name, source, arenas) as backend:
            plan = rank.plan_of(source, places.blocks, places.locations(), places.offset)
            rank.finish([backend.publish(plan, on_done=rank.ignore)])
        for each in arenas:
            rank.compare(f"arena {each.id}", each.view, places.image(each.id, each.bytes, slices))
        blocks = np.roll(places.blocks, 4)  # other blocks, and runs of four stay runs
        with bench.backend(name, target, arenas) as backend:
            half = (len(blocks) + 1) // 2
            parts = [part for part in (slice(0, half), slice(half, None)) if len(blocks[part])]
            plans = [rank.plan_of(target, blocks[p], places.locations()[p], places.offset) for p in parts]
            restores = backend.restore(plans, on_done=rank.ignore)
            rank.finish(restores)
        target.expect(blocks, slices)
    times = restores[0].times
    copies = {} if times is None else {"copies": times.copies, "pieces": times.pieces}
    return {"backend": name, "pages": len(blocks), "slice_bytes": slice_bytes, **copies}


def equal_bytes(bench: Bench, shape: Shape) -> Figures:
    """Copy the same pages by `direct` and by `kernel`, in both directions; every byte of memory must be equal."""
    found: list[list[oracle.Bytes]] = []
    for name in BACKENDS["cuda"]:
        memory = rank.Memory(shape, bench.device)
        slice_bytes = memory.layout.slice_bytes
        size = layouts.extent_bytes(4 * PAGES * slice_bytes)
        places = place("scattered", shape, slice_bytes, bench.seed, size, size)
        half = len(places.blocks) // 2
        slices = rank.contents(bench.seed, half, slice_bytes)
        content = rank.upload(slices, bench.device)
        for layer in range(len(shape.tensors)):
            memory.put(layer, rank.index(places.blocks[:half], bench.device), content)
        with rank.arena(0, size) as first, rank.arena(1, size) as second:
            with bench.backend(name, memory, [first, second]) as backend:
                outward = rank.plan_of(memory, places.blocks[:half], places.locations()[:half])
                rank.finish([backend.publish(outward, on_done=rank.ignore)])
                inward = rank.plan_of(memory, places.blocks[half : 2 * half], places.locations()[:half])
                rank.finish(backend.restore([inward], on_done=rank.ignore))
            found.append([memory.image(), first.view.copy(), second.view.copy()])
    for what, one, other in zip(("the engine's memory", "arena 0", "arena 1"), *found, strict=True):
        rank.compare(f"{what} by kernel, beside direct,", other, one)
    return {"bytes": sum(len(each) for each in found[0])}


def spoiled_pages(bench: Bench, name: str, shape: Shape) -> Figures:
    """Spoil two pages of a verified layout in the arena: these, and no others, must be reported as bad."""
    memory = rank.Memory(layouts.with_digests(shape, DIGEST_LAYER, DIGEST_BYTES), bench.device)
    slice_bytes = memory.layout.slice_bytes
    size = layouts.extent_bytes(4 * PAGES * slice_bytes)
    places = place("scattered", shape, slice_bytes, bench.seed, size, size)
    content = rank.upload(rank.contents(bench.seed, PAGES, slice_bytes), bench.device)
    at, half = rank.index(places.blocks, bench.device), PAGES // 2
    for layer in range(len(shape.tensors)):
        memory.put(layer, at, content)
    with rank.arena(0, size) as first, rank.arena(1, size) as second:
        arenas = [first, second]
        with bench.backend(name, memory, arenas) as backend:
            plan = rank.plan_of(memory, places.blocks, places.locations())
            rank.finish([backend.publish(plan, on_done=rank.ignore)])
            parts = [
                rank.plan_of(memory, places.blocks[p], places.locations()[p]) for p in (slice(half), slice(half, None))
            ]
            rank.finish(backend.restore(parts, on_done=rank.ignore))
            spoilt = (half + 1, PAGES - 2)
            for number, page in enumerate(spoilt):
                byte = int(places.begins[page]) + (number * slice_bytes) // 2
                arenas[int(places.arenas[page])].view[byte] ^= 1
            restores = backend.restore(parts, on_done=rank.ignore)
            arrived = [restore.wait_all(rank.LIMIT_S) for restore in restores]
    found = [restore.bad.tolist() for restore in restores]
    if arrived != [True, False] or found != [[], [page - half for page in spoilt]]:
        raise Wrong(f"pages {spoilt} were spoiled; restores ended with {arrived} and reported {found} of their pages")
    return {"backend": name, "pages": PAGES, "spoilt": len(spoilt)}


def bytes_cases(report: Report, bench: Bench, backends: tuple[str, ...]) -> None:
    """Run every layout and pattern through every backend."""
    shapes = layouts.shapes(LAYERS[bench.kind], BLOCKS)
    for name in backends:
        for shape in shapes:
            for pattern in layouts.PATTERNS:
                report.case(f"{name}: {shape.name}, {pattern}", partial(exact_bytes, bench, name, shape, pattern))
        for shape in shapes:
            what = f"{name}: {shape.name}, spoiled pages are reported"
            if bench.kind == "cpu":
                report.skip(what, "pages are verified by a device")
            else:
                report.case(what, partial(spoiled_pages, bench, name, shape))
    for shape in shapes:
        if {"direct", "kernel"} <= set(backends):
            report.case(f"kernel equals direct: {shape.name}", partial(equal_bytes, bench, shape))
        else:
            report.skip(f"kernel equals direct: {shape.name}", "both backends need a device")


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Qualify the copies of this host: exact bytes, and every wait.")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu")
    parser.add_argument("--backend", action="append", help="a backend to qualify (default: all of the device)")
    parser.add_argument("--only", choices=("bytes", "waits"), help="a part of the cases")
    parser.add_argument("--rounds", type=int, default=200, help="steps of the engine that is played")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, help="a file that gets the lines beside stdout")
    options = parser.parse_args()
    bench = Bench(options.device, options.seed)
    report = Report("transfers", options.output)
    backends = tuple(options.backend or BACKENDS[bench.kind])
    if options.only != "waits":
        bytes_cases(report, bench, backends)
    if options.only != "bytes":
        for name in backends:
            steps.cases(report, name, options.device, options.rounds, options.seed)
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
