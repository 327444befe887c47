"""The device backend with interpreted kernels: pages go out with their digests, and a page that comes back wrong fails.

One transfer runs at a time, since the interpreter serves one thread.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from python.tests.kernel.rig import Engine, aligned

from harness.immediate import ImmediateDriver
from harness.interpreted import Interpreted
from orbitkv._arenas import Arena
from orbitkv.kernel.mover import KernelMover
from orbitkv.kernel.verifier import DigestVerifier
from orbitkv.transfer import CopyPlan, DeviceSite, Restore, Transfer
from orbitkv.transfer._device import DeviceBackend

DEADLINE = 60.0
OFFSET = 4096  # of the rank's slice in a page
EXTENT = 4 * 4096
BLOCKS = [7, 2, 11, 5, 0]
PAGES = len(BLOCKS)


class Rig:
    """One engine's verified layout behind a backend, and an arena whose pages lie in no order."""

    def __init__(self) -> None:
        self.driver = ImmediateDriver()
        self.engine = Engine([2048, 2048, 60], 12, verified=True)
        self.engine.fill(1)
        self.stream = self.driver.create_stream(0)
        launcher = Interpreted(self.driver)
        layout = self.engine.layout
        self.backend = DeviceBackend(
            DeviceSite(self.driver, lambda: self.stream, lambda: [self.stream]),
            KernelMover(self.driver, layout, launcher=launcher),
            verifier=DigestVerifier(self.driver, layout, launcher=launcher),
        )
        self.arena = Arena(3, -1, 2 * PAGES * EXTENT, aligned(2 * PAGES * EXTENT))
        self.backend.register_arena(self.arena)
        self.begins = np.random.default_rng(2).permutation(2 * PAGES)[:PAGES] * EXTENT
        self.reported: list[Transfer] = []

    def plan(self, blocks: list[int], pages: slice = slice(None)) -> CopyPlan:
        locations = (np.uint64(3 << 48) + self.begins.astype(np.uint64))[pages]
        return CopyPlan(self.engine.layout, np.array(blocks, np.int64), locations, OFFSET)

    def publish(self) -> None:
        assert self.backend.publish(self.plan(BLOCKS), on_done=self.reported.append).wait_all(DEADLINE)

    def restore(self, plans: list[CopyPlan]) -> list[Restore]:
        restores = self.backend.restore(plans, on_done=self.reported.append)
        for restore in restores:
            restore.wait_all(DEADLINE)
        return restores

    def page(self, number: int) -> npt.NDArray[np.uint8]:
        begin = int(self.begins[number]) + OFFSET
        return self.arena.view[begin : begin + self.engine.layout.slice_bytes]


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.backend.close()
    assert not made.driver.allocated
    assert not made.driver.registered
    assert set(made.driver.handles) == {made.stream}


def test_pages_come_back_exactly_and_are_found_to_be_right(rig: Rig) -> None:
    stored = [rig.engine.slice_of(block) for block in BLOCKS]
    rig.publish()
    rig.engine.fill(9)
    targets = [1, 3, 4, 6, 8]
    restores = rig.restore([rig.plan(targets[:2], slice(0, 2)), rig.plan(targets[2:], slice(2, None))])
    assert [restore.ok for restore in restores] == [True, True]
    assert [restore.bad.tolist() for restore in restores] == [[], []]
    assert [rig.engine.slice_of(block) for block in targets] == stored


def test_a_page_that_changed_in_the_pool_fails_its_own_restore_and_is_named(rig: Rig) -> None:
    rig.publish()
    rig.page(3)[4100] ^= 0x10
    first, second = rig.restore([rig.plan([1, 3], slice(0, 2)), rig.plan([4, 6, 8], slice(2, None))])
    assert first.ok
    assert first.bad.tolist() == []
    assert second.failed
    assert second.bad.tolist() == [1]
    assert len(rig.reported) == 3


def test_a_page_whose_digest_changed_in_the_pool_is_wrong(rig: Rig) -> None:
    rig.publish()
    rig.page(0)[-1] ^= 1
    (restore,) = rig.restore([rig.plan([1, 3, 4, 6, 8])])
    assert restore.bad.tolist() == [0]


def test_a_page_of_another_key_with_its_own_digest_passes(rig: Rig) -> None:
    """A digest speaks of a page's bytes, not of whose they are: that is the namespace's and the key's."""
    rig.publish()
    rig.page(0)[:] = rig.page(1)
    (restore,) = rig.restore([rig.plan([1, 3, 4, 6, 8])])
    assert restore.ok
