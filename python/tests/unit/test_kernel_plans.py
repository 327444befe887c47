"""What kernels are given, without one: the tables of pages, the launches of a layout and the reference of digests."""

from __future__ import annotations

import ctypes
import random
import re
import threading
from pathlib import Path

import numpy as np
import pytest

from harness.device import FakeDriver
from harness.immediate import ImmediateDriver
from orbitkv.errors import ConfigurationError, DeviceError, TransferError, TransferStalled
from orbitkv.kernel.geometry import ITEMS_MAX, Launch, joined, largest_word, plan_launches
from orbitkv.kernel.tables import DeviceNumbers, PageTables, Table
from orbitkv.transfer._digest import DIGEST_FIRST, DIGEST_SECOND, DIGEST_STEP, digest_of
from orbitkv.transfer._locked import LockedMemory
from orbitkv.transfer._plan import Columns

DEADLINE = 60.0
ALL = (1 << 64) - 1
KNOWN = 0x1B33D447438EC65D


def numbers(count: int, first: int = 0) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.arange(first, first + count, dtype=np.int64)


def on_device(driver: ImmediateDriver, table: Table, columns: int) -> list[list[int]]:
    memory = next(iter(driver.allocated.values()))
    begin = table.address - int(memory.ctypes.data)
    return memory[begin : begin + table.rows * columns * 8].view(np.int64).reshape(columns, -1).tolist()


