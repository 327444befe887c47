"""Arenas locked for a device: chunks, borders, pauses, what a failure undoes and says."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import numpy as np
import pytest

from orbitkv._arenas import Arena
from orbitkv.errors import ArenaError, DeviceError
from orbitkv.transfer._registration import REGISTER_CHUNK_BYTES, Registrations

CHUNK = 4096
LIMITS = "RLIMIT_MEMLOCK is small."


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class LockingDriver:
    """The part of a driver that registers: what is locked, and what it is told to do at a call."""

    index = 2

    def __init__(self) -> None:
        self.locked: dict[int, int] = {}
        self.calls: list[tuple[str, int]] = []
        self.bound: set[int] = set()
        self.at_register: Callable[[int], None] = lambda _: None
        self.at_unregister: Callable[[int], None] = lambda _: None

    def bind(self) -> None:
        self.bound.add(threading.get_ident())

    def register(self, address: int, size: int) -> None:
        assert threading.get_ident() in self.bound, "a thread that was not bound called"
        self.calls.append(("register", address))
        self.at_register(len(self.locked))
        self.locked[address] = size

    def unregister(self, address: int) -> None:
        assert threading.get_ident() in self.bound, "a thread that was not bound called"
        self.calls.append(("unregister", address))
        self.at_unregister(address)
        del self.locked[address]


class Pauses(threading.Condition):
    """Notes the length of each bounded wait and lets a clock pass instead of waiting."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.lengths: list[float] = []

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:  # type: ignore[override]
        if timeout is None:
            return super().wait_for(predicate)
        self.lengths.append(timeout)
        self.clock.now += timeout
        return predicate()


