"""One rank's KV memory on a device or in host memory, the streams of an engine beside it, and arenas.

Everything is written and read through torch, never through the addresses that the copies use. On the CPU the same code
runs without streams: every operation has ended when its call returns.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch

from harness import oracle
from orbitkv._arenas import Arena
from orbitkv.transfer import CopyPlan, CudaDriver, DeviceSite, KVLayout, Transfer, TransferBackend, make_backend
from qualify.layouts import ELEMENT, Ordinals, Shape, image
from qualify.report import Wrong

LIMIT_S = 60.0  # of any copy here: a guard against one that hangs
HOST_BORDER = 4 << 20  # host memory has no registrations, so pages lie across these instead
CALIBRATION_CYCLES = 20_000_000
HOST_LAYER_DELAY_US = 50_000  # slows the host backend down, so that a wait that is left out is noticed


class Memory:
    """All tensors of one rank, in one piece of memory that is poison wherever nobody wrote."""

    def __init__(self, shape: Shape, device: str) -> None:
        self.shape = shape
        self._bytes = torch.full((shape.bytes,), oracle.POISON, dtype=torch.uint8, device=device)
        values = self._bytes.view(torch.bfloat16)
        tensors = {t.name: values.as_strided(t.sizes, t.strides, t.begin) for t in shape.tensors}
        self.layout = KVLayout.from_tensors(tensors, shape.blocks, shape.steps)

    def rows(self, layer: int) -> Any:
        """Return the layer's blocks as rows of bytes."""
        place = self.layout.layers[layer]
        size, stride = (self.shape.blocks, place.block_bytes), (place.block_stride, 1)
        return self._bytes.as_strided(size, stride, ELEMENT * self.shape.tensors[layer].begin)

    def put(self, layer: int, blocks: Any, slices: Any) -> None:
        """Write a layer of pages, on the current stream. `slices` are whole slices, one row a page."""
        place = self.layout.layers[layer]
        self.rows(layer)[blocks] = slices[:, place.offset : place.offset + place.block_bytes]

    def wrong(self, layer: int, blocks: Any, slices: Any) -> Any:
        """Return how many bytes of a layer of pages are others, counted by the current stream."""
        place = self.layout.layers[layer]
        return (self.rows(layer)[blocks] != slices[:, place.offset : place.offset + place.block_bytes]).sum()

    def poison(self) -> None:
        """Forget everything that was written."""
        self._bytes.fill_(oracle.POISON)

    def expect(self, blocks: Ordinals, slices: oracle.Bytes) -> None:
        """Compare every byte of the memory; Wrong when a page is another or something beside the pages changed."""
        contents = [
            (
                ELEMENT * self.shape.tensors[number].begin + int(block) * layer.block_stride,
                row[layer.offset : layer.offset + layer.block_bytes],
            )
            for number, layer in enumerate(self.layout.layers)
            for block, row in zip(blocks, slices, strict=True)
        ]
        compare("the engine's memory", self.image(), image(self.shape.bytes, oracle.POISON, contents))

    def image(self) -> oracle.Bytes:
        """Return every byte, once all streams have ended."""
        if self._bytes.is_cuda:
            torch.cuda.synchronize()
        found: oracle.Bytes = self._bytes.cpu().numpy()
        return found


class Streams:
    """An engine's compute stream. On the CPU there is none."""

    def __init__(self, device: str, default: bool = False) -> None:
        """Use a stream of its own, or the device's default stream."""
        self.device = device
        self.asynchronous = device != "cpu"
        self._compute: Any = None
        self._cycles_per_second = 0.0
        if self.asynchronous:
            self._compute = torch.cuda.default_stream() if default else torch.cuda.Stream()
            self._cycles_per_second = calibrate()

    def running(self) -> AbstractContextManager[Any]:
        """Return a context in which this thread launches on the compute stream."""
        return torch.cuda.stream(self._compute) if self.asynchronous else contextlib.nullcontext()

    def delay(self, seconds: float) -> None:
        """Let the current stream compute for a while; on the CPU nothing is to be overtaken."""
        if self.asynchronous:
            torch.cuda._sleep(int(seconds * self._cycles_per_second))

    def settle(self) -> None:
        """Wait for every stream."""
        if self.asynchronous:
            torch.cuda.synchronize()


