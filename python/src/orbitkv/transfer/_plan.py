"""What a copy moves: the engine's layers, the blocks and the locations, all checked before a byte moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from orbitkv._arenas import Bytes
from orbitkv.errors import ConfigurationError, TransferError

LOCATION_ARENA_BIT = 48  # a location is arena << 48 | byte offset
LOCATION_OFFSET_MASK = np.uint64((1 << LOCATION_ARENA_BIT) - 1)

Blocks = npt.NDArray[np.int64]
Locations = npt.NDArray[np.uint64]


class TensorLike(Protocol):
    """The part of a torch tensor that a layout is read from; the first dimension is the block."""

    @property
    def shape(self) -> Any:
        """Return the sizes of the dimensions."""
        ...

    def stride(self) -> Any:
        """Return the strides in elements."""
        ...

    def element_size(self) -> int:
        """Return the bytes of one element."""
        ...

    def data_ptr(self) -> int:
        """Return the address of the first element."""
        ...


@dataclass(frozen=True)
class LayerLayout:
    """Block b of a layer is `block_bytes` contiguous bytes at `address + b * block_stride`.

    `offset` is where the layer lies in a page's slice, `step` which layer of the engine's forward reads it.
    """

    name: str
    address: int
    blocks: int
    block_stride: int
    block_bytes: int
    offset: int
    step: int

    @cached_property
    def rows(self) -> Bytes:
        """Return the engine's memory as writable rows of blocks; the layout's owner keeps it alive."""
        return np.asarray(ForeignRows(self.address, (self.blocks, self.block_bytes), (self.block_stride, 1)))


class ForeignRows:
    """Memory of the engine under an address, in the form that numpy takes."""

    def __init__(self, address: int, shape: tuple[int, int], strides: tuple[int, int]) -> None:
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "data": (address, False),
            "shape": shape,
            "strides": strides,
        }


@dataclass(frozen=True)
class Columns:
    """Runs of adjoining layers, all of one shape: run r of block b is `width` bytes at `addresses[r] + b * stride`.

    `offsets[r]` is where run r lies in a page's slice. Layers adjoin when they do so on both sides.
    """

    stride: int
    width: int
    addresses: Blocks
    offsets: Blocks


@dataclass(frozen=True)
class KVLayout:
    """All layers of one rank in forward order. `owner` keeps the tensors' memory alive as long as the layout."""

    layers: tuple[LayerLayout, ...]
    blocks: int
    slice_bytes: int
    owner: object = field(repr=False, compare=False)

    @cached_property
    def steps(self) -> tuple[tuple[int, int], ...]:
        """Return the first layer of each step of the forward and the one past its last."""
        firsts = [at for at, layer in enumerate(self.layers) if at == 0 or layer.step != self.layers[at - 1].step]
        return tuple(zip(firsts, [*firsts[1:], len(self.layers)], strict=True))

    @cached_property
    def layer_offsets(self) -> Blocks:
        """Return where each layer lies in a page's slice, which increases."""
        return np.array([layer.offset for layer in self.layers], np.int64)

    @cached_property
    def layer_steps(self) -> Blocks:
        """Return the index in `steps` of each layer."""
        return np.repeat(np.arange(len(self.steps)), [past - first for first, past in self.steps])

    @cached_property
    def step_columns(self) -> tuple[tuple[Columns, ...], ...]:
        """Return what a copy of each step moves."""
        return tuple(columns_of(self.layers[first:past]) for first, past in self.steps)

    @cached_property
    def columns(self) -> tuple[Columns, ...]:
        """Return what a copy of whole pages moves."""
        return columns_of(self.layers)

    def columns_of_steps(self, first: int, past: int) -> tuple[Columns, ...]:
        """Return what a copy of the steps `first` to `past` (exclusive) moves; each pair is worked out once."""
        if past == first + 1:
            return self.step_columns[first]
        columns = self._pairs.get((first, past))
        if columns is None:
            columns = columns_of(self.layers[self.steps[first][0] : self.steps[past - 1][1]])
            self._pairs[first, past] = columns
        return columns

    @cached_property
    def _pairs(self) -> dict[tuple[int, int], tuple[Columns, ...]]:
        return {}

    @cached_property
    def step_bytes(self) -> tuple[int, ...]:
        """Return the bytes of one page that each step reads."""
        return tuple(sum(layer.block_bytes for layer in self.layers[first:past]) for first, past in self.steps)

    @staticmethod
    def from_tensors(
        tensors: Mapping[str, TensorLike], blocks: int | None = None, steps: Sequence[int] | None = None
    ) -> KVLayout:
        """Read the layout of registered tensors, in the mapping's order, which must be the forward's.

        `blocks` is the engine's number of blocks; a tensor may hold each as several adjoining kernel blocks.
        `steps` names the forward's layer that reads each tensor, from 0 without a gap; by default each has its own.
        ConfigurationError when a block of a layer is not one contiguous run of bytes.
        """
        layers = []
        offset = 0
        count = blocks if blocks is not None else min((int(t.shape[0]) for t in tensors.values()), default=0)
        for at, (name, tensor) in enumerate(tensors.items()):
            layer = read_layer(name, tensor, count, offset, at if steps is None else steps[at])
            layers.append(layer)
            offset += layer.block_bytes
        if not layers or count <= 0:
            raise ConfigurationError("the engine registered no KV tensors, so there is nothing to cache")
        return KVLayout(tuple(layers), count, offset, tensors)