class Watched(threading.Condition):
    """Says when somebody waits with a bound."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        if timeout is not None:
            self.begun.set()  # Whoever stops the waiter needs the lock, which is free once it waits.
        return super().wait(timeout)


def arena(number: int, size: int) -> Arena:
    return Arena(number, -1, size, np.zeros(size, np.uint8))


def registrations(driver: LockingDriver, clock: Clock, changed: threading.Condition | None = None) -> Registrations:
    return Registrations(driver, chunk_bytes=CHUNK, clock=clock, changed=changed, limits=lambda: LIMITS)  # type: ignore[arg-type]


def failing(at: int) -> Callable[[int], None]:
    """Return what lets the driver refuse once `at` chunks are locked."""

    def refuse(locked: int) -> None:
        if locked == at:
            raise DeviceError("cuMemHostRegister_v2", 2, "CUDA_ERROR_OUT_OF_MEMORY: out of memory")

    return refuse


@pytest.mark.parametrize(
    ("size", "chunks"), [(100, 1), (CHUNK, 1), (CHUNK + 1, 2), (3 * CHUNK, 3), (3 * CHUNK + 512, 4)]
)
def test_chunks_cover_an_arena_once_and_borders_are_where_they_meet(size: int, chunks: int) -> None:
    driver = LockingDriver()
    table = registrations(driver, Clock())
    store = arena(7, size)
    table.register(store)
    starts = [store.address + at * CHUNK for at in range(chunks)]
    assert driver.locked == {at: min(CHUNK, store.address + size - at) for at in starts}
    borders = table.borders(7)
    assert borders.dtype == np.uint64
    assert borders.tolist() == starts[1:]
    table.unregister(7)
    assert driver.locked == {}


def test_a_chunk_of_the_product_is_256_mib() -> None:
    assert REGISTER_CHUNK_BYTES == 256 << 20


def test_a_pause_as_long_as_the_chunk_took_follows_it_also_between_arenas() -> None:
    clock = Clock()
    pauses = Pauses(clock)
    driver = LockingDriver()
    took = iter([0.25, 2.0, 0.5, 1.0])

    def lock(_: int) -> None:
        clock.now += next(took)

    driver.at_register = lock
    table = registrations(driver, clock, pauses)
    table.register(arena(0, 2 * CHUNK))
    clock.now += 0.5  # The next arena comes when a part of the pause is over.
    table.register(arena(1, 2 * CHUNK))
    assert pauses.lengths == [0.0, 0.25, 1.5, 0.5]


def test_nothing_pauses_before_the_engine_serves() -> None:
    clock = Clock()
    pauses = Pauses(clock)
    driver = LockingDriver()
    serves: list[bool] = []

    def lock(locked: int) -> None:
        clock.now += 1.0
        if locked == 2:
            serves.append(True)

    driver.at_register = lock
    table = Registrations(driver, lambda: bool(serves), chunk_bytes=CHUNK, clock=clock, changed=pauses)  # type: ignore[arg-type]
    table.register(arena(0, 5 * CHUNK))
    assert pauses.lengths == [0.0, 0.0, 0.0, 1.0, 1.0]


def test_time_that_passed_since_the_last_arena_is_no_pause() -> None:
    clock = Clock()
    pauses = Pauses(clock)
    driver = LockingDriver()

    def lock(_: int) -> None:
        clock.now += 1.0

    driver.at_register = lock
    table = registrations(driver, clock, pauses)
    table.register(arena(0, CHUNK))
    clock.now += 60.0
    table.register(arena(1, CHUNK))
    assert pauses.lengths == [0.0, 0.0]


def test_the_log_names_arena_size_time_and_rate(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    driver = LockingDriver()

    def lock(_: int) -> None:
        clock.now += 0.001

    driver.at_register = lock
    with caplog.at_level(logging.INFO, "orbitkv.transfer"):
        table = Registrations(driver, chunk_bytes=1 << 20, clock=clock, changed=Pauses(clock))  # type: ignore[arg-type]
        table.register(arena(3, 4 << 20))
        table.register(arena(4, 1 << 20))
    assert [message.removeprefix("OrbitKV: ") for message in caplog.messages] == [
        "arena 3: 4.0 MiB registered with CUDA device 2 in 0.00 s (1.0 GB/s, 0.01 s with pauses); 4.0 MiB so far",
        "arena 4: 1.0 MiB registered with CUDA device 2 in 0.00 s (1.0 GB/s, 0.00 s with pauses); 5.0 MiB so far",
    ]


def test_a_failure_undoes_the_chunks_and_names_the_limits() -> None:
    driver = LockingDriver()
    driver.at_register = failing(2)
    table = registrations(driver, Clock())
    store = arena(5, 4 * CHUNK)
    with pytest.raises(ArenaError) as caught:
        table.register(store)
    assert str(caught.value) == (
        "arena 5 of 16 KiB cannot be locked for CUDA device 2: cuMemHostRegister_v2 failed: "
        f"CUDA_ERROR_OUT_OF_MEMORY: out of memory (2), after 8 KiB of it. {LIMITS}"
    )
    assert driver.locked == {}
    with pytest.raises(ArenaError, match="arena 5 is not registered"):
        table.borders(5)
    driver.at_register = lambda _: None
    table.register(store)
    assert len(table.borders(5)) == 3, "a later attempt may succeed"


def test_other_arenas_outlive_the_failure_of_one() -> None:
    driver = LockingDriver()
    table = registrations(driver, Clock())
    first = arena(0, 2 * CHUNK)
    table.register(first)
    driver.at_register = failing(3)
    with pytest.raises(ArenaError):
        table.register(arena(1, 2 * CHUNK))
    assert sorted(driver.locked) == [first.address, first.address + CHUNK]
    assert len(table.borders(0)) == 1


def test_an_arena_is_registered_once() -> None:
    driver = LockingDriver()
    table = registrations(driver, Clock())
    table.register(arena(0, CHUNK))
    with pytest.raises(ArenaError, match="registered already"):
        table.register(arena(0, CHUNK))
    assert len(driver.locked) == 1
    table.unregister(9)
    assert len(driver.locked) == 1, "an unknown arena is nothing"


class Stopped:
    """A registration in a thread of its own that stands in its second chunk, after which it would pause for an hour."""

    def __init__(self) -> None:
        self.driver = LockingDriver()
        self.clock = Clock()
        self.changed = Watched()
        self.table = registrations(self.driver, self.clock, self.changed)
        self.inside, self.go = threading.Event(), threading.Event()
        self.fault: ArenaError | None = None
        self.driver.at_register = self.lock
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()
        assert self.inside.wait(10)

    def lock(self, locked: int) -> None:
        if locked == 1:
            self.inside.set()
            assert self.go.wait(10)
            self.clock.now += 3600

    def work(self) -> None:
        try:
            self.table.register(arena(0, 8 * CHUNK))
        except ArenaError as fault:
            self.fault = fault

    def end(self, stop: Callable[[], None], paused: bool = True) -> None:
        """Call `stop` in another thread, while the pause is on or before the chunk ended, and join both."""
        stopper = threading.Thread(target=stop, daemon=True)
        if paused:
            self.go.set()
            assert self.changed.begun.wait(10)
        stopper.start()
        self.go.set()
        for thread in (stopper, self.thread):
            thread.join(30)
            assert not thread.is_alive()


@pytest.mark.parametrize("paused", [True, False])
@pytest.mark.parametrize("way", ["close", "unregister"])
def test_letting_go_ends_a_pause_and_undoes_what_is_locked(way: str, paused: bool) -> None:
    stopped = Stopped()
    stopped.end(stopped.table.close if way == "close" else lambda: stopped.table.unregister(0), paused)
    assert "let go of while it was being registered" in str(stopped.fault)
    assert stopped.driver.locked == {}
    assert [name for name, _ in stopped.driver.calls] == ["register"] * 2 + ["unregister"] * 2


def test_an_arena_that_is_being_registered_has_no_borders_yet() -> None:
    stopped = Stopped()
    with pytest.raises(ArenaError, match="not registered"):
        stopped.table.borders(0)
    stopped.end(stopped.table.close)


def test_close_lets_go_of_all_and_refuses_more() -> None:
    driver = LockingDriver()
    table = registrations(driver, Clock())
    for number in range(3):
        table.register(arena(number, 2 * CHUNK))
    closer = threading.Thread(target=table.close, daemon=True)
    closer.start()
    closer.join(30)
    assert driver.locked == {}
    with pytest.raises(ArenaError, match="backend is closed"):
        table.register(arena(9, CHUNK))
    table.close()


def test_memory_that_the_driver_keeps_stays_mapped_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    driver = LockingDriver()
    table = registrations(driver, Clock())
    store = arena(4, 3 * CHUNK)
    table.register(store)

    def refuse(address: int) -> None:
        if address != store.address:
            raise DeviceError("cuMemHostUnregister", 700, "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access")

    driver.at_unregister = refuse
    table.unregister(4)
    assert sorted(driver.locked) == [store.address + CHUNK, store.address + 2 * CHUNK]
    assert [kept.arena.view is store.view for kept in table._kept] == [True]
    (message,) = caplog.messages
    assert message.removeprefix("OrbitKV: ").startswith(
        "arena 4: 2 of 3 chunks could not be unregistered from CUDA device 2: cuMemHostUnregister"
    )
    table.close()
