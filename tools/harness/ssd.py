"""An SSD tier in a folder of a test: the Manager's options for it, what it holds, and what happens to it.

A Manager that was started with `STALLING` reads nothing while the folder is stalled: so "being read" is a state that a
test holds for as long as it likes, never a guess.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from harness.manager import ManagerProcess, eventually

CAPACITY = "128mib"
BLOCK_BYTES = 4096
SCRATCH_BLOCKS = 2  # at the payload's start: the Manager tries its engine there
STALLING = "stall-reads"  # a fault of the disk
STALL_FILE = "stall-reads"
BUSY = ("write_queue_pages", "write_inflight", "write_held_bytes", "read_queue_bytes", "read_inflight")


class Volume:
    """One folder of the tier, which outlives the Managers that use it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def options(self, fault: str = "", capacity: str = CAPACITY) -> tuple[str, ...]:
        """Return the options of a Manager that uses it, with a fault of the disk unless it is empty."""
        options = ("--ssd-cache-path", str(self.folder), "--ssd-cache-capacity", capacity)
        return (*options, "--ssd-fault-injection", fault) if fault else options

    def stall(self) -> None:
        """Let every read that begins from now on wait."""
        (self.folder / STALL_FILE).touch()

    def resume(self) -> None:
        """Let reads go on."""
        (self.folder / STALL_FILE).unlink(missing_ok=True)

    def spoil(self) -> int:
        """Invert one byte of every block that holds anything; return how many. No record of the index is touched."""
        content = np.memmap(self.folder / "payload", np.uint8, "r+")
        blocks = content[: len(content) // BLOCK_BYTES * BLOCK_BYTES].reshape(-1, BLOCK_BYTES)[SCRATCH_BLOCKS:]
        used = np.flatnonzero(blocks.any(axis=1))
        blocks[used, 0] ^= 0xFF
        content.flush()
        return len(used)


def stored(manager: ManagerProcess) -> int:
    """Return how many pages the tier holds."""
    return int(manager.metric("orbitkv_ssd_pages"))


def read(manager: ManagerProcess) -> int:
    """Return how many pages the Manager has read from the tier since its start."""
    return int(manager.metric("orbitkv_ssd_prefetch_success_total"))


def unreadable(manager: ManagerProcess) -> int:
    """Return how many reads of the tier have failed since the Manager's start."""
    return int(manager.metric("orbitkv_ssd_prefetch_failures_total"))


def wait_stored(manager: ManagerProcess, pages: int) -> None:
    """Return once the tier holds so many pages, and writes none."""

    def settled() -> bool:
        return stored(manager) >= pages and manager.metric("orbitkv_ssd_write_held_bytes") == 0

    eventually(settled, f"{pages} pages are on the SSD")


def empty_memory(manager: ManagerProcess) -> None:
    """Take every page out of the pool; what the tier holds stays there."""
    eventually(lambda: cleaned(manager), "no page is left in the pool")


def cleaned(manager: ManagerProcess) -> bool:
    """Clean the pool up once; return whether nobody held a page."""
    manager.verb("/cache/memory/cleanup")
    return manager.metric("orbitkv_cache_resident_blocks") == 0
