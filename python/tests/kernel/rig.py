"""An engine's memory and pages of host memory in numpy, moved and digested by interpreted kernels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from harness.immediate import ImmediateDriver
from orbitkv.transfer._digest import DIGEST_LAYER
from orbitkv.transfer._mover import Group
from orbitkv.transfer._plan import KVLayout

UNIT = 4096
POISON = 0xEE
Bytes = npt.NDArray[np.uint8]


class Tensor:
    """The face of a torch tensor over blocks that lie `stride` bytes apart."""

    def __init__(self, memory: Bytes, blocks: int, stride: int, width: int, at: int = 0) -> None:
        self.rows = np.lib.stride_tricks.as_strided(memory[at:], (blocks, width), (stride, 1))
        self.shape = self.rows.shape

    def stride(self) -> tuple[int, ...]:
        return self.rows.strides

    def element_size(self) -> int:
        return 1

    def data_ptr(self) -> int:
        return int(self.rows.ctypes.data)


class Engine:
    """Layers of the given widths in bytes, each with `gap` bytes between blocks, and a layer of digests if wanted."""

    def __init__(self, widths: Sequence[int], blocks: int, *, gap: int = 0, verified: bool = False) -> None:
        self.memory = [aligned(blocks * (width + gap)) for width in widths]
        self.widths = list(widths)
        tensors = {
            f"layer.{at}": Tensor(memory, blocks, width + gap, width)
            for at, (memory, width) in enumerate(zip(self.memory, widths, strict=True))
        }
        self.tensors = list(tensors.values())
        if verified:
            self.digests = aligned(blocks * 16)
            tensors[DIGEST_LAYER] = Tensor(self.digests, blocks, 16, 16)
        self.layout = KVLayout.from_tensors(tensors)

    def fill(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        for memory in self.memory:
            memory[...] = rng.integers(0, 256, len(memory), np.uint8)

    def slice_of(self, block: int) -> bytes:
        """Return a block's slice, without a digest."""
        return b"".join(tensor.rows[block].tobytes() for tensor in self.tensors)

    def images(self) -> list[bytes]:
        return [memory.tobytes() for memory in self.memory]


class Pages:
    """Host memory with pages at any multiple of UNIT, registered with the driver; poison between them."""

    def __init__(self, driver: ImmediateDriver, layout: KVLayout, pages: int, seed: int) -> None:
        extent = -(-layout.slice_bytes // UNIT) * UNIT
        self.memory = aligned(2 * pages * extent, POISON)
        self.base = int(self.memory.ctypes.data)
        driver.register(self.base, len(self.memory))
        order = np.random.default_rng(seed).permutation(2 * pages)[:pages]
        self.begins: npt.NDArray[np.int64] = order.astype(np.int64) * extent

    def group(self, layout: KVLayout, blocks: Sequence[int], *, restore: bool) -> Group:
        hosts = self.begins[: len(blocks)].astype(np.uint64) + np.uint64(self.base)
        return Group(layout, np.array(blocks, np.int64), hosts, np.zeros(0, np.uint64), restore)

    def slice_of(self, page: int, size: int) -> bytes:
        return self.memory[self.begins[page] : self.begins[page] + size].tobytes()

    def image(self, slices: Sequence[bytes]) -> bytes:
        """Return what the memory holds once these slices, and nothing else, were published to its pages."""
        expected = np.full(len(self.memory), POISON, np.uint8)
        for begin, each in zip(self.begins.tolist(), slices, strict=False):
            expected[begin : begin + len(each)] = np.frombuffer(each, np.uint8)
        return expected.tobytes()


def aligned(size: int, fill: int = 0) -> Bytes:
    """Return memory that begins at a multiple of UNIT."""
    raw = np.full(size + UNIT, fill, np.uint8)
    start = -int(raw.ctypes.data) % UNIT
    return raw[start : start + size]
