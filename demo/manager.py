"""The demo's Cache Manager: `orbitkv serve` with a small pool, and the three things that the scenario asks of it."""

from __future__ import annotations

import time
from pathlib import Path

from demo.damage import invert_arenas
from harness.manager import ManagerFailure, ManagerProcess

BINARY = Path(__file__).resolve().parent.parent / "bin" / "orbitkv"
STORE_LIMIT_S = 120.0
POLL_S = 0.1


class Manager(ManagerProcess):
    """A Manager in a folder of its own; `start` and `stop` are the harness's."""

    def __init__(self, folder: Path) -> None:
        """Name its files; nothing is started."""
        super().__init__(BINARY, folder)

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

    def spoil(self) -> int:
        """Invert every stored byte and return how many bytes that were."""
        return invert_arenas(self.pid)
