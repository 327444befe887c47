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


class PrefixCache(Protocol):
    """The same pool's blocks by the hashes that a device hit finds them by."""

    def get_cached_block(self, block_hash: bytes, kv_cache_group_ids: list[int]) -> list[Any] | None:
        """Return a block of each group that a device hit on the hash would get, or None."""
        ...

    def evict_blocks(self, block_ids: set[int]) -> None:
        """Let no later request hit these blocks; references stay."""
        ...
