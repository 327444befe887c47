"""Units of a restore: the first step alone, then as many steps as make a unit's bytes, each with one event."""

from __future__ import annotations

import numpy as np
import pytest

from harness.device import LIMIT_S
from harness.device_rig import BLOCKS, Rig
from harness.kv import LAYOUTS
from orbitkv.transfer._restores import Progress, unit_end


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("least", [1, 3000, 1 << 30])
def test_units_cover_every_step_once_and_none_but_the_ends_is_small(layout: str, least: int) -> None:
    made = LAYOUTS[layout](BLOCKS).layout
    for pages in (1, 7):
        at, units = 0, []
        while at < len(made.steps):
            past = unit_end(made, pages, at, least)
            units.append((at, past))
            at = past
        assert units[0] == (0, 1), "the forward waits for the first step, and only for it"
        assert at == len(made.steps)
        for first, past in units[1:-1]:
            size = sum(made.step_bytes[first:past]) * pages
            assert size >= least
            assert past == first + 1 or size - made.step_bytes[past - 1] * pages < least, "a step more than needed"


def test_a_layer_is_ready_with_its_unit_and_the_stream_waits_once_for_each() -> None:
    with Rig(held=True, first_operations=1024, unit_bytes=1 << 30) as rig:
        plan = rig.plan([3, 9], [1, 5])
        (restore,) = rig.restore(plan)
        assert rig.driver.entries(rig.load) == ["wait", "copy", "record", "copy", "record"]
        for layer in range(len(plan.layout.layers)):
            assert restore.wait_layer(layer)
        assert rig.driver.entries(rig.engine.current).count("wait") == 2, "the first step's event, then the rest's"
        assert restore.join()
        assert rig.driver.entries(rig.engine.current).count("wait") == 2
        rig.driver.go()
        assert restore.wait_all(LIMIT_S)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("unit_bytes", [5000, 1 << 30])
def test_units_bring_every_byte(layout: str, unit_bytes: int) -> None:
    rng = np.random.default_rng(unit_bytes)
    with Rig(layout, 3, unit_bytes=unit_bytes) as rig:
        blocks, places = rng.permutation(BLOCKS), rng.permutation(BLOCKS)
        plans = [rig.plan(blocks[:7], places[:7]), rig.plan(blocks[7:9], places[7:9])]
        assert all(restore.wait_all(LIMIT_S) for restore in rig.restore(*plans))
        for plan in plans:
            assert (rig.held_slices(plan) == rig.stored(plan)).all()


def test_a_layer_of_a_later_unit_is_not_read_before_it_came() -> None:
    """The engine's stream goes first wherever nothing holds it, and layers are read out of the middle of a unit."""
    with Rig(held=True, first_operations=1024, unit_bytes=1 << 30) as rig:
        plan = rig.plan([3, 9], [1, 5])
        wanted = rig.stored(plan).copy()
        rig.driver.first = (rig.engine.current,)
        (restore,) = rig.restore(plan)
        reads: list[np.ndarray] = []
        for layer in range(len(plan.layout.layers)):
            assert restore.wait_layer(layer)
            rig.read_layer(plan, layer, reads)
        rig.driver.go()
        assert restore.wait_all(LIMIT_S)
        rig.driver.until(lambda: len(reads) == len(plan.layout.layers), "every layer's read")
        for place, content in zip(plan.layout.layers, reads, strict=True):
            assert (content == wanted[:, place.offset : place.offset + place.block_bytes]).all(), place.name


def test_a_unit_that_an_interrupt_repeats_moves_no_later_layer_to_an_earlier_event() -> None:
    with Rig() as rig:
        progress = Progress(rig.backend._common)
        progress.add(11, 1)
        progress.add(12, 3)
        progress.add(13, 3)
        progress.add(14, 4)
        progress.close(True)
        assert [progress.wait_step(step) for step in range(5)] == [11, 12, 12, 14, None]
