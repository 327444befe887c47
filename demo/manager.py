"""The demo's Cache Manager: `orbitkv serve` with a small pool and a folder as its SSD, and what is asked of it."""

from __future__ import annotations

import time
from pathlib import Path

from demo.damage import invert_arenas
from harness.manager import ManagerFailure, ManagerProcess
from harness.ssd import empty_memory, wait_stored

BINARY = Path(__file__).resolve().parent.parent / "bin" / "orbitkv"
STORE_LIMIT_S = 120.0
POOL, SSD_CAPACITY = "256mib", "512mib"
POLL_S = 0.1


class Manager(ManagerProcess):
    """A Manager in a folder of its own; `start` and `stop` are the harness's."""

    def __init__(self, folder: Path) -> None:
        """Name its files; nothing is started."""
        ssd = ("--ssd-cache-path", str(folder / "ssd"), "--ssd-cache-capacity", SSD_CAPACITY)
        super().__init__(BINARY, folder, POOL, *ssd)

    def restored_bytes(self) -> int:
        """Return the bytes that engines have confirmed as restored."""
        return int(self.metric("orbitkv_load_bytes_total"))

    def wait_stored(self, pages: int) -> None:
        """Return once so many pages were stored since the start; ManagerFailure when they do not come."""
        end = time.monotonic() + STORE_LIMIT_S
        while (stored := self.metric("orbitkv_cache_block_insertions_total")) < pages:
            if time.monotonic() > end:
                raise ManagerFailure(f"the engine published {stored:.0f} of {pages} pages within {STORE_LIMIT_S:.0f} s")
            time.sleep(POLL_S)

    def leave_to_ssd(self) -> None:
        """Empty the pool once every page is on the SSD; ManagerFailure when a page does not get there."""
        try:
            wait_stored(self, int(self.metric("orbitkv_cache_block_insertions_total")))
            empty_memory(self)
        except AssertionError as overdue:
            raise ManagerFailure(str(overdue)) from overdue

    def ssd_bytes(self) -> int:
        """Return the bytes that were read from the SSD."""
        return int(self.metric("orbitkv_ssd_prefetch_bytes_total"))

    def spoil(self) -> int:
        """Invert every byte in the pool and return how many bytes that were."""
        return invert_arenas(self.pid)
