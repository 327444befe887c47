"""Digests on the device against the reference, and what the check of restored pages sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from python.tests.kernel.rig import Engine, Pages

from harness.immediate import ImmediateDriver
from harness.interpreted import Interpreted
from orbitkv.errors import ConfigurationError, TransferError
from orbitkv.kernel.mover import KernelMover
from orbitkv.kernel.verifier import DigestVerifier
from orbitkv.transfer._digest import DIGEST_MARK, digest_of

BLOCKS = [7, 2, 11, 5]
TARGETS = [1, 9, 3, 8]


class Rig:
    """Pages that were published from one engine with their digests, and are restored to another."""

    def __init__(self, widths: list[int], gap: int = 0) -> None:
        self.driver = ImmediateDriver()
        self.launcher = Interpreted(self.driver)
        self.stream = self.driver.create_stream(0)
        self.source = Engine(widths, 12, gap=gap, verified=True)
        self.target = Engine(widths, 12, gap=gap, verified=True)
        self.source.fill(1)
        self.target.fill(2)
        self.pages = Pages(self.driver, self.source.layout, len(BLOCKS), seed=3)

    def publish(self) -> None:
        mover, verifier = self.movers(self.source)
        group = self.pages.group(self.source.layout, BLOCKS, restore=False)
        prepared, checked = mover.prepare(group), verifier.prepare(group)
        for first, past in ((0, 3), (3, 4)):
            verifier.before_publish(checked, first, past, self.stream)
            mover.submit_pages(prepared, first, past, self.stream)
        verifier.release(checked)

    def restore(self, spoil: Callable[[], None] = lambda: None) -> list[int]:
        """Restore every page, spoil something, and return the positions that are found to be wrong."""
        mover, verifier = self.movers(self.target)
        group = self.pages.group(self.target.layout, TARGETS, restore=True)
        prepared, checked = mover.prepare(group), verifier.prepare(group)
        for step in range(len(self.target.layout.steps)):
            mover.submit_steps(prepared, step, step + 1, self.stream)
        spoil()
        verifier.after_restore(checked, self.stream)
        wrong: list[int] = verifier.result(checked).tolist()
        verifier.release(checked)
        return wrong

    def movers(self, engine: Engine) -> tuple[KernelMover, DigestVerifier]:
        return (
            KernelMover(self.driver, engine.layout, launcher=self.launcher),
            DigestVerifier(self.driver, engine.layout, launcher=self.launcher),
        )


@pytest.mark.parametrize(
    ("widths", "gap"),
    [([64, 64], 0), ([8192 * 2 + 8, 16], 8), ([1004, 20], 0), ([2050, 6], 0), ([999, 1, 4097], 0), ([3], 0)],
)
def test_the_row_of_a_published_block_is_the_references_digest(widths: list[int], gap: int) -> None:
    rig = Rig(widths, gap)
    rig.publish()
    rows = rig.source.digests.view(np.uint64).reshape(-1, 2)
    for page, block in enumerate(BLOCKS):
        content = rig.source.slice_of(block)
        assert int(rows[block, 0]) == digest_of(content, widths)
        assert int(rows[block, 1]) == DIGEST_MARK
        assert rig.pages.slice_of(page, len(content) + 16) == content + rows[block].tobytes()
    others = sorted(set(range(12)) - set(BLOCKS))
    assert not rows[others].any(), "a row of a block that was not published was written"
    assert rig.restore() == []


def test_a_flipped_bit_anywhere_is_found() -> None:
    rig = Rig([1000, 24])
    rig.publish()
    rng = np.random.default_rng(9)
    for _ in range(6):
        wrong = np.flatnonzero(rng.integers(0, 2, len(BLOCKS))).tolist()

        def flip(wrong: list[int] = wrong) -> None:
            for page in wrong:
                row = rig.target.tensors[int(rng.integers(2))].rows[TARGETS[page]]
                row[rng.integers(len(row))] ^= 1 << int(rng.integers(8))

        assert rig.restore(flip) == wrong


def test_a_page_in_a_neighbours_block_is_found() -> None:
    rig = Rig([1000, 24])
    rig.publish()

    def swap() -> None:
        row = rig.target.tensors[0].rows
        row[[TARGETS[0], TARGETS[2]]] = row[[TARGETS[2], TARGETS[0]]]

    assert rig.restore(swap) == [0, 2]


def test_words_that_changed_places_are_found() -> None:
    rig = Rig([1024, 1024])
    rig.publish()

    def shift() -> None:
        rig.target.tensors[1].rows[TARGETS[1]] = np.roll(rig.target.tensors[1].rows[TARGETS[1]], 8)

    def across_layers() -> None:
        one, other = (tensor.rows[TARGETS[3]] for tensor in rig.target.tensors)
        one[:], other[:] = other.copy(), one.copy()

    assert rig.restore(shift) == [1]
    assert rig.restore(across_layers) == [3]


@pytest.mark.parametrize("number", [0, 1])
def test_a_row_that_did_not_arrive_is_found(number: int) -> None:
    rig = Rig([256])
    rig.publish()

    def lose() -> None:
        rig.target.digests.view(np.uint64).reshape(-1, 2)[TARGETS[2], number] = 0

    assert rig.restore(lose) == [2]


def test_a_page_that_no_kernel_reached_is_wrong() -> None:
    rig = Rig([256])
    rig.publish()
    _, verifier = rig.movers(rig.source)
    group = rig.pages.group(rig.source.layout, BLOCKS, restore=True)
    for reached in (False, True, False):  # The last time where the group before it was found to be right.
        checked = verifier.prepare(group)
        if reached:
            verifier.after_restore(checked, rig.stream)
        assert verifier.result(checked).tolist() == ([] if reached else [0, 1, 2, 3])
        verifier.release(checked)


def test_groups_that_run_together_have_results_of_their_own() -> None:
    rig = Rig([256])
    rig.publish()
    rig.source.tensors[0].rows[BLOCKS[3], 5] ^= 1
    _, verifier = rig.movers(rig.source)
    both = [rig.pages.group(rig.source.layout, blocks, restore=True) for blocks in (BLOCKS[:2], BLOCKS[2:])]
    checks = [verifier.prepare(group) for group in both]
    for checked in reversed(checks):
        verifier.after_restore(checked, rig.stream)
    assert [verifier.result(checked).tolist() for checked in checks] == [[], [1]]


def test_the_directions_add_up_in_memory_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """They run on streams of their own, so sums in one place would mix."""
    rig = Rig([256])
    places: dict[bool, set[int]] = {False: set(), True: set()}
    launch = rig.launcher.launch

    def noted(kernel: object, programs: int, stream: int, *arguments: int, **constants: Any) -> None:
        if "check" in constants:
            places[constants["check"]].add(arguments[5])
        launch(kernel, programs, stream, *arguments, **constants)

    monkeypatch.setattr(rig.launcher, "launch", noted)
    _, verifier = rig.movers(rig.source)
    for restore in (False, True):
        checked = verifier.prepare(rig.pages.group(rig.source.layout, BLOCKS, restore=restore))
        if restore:
            verifier.after_restore(checked, rig.stream)
        else:
            verifier.before_publish(checked, 0, len(BLOCKS), rig.stream)
    assert len(places[False]) == len(places[True]) == 1
    assert places[False] != places[True]


@pytest.mark.parametrize("restore", [False, True])
def test_what_was_released_makes_room(restore: bool) -> None:
    rig = Rig([256])
    _, verifier = rig.movers(rig.source)
    group = rig.pages.group(rig.source.layout, BLOCKS, restore=restore)
    for _ in range(4):  # The engine's 12 blocks have room for three.
        verifier.release(verifier.prepare(group))
    assert verifier._tables[restore].waits == 0


def test_a_layout_without_digests_is_refused() -> None:
    driver = ImmediateDriver()
    with pytest.raises(ConfigurationError, match="no layer of digests"):
        DigestVerifier(driver, Engine([256], 4).layout, launcher=Interpreted(driver))


def test_pages_of_another_layout_are_refused() -> None:
    """Their digests would be read from the engine's blocks of these numbers."""
    rig = Rig([256])
    _, verifier = rig.movers(rig.source)
    with pytest.raises(TransferError, match="another layout"):
        verifier.prepare(rig.pages.group(rig.target.layout, BLOCKS, restore=True))


def test_many_pages_are_summed_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orbitkv.kernel.verifier.BATCH_PAGES", 3)
    rig = Rig([256, 40])
    rig.publish()
    assert rig.restore() == []

    def spoil() -> None:
        rig.target.tensors[1].rows[TARGETS[3], 39] ^= 1

    assert rig.restore(spoil) == [3]


def test_a_closed_verifier_gives_everything_back() -> None:
    driver = ImmediateDriver()
    verifier = DigestVerifier(driver, Engine([256], 4, verified=True).layout, launcher=Interpreted(driver))
    assert driver.allocated
    verifier.close()
    assert not driver.allocated
    assert not driver.registered
    assert not driver.handles
