"""Host memory of our own that a device reads and writes, and single copies from and to it."""

from __future__ import annotations

import mmap

import numpy as np

from orbitkv._arenas import MADV_DONTFORK, Bytes
from orbitkv.transfer._driver import Driver


class LockedMemory:
    """Host memory that the device reads and writes at the same address; zero at first."""

    def __init__(self, driver: Driver, size: int) -> None:
        self._driver = driver
        # A child that shared the pages would get copies of them, and the device would write to which of the two?
        mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        mapping.madvise(MADV_DONTFORK)
        self.bytes: Bytes = np.frombuffer(mapping, np.uint8)
        self.address = int(self.bytes.ctypes.data)
        driver.register(self.address, size)

    def close(self) -> None:
        """Unlock the memory; it goes with the last view of it."""
        self._driver.unregister(self.address)


def copy_one(driver: Driver, target: int, source: int, size: int, stream: int) -> None:
    """Hand one copy over."""
    targets, sources, sizes = (np.array([number], np.uint64) for number in (target, source, size))
    driver.copy_batch(targets, sources, sizes, stream)
