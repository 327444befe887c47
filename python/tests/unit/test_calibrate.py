"""Rates measured with a driver whose time is a formula, and the choice that follows from them."""

from __future__ import annotations

import numpy as np
import pytest

from orbitkv.errors import DeviceError
from orbitkv.transfer._calibrate import KERNEL_SHARE, PROBES, Rates, choose, measure, usual_piece
from orbitkv.transfer._driver import Addresses
from orbitkv.transfer._plan import KVLayout, LayerLayout

DEVICE = 0x7F00_0000_0000
MIB = 1 << 20


class TimedDriver:
    """Copies at `link` bytes a second and takes `each` seconds for a piece; the first copy of each kind is slow."""

    index = 0

    def __init__(self, link: float = 50e9, each: float = 1e-6, free: int = 1 << 30) -> None:
        self.link, self.each, self.free_bytes = link, each, free
        self.now = 0.0
        self.bound = False
        self.host: dict[int, int] = {}
        self.device: dict[int, int] = {}
        self.streams: dict[int, int] = {}
        self.events: dict[int, float] = {}
        self.made = 0
        self.batches: list[tuple[Addresses, Addresses, Addresses]] = []
        self.fault: str | None = None

    def bind(self) -> None:
        self.bound = True

    def priorities(self) -> tuple[int, int]:
        return 0, -5

    def register(self, address: int, size: int) -> None:
        assert self.bound
        assert address % 4096 == 0
        self.fail("register")
        self.host[address] = size

    def unregister(self, address: int) -> None:
        del self.host[address]

    def allocate(self, size: int) -> int:
        assert self.bound
        if size > self.free_bytes:
            raise DeviceError("cuMemAlloc_v2", 2, "CUDA_ERROR_OUT_OF_MEMORY: out of memory")
        self.device[DEVICE] = size
        return DEVICE

    def free(self, address: int) -> None:
        del self.device[address]

    def create_stream(self, priority: int) -> int:
        self.made += 1
        self.streams[self.made] = priority
        return self.made

    def destroy_stream(self, stream: int) -> None:
        del self.streams[stream]

    def create_event(self, *, timing: bool = False) -> int:
        assert timing, "only such events can be compared"
        self.made += 1
        self.events[self.made] = -1.0
        return self.made

    def destroy_event(self, event: int) -> None:
        del self.events[event]

    def record(self, event: int, stream: int) -> None:
        assert self.streams[stream] == -5
        self.events[event] = self.now

    def synchronize(self, event: int) -> None:
        assert self.events[event] == self.now

    def elapsed_seconds(self, begin: int, end: int) -> float:
        return self.events[end] - self.events[begin]

    def copy_batch(self, targets: Addresses, sources: Addresses, sizes: Addresses, stream: int) -> None:
        assert stream in self.streams
        self.fail("copy_batch")
        (host, host_size), (device, device_size) = *self.host.items(), *self.device.items()
        for starts, base, size in ((sources, host, host_size), (targets, device, device_size)):
            assert starts.min() >= base
            assert (starts + sizes).max() <= base + size
        slow = all(len(sizes) != len(known[2]) for known in self.batches)
        self.batches.append((targets, sources, sizes))
        self.now += 1.0 if slow else len(sizes) * self.each + int(sizes.sum()) / self.link

    def fail(self, call: str) -> None:
        if self.fault == call:
            raise DeviceError(call, 1, "CUDA_ERROR_INVALID_VALUE: invalid argument")

    @property
    def clean(self) -> bool:
        """Return whether everything that was taken was given back."""
        return not (self.host or self.device or self.streams or self.events)


def test_rates_are_the_medians_of_runs_after_the_first() -> None:
    driver = TimedDriver(link=50e9, each=1e-6)
    rates = measure(driver, 65536)  # type: ignore[arg-type]
    size, count = 64 * MIB, 1024
    assert rates.link == pytest.approx(size / (size / 50e9 + 1e-6))
    assert rates.batch == pytest.approx(size / (size / 50e9 + count * 1e-6))
    assert [len(batch[2]) for batch in driver.batches] == [1] * (PROBES + 1) + [count] * (PROBES + 1)
    assert driver.clean


@pytest.mark.parametrize("piece", [4096, 65536, 100_000, 64 * MIB, 256 * MIB])
def test_pieces_cover_the_memory_and_never_adjoin_on_both_sides(piece: int) -> None:
    driver = TimedDriver()
    measure(driver, piece)  # type: ignore[arg-type]
    targets, sources, sizes = driver.batches[-1]
    used = min(piece, 64 * MIB)
    assert set(sizes.tolist()) == {used}
    assert len(sizes) == 64 * MIB // used
    steps = np.uint64(used) * np.arange(len(sizes), dtype=np.uint64)
    assert np.array_equal(sources - sources[0], steps)
    assert np.array_equal(targets - targets[-1], steps[::-1])


@pytest.mark.parametrize(("free", "used"), [(64, 64), (63, 32), (16, 16), (8, 8)])
def test_a_device_with_little_room_is_probed_with_less(free: int, used: int) -> None:
    driver = TimedDriver(free=free * MIB)
    measure(driver, 65536)  # type: ignore[arg-type]
    assert int(driver.batches[0][2].sum()) == used * MIB
    assert driver.clean


def test_a_device_without_room_is_an_error() -> None:
    driver = TimedDriver(free=8 * MIB - 1)
    with pytest.raises(DeviceError, match="out of memory"):
        measure(driver, 65536)  # type: ignore[arg-type]
    assert driver.clean


@pytest.mark.parametrize("call", ["register", "copy_batch"])
def test_a_fault_gives_back_what_was_taken(call: str) -> None:
    driver = TimedDriver()
    driver.fault = call
    with pytest.raises(DeviceError):
        measure(driver, 65536)  # type: ignore[arg-type]
    assert driver.clean


def test_events_too_close_to_tell_apart_are_no_division_by_zero() -> None:
    driver = TimedDriver(link=float("inf"), each=0.0)
    assert measure(driver, 65536).link < float("inf")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("batch", "kernel", "chosen"),
    [
        (54.0, True, "direct"),
        (33.0, True, "direct"),
        (32.9, True, "kernel"),
        (7.5, True, "kernel"),
        (7.5, False, "direct"),
    ],
)
def test_the_kernel_is_chosen_only_far_below_the_link(batch: float, kernel: bool, chosen: str) -> None:
    assert KERNEL_SHARE == 0.6
    assert choose(Rates(link=55.0, batch=batch), kernel) == chosen


def layout(*sizes: int) -> KVLayout:
    layers = tuple(LayerLayout(f"l{at}", 0, 1, size, size, 0, at) for at, size in enumerate(sizes))
    return KVLayout(layers, 1, sum(sizes), None)


@pytest.mark.parametrize(("sizes", "piece"), [((8, 8, 8), 8), ((4, 8, 8), 8), ((8, 4, 4, 8), 4), ((16,), 16)])
def test_the_piece_that_occurs_most_stands_for_all(sizes: tuple[int, ...], piece: int) -> None:
    assert usual_piece(layout(*sizes)) == piece
