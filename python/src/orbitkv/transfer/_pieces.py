"""How the host backend moves bytes: a plan cut into pieces, and one numpy copy per piece and layer.

Pages start at multiples of LOCATION_UNIT, so an arena is seen as overlapping rows that start at each unit: one indexed
copy then moves a whole piece, whatever the distances between its pages. A piece is small enough for numpy's temporary
to stay in the processor's cache; pages that lie evenly spaced need none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.lib.stride_tricks import as_strided

from orbitkv._arenas import Arena, Bytes
from orbitkv.errors import TransferError
from orbitkv.transfer._plan import (
    LOCATION_ARENA_BIT,
    LOCATION_OFFSET_MASK,
    Blocks,
    CopyPlan,
    LayerLayout,
)

LOCATION_UNIT = 4096  # pages start at multiples of this
PIECE_BYTES = 1 << 20  # the most that one indexed copy moves, unless one block is larger


@dataclass(frozen=True)
class Piece:
    """Pages of one plan that lie in one arena: engine blocks, and where their parts start in units.

    `step` is the even distance of the parts in bytes, or zero when they are not evenly spaced.
    """

    arena: Bytes
    blocks: Blocks
    units: Blocks
    step: int


def pieces_of(plan: CopyPlan, arenas: Mapping[int, Arena]) -> list[Piece]:
    """Cut a plan into pieces. TransferError names a location that no registered arena holds."""
    ids = (plan.locations >> np.uint64(LOCATION_ARENA_BIT)).astype(np.int64)
    offsets = (plan.locations & LOCATION_OFFSET_MASK).astype(np.int64)
    count = max(1, PIECE_BYTES // max(layer.block_bytes for layer in plan.layout.layers))
    edges = [0, *(np.flatnonzero(np.diff(ids)) + 1).tolist(), len(ids)]
    pieces = []
    for first, last in pairwise(edges):
        arena = checked_arena(int(ids[first]), offsets[first:last], plan, arenas)
        for at in range(first, last, count):
            end = min(at + count, last)
            units = offsets[at:end] // LOCATION_UNIT
            pieces.append(Piece(arena.view, plan.blocks[at:end], units, even_step(units)))
    return pieces


def checked_arena(arena_id: int, offsets: Blocks, plan: CopyPlan, arenas: Mapping[int, Arena]) -> Arena:
    """Return the arena when every slice of the plan at these offsets lies inside of it."""
    arena = arenas.get(arena_id)
    if arena is None:
        raise TransferError(f"arena {arena_id} is not registered, so nothing can be copied from or to it")
    high = int(offsets.max()) + plan.slice_offset + plan.layout.slice_bytes
    if high > arena.bytes or plan.slice_offset < 0:
        raise TransferError(f"a page ends at byte {high} of arena {arena_id}, which has {arena.bytes}")
    if (offsets % LOCATION_UNIT).any():
        raise TransferError(f"a location in arena {arena_id} is no multiple of {LOCATION_UNIT}")
    return arena


def even_step(units: Blocks) -> int:
    """Return the distance in bytes between neighbours when it is one and the same, else zero."""
    if len(units) == 1:
        return LOCATION_UNIT
    distances = np.diff(units)
    step = int(distances[0])
    return step * LOCATION_UNIT if step > 0 and bool((distances == step).all()) else 0


def copy_in(piece: Piece, layer: LayerLayout, slice_offset: int) -> None:
    """Copy one layer of a piece from the arena to the engine's blocks."""
    start = slice_offset + layer.offset
    layer.rows[piece.blocks] = (
        even_rows(piece, start, layer) if piece.step else all_rows(piece, start, layer)[piece.units]
    )


def copy_out(piece: Piece, layer: LayerLayout, slice_offset: int) -> None:
    """Copy one layer of a piece from the engine's blocks to the arena."""
    start = slice_offset + layer.offset
    if piece.step:
        even_rows(piece, start, layer)[...] = layer.rows[piece.blocks]
    else:
        all_rows(piece, start, layer)[piece.units] = layer.rows[piece.blocks]


def even_rows(piece: Piece, start: int, layer: LayerLayout) -> Bytes:
    """Return the layer's rows of an evenly spaced piece."""
    base = int(piece.units[0]) * LOCATION_UNIT + start
    return as_strided(piece.arena[base:], (len(piece.units), layer.block_bytes), (piece.step, 1))


def all_rows(piece: Piece, start: int, layer: LayerLayout) -> Bytes:
    """Return a row for each unit at which a page of the arena could start; neighbours overlap."""
    count = (len(piece.arena) - start - layer.block_bytes) // LOCATION_UNIT + 1
    return as_strided(piece.arena[start:], (count, layer.block_bytes), (LOCATION_UNIT, 1))