def calibrate() -> float:
    """Return the cycles in which the device's spinning kernel counts, per second."""
    torch.cuda._sleep(1000)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    torch.cuda._sleep(CALIBRATION_CYCLES)
    end.record()
    end.synchronize()
    return CALIBRATION_CYCLES / (float(begin.elapsed_time(end)) / 1e3)


def current_stream() -> int:
    """Return the handle of the stream on which this thread launches."""
    return int(torch.cuda.current_stream().cuda_stream)


def make(
    name: str,
    memory: Memory,
    device: str,
    fences: Callable[[], Sequence[int]] = lambda: [current_stream()],
    slow: bool = False,
) -> TransferBackend:
    """Return a backend for the memory. `slow` slows the host backend down; a device's copies come late by a fence."""
    if device == "cpu":
        return make_backend(name, layout=memory.layout, layer_delay_us=HOST_LAYER_DELAY_US if slow else 0)
    site = DeviceSite(CudaDriver(torch.device(device).index or 0), current_stream, fences)
    return make_backend(name, layout=memory.layout, site=site)


def border(device: str) -> int:
    """Return how many bytes of an arena are registered at once."""
    if device == "cpu":
        return HOST_BORDER
    from orbitkv.transfer._registration import REGISTER_CHUNK_BYTES

    return REGISTER_CHUNK_BYTES


@contextlib.contextmanager
def arena(number: int, size: int) -> Iterator[Arena]:
    """Yield an arena of poison in memory of the kind that the Manager lends."""
    descriptor = os.memfd_create("qualify", os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, size)
        mapping = mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    finally:
        os.close(descriptor)
    view: oracle.Bytes = np.frombuffer(mapping, np.uint8)
    view[...] = oracle.POISON
    yield Arena(number, -1, size, view)


@functools.lru_cache(maxsize=4)
def contents(seed: int, pages: int, slice_bytes: int) -> oracle.Bytes:
    """Return the slices of the first pages of a prefix, one row a page; nobody may write into them."""
    return oracle.slices(oracle.prefix(seed, pages), 0, slice_bytes)


def upload(slices: oracle.Bytes, device: str) -> Any:
    """Return slices on the device."""
    return torch.from_numpy(slices).to(device)


def index(blocks: Ordinals, device: str) -> Any:
    """Return block numbers as the device's index. Nothing waits: pinned memory is uploaded in the stream's order."""
    numbers = torch.from_numpy(blocks)
    return numbers if device == "cpu" else numbers.pin_memory().to(device, non_blocking=True)


def compare(what: str, found: oracle.Bytes, expected: oracle.Bytes) -> None:
    """Compare memory byte for byte; Wrong says how much differs and where it begins and ends."""
    if not np.array_equal(found, expected):
        wrong = np.flatnonzero(found != expected)
        raise Wrong(f"{len(wrong)} bytes of {what} are wrong, from byte {wrong[0]} to byte {wrong[-1]}")


def finish(transfers: Sequence[Transfer]) -> None:
    """Wait for the terminal result of every transfer, which must be success."""
    end = time.monotonic() + LIMIT_S
    for transfer in transfers:
        if not transfer.wait_all(max(0.0, end - time.monotonic())):
            raise AssertionError(f"a copy of {transfer.plan.pages} pages failed")


def plan_of(memory: Memory, blocks: Ordinals, places: Any, offset: int = 0) -> CopyPlan:
    """Return the plan that copies between blocks and places."""
    return CopyPlan(memory.layout, blocks, places, offset)


def ignore(_: Transfer) -> None:
    """Take a terminal result for which nobody waits."""
