"""Tables of pages for kernels: filled in locked host memory, uploaded on the stream that reads them.

Nothing is allocated for a copy: a table is a range of one ring, there and on the device, which is sized for the largest
group that there can be. Ranges come back in the order in which they were taken, and whoever finds no room waits.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from orbitkv.errors import TransferError, TransferStalled
from orbitkv.transfer._driver import Driver
from orbitkv.transfer._locked import LockedMemory, copy_one
from orbitkv.transfer._transfer import STALL_SECONDS

NUMBER = 8  # bytes


class DeviceNumbers:
    """Numbers of 64 bits in the device's memory, which never change."""

    def __init__(self, driver: Driver, numbers: npt.NDArray[np.int64]) -> None:
        self._driver = driver
        self.address = driver.allocate(numbers.nbytes)
        with ExitStack() as undo:
            undo.callback(driver.free, self.address)
            with closing(LockedMemory(driver, numbers.nbytes)) as staging, scratch_stream(driver) as stream:
                staging.bytes[...] = numbers.view(np.uint8)
                copy_one(driver, self.address, staging.address, numbers.nbytes, stream)
            undo.pop_all()

    def close(self) -> None:
        """Give the memory back."""
        self._driver.free(self.address)


@contextmanager
def scratch_stream(driver: Driver) -> Iterator[int]:
    """Lend a stream of low priority; whatever it was given has ended when the block is left."""
    stream = driver.create_stream(driver.priorities()[0])
    event = driver.create_event()
    try:
        yield stream
        driver.record(event, stream)
        driver.synchronize(event)
    finally:
        driver.destroy_event(event)
        driver.destroy_stream(stream)


@dataclass
class Table:
    """Rows `start` to `start + rows` of a ring; `address` is the device's, column after column."""

    start: int
    rows: int
    address: int
    uploaded: bool = False
    given: bool = False


class PageTables:
    """A ring of `rows` rows of `columns` numbers. Thread-safe; one table is one thread's."""

    def __init__(self, driver: Driver, rows: int, columns: int) -> None:
        self._driver = driver
        self._rows = rows
        self._row_bytes = columns * NUMBER
        self._changed = threading.Condition()
        self._live: deque[Table] = deque()
        self._closing = False
        self.waits = 0  # tables that found no room at first
        with ExitStack() as undo:
            self._device = driver.allocate(rows * self._row_bytes)
            undo.callback(driver.free, self._device)
            self._host = LockedMemory(driver, rows * self._row_bytes)
            undo.callback(self._host.close)
            self._undo = undo.pop_all()

    def take(self, *columns: npt.NDArray[np.int64] | npt.NDArray[np.uint64], timeout: float = STALL_SECONDS) -> Table:
        """Return a table of these columns, which are equally long and at most as long as the ring.

        Waits while older tables fill the ring. TransferStalled at the bound, TransferError when the ring closes.
        """
        count = len(columns[0])
        with self._changed:
            start = self._room(count)
            if start is None:
                self.waits += 1
                start = self._wait(count, timeout)
            table = Table(start, count, self._device + start * self._row_bytes)
            self._live.append(table)
        begin = start * self._row_bytes
        words = self._host.bytes[begin : begin + count * self._row_bytes].view(np.int64).reshape(len(columns), count)
        for at, column in enumerate(columns):
            words[at] = column.view(np.int64)
        return table

    def upload(self, table: Table, stream: int) -> None:
        """Hand the upload of a table over, unless that was done; what the stream gets next may read it."""
        if table.uploaded:
            return
        source = self._host.address + table.start * self._row_bytes
        copy_one(self._driver, table.address, source, table.rows * self._row_bytes, stream)
        table.uploaded = True

    def give(self, table: Table) -> None:
        """Take a table back: nothing reads it any more."""
        with self._changed:
            table.given = True
            while self._live and self._live[0].given:
                self._live.popleft()
            self._changed.notify_all()

    def close(self) -> None:
        """Refuse whoever waits, and give the memory back."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._undo.close()

    def _wait(self, count: int, timeout: float) -> int:
        if count > self._rows:
            raise TransferError(f"a group of {count} pages is larger than the engine's {self._rows} blocks")
        if not self._changed.wait_for(lambda: self._closing or self._room(count) is not None, timeout):
            raise TransferStalled(f"copies before one of {count} pages did not end in {timeout:g} s")
        start = self._room(count)
        if self._closing or start is None:
            raise TransferError("the backend is closed")
        return start

    def _room(self, count: int) -> int | None:
        """Return where the next table of `count` rows begins; None when there is no room for it."""
        if not self._live:
            return 0 if count <= self._rows else None
        oldest, newest = self._live[0].start, self._live[-1]
        end = newest.start + newest.rows
        if newest.start < oldest:  # The ring's end was passed: what is free lies between the two.
            return end if end + count <= oldest else None
        if end + count <= self._rows:
            return end
        return 0 if count <= oldest else None
