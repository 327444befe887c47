"""What the device backends ask of CUDA's driver, and where a rank's KV lies. Replaceable as a whole.

Streams and events are opaque whole numbers, addresses are those of this process: with unified addressing a registered
page of host memory has the same one on the device. Arrays are one-dimensional and contiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Addresses = npt.NDArray[np.uint64]

# One strided copy: `height` rows of `width` bytes, a pitch apart on either side. The layout is that of
# CUDA_MEMCPY3D_BATCH_OP of cuda.h (13.0), with pointers as operands and a depth of 1.
STRIDED = np.dtype(
    [
        ("source_type", "<i4"),
        ("source_pad", "<i4"),
        ("source", "<u8"),
        ("source_pitch", "<u8"),
        ("source_rows", "<u8"),
        ("source_hint", "<u8"),
        ("target_type", "<i4"),
        ("target_pad", "<i4"),
        ("target", "<u8"),
        ("target_pitch", "<u8"),
        ("target_rows", "<u8"),
        ("target_hint", "<u8"),
        ("width", "<u8"),
        ("height", "<u8"),
        ("depth", "<u8"),
        ("order", "<i4"),
        ("flags", "<u4"),
    ]
)
POINTER_OPERAND = 1  # CU_MEMCPY_OPERAND_TYPE_POINTER
STREAM_ORDER = 1  # CU_MEMCPY_SRC_ACCESS_ORDER_STREAM


class Driver(Protocol):
    """One CUDA device of this process. Thread-safe; every method raises DeviceError with the call and its code.

    No method holds the interpreter lock while it waits.
    """

    @property
    def index(self) -> int:
        """Return the device's ordinal in this process."""
        ...

    def bind(self) -> None:
        """Make the device current in the calling thread, and leave captures of other threads alone."""
        ...

    def bus_id(self) -> str:
        """Return the device's PCI address, as sysfs spells it."""
        ...

    def priorities(self) -> tuple[int, int]:
        """Return the lowest and the highest stream priority, in this order."""
        ...

    def register(self, address: int, size: int) -> None:
        """Lock host memory and map it for the device."""
        ...

    def unregister(self, address: int) -> None:
        """Undo `register` of a range that began at the address; waits for copies that use it."""
        ...

    def allocate(self, size: int) -> int:
        """Return device memory of `size` bytes; the caller frees it."""
        ...

    def free(self, address: int) -> None:
        """Give back what `allocate` returned; waits for the device."""
        ...

    def create_stream(self, priority: int) -> int:
        """Return a stream that does not synchronise with the default stream."""
        ...

    def destroy_stream(self, stream: int) -> None:
        """Destroy a stream; its work still ends."""
        ...

    def create_event(self, *, timing: bool = False) -> int:
        """Return an event whose waiters sleep; only one with `timing` can be compared."""
        ...

    def destroy_event(self, event: int) -> None:
        """Destroy an event."""
        ...

    def record(self, event: int, stream: int) -> None:
        """Let the event stand for everything that was given to the stream so far."""
        ...

    def wait(self, stream: int, event: int) -> None:
        """Let everything that is given to the stream from now on come after the event's last record so far."""
        ...

    def synchronize(self, event: int) -> None:
        """Wait until what the event stands for has ended; the thread sleeps."""
        ...

    def finished(self, event: int) -> bool:
        """Return whether what the event stands for has ended."""
        ...

    def elapsed_seconds(self, begin: int, end: int) -> float:
        """Return the time between two events with timing that have ended."""
        ...

    def copy_batch(self, targets: Addresses, sources: Addresses, sizes: Addresses, stream: int) -> None:
        """Submit one copy for each entry; sizes are in bytes. Copies of one batch have no order among each other."""
        ...

    def copy_strided(self, operations: npt.NDArray[np.void], stream: int) -> None:
        """Submit strided copies, rows of STRIDED. They have no order among each other."""
        ...


@dataclass(frozen=True)
class DeviceSite:
    """Where a rank's KV lies, and the engine's streams.

    `current_stream()` is the stream on which the calling thread of the engine launches. `fences()` are the streams
    whose work so far must end before pages of the engine are read or written; it is called by the thread that submits.
    `numa` is the host's node next to the device, -1 when the machine does not say. `serving()` says whether threads of
    the engine launch work, which waits while host memory is being locked; any thread may call it.
    """

    driver: Driver
    current_stream: Callable[[], int]
    fences: Callable[[], Sequence[int]]
    numa: int = -1
    serving: Callable[[], bool] = lambda: True