def test_a_table_is_uploaded_once_column_after_column() -> None:
    driver = ImmediateDriver()
    tables, stream = PageTables(driver, 8, columns=2), driver.create_stream(0)
    first, second = tables.take(numbers(3), numbers(3, 100)), tables.take(numbers(2, 50), numbers(2, 70))
    for table in (first, second):
        tables.upload(table, stream)
    assert on_device(driver, first, 2) == [[0, 1, 2], [100, 101, 102]]
    assert on_device(driver, second, 2) == [[50, 51], [70, 71]]
    next(iter(driver.allocated.values()))[:] = 0
    tables.upload(first, stream)
    assert on_device(driver, first, 2) == [[0, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize("seed", range(8))
def test_tables_that_live_never_overlap_and_room_comes_back(seed: int) -> None:
    rng = random.Random(seed)
    tables = PageTables(ImmediateDriver(), 64, columns=1)
    live: list[Table] = []
    for _ in range(400):
        count = rng.randint(1, 24)
        try:
            table = tables.take(numbers(count), timeout=0.0)
        except TransferStalled:
            assert live, f"there was no room for {count} rows in an empty ring"
        else:
            assert table.start >= 0
            assert table.start + count <= 64
            assert not any(t.start < table.start + count and table.start < t.start + t.rows for t in live)
            live.append(table)
        while live and rng.random() < 0.5:
            tables.give(live.pop(rng.randrange(min(3, len(live)))))
    for table in live:
        tables.give(table)
    assert tables.take(numbers(64), timeout=0.0).start == 0


def test_a_table_may_end_where_the_oldest_begins() -> None:
    tables = PageTables(ImmediateDriver(), 8, columns=1)
    first, second = tables.take(numbers(3)), tables.take(numbers(5))
    tables.give(first)
    assert tables.take(numbers(1), timeout=0.0).start == 0
    assert tables.take(numbers(2), timeout=0.0).start == 1
    tables.give(second)
    assert tables.take(numbers(5), timeout=0.0).start == 3
    with pytest.raises(TransferStalled):
        tables.take(numbers(1), timeout=0.0)


def test_a_table_may_fill_all_that_is_free_before_the_oldest() -> None:
    tables = PageTables(ImmediateDriver(), 8, columns=1)
    first = tables.take(numbers(3))
    tables.take(numbers(5))
    tables.give(first)
    assert tables.take(numbers(3), timeout=0.0).start == 0


def test_a_child_does_not_inherit_locked_memory() -> None:
    """Its copy of the pages would leave open which of the two the device writes."""
    memory = LockedMemory(ImmediateDriver(), 4096)
    lines = iter(Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines())
    for line in lines:
        place = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if place and int(place[1], 16) <= memory.address < int(place[2], 16):
            break
    assert "dc" in next(line for line in lines if line.startswith("VmFlags:")).split()


def test_whoever_finds_no_room_waits_for_the_oldest_table() -> None:
    tables = PageTables(ImmediateDriver(), 8, columns=1)
    old = tables.take(numbers(6))
    got: list[Table] = []
    waiter = threading.Thread(target=lambda: got.append(tables.take(numbers(5))))
    waiter.start()
    while tables.waits == 0 and waiter.is_alive():
        pass
    assert not got
    tables.give(old)
    waiter.join(DEADLINE)
    assert [table.start for table in got] == [0]


def test_a_ring_that_closes_refuses_whoever_waits() -> None:
    tables = PageTables(ImmediateDriver(), 8, columns=1)
    tables.take(numbers(8))
    faults: list[TransferError] = []

    def wait() -> None:
        try:
            tables.take(numbers(1))
        except TransferError as fault:
            faults.append(fault)

    waiter = threading.Thread(target=wait)
    waiter.start()
    while tables.waits == 0 and waiter.is_alive():
        pass
    tables.close()
    waiter.join(DEADLINE)
    assert [str(fault) for fault in faults] == ["the backend is closed"]


def test_numbers_are_on_the_device_before_their_staging_goes() -> None:
    with FakeDriver(held=True) as driver:
        made: list[DeviceNumbers] = []

        def make() -> None:
            driver.bind()
            made.append(DeviceNumbers(driver, numbers(5, 40)))

        maker = threading.Thread(target=make)
        maker.start()
        driver.until(lambda: any(name in ("synchronize", "unregister") for _, name, _ in driver.calls), "the copy")
        driver.go()
        maker.join(DEADLINE)
        assert not driver.violations
        assert np.frombuffer(ctypes.string_at(made[0].address, 40), np.int64).tolist() == [40, 41, 42, 43, 44]


def test_a_group_larger_than_the_engine_is_refused() -> None:
    with pytest.raises(TransferError, match="9 pages is larger than the engine's 8 blocks"):
        PageTables(ImmediateDriver(), 8, columns=1).take(numbers(9))


def test_memory_that_cannot_be_locked_leaves_nothing_behind() -> None:
    class Refusing(ImmediateDriver):
        def register(self, address: int, size: int) -> None:
            raise DeviceError("a registration", 2, f"{size} bytes at {address:#x} cannot be locked")

    driver = Refusing()
    with pytest.raises(DeviceError, match="cannot be locked"):
        PageTables(driver, 8, columns=1)
    assert not driver.allocated


def test_runs_of_one_shape_share_a_launch() -> None:
    alike = Columns(4096, 1024, np.array([1 << 20, 2 << 20]), np.array([0, 1024]))
    odd = Columns(100, 50, np.array([1 << 21]), np.array([2048]))
    table, launches = plan_launches([(alike,), (odd,), (alike, odd)], 1000)
    assert launches == (
        (Launch(0, 2, 1024, 8),),
        (Launch(2, 1, 50, 2),),
        (Launch(3, 2, 1024, 8), Launch(5, 1, 50, 2)),
    )
    rows = table.reshape(-1, 4).tolist()
    assert rows[:3] == [[1 << 20, 4096, 0, 1024], [2 << 20, 4096, 1024, 1024], [1 << 21, 100, 2048, 50]]
    assert rows[3:] == rows[:3]


def test_more_items_than_a_kernel_counts_are_refused() -> None:
    large = Columns(1 << 23, 1 << 23, np.array([0]), np.array([0]))
    assert plan_launches([(large,)], ITEMS_MAX // 1024)[1] == ((Launch(0, 1, 1 << 23, 8),),)
    with pytest.raises(ConfigurationError, match="transfer_backend to 'direct'"):
        plan_launches([(large,)], ITEMS_MAX // 1024 + 1)


@pytest.mark.parametrize(
    ("given", "word"), [((8, 16), 8), ((4096, 12), 4), ((1 << 40, 6), 2), ((8, 7), 1), ((0, 0), 8), ((24, 1 << 45), 8)]
)
def test_a_word_divides_everything(given: tuple[int, ...], word: int) -> None:
    assert largest_word(*given) == word


def reference(data: bytes, layers: list[int]) -> int:
    """Return the digest as the module's text says it, one word at a time."""
    total = start = 0
    for size in layers:
        for at in range(0, size, 8):
            word = int.from_bytes(data[start + at : start + min(at + 8, size)].ljust(8, b"\0"), "little")
            z = word ^ ((start + at + 1) * DIGEST_STEP & ALL)
            z = (z ^ z >> 30) * DIGEST_FIRST & ALL
            z = (z ^ z >> 27) * DIGEST_SECOND & ALL
            total += z ^ z >> 31
        start += size
    return total & ALL


@pytest.mark.parametrize("layers", [[8], [64, 64], [13, 8, 3], [4097, 1], [2048] * 5])
def test_the_reference_says_what_the_text_says(layers: list[int]) -> None:
    data = random.Random(sum(layers)).randbytes(sum(layers))
    assert digest_of(data, layers) == reference(data, layers)


def test_a_digest_of_known_bytes_stays_what_it_is() -> None:
    """Stored pages carry digests, so another value here needs another DIGEST_FORMAT."""
    assert digest_of(bytes(range(40)), [24, 16]) == KNOWN


def test_every_bit_and_every_exchange_changes_the_digest() -> None:
    data = bytearray(random.Random(3).randbytes(96))
    seen = {digest_of(bytes(data), [48, 48])}
    for at in range(96 * 8):
        data[at // 8] ^= 1 << at % 8
        seen.add(digest_of(bytes(data), [48, 48]))
        data[at // 8] ^= 1 << at % 8
    for one in range(0, 96, 8):
        for other in range(one + 8, 96, 8):
            swapped = bytearray(data)
            swapped[one : one + 8], swapped[other : other + 8] = data[other : other + 8], data[one : one + 8]
            seen.add(digest_of(bytes(swapped), [48, 48]))
    assert len(seen) == 1 + 96 * 8 + 66


def test_a_slice_of_another_size_has_no_digest() -> None:
    with pytest.raises(ValueError, match="39 bytes are no slice of 40"):
        digest_of(bytes(39), [24, 16])


def test_launches_of_one_shape_that_follow_each_other_go_together() -> None:
    first, next_one, wider, apart = (
        Launch(0, 2, 64, 8),
        Launch(2, 1, 64, 8),
        Launch(3, 1, 128, 8),
        Launch(5, 1, 128, 8),
    )
    assert joined([]) == []
    assert joined([first, next_one, wider, apart]) == [Launch(0, 3, 64, 8), wider, apart]
    assert joined([next_one, first]) == [next_one, first], "only runs that follow in the table"
