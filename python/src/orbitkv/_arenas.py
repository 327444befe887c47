"""The arenas of the Cache Manager in this process: descriptors in, mapped memory out.

The table owns the mappings. Its lock guards the dictionary alone; mapping is done outside of it. A mapping lives as
long as anything still views it, so a copy that runs when the table closes finishes from valid memory (I2).
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from orbitkv.errors import ArenaError

# From linux/fcntl.h and linux/mman.h; the standard library names them only in later Pythons.
F_GET_SEALS = 1034
F_SEAL_SHRINK = 0x0002
MADV_DONTFORK = 10

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Arena:
    """One mapped arena: `view` is all of its bytes, writable, at `address` in this process."""

    id: int
    node: int
    bytes: int
    view: Bytes = field(repr=False)

    @property
    def address(self) -> int:
        """Return the address of byte 0 in this process, for device registration."""
        return int(self.view.ctypes.data)


class ArenaTable(Mapping[int, Arena]):
    """The arenas mapped so far, by id. Thread-safe; ids are never reused within one Manager incarnation."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._arenas: dict[int, Arena] = {}
        self._maps: list[mmap.mmap] = []
        self._announced = 0
        self._fault: str | None = None  # why the first arena that was refused cannot be used
        self._closed = False

    def __getitem__(self, arena: int) -> Arena:
        return self._arenas[arena]

    def __iter__(self) -> Iterator[int]:
        return iter(tuple(self._arenas))

    def __len__(self) -> int:
        return len(self._arenas)

    def add(self, arena: Arena, mapping: mmap.mmap) -> None:
        """Enter a mapped arena. ArenaError when its id is taken or the table closed."""
        with self._changed:
            if self._closed:
                raise ArenaError(f"arena {arena.id} arrived after the client was closed")
            if arena.id in self._arenas:
                raise ArenaError(f"arena {arena.id} was sent twice")
            self._arenas[arena.id] = arena
            self._maps.append(mapping)

    def announce(self) -> None:
        """Count one more arena as known to the Manager, and wake whoever waits for it."""
        with self._changed:
            self._announced += 1
            self._changed.notify_all()

    def refuse(self, fault: str) -> None:
        """Note why an arena that came cannot be used."""
        with self._changed:
            self._fault = self._fault or fault

    @property
    def unusable_because(self) -> str | None:
        """Return why arenas that came cannot be used, None when one of them can or none came."""
        with self._changed:
            return None if self._announced else self._fault

    def wait(self, minimum: int, timeout: float | None) -> int:
        """Wait for `minimum` announced arenas, the timeout in seconds or the table's end; return how many there are."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._announced >= minimum, timeout)
            return self._announced

    def close(self) -> None:
        """Forget every arena. Memory that a running copy still views is unmapped when that view goes (I2)."""
        with self._changed:
            self._closed = True
            maps, self._maps = self._maps, []
            self._arenas.clear()
            self._changed.notify_all()
        for mapping in maps:
            try:
                mapping.close()
            except BufferError:
                continue  # Still viewed: the last view unmaps it.


def map_arena(arena: int, node: int, size: int, descriptor: int) -> tuple[Arena, mmap.mmap]:
    """Map a received descriptor of `size` bytes, which stays the caller's to close. ArenaError when it cannot be.

    The size and the seal are checked first: memory that its owner may shrink would kill this process at a touch.
    """
    try:
        actual = os.fstat(descriptor).st_size
        seals = fcntl.fcntl(descriptor, F_GET_SEALS)
        if actual != size or not seals & F_SEAL_SHRINK:
            raise ArenaError(f"arena {arena} says {size} bytes, the descriptor has {actual}, seals {seals:#x}: refused")
        mapping = mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        # A child that inherited the mapping could write into pages after this process has died.
        mapping.madvise(MADV_DONTFORK)
    except (OSError, ValueError, OverflowError) as fault:
        raise ArenaError(f"arena {arena} of {size} bytes cannot be mapped: {fault}") from fault
    view: np.ndarray[Any, np.dtype[np.uint8]] = np.frombuffer(mapping, np.uint8)
    return Arena(arena, node, size, view), mapping
