"""The control of the demo: spoil every byte that the Manager stores, from outside.

A restore of spoiled bytes must change the engine's output. If it did not, equal output after an honest restore would
prove nothing. The product has no door for this: a process of the same user may open the Manager's sealed memory
through /proc, which is also why OrbitKV's trust boundary is the user.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

INVERTED = bytes(255 - value for value in range(256))
PIECE_BYTES = 4 << 20


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
            with mmap.mmap(arena.fileno(), facts.st_size) as view:
                for at in range(0, facts.st_size, PIECE_BYTES):
                    view[at : at + PIECE_BYTES] = view[at : at + PIECE_BYTES].translate(INVERTED)
            total += facts.st_size
    if total == 0:
        raise NothingToDamage(f"process {pid} holds no memfd: is it the Manager?")
    return total


def _names_memory(link: Path) -> bool:
    """Return whether a descriptor is a memfd; one that was closed meanwhile is none."""
    try:
        return str(link.readlink()).startswith("/memfd:")
    except FileNotFoundError:
        return False
