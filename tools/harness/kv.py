"""KV memory as engines lay it out, over numpy, with an oracle that knows each page's bytes without any address.

Every layer is an array of rows, several of which may be one block, and a page's slice is what the rows of its block
hold, layer after layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from orbitkv.transfer import KVLayout

Bytes = npt.NDArray[np.uint8]
UNIT = 4096


class Tensor:
    """The face of a torch tensor over rows of bytes."""

    def __init__(self, rows: Bytes) -> None:
        self.rows = rows
        self.shape = rows.shape

    def stride(self) -> tuple[int, ...]:
        """Return the strides in elements, which are bytes here."""
        return self.rows.strides

    def element_size(self) -> int:
        """Return the bytes of one element."""
        return 1

    def data_ptr(self) -> int:
        """Return the address of the first element."""
        return int(self.rows.ctypes.data)


class Memory:
    """The KV of a small engine. `layers[l]` are the rows of layer l, `steps` the forward's layer that reads each."""

    def __init__(self, memory: Bytes, layers: Sequence[Bytes], blocks: int, steps: Sequence[int] | None = None) -> None:
        self.memory = memory
        self.layers = layers
        self.blocks = blocks
        tensors: dict[str, Any] = {f"layer.{at}": Tensor(rows) for at, rows in enumerate(layers)}
        self.layout = KVLayout.from_tensors(tensors, blocks, steps)

    @property
    def address(self) -> int:
        """Return where the whole of it begins."""
        return int(self.memory.ctypes.data)

    def fill(self, seed: int) -> None:
        """Fill all of it, what lies between blocks too."""
        self.memory[...] = np.random.default_rng(seed).integers(0, 256, self.memory.shape, np.uint8)

    def slices(self, blocks: Sequence[int] | npt.NDArray[np.int64]) -> Bytes:
        """Return each block's slice as it is stored, one row a block."""
        whole = [rows.reshape(self.blocks, -1)[np.asarray(blocks)] for rows in self.layers]
        return np.concatenate(whole, axis=1)

    def write(self, blocks: npt.NDArray[np.int64], slices: Bytes) -> None:
        """Put slices into blocks, layer after layer."""
        for block, content in zip(blocks.tolist(), slices, strict=True):
            at = 0
            for layer in range(self.depth):
                part = self.part(layer, block)
                part[...] = content[at : at + part.size].reshape(part.shape)
                at += part.size

    @property
    def depth(self) -> int:
        """Return the number of layers."""
        return len(self.layers)

    def part(self, layer: int, block: int) -> Bytes:
        """Return a view of the rows that hold one block of one layer."""
        rows = len(self.layers[layer]) // self.blocks
        return self.layers[layer][block * rows : (block + 1) * rows]


def layer_by_layer(blocks: int, width: int, depth: int = 5, padding: int = 0) -> Memory:
    """Lay each layer out as blocks of `width` bytes with `padding` behind each, as vLLM does by default."""
    memory = np.zeros((depth, blocks, width + padding), np.uint8)
    return Memory(memory, [memory[layer, :, :width] for layer in range(depth)], blocks)


def kernel_blocks(blocks: int, width: int, depth: int = 5) -> Memory:
    """Lay each block out as two kernel blocks that adjoin."""
    memory = np.zeros((depth, blocks * 2, width // 2), np.uint8)
    return Memory(memory, [memory[layer] for layer in range(depth)], blocks)


def block_by_block(blocks: int, width: int, depth: int = 5, padding: int = 0) -> Memory:
    """Lay all layers of a block out next to each other."""
    memory = np.zeros((blocks, depth * width + padding), np.uint8)
    return Memory(memory, [memory[:, at * width : (at + 1) * width] for at in range(depth)], blocks)


def split_lists(blocks: int, width: int, depth: int = 4, value_width: int | None = None) -> Memory:
    """Lay K and V of each layer out in tensors of their own that one step reads, as SGLang does."""
    widths = [width, width if value_width is None else value_width] * depth
    memory = np.zeros(blocks * sum(widths), np.uint8)
    layers, at = [], 0
    for each in widths:
        layers.append(memory[at : at + blocks * each].reshape(blocks, each))
        at += blocks * each
    return Memory(memory, layers, blocks, [at // 2 for at in range(2 * depth)])


LAYOUTS: dict[str, Callable[[int], Memory]] = {
    "layer by layer": lambda blocks: layer_by_layer(blocks, 768),
    "layer by layer, padded": lambda blocks: layer_by_layer(blocks, 768, padding=1280),
    "layer by layer, large": lambda blocks: layer_by_layer(blocks, 32 << 10, depth=1),
    "kernel blocks": lambda blocks: kernel_blocks(blocks, 1024),
    "block by block": lambda blocks: block_by_block(blocks, 512),
    "block by block, padded": lambda blocks: block_by_block(blocks, 512, padding=128),
    "block by block, whole units": lambda blocks: block_by_block(blocks, 1024, depth=4),
    "split K and V": lambda blocks: split_lists(blocks, 640),
    "split K and V, uneven": lambda blocks: split_lists(blocks, 640, value_width=384),
    "one latent head": lambda blocks: layer_by_layer(blocks, 576 * 2, depth=3),
    "one layer of whole units": lambda blocks: layer_by_layer(blocks, UNIT, depth=1),
}


def footprint(layout: KVLayout, offset: int = 0) -> int:
    """Return the bytes that a page takes in an arena when its slice lies at that offset."""
    return -(-(layout.slice_bytes + offset) // UNIT) * UNIT


def orders(rng: np.random.Generator, blocks: int) -> dict[str, tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Return, by name, blocks of the engine and places in an arena for as many pages as there are blocks, or fewer."""
    half = blocks // 2
    runs = [np.arange(at, min(at + 9, blocks)) for at in range(0, blocks, 9)]
    mixed = [runs[at] for at in rng.permutation(len(runs))]
    pairs = np.arange(half * 2).reshape(2, half).T.ravel()  # 0, half, 1, half + 1, ...
    return {
        "random": (rng.permutation(blocks), rng.permutation(blocks)),
        "ascending": (np.arange(blocks), np.arange(blocks)),
        "descending": (np.arange(blocks)[::-1].copy(), np.arange(blocks)),
        "both descending": (np.arange(blocks)[::-1].copy(), np.arange(blocks)[::-1].copy()),
        "every second": (np.arange(0, blocks, 2), np.arange(0, blocks, 2)),
        "interleaved blocks": (pairs, np.arange(half * 2)),
        "interleaved places": (np.arange(half * 2), pairs),
        "runs": (np.concatenate(runs), np.concatenate(mixed)),
        "single": (rng.permutation(blocks)[:1], rng.permutation(blocks)[:1]),
        "one place for all": (np.arange(blocks), np.zeros(blocks, np.int64)),
    }
