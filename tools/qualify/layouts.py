"""Shapes in which the engines hold their KV, and the patterns in which pages lie in blocks and arenas. Pure.

A shape says where each tensor lies in one piece of memory, in elements of two bytes, so that a host or a device can
hold it and everything around the pages can be looked at.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

ELEMENT = 2  # bytes of one value
UNIT = 4096  # pages start at multiples of this
GUARD = 4096  # elements between two tensors that do not share an allocation
Ordinals = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TensorShape:
    """One registered tensor: sizes and strides in elements, and the element of the memory where it begins."""

    name: str
    begin: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    step: int

    @property
    def end(self) -> int:
        """Return the element past the last one."""
        return self.begin + 1 + sum((size - 1) * stride for size, stride in zip(self.sizes, self.strides, strict=True))


@dataclass(frozen=True)
class Shape:
    """All tensors of one rank in forward order, for `blocks` blocks of the engine."""

    name: str
    blocks: int
    tensors: tuple[TensorShape, ...]

    @property
    def steps(self) -> list[int]:
        """Return the layer of the forward that reads each tensor."""
        return [tensor.step for tensor in self.tensors]

    @property
    def bytes(self) -> int:
        """Return the bytes of memory that hold all tensors and a guard behind the last one."""
        return ELEMENT * (max(tensor.end for tensor in self.tensors) + GUARD)


def packed(name: str, layers: int, blocks: int, tokens: int, heads: int, width: int, padding: int = 0) -> Shape:
    """Return vLLM's usual layout: layer after layer in one allocation, a block's K and V packed along the width.

    `padding` elements follow each block. The view is [block, head, token, content] with tokens outside of heads.
    """
    block = tokens * heads * width + padding
    return Shape(
        name,
        blocks,
        tuple(
            TensorShape(
                f"layers.{i}", i * blocks * block, (blocks, heads, tokens, width), (block, width, heads * width, 1), i
            )
            for i in range(layers)
        ),
    )


def block_outermost(name: str, layers: int, blocks: int, tokens: int, heads: int, width: int) -> Shape:
    """Return vLLM's layout with all layers of a block side by side: a layer's blocks lie far apart."""
    layer = tokens * heads * width
    return Shape(
        name,
        blocks,
        tuple(
            TensorShape(
                f"layers.{i}", i * layer, (blocks, tokens, heads, width), (layers * layer, heads * width, width, 1), i
            )
            for i in range(layers)
        ),
    )


def kernel_blocks(name: str, layers: int, blocks: int, ratio: int, tokens: int, width: int) -> Shape:
    """Return a layout whose tensors hold each of the engine's blocks as `ratio` adjoining kernel blocks."""
    inner = tokens * width
    return Shape(
        name,
        blocks,
        tuple(
            TensorShape(
                f"layers.{i}", i * blocks * ratio * inner, (blocks * ratio, tokens, width), (inner, width, 1), i
            )
            for i in range(layers)
        ),
    )


def split_keys_and_values(name: str, layers: int, blocks: int, tokens: int, heads: int, width: int) -> Shape:
    """Return SGLang's layout: K and V of a layer in allocations of their own, both read by the same layer."""
    row = heads * width
    size = blocks * tokens * row + GUARD
    return Shape(
        name,
        blocks,
        tuple(
            TensorShape(
                f"{part}.{i}", (2 * i + at) * size, (blocks, tokens, heads, width), (tokens * row, row, width, 1), i
            )
            for i in range(layers)
            for at, part in enumerate("kv")
        ),
    )


def latent(name: str, layers: int, blocks: int, tokens: int, width: int = 576) -> Shape:
    """Return the layout of one latent head (MLA)."""
    size = blocks * tokens * width + GUARD
    return Shape(
        name,
        blocks,
        tuple(
            TensorShape(f"layers.{i}", i * size, (blocks, tokens, width), (tokens * width, width, 1), i)
            for i in range(layers)
        ),
    )


def with_digests(shape: Shape, name: str, row_bytes: int) -> Shape:
    """Return the shape with one more tensor of that name behind the others: a row of so many bytes for each block."""
    width, begin = row_bytes // ELEMENT, shape.bytes // ELEMENT
    rows = TensorShape(name, begin, (shape.blocks, width), (width, 1), shape.tensors[-1].step + 1)
    return replace(shape, tensors=(*shape.tensors, rows))


def shapes(layers: int, blocks: int) -> list[Shape]:
    """Return every layout that the engines register, with pieces from 8 KiB to 256 KiB."""
    return [
        packed("vllm 256 KiB", layers, blocks, 64, 8, 256),
        packed("vllm 8 KiB", layers, blocks, 16, 1, 256),
        packed("vllm padded 32 KiB", layers, blocks, 16, 4, 256, padding=512),
        block_outermost("vllm block outermost 64 KiB", layers, blocks, 16, 8, 256),
        kernel_blocks("vllm kernel blocks 4 x 16 KiB", layers, blocks, 4, 16, 512),
        split_keys_and_values("sglang 128 KiB", layers, blocks, 64, 8, 128),
        split_keys_and_values("sglang 8 KiB", layers, blocks, 16, 2, 128),
        latent("mla 72 KiB", layers, blocks, 64),
        latent("mla 18 KiB", layers, blocks, 16),
    ]


PATTERNS = ("ascending", "descending", "scattered", "runs", "borders")


def arrange(pattern: str, pages: int, places: int, seed: int) -> Ordinals:
    """Return `pages` different ones of `places`: in order, backwards, at random, or in short runs at random."""
    if pages > places:
        raise ValueError(f"{pages} pages do not fit in {places} places")
    draw = random.Random(seed)
    if pattern == "ascending":
        found: Sequence[int] = range(places - pages, places)
    elif pattern == "descending":
        found = range(pages - 1, -1, -1)
    elif pattern == "runs":
        starts = list(range(0, places - places % 4, 4))
        draw.shuffle(starts)
        found = [start + at for start in starts for at in range(4)][:pages]
        if len(found) < pages:
            raise ValueError(f"{pages} pages in runs of 4 do not fit in {places} places")
    else:
        found = draw.sample(range(places), pages)
    return np.asarray(found, np.int64)


def extent_bytes(slice_bytes: int) -> int:
    """Return the bytes that a page takes in an arena."""
    return -(-slice_bytes // UNIT) * UNIT


def across_borders(slice_bytes: int, arena_bytes: int, border: int) -> Ordinals:
    """Return the begins of disjoint pages that lie across, before and behind each border in the arena.

    A border lies at each multiple of `border` bytes. It cuts a page at an odd unit, so that it cuts a layer too.
    """
    extent = extent_bytes(slice_bytes)
    before = (3 * extent // (8 * UNIT) | 1) * UNIT
    begins = [at - before + page * extent for at in range(border, arena_bytes, border) for page in (-1, 0, 1)]
    return np.asarray([begin for begin in begins if 0 <= begin <= arena_bytes - extent], np.int64)


def locations(arena: int, begins: Ordinals) -> npt.NDArray[np.uint64]:
    """Return the locations of pages that begin at these bytes of an arena."""
    return (np.uint64(arena) << np.uint64(48)) | begins.astype(np.uint64)


def image(size: int, filler: int, contents: Iterable[tuple[int, npt.NDArray[np.uint8]]]) -> npt.NDArray[np.uint8]:
    """Return memory filled with one byte, but for contents at their places."""
    found = np.full(size, filler, np.uint8)
    for begin, content in contents:
        found[begin : begin + len(content)] = content
    return found
