"""The control of the demo: spoil every byte that the Manager stores, from outside.

A restore of spoiled bytes must change the engine's output. If it did not, equal output after an honest restore would
prove nothing. The product has no door for this: a process of the same user may open the Manager's sealed memory
through /proc, which is also why OrbitKV's trust boundary is the user.
"""

from __future__ import annotations

import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

PIECE_BYTES = 4 << 20  # inverted at a time by one thread


class NothingToDamage(Exception):
    """The process maps no arena."""


def invert_arenas(pid: int) -> int:
    """Invert every byte of each memfd that the process holds; return how many bytes that were."""
    seen: set[tuple[int, int]] = set()
    total = 0
    for link in sorted(Path(f"/proc/{pid}/fd").iterdir()):
        if not _names_memory(link):
            continue
        with open(link, "r+b") as arena:
            facts = os.fstat(arena.fileno())
            if facts.st_size == 0 or (facts.st_dev, facts.st_ino) in seen:
                continue
            seen.add((facts.st_dev, facts.st_ino))
            invert(arena.fileno(), facts.st_size)
            total += facts.st_size
    if total == 0:
        raise NothingToDamage(f"process {pid} holds no memfd: is it the Manager?")
    return total


def invert(descriptor: int, size: int) -> None:
    """Invert the bytes of a memfd, by every processor: pools are large."""
    view = np.frombuffer(mmap.mmap(descriptor, size), np.uint8)  # unmapped with its last view

    def piece(at: int) -> None:
        part = view[at : at + PIECE_BYTES]
        np.invert(part, out=part)

    with ThreadPoolExecutor() as pool:
        list(pool.map(piece, range(0, size, PIECE_BYTES)))


def _names_memory(link: Path) -> bool:
    """Return whether a descriptor is a memfd; one that was closed meanwhile is none."""
    try:
        return str(link.readlink()).startswith("/memfd:")
    except FileNotFoundError:
        return False
