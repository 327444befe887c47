"""How fast this machine copies, measured at start, and which device backend that speaks for.

A batch of copies has a cost for each piece, so small pieces do not fill the link. A kernel fills it with any piece, but
takes processors of the device from the engine: it is chosen only where batches stay far below the link.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Literal

import numpy as np

from orbitkv.errors import DeviceError
from orbitkv.transfer._driver import Addresses, Driver
from orbitkv.transfer._locked import LockedMemory
from orbitkv.transfer._plan import KVLayout

KERNEL_SHARE = 0.6  # batches below this share of the link leave the copies to the kernel
PROBE_BYTES = 64 << 20  # copied by one probe
PROBE_BYTES_MIN = 8 << 20  # where the engine left little of the device's memory
PROBES = 3  # timed after one that is not; the median counts
TICK_SECONDS = 5e-7  # the resolution of an event's time

Kind = Literal["direct", "kernel"]


@dataclass(frozen=True)
class Rates:
    """Bytes a second from the host to the device: `link` of one plain copy, `batch` of one batch of pieces."""

    link: float
    batch: float


def choose(rates: Rates, kernel_available: bool) -> Kind:
    """Return the backend for pieces that are copied at these rates."""
    return "kernel" if kernel_available and rates.batch < KERNEL_SHARE * rates.link else "direct"


def usual_piece(layout: KVLayout) -> int:
    """Return the bytes of one block of one layer, of those that differ the size that occurs most, then the smallest."""
    counts = Counter(layer.block_bytes for layer in layout.layers)
    return min(counts, key=lambda size: (-counts[size], size))


def measure(driver: Driver, piece_bytes: int) -> Rates:
    """Copy memory of our own to the device and return the rates, for pieces of `piece_bytes`.

    The calling thread has the device current or gets it. DeviceError when the device has no room or fails.
    """
    driver.bind()
    device, size = allocate(driver)
    try:
        with closing(LockedMemory(driver, size)) as host:  # Its pages exist once they are locked.
            return timed(driver, device, host.address, size, min(piece_bytes, size))
    finally:
        driver.free(device)


def allocate(driver: Driver) -> tuple[int, int]:
    """Return device memory and its bytes: PROBE_BYTES, or less where that much is not free."""
    size = PROBE_BYTES
    while True:
        try:
            return driver.allocate(size), size
        except DeviceError:
            if size <= PROBE_BYTES_MIN:
                raise
            size //= 2


def timed(driver: Driver, target: int, source: int, size: int, piece: int) -> Rates:
    """Return the rates of one copy of `size` bytes and of a batch of pieces of it."""
    whole = pieces(target, source, size, size)
    small = pieces(target, source, size, piece)
    stream = driver.create_stream(driver.priorities()[1])
    try:
        return Rates(
            link=rate(driver, stream, whole),
            batch=rate(driver, stream, small),
        )
    finally:
        driver.destroy_stream(stream)


def pieces(target: int, source: int, size: int, piece: int) -> tuple[Addresses, Addresses, Addresses]:
    """Return targets, sources and sizes. Targets run backwards, so that no neighbours can be taken for one copy."""
    starts = np.arange(size // piece, dtype=np.uint64) * np.uint64(piece)
    return (starts + np.uint64(target))[::-1].copy(), starts + np.uint64(source), np.full(len(starts), piece, np.uint64)


def rate(driver: Driver, stream: int, batch: tuple[Addresses, Addresses, Addresses]) -> float:
    """Return the bytes a second of a batch, its submission included: the median of PROBES after one that warms up."""
    copied = int(batch[2].sum())
    begin, end = driver.create_event(timing=True), driver.create_event(timing=True)
    try:

        def once() -> float:
            driver.record(begin, stream)
            driver.copy_batch(*batch, stream)
            driver.record(end, stream)
            driver.synchronize(end)
            return driver.elapsed_seconds(begin, end)

        return copied / max(TICK_SECONDS, median_of(once))
    finally:
        driver.destroy_event(begin)
        driver.destroy_event(end)


def median_of(once: Callable[[], float]) -> float:
    """Return the median of PROBES calls after one whose result is not used."""
    once()
    return statistics.median(once() for _ in range(PROBES))