def columns_of(layers: Sequence[LayerLayout]) -> tuple[Columns, ...]:
    """Join layers that adjoin, and sort the runs by their shape."""
    runs: list[list[int]] = []  # address, stride, width, offset
    for layer in layers:
        if runs:
            address, stride, width, offset = runs[-1]
            here, past = (layer.address, layer.block_stride, layer.offset), (address + width, stride, offset + width)
            if here == past and width + layer.block_bytes <= stride:
                runs[-1][2] += layer.block_bytes
                continue
        runs.append([layer.address, layer.block_stride, layer.block_bytes, layer.offset])
    shapes: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for address, stride, width, offset in runs:
        shapes.setdefault((stride, width), []).append((address, offset))
    return tuple(
        Columns(stride, width, np.array([a for a, _ in places], np.int64), np.array([o for _, o in places], np.int64))
        for (stride, width), places in shapes.items()
    )


def read_layer(name: str, tensor: TensorLike, blocks: int, offset: int, step: int) -> LayerLayout:
    """Read one layer; see KVLayout.from_tensors."""
    shape = [int(n) for n in tensor.shape]
    strides = [int(n) * tensor.element_size() for n in tensor.stride()]
    if blocks <= 0 or shape[0] % blocks:
        raise ConfigurationError(f"layer {name} holds {shape[0]} blocks, which is no multiple of the engine's {blocks}")
    ratio = shape[0] // blocks
    dense = tensor.element_size()
    for stride, size in sorted(zip(strides[1:], shape[1:], strict=True)):
        if size > 1 and stride != dense:
            raise ConfigurationError(
                f"a block of layer {name} is not contiguous (shape {shape}, strides {strides} bytes): "
                "choose a KV layout whose block dimension is outside of heads and tokens"
            )
        dense *= size
    if ratio > 1 and strides[0] != dense:
        raise ConfigurationError(f"the {ratio} kernel blocks of one block of layer {name} do not adjoin")
    return LayerLayout(name, tensor.data_ptr(), blocks, strides[0] * ratio, dense * ratio, offset, step)


@dataclass(frozen=True)
class CopyPlan:
    """Pages to copy: `blocks[i]` in the engine and `locations[i]` in an arena belong together.

    `slice_offset` is where this rank's slice lies in the located part; `request` names the request in the timeline.
    """

    layout: KVLayout
    blocks: Blocks
    locations: Locations
    slice_offset: int = 0
    request: str = ""

    @property
    def pages(self) -> int:
        """Return how many pages the plan copies."""
        return len(self.blocks)

    @property
    def bytes(self) -> int:
        """Return the bytes that the whole plan copies."""
        return len(self.blocks) * self.layout.slice_bytes

    def check(self) -> None:
        """Check lengths and block ids; TransferError names the first fault. Locations are checked by the backend."""
        if len(self.blocks) != len(self.locations):
            raise TransferError(f"a plan of {len(self.blocks)} blocks names {len(self.locations)} locations")
        if len(self.blocks) == 0:
            raise TransferError("a plan without pages copies nothing")
        low, high = int(self.blocks.min()), int(self.blocks.max())
        if low < 0 or high >= self.layout.blocks:
            raise TransferError(
                f"block {low if low < 0 else high} is outside of the engine's {self.layout.blocks} blocks"
            )
        if len(np.unique(self.blocks)) != len(self.blocks):
            raise TransferError("a plan names one engine block twice")


def check_group(plans: Sequence[CopyPlan]) -> None:
    """Check the restores of one engine step: every plan, one layout, no block twice. TransferError names the fault."""
    if not plans:
        raise TransferError("a group without plans copies nothing")
    for plan in plans:
        plan.check()
        if plan.layout is not plans[0].layout:
            raise TransferError("the plans of one group have different layouts")
    if len(plans) > 1:
        blocks = np.concatenate([plan.blocks for plan in plans])
        if len(np.unique(blocks)) != len(blocks):
            raise TransferError("two plans of one group name one engine block")
