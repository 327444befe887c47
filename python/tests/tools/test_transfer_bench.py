"""The benchmark of the transfer backends, without a device: on fakes that copy this process's memory."""

from __future__ import annotations

import json

import numpy as np
import pytest

from bench.transfer import ORDERS, PUBLISH, RESTORE, Prefix, Shape, table
from harness.device import FakeDriver
from harness.immediate import ImmediateDriver
from orbitkv.transfer._driver import Addresses

SHAPE = Shape("tiny", layers=3, piece_bytes=8192, pages=5)


class LossyDriver(ImmediateDriver):
    """Loses the last copy of each batch that goes in one direction."""

    def __init__(self, into_device: bool) -> None:
        super().__init__()
        self.into_device = into_device

    def copy_batch(self, targets: Addresses, sources: Addresses, sizes: Addresses, stream: int) -> None:
        """Copy all but the last."""
        owned = any(at <= int(targets[-1]) < at + len(memory) for at, memory in self.allocated.items())
        keep = len(sizes) - (owned == self.into_device and len(sizes) > 1)
        super().copy_batch(targets[:keep], sources[:keep], sizes[:keep], stream)


def test_every_row_is_measured_in_both_orders() -> None:
    driver = ImmediateDriver()
    rows = table(driver, ["direct"], [SHAPE], 2)
    assert [(row.order, row.direction) for row in rows] == [(o, way) for o in ORDERS for way in (RESTORE, PUBLISH)]
    for row in rows:
        figures = json.loads(json.dumps(row.figures()))
        assert (figures["backend"], figures["n"], figures["bytes"]) == ("direct", 4, 3 * 8192 * 5)
        assert (figures["pieces"], figures["shape"]["piece_bytes"]) == (15, 8192)
        assert 0 < figures["copies"] <= 15
        assert len(row.plain_seconds) == len(row.build_seconds) == 4
        assert figures["of_plain"] == pytest.approx(np.median(row.plain_seconds) / np.median(row.seconds))
    assert not driver.registered
    assert not driver.allocated
    assert not driver.handles


def test_it_waits_for_whatever_it_looks_at() -> None:
    with FakeDriver(seed=6) as driver:  # Nothing moves when it is submitted, and targets are poisoned meanwhile.
        driver.bind()
        rows = table(driver, ["direct"], [SHAPE], 1)
        assert all(len(row.seconds) == 2 for row in rows)
        assert driver.violations == []
        assert not driver.registered


@pytest.mark.parametrize(("into_device", "says"), [(True, "restored wrong bytes"), (False, "published wrong bytes")])
def test_wrong_bytes_give_no_figures(into_device: bool, says: str) -> None:
    with pytest.raises(SystemExit, match=says):
        table(LossyDriver(into_device), ["direct"], [SHAPE], 1)


def test_scattered_blocks_are_the_same_in_every_run_and_no_block_is_named_twice() -> None:
    driver = ImmediateDriver()
    prefix = Prefix(driver, SHAPE)
    plans = {order: prefix.plan(order) for order in ORDERS}
    for plan in plans.values():
        plan.check()
    again = prefix.plan("scattered")
    assert plans["scattered"].blocks.tolist() == again.blocks.tolist()
    assert plans["scattered"].blocks.tolist() != plans["ascending"].blocks.tolist()
    assert plans["descending"].blocks.tolist() == plans["ascending"].blocks.tolist()[::-1]
    prefix.close()
