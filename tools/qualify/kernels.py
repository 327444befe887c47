"""Qualify the kernels of a device by themselves: exact bytes of every size of piece, digests, and how fast they are.

Usage: PYTHONPATH=python/src:tools python3 -m qualify.kernels --device cuda [--output FILE]

The mover and the verifier are driven without a backend, so that pieces of one byte and pools beyond 4 GiB are reached,
which no engine's layout has here. Whole memories are compared: what lies beside a page counts too. Rates are figures,
not conditions. With `--device cpu` Triton's interpreter runs the same kernels over small memories.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from harness import oracle
from harness.immediate import ImmediateDriver
from orbitkv._arenas import Arena
from orbitkv.transfer import KVLayout
from orbitkv.transfer._cuda import CudaDriver
from orbitkv.transfer._digest import DIGEST_BYTES, DIGEST_LAYER, DIGEST_MARK, digest_of
from orbitkv.transfer._driver import Driver
from orbitkv.transfer._mover import Group
from qualify.report import Figures, Report

if TYPE_CHECKING:
    from orbitkv.kernel.launcher import Launcher
    from orbitkv.kernel.mover import KernelMover
    from orbitkv.kernel.verifier import DigestVerifier

UNIT = 4096
GIB = 1 << 30
FAR_BYTES = 5 * GIB  # beyond what 32 bits reach
EVEN = [1 << power for power in range(3, 19)]  # 8 B to 256 KiB
ODD = [1, 3, 6, 12, 999, 1004, 2050, 4100, 8200, 20000, 65544, 262136]
LAYERS = [[8], [8192, 8192], [20000, 24], [1004, 20], [2050, 6], [999, 1, 4097]]
LARGE_LAYERS = [65536] * 36
RATE_PIECES = [8 << 10, 16 << 10, 32 << 10, 64 << 10, 256 << 10]
RATE_BYTES = GIB  # moved or read by what is timed
RATE_LAYERS = 36
RATE_ROUNDS = 7
BLOCKS, PAGES = 23, 9  # small enough for whole memories to be compared, and no power of two


@dataclass
class Bench:
    """A device of torch's with its driver and a stream, or this process's memory under the interpreter."""

    device: str
    seed: int
    driver: Driver = field(init=False)
    launcher: Launcher = field(init=False)
    stream: int = field(init=False)

    def __post_init__(self) -> None:
        if self.device == "cpu":
            from harness.interpreted import Interpreted

            self.driver = ImmediateDriver()
            self.launcher = Interpreted(self.driver)
        else:
            import torch

            from orbitkv.kernel.launcher import Launcher

            self.driver = CudaDriver(torch.device(self.device).index or 0)
            self.launcher = Launcher(self.driver)
        self.driver.bind()
        self.stream = self.driver.create_stream(self.driver.priorities()[1])

    def finish(self) -> None:
        """Wait for the stream."""
        event = self.driver.create_event()
        self.driver.record(event, self.stream)
        self.driver.synchronize(event)
        self.driver.destroy_event(event)

    def settle(self) -> None:
        """Wait for whatever torch was told."""
        if self.device != "cpu":
            import torch

            torch.cuda.synchronize()

    def seconds(self, hand_over: Callable[[], object]) -> tuple[float, float]:
        """Return the median times on the device and of the call that hands over, of RATE_ROUNDS after one."""
        begin, end = self.driver.create_event(timing=True), self.driver.create_event(timing=True)
        ran, called = [], []
        for _ in range(RATE_ROUNDS + 1):
            self.driver.record(begin, self.stream)
            started = time.perf_counter()
            hand_over()
            called.append(time.perf_counter() - started)
            self.driver.record(end, self.stream)
            self.driver.synchronize(end)
            ran.append(self.driver.elapsed_seconds(begin, end))
        for event in (begin, end):
            self.driver.destroy_event(event)
        return statistics.median(ran[1:]), statistics.median(called[1:])

    @contextlib.contextmanager
    def arena(self, size: int) -> Iterator[Arena]:
        """Yield registered host memory full of poison."""
        from qualify import rank

        with rank.arena(0, size) as arena:
            self.driver.register(arena.address, arena.bytes)
            try:
                yield arena
            finally:
                self.finish()
                self.driver.unregister(arena.address)

    def mover(self, memory: Memory) -> contextlib.closing[KernelMover]:
        """Return the mover for a memory."""
        from orbitkv.kernel.mover import KernelMover

        return contextlib.closing(KernelMover(self.driver, memory.layout, launcher=self.launcher))

    def verifier(self, memory: Memory) -> contextlib.closing[DigestVerifier]:
        """Return the verifier for a memory."""
        from orbitkv.kernel.verifier import DigestVerifier

        return contextlib.closing(DigestVerifier(self.driver, memory.layout, launcher=self.launcher))


class Memory:
    """An engine's layers of blocks of the given bytes, one tensor each, and a layer of digests."""

    def __init__(self, bench: Bench, widths: Sequence[int], blocks: int, seed: int) -> None:
        import torch

        self.widths = list(widths)
        self.blocks = blocks
        generator = torch.Generator(bench.device).manual_seed(seed)
        self.tensors = [
            torch.randint(0, 256, (blocks, width), dtype=torch.uint8, device=bench.device, generator=generator)
            for width in widths
        ]
        self.digests = torch.zeros((blocks, DIGEST_BYTES // 8), dtype=torch.int64, device=bench.device)
        named: dict[str, Any] = {f"layer.{at}": tensor for at, tensor in enumerate(self.tensors)}
        self.layout = KVLayout.from_tensors({**named, DIGEST_LAYER: self.digests})
        bench.settle()

    def slices(self, blocks: Sequence[int]) -> oracle.Bytes:
        """Return the slices of blocks, their rows of digests included, one row a block."""
        import torch

        layers = [*self.tensors, self.digests.view(torch.uint8)]
        chosen = torch.tensor(list(blocks), device=self.digests.device)
        found: oracle.Bytes = torch.cat([layer[chosen] for layer in layers], dim=1).cpu().numpy()
        return found

    def with_slices(self, blocks: Sequence[int], slices: oracle.Bytes) -> oracle.Bytes:
        """Return the slices of all blocks as they must be once some were replaced."""
        expected = self.slices(range(self.blocks))
        expected[list(blocks)] = slices
        return expected


def chosen(seed: int, count: int, among: int) -> list[int]:
    """Return different numbers below `among` in no order."""
    numbers: list[int] = np.random.default_rng(seed).permutation(among)[:count].tolist()
    return numbers


def extent_of(layout: KVLayout) -> int:
    """Return the bytes from the start of a slice to where the next may begin."""
    return -(-layout.slice_bytes // UNIT) * UNIT


def group_of(memory: Memory, blocks: Sequence[int], arena: Arena, begins: Sequence[int], *, restore: bool) -> Group:
    """Return the group of blocks whose slices begin at these bytes of an arena."""
    hosts = np.array(begins, np.uint64) + np.uint64(arena.address)
    return Group(memory.layout, np.array(blocks, np.int64), hosts, np.zeros(0, np.uint64), restore)


def exact_bytes(bench: Bench, width: int) -> Figures:
    """Publish pages of three layers, look at every byte of the arena, restore them elsewhere, look at every byte."""
    from qualify import rank

    widths = [width, width, width]
    source, target = (Memory(bench, widths, BLOCKS, bench.seed + at) for at in range(2))
    blocks, targets = chosen(bench.seed, PAGES, BLOCKS), chosen(bench.seed + 1, PAGES, BLOCKS)
    extent = extent_of(source.layout)
    begins = [at * extent for at in chosen(bench.seed + 2, PAGES, 2 * PAGES)]
    slices = source.slices(blocks)
    with bench.arena(2 * PAGES * extent) as arena, bench.mover(source) as out, bench.mover(target) as back:
        prepared = out.prepare(group_of(source, blocks, arena, begins, restore=False))
        launches = out.submit_pages(prepared, 0, 4, bench.stream) + out.submit_pages(prepared, 4, PAGES, bench.stream)
        bench.finish()
        out.release(prepared)
        image = np.full(arena.bytes, oracle.POISON, np.uint8)
        for begin, each in zip(begins, slices, strict=True):
            image[begin : begin + len(each)] = each
        rank.compare("the arena", arena.view, image)

        expected = target.with_slices(targets, slices)
        prepared = back.prepare(group_of(target, targets, arena, begins, restore=True))
        for step in range(len(target.layout.steps)):
            launches += back.submit_steps(prepared, step, step + 1, bench.stream)
        bench.finish()
        back.release(prepared)
        rank.compare("the engine's memory", target.slices(range(BLOCKS)), expected)
        rank.compare("the arena after restores", arena.view, image)
    return {"piece_bytes": width, "pages": PAGES, "launches": launches}


def far_bytes(bench: Bench) -> Figures:
    """Copy pages that begin beyond 4 GiB, in the engine and in the arena, to the beginning of both and back."""
    from qualify import rank

    width = 1 << 20
    count = FAR_BYTES // width
    memory = Memory(bench, [width], count, bench.seed)
    extent = extent_of(memory.layout)
    far = [count - 1, count - 5, (1 << 32) // width, (1 << 32) // width - 1]
    near = [0, 3, 1, 2]
    begins = [FAR_BYTES - (at + 1) * extent for at in range(len(far))]
    slices = memory.slices(far)
    with bench.arena(FAR_BYTES) as arena, bench.mover(memory) as mover:
        for blocks, restore in ((far, False), (near, True)):
            prepared = mover.prepare(group_of(memory, blocks, arena, begins, restore=restore))
            mover.submit_pages(prepared, 0, len(blocks), bench.stream)
            bench.finish()
            mover.release(prepared)
        for begin, each in zip(begins, slices, strict=True):
            rank.compare("a far page of the arena", arena.view[begin : begin + len(each)], each)
        rank.compare("pages that came back", memory.slices(near), slices)
    return {"bytes": FAR_BYTES}


def digests(bench: Bench, widths: Sequence[int]) -> Figures:
    """Compare the device's digests with the reference's, and see that the check finds any bit, row and exchange."""
    memory = Memory(bench, widths, BLOCKS, bench.seed)
    blocks = chosen(bench.seed, PAGES, BLOCKS)
    with bench.arena(PAGES * extent_of(memory.layout)) as arena, bench.verifier(memory) as verifier:
        begins = [at * extent_of(memory.layout) for at in range(PAGES)]
        outward = group_of(memory, blocks, arena, begins, restore=False)
        inward = group_of(memory, blocks, arena, begins, restore=True)

        def wrong() -> list[int]:
            checked = verifier.prepare(inward)
            verifier.after_restore(checked, bench.stream)
            bench.finish()
            found: list[int] = verifier.result(checked).tolist()
            verifier.release(checked)
            return found

        def expect(found: list[int]) -> None:
            bench.settle()
            if (seen := wrong()) != found:
                raise AssertionError(f"pages {seen} were found to be wrong, not {found}")

        checked = verifier.prepare(outward)
        verifier.before_publish(checked, 0, 4, bench.stream)
        verifier.before_publish(checked, 4, PAGES, bench.stream)
        bench.finish()
        verifier.release(checked)
        rows = memory.digests.cpu().numpy().view(np.uint64)
        for block, content in zip(blocks, memory.slices(blocks), strict=True):
            reference = digest_of(content[:-DIGEST_BYTES].tobytes(), memory.widths)
            if (int(rows[block, 0]), int(rows[block, 1])) != (reference, DIGEST_MARK):
                raise AssertionError(f"the digest of block {block} is {rows[block, 0]:#x}, not {reference:#x}")
        expect([])
        rng = np.random.default_rng(bench.seed)
        for _ in range(8):
            page, layer = int(rng.integers(PAGES)), int(rng.integers(len(widths)))
            row = memory.tensors[layer][blocks[page]]
            at, bit = int(rng.integers(len(row))), 1 << int(rng.integers(8))
            row[at] ^= bit
            expect([page])
            row[at] ^= bit
        memory.digests[blocks[2], 1] += 1
        expect([2])
    return {"layers": len(widths), "pages": PAGES, "slice_bytes": sum(widths)}


def rates(bench: Bench, piece: int) -> Figures:
    """Take the time of pages as large as an engine's: out by one launch, back step by step, and their digests."""
    pages = RATE_BYTES // (RATE_LAYERS * piece)
    memory = Memory(bench, [piece] * RATE_LAYERS, pages, bench.seed)
    moved = pages * memory.layout.slice_bytes
    extent = extent_of(memory.layout)
    order = chosen(bench.seed, pages, pages)
    begins = [at * extent for at in chosen(bench.seed + 1, pages, pages)]
    figures: dict[str, Any] = {"piece_bytes": piece, "pages": pages, "layers": RATE_LAYERS, "bytes": moved}
    with bench.arena(pages * extent) as arena, bench.mover(memory) as mover, bench.verifier(memory) as verifier:
        outward, inward = (group_of(memory, order, arena, begins, restore=restore) for restore in (False, True))
        out, back, checked = mover.prepare(outward), mover.prepare(inward), verifier.prepare(inward)

        def step_by_step() -> None:
            for step in range(len(memory.layout.steps)):
                mover.submit_steps(back, step, step + 1, bench.stream)

        works: dict[str, Callable[[], object]] = {
            "to_host": partial(mover.submit_pages, out, 0, pages, bench.stream),
            "to_device": step_by_step,
            "digest": partial(verifier.after_restore, checked, bench.stream),
        }
        for name, work in works.items():
            device, call = bench.seconds(work)
            figures[f"{name}_gb_s"] = round(moved / device / 1e9, 2)
            figures[f"{name}_call_us"] = round(call * 1e6, 1)
        for prepared in (out, back):
            mover.release(prepared)
        verifier.release(checked)
    return figures


def bytes_cases(report: Report, bench: Bench) -> None:
    """Run every size of piece, and memory beyond 4 GiB."""
    for width in sorted([*EVEN, *ODD]):
        report.case(f"bytes: pieces of {width} B", partial(exact_bytes, bench, width))
    device_case(report, bench, "bytes: beyond 4 GiB", partial(far_bytes, bench))


def digests_cases(report: Report, bench: Bench) -> None:
    """Run layers of words of every size, and pages as large as an engine's."""
    for widths in LAYERS:
        report.case(f"digests: layers of {', '.join(map(str, widths))} B", partial(digests, bench, widths))
    name = f"digests: {len(LARGE_LAYERS)} layers of {LARGE_LAYERS[0]} B"
    device_case(report, bench, name, partial(digests, bench, LARGE_LAYERS))


def rates_cases(report: Report, bench: Bench) -> None:
    """Take the rates of pieces that engines have."""
    for piece in RATE_PIECES:
        device_case(report, bench, f"rates: pieces of {piece} B", partial(rates, bench, piece))


def device_case(report: Report, bench: Bench, name: str, run: Callable[[], Figures]) -> None:
    """Run a case that the interpreter would take too long for, or whose memory is a device's."""
    if bench.device == "cpu":
        report.skip(name, "it needs a device")
    else:
        report.case(name, run)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Qualify the kernels of a device by themselves.")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu")
    parser.add_argument("--only", choices=("bytes", "digests", "rates"), help="a part of the cases")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, help="a file that gets the lines beside stdout")
    options = parser.parse_args()
    if options.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    bench = Bench(options.device, options.seed)
    report = Report("kernels", options.output)
    for part, cases in (("bytes", bytes_cases), ("digests", digests_cases), ("rates", rates_cases)):
        if options.only in (None, part):
            cases(report, bench)
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
