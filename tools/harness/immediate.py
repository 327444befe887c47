"""A driver whose device is this process's memory and which does at once what it is told. Streams keep no order apart.

It notices memory that is used before it is registered or allocated or after it was given back, and dead handles.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_right

import numpy as np
import numpy.typing as npt

from orbitkv.errors import DeviceError
from orbitkv.transfer._driver import STRIDED, Addresses

INVALID_VALUE = 1  # CUDA_ERROR_INVALID_VALUE


class ImmediateDriver:
    """Implements `orbitkv.transfer._driver.Driver`."""

    def __init__(self) -> None:
        self.registered: dict[int, int] = {}  # address to size
        self.allocated: dict[int, npt.NDArray[np.uint8]] = {}
        self.handles: dict[int, str] = {}  # streams and events that live, by what they are
        self._last = 0

    @property
    def index(self) -> int:
        """Return the ordinal of the only device."""
        return 0

    def bind(self) -> None:
        """Do nothing: every thread has this process's memory."""

    def bus_id(self) -> str:
        """Return the address of no device."""
        return "0000:00:00.0"

    def priorities(self) -> tuple[int, int]:
        """Return priorities as CUDA has them."""
        return 0, -5

    def register(self, address: int, size: int) -> None:
        """Remember a range of host memory."""
        self.registered[address] = size

    def unregister(self, address: int) -> None:
        """Forget a range."""
        del self.registered[address]

    def allocate(self, size: int) -> int:
        """Return memory of this process, filled with what nobody wrote."""
        memory = np.full(size, 0xA5, np.uint8)
        self.allocated[int(memory.ctypes.data)] = memory
        return int(memory.ctypes.data)

    def free(self, address: int) -> None:
        """Give memory back."""
        del self.allocated[address]

    def create_stream(self, priority: int) -> int:
        """Return a new handle. DeviceError for a priority that there is not."""
        lowest, highest = self.priorities()
        if not highest <= priority <= lowest:
            raise DeviceError("a new stream", INVALID_VALUE, f"there is no priority {priority}")
        return self._handle("stream")

    def destroy_stream(self, stream: int) -> None:
        """Forget a handle."""
        self._expect("stream", stream)
        del self.handles[stream]

    def create_event(self, *, timing: bool = False) -> int:
        """Return a new handle."""
        return self._handle("timed event" if timing else "event")

    def destroy_event(self, event: int) -> None:
        """Forget a handle."""
        self._expect("event", event)
        del self.handles[event]

    def record(self, event: int, stream: int) -> None:
        """Do nothing: what the stream was given has ended."""
        self._expect("event", event)
        self._expect("stream", stream)

    def wait(self, stream: int, event: int) -> None:
        """Do nothing: see `record`."""
        self.record(event, stream)

    def synchronize(self, event: int) -> None:
        """Do nothing: see `record`."""
        self._expect("event", event)

    def finished(self, event: int) -> bool:
        """Return that it has."""
        self._expect("event", event)
        return True

    def elapsed_seconds(self, begin: int, end: int) -> float:
        """Return the time that nothing takes."""
        self._expect("timed event", begin)
        self._expect("timed event", end)
        return 0.0

    def copy_batch(self, targets: Addresses, sources: Addresses, sizes: Addresses, stream: int) -> None:
        """Copy now. DeviceError for memory that the device does not know."""
        self._expect("stream", stream)
        for target, source, size in zip(targets.tolist(), sources.tolist(), sizes.tolist(), strict=True):
            for address in (target, source):
                if not self._knows(address, size):
                    raise DeviceError("a copy", INVALID_VALUE, f"{size} bytes at {address:#x} are not the device's")
            ctypes.memmove(target, source, size)

    def copy_strided(self, operations: npt.NDArray[np.void], stream: int) -> None:
        """Copy now, row by row."""
        for each in operations.astype(STRIDED):
            rows = np.arange(int(each["height"]), dtype=np.uint64)
            self.copy_batch(
                each["target"] + rows * each["target_pitch"],
                each["source"] + rows * each["source_pitch"],
                np.full(len(rows), each["width"], np.uint64),
                stream,
            )

    def _handle(self, kind: str) -> int:
        self._last += 1
        self.handles[self._last] = kind
        return self._last

    def _expect(self, kind: str, handle: int) -> None:
        if not self.handles.get(handle, "").endswith(kind):
            raise DeviceError("a call", INVALID_VALUE, f"{handle} is no {kind} that lives")

    def _knows(self, address: int, size: int) -> bool:
        ranges = sorted([*self.registered.items(), *((at, len(memory)) for at, memory in self.allocated.items())])
        at = bisect_right(ranges, (address, 1 << 62)) - 1
        return at >= 0 and address + size <= ranges[at][0] + ranges[at][1]
