"""The copy engines' operations against a byte oracle: every layout, order of pages and place of a border."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt
import pytest

from harness.kv import LAYOUTS, UNIT, Memory, block_by_block, footprint, layer_by_layer, orders, split_lists
from orbitkv.transfer._mover import Group
from orbitkv.transfer._spans import MAX_PITCH, Operations, Spans

BLOCKS = 64
NO_BORDERS = np.empty(0, np.uint64)
ORDERS = list(orders(np.random.default_rng(0), 4))


class Host:
    """Places for pages in host memory that is registered in pieces."""

    def __init__(self, memory: Memory, places: int, offset: int = 0, spacing: int = 0) -> None:
        self.spacing = spacing or footprint(memory.layout, offset)
        self.slice_bytes = memory.layout.slice_bytes
        self.offset = offset
        self.bytes = np.zeros(places * self.spacing, np.uint8)
        self.address = int(self.bytes.ctypes.data)

    def fill(self, seed: int) -> None:
        self.bytes[...] = np.random.default_rng(seed).integers(0, 256, self.bytes.shape, np.uint8)

    def hosts(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
        return (places * self.spacing + self.address + self.offset).astype(np.uint64)

    def slices(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        starts = places * self.spacing + self.offset
        return np.stack([self.bytes[at : at + self.slice_bytes] for at in starts])

    def borders(self, rng: np.random.Generator, count: int) -> npt.NDArray[np.uint64]:
        inside = rng.permutation(len(self.bytes))[:count]
        return np.sort(inside + self.address).astype(np.uint64)


def perform(operations: Operations) -> None:
    """Do what the driver would, on this machine's memory."""
    for target, source, size in zip(operations.targets, operations.sources, operations.sizes, strict=True):
        assert size > 0
        ctypes.memmove(int(target), int(source), int(size))
    for run in operations.strided:
        assert run["width"] <= min(run["source_pitch"], run["target_pitch"])
        assert max(run["source_pitch"], run["target_pitch"]) <= MAX_PITCH
        assert (run["source_rows"], run["target_rows"], run["depth"]) == (run["height"], run["height"], 1)
        for row in range(int(run["height"])):
            target = int(run["target"]) + row * int(run["target_pitch"])
            ctypes.memmove(target, int(run["source"]) + row * int(run["source_pitch"]), int(run["width"]))


def crossings(operations: Operations, borders: npt.NDArray[np.uint64], restore: bool) -> int:
    """Return how many operations have a border inside of the host memory that they touch, gaps of a run included."""
    starts = (operations.sources if restore else operations.targets).astype(np.int64)
    ends = starts + operations.sizes.astype(np.int64)
    runs, side = operations.strided, "source" if restore else "target"
    firsts = runs[side].astype(np.int64)
    lasts = firsts + (runs["height"].astype(np.int64) - 1) * runs[f"{side}_pitch"].astype(np.int64)
    begin = np.concatenate((starts, firsts))
    end = np.concatenate((ends, lasts + runs["width"].astype(np.int64)))
    at = borders.astype(np.int64)
    return int((np.searchsorted(at, begin, "right") != np.searchsorted(at, end, "left")).sum())


@pytest.mark.parametrize("count", [0, 60])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_restore_moves_exactly_the_bytes_step_by_step(name: str, order: str, count: int) -> None:
    rng = np.random.default_rng([len(name), len(order), count])
    memory = LAYOUTS[name](BLOCKS)
    memory.fill(1)
    blocks, places = orders(rng, BLOCKS)[order]
    host = Host(memory, BLOCKS, offset=UNIT * int(rng.integers(2)))
    host.fill(2)
    borders = host.borders(rng, count)
    spans = Spans(Group(memory.layout, blocks, host.hosts(places), borders, True))
    wanted, raw = memory.slices(range(BLOCKS)), memory.memory.copy()
    for step, (first, past) in enumerate(memory.layout.steps):
        operations = spans.steps(step, step + 1)
        assert crossings(operations, borders, True) == 0
        assert len(operations.targets) + len(operations.strided) == operations.number
        perform(operations)
        begin = memory.layout.layers[first].offset
        end = memory.layout.layers[past - 1].offset + memory.layout.layers[past - 1].block_bytes
        wanted[blocks, begin:end] = host.slices(places)[:, begin:end]
        assert (memory.slices(range(BLOCKS)) == wanted).all(), f"step {step}"
    restored = memory.memory.copy()
    memory.memory[...] = raw
    memory.write(np.arange(BLOCKS), wanted)
    assert (restored == memory.memory).all(), "bytes between blocks changed"


