"""Namespaces, and locations of pages as arrays: runs of adjacent pages go in, one number a page comes out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from orbitkv import _wire
from orbitkv.errors import ProtocolError

Locations = npt.NDArray[np.uint64]
Range = tuple[int, int]


class Slice(NamedTuple):
    """One storage rank's part of a page: `bytes` unpadded bytes at `offset` of the page's extent number `part`."""

    rank: int
    part: int
    offset: int
    bytes: int


class Namespace(NamedTuple):
    """A namespace of one Manager incarnation and the geometry of its pages, in bytes.

    `rank` is the rank that the session schedules for, ALL_RANKS when it schedules the whole instance; `budget_bytes` is
    what the leases of one instance may hold.
    """

    handle: int
    epoch: int
    page_bytes: int
    part_bytes: tuple[int, ...]
    slices: tuple[Slice, ...]
    rank: int = _wire.ALL_RANKS
    budget_bytes: int = 0

    @property
    def writes(self) -> bool:
        """Return whether any slice is for whom the session schedules to write; a restoring rank has none."""
        return self.rank == _wire.ALL_RANKS or any(each.rank == self.rank for each in self.slices)

    def slice_of(self, rank: int) -> Slice:
        """Return a storage rank's slice; KeyError when the rank stores nothing of its own."""
        for each in self.slices:
            if each.rank == rank:
                return each
        raise KeyError(rank)


def namespace_of(message: _wire.Registered, rank: int = _wire.ALL_RANKS) -> Namespace:
    """Return the namespace that a `registered` frame describes to the scheduler of a rank.

    ProtocolError when a slice leaves its part.
    """
    slices = tuple(Slice(*each) for each in message.slices)
    parts = tuple(message.part_bytes)
    for each in slices:
        if each.part >= len(parts) or each.offset + each.bytes > parts[each.part]:
            raise ProtocolError(f"slice of rank {each.rank} lies outside of its part")
    return Namespace(message.namespace, message.epoch, message.page_bytes, parts, slices, rank, message.budget_bytes)


def expand(runs: Sequence[_wire.Run], part: int, part_bytes: int, pages: int) -> Locations:
    """Return the location of one part of every page; ProtocolError when the runs do not cover `pages` pages."""
    mine = [(count, first) for number, count, first in runs if number == part]
    counts = np.array([count for count, _ in mine], np.int64)
    firsts = np.array([first for _, first in mine], np.uint64)
    if int(counts.sum()) != pages:
        raise ProtocolError(f"the runs of part {part} cover {int(counts.sum())} pages of {pages}")
    inside = np.arange(pages) - np.repeat(np.cumsum(counts) - counts, counts)
    locations: Locations = np.repeat(firsts, counts) + inside.astype(np.uint64) * np.uint64(part_bytes)
    return locations


def ranges_of(ordinals: npt.NDArray[np.int64]) -> list[Range]:
    """Return increasing ordinals as ranges (first, count)."""
    if len(ordinals) == 0:
        return []
    edges = np.flatnonzero(np.diff(ordinals) != 1) + 1
    starts = np.concatenate(([0], edges))
    ends = np.concatenate((edges, [len(ordinals)]))
    return list(zip(ordinals[starts].tolist(), (ends - starts).tolist(), strict=True))


def key_parts(keys: bytes) -> list[bytes]:
    """Return the keys of one operation cut into the parts that fit a frame."""
    size = _wire.FRAME_KEYS_MAX * _wire.KEY_BYTES
    return [keys[at : at + size] for at in range(0, len(keys), size)]
