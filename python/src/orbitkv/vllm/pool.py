"""The part of the engine's block pool that the adapter uses: blocks are held and lent by reference count."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol


class BlockPool(Protocol):
    """Blocks by id. Only the engine's scheduler thread may call it."""

    blocks: Sequence[Any]

    def get_num_free_blocks(self) -> int:
        """Return how many blocks are free."""
        ...

    def get_new_blocks(self, num_blocks: int) -> list[Any]:
        """Take free blocks, each with one reference."""
        ...

    def touch(self, blocks: Sequence[Any]) -> None:
        """Add a reference to each block."""
        ...

    def free_blocks(self, ordered_blocks: Iterable[Any]) -> None:
        """Drop a reference of each block; the first may be reused first."""
        ...