@pytest.mark.parametrize("count", [0, 60])
@pytest.mark.parametrize("order", [name for name in ORDERS if name != "one place for all"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_publish_moves_exactly_the_bytes_page_by_page(name: str, order: str, count: int) -> None:
    rng = np.random.default_rng([len(name), len(order), count, 7])
    memory = LAYOUTS[name](BLOCKS)
    memory.fill(3)
    blocks, places = orders(rng, BLOCKS)[order]
    host = Host(memory, BLOCKS, offset=UNIT * int(rng.integers(2)))
    host.fill(4)
    borders, wanted = host.borders(rng, count), host.bytes.copy()
    group = Group(memory.layout, blocks, host.hosts(places), borders, False)
    for first in range(0, len(blocks), 7):
        past = min(first + 7, len(blocks))
        operations = Spans(group.part(first, past)).whole()
        assert crossings(operations, borders, False) == 0
        perform(operations)
        for block, place in zip(blocks[first:past], places[first:past], strict=True):
            at = int(place) * host.spacing + host.offset
            wanted[at : at + host.slice_bytes] = memory.slices([block])[0]
        assert (host.bytes == wanted).all(), f"pages {first} to {past}"


def test_random_groups_move_exactly_the_bytes() -> None:
    """Anything that the orders above do not think of: pages of several runs, spacings, repeats of a place."""
    small = [name for name in LAYOUTS if "large" not in name]
    for seed in range(60):
        rng = np.random.default_rng(seed)
        memory = LAYOUTS[small[int(rng.integers(len(small)))]](BLOCKS)
        memory.fill(seed)
        parts = [
            np.arange(0, int(rng.integers(1, 40))) * int(rng.integers(1, 4)) + int(n) for n in rng.integers(0, 40, 4)
        ]
        blocks = np.unique(np.concatenate(parts))
        blocks = rng.permutation(blocks[blocks < BLOCKS])
        places = np.sort(rng.integers(0, BLOCKS, len(blocks)))
        host = Host(memory, BLOCKS)
        host.fill(seed + 1)
        borders = host.borders(rng, int(rng.integers(0, 30)))
        operations = Spans(Group(memory.layout, blocks, host.hosts(places), borders, True)).whole()
        assert crossings(operations, borders, True) == 0, f"seed {seed}"
        perform(operations)
        assert (memory.slices(blocks) == host.slices(places)).all(), f"seed {seed}"


def group_of(memory: Memory, host: Host, blocks: npt.NDArray[np.int64], places: npt.NDArray[np.int64]) -> Group:
    return Group(memory.layout, blocks, host.hosts(places), NO_BORDERS, True)


def test_small_rows_merge_from_four_and_large_ones_from_thirty_two() -> None:
    for width, least in ((768, 4), ((32 << 10) - 64, 4), (32 << 10, 32), (64 << 10, 32)):
        memory = layer_by_layer(40, width, depth=2)
        host = Host(memory, 40)
        for rows in (least - 1, least):
            spans = Spans(group_of(memory, host, np.arange(rows), np.arange(rows)))
            runs = spans.steps(1, 2).strided
            assert len(runs) == (1 if rows == least else 0), f"{rows} rows of {width} bytes"
            assert spans.steps(1, 2).number == (1 if rows == least else rows)


def test_two_runs_that_share_a_page_are_two_runs() -> None:
    memory = layer_by_layer(80, 768)
    host = Host(memory, 80)
    blocks = np.concatenate((np.arange(10), np.arange(9, 50, 2)[1:]))
    operations = Spans(group_of(memory, host, blocks, np.arange(len(blocks)))).steps(0, 1)
    assert sorted(operations.strided["height"].tolist()) == [10, 20]
    assert len(operations.targets) == 0


def test_interleaved_pages_come_apart_on_either_side() -> None:
    memory = layer_by_layer(80, 768)
    host = Host(memory, 80)
    for order in ("interleaved blocks", "interleaved places"):
        blocks, places = orders(np.random.default_rng(1), 80)[order]
        assert Spans(group_of(memory, host, blocks, places)).steps(0, 1).number == 2, order


def test_pages_whose_layers_adjoin_move_as_one_piece_and_as_one_run() -> None:
    adjoining = block_by_block(40, 1024, depth=4)
    pages = np.arange(0, 40, 2)
    assert Spans(group_of(adjoining, Host(adjoining, 40), np.array([5]), np.array([9]))).whole().sizes.tolist() == [
        4096
    ]
    assert Spans(group_of(adjoining, Host(adjoining, 40), pages, pages)).whole().number == 1
    whole = Spans(group_of(adjoining, Host(adjoining, 40), np.arange(7, 27), np.arange(20))).whole()
    assert whole.sizes.tolist() == [20 * 4096], "the pages themselves adjoin on both sides"
    apart = split_lists(40, 640)
    assert Spans(group_of(apart, Host(apart, 40), np.array([5]), np.array([9]))).steps(0, 1).number == 2


def test_a_border_divides_a_run_and_cuts_one_page() -> None:
    memory = layer_by_layer(80, 768)
    host = Host(memory, 80)
    group = group_of(memory, host, np.arange(80), np.arange(80))
    inside = int(group.hosts[30]) + memory.layout.layers[2].offset + 100
    between = int(group.hosts[50])
    spans = Spans(Group(memory.layout, group.blocks, group.hosts, np.array([inside, between], np.uint64), True))
    for step in range(5):
        operations = spans.steps(step, step + 1)
        assert sorted(operations.strided["height"].tolist()) == [19, 30, 30]
        assert sorted(operations.sizes.tolist()) == ([100, 668] if step == 2 else [768])


def test_pages_that_adjoin_are_not_merged_over_a_border() -> None:
    memory = block_by_block(40, 1024, depth=4)
    group = group_of(memory, Host(memory, 40), np.arange(20), np.arange(20))
    borders = group.hosts[[6, 12]]
    whole = Spans(Group(memory.layout, group.blocks, group.hosts, borders, True)).whole()
    assert sorted(whole.sizes.tolist()) == [6 * 4096, 6 * 4096, 8 * 4096]


def test_rows_too_far_apart_are_no_run() -> None:
    memory = layer_by_layer(8, 768)
    host = Host(memory, 8)
    near = group_of(memory, host, np.arange(8), np.arange(8))
    for pitch, number in ((MAX_PITCH // UNIT * UNIT, 1), ((MAX_PITCH + 1), 8)):
        hosts = (np.arange(8) * pitch + host.address).astype(np.uint64)
        assert Spans(Group(memory.layout, near.blocks, hosts, NO_BORDERS, True)).steps(0, 1).number == number
