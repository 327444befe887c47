"""What one rank is to copy: pages, the engine's blocks for them, and where they lie in the arenas. Plain data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from orbitkv.errors import ConfigurationError

Blocks = npt.NDArray[np.int64]
Locations = npt.NDArray[np.uint64]
Ordinals = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class SlicePlace:
    """Where the slice of one storage rank lies: in which part of a page, at which byte offset of it."""

    rank: int
    part: int
    offset: int
    bytes: int


@dataclass(frozen=True)
class RestorePlan:
    """Pages of a begun lease and the blocks they go to. `locations[p]` are those of part p, page by page.

    `ranges` are the pages' places in the lease, when they are not its first ones.
    """

    request: str
    lease: int
    blocks: Blocks
    locations: tuple[Locations, ...]
    ranges: tuple[tuple[int, int], ...] = ()

    @property
    def pages(self) -> tuple[tuple[int, int], ...]:
        """Return which pages of the lease are copied."""
        return self.ranges or ((0, len(self.blocks)),)


@dataclass(frozen=True)
class PublishPlan:
    """Granted pages and the blocks they come from. `ticket` is the scheduler side's name of the batch."""

    ticket: int
    reservation: int
    ordinals: Ordinals
    blocks: Blocks
    locations: tuple[Locations, ...]


def slice_of(slices: tuple[SlicePlace, ...], rank: int) -> SlicePlace:
    """Return where a rank's slice lies. ConfigurationError when the namespace has none."""
    for place in slices:
        if place.rank == rank:
            return place
    raise ConfigurationError(f"the namespace holds no slice of rank {rank}")
