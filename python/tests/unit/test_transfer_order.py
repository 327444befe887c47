"""An engine that restores, computes, publishes and reuses its blocks, on a fake device that takes every liberty.

The engine's host never waits for the device. It launches whole forwards while the device stands, and then the device
executes the engine's, the load and the save stream in a random order that only their waits bound.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from harness.device import LIMIT_S
from harness.device_rig import BLOCKS, Rig
from orbitkv.transfer import CopyPlan, Publish, Restore, _publishes

Bytes = npt.NDArray[np.uint8]
ROUNDS, FORWARDS = 12, 3


class Engine:
    """Blocks go to the next request as soon as the engine's own rules allow it, places once nobody reads or writes."""

    def __init__(self, rig: Rig, seed: int) -> None:
        self.rig = rig
        self.rng = np.random.default_rng(seed)
        self.blocks, self.places = set(range(BLOCKS)), set(range(BLOCKS))
        self.publishes: list[tuple[Publish, CopyPlan, Bytes]] = []
        self.restores: list[Restore] = []
        self.read_places: list[int] = []
        self.faults: list[str] = []
        self.reads = 0

    def take(self, free: set[int], most: int) -> list[int]:
        count = min(int(self.rng.integers(1, most + 1)), len(free))
        chosen = [int(each) for each in self.rng.permutation(sorted(free))[:count]]
        free.difference_update(chosen)
        return chosen

    def begin(self) -> list[tuple[Restore, CopyPlan, Bytes]]:
        """Submit the restores of one forward."""
        plans = []
        for _ in range(int(self.rng.integers(1, 3))):
            blocks = self.take(self.blocks, 3)
            places = self.take(self.places, len(blocks)) if blocks else []
            self.blocks.update(blocks[len(places) :])
            if places:
                plans.append(self.rig.plan(blocks[: len(places)], places))
                self.read_places += places
        if not plans:
            return []
        restores = self.rig.restore(*plans)
        self.restores += restores
        return [(r, plan, self.rig.stored(plan)) for r, plan in zip(restores, plans, strict=True)]

    def read(self, plan: CopyPlan, layer: int, wanted: Bytes) -> None:
        place = self.rig.memory.layout.layers[layer]
        columns = slice(place.offset, place.offset + place.block_bytes)

        def kernel() -> None:
            self.reads += 1
            if (self.rig.held_slices(plan)[:, columns] != wanted[:, columns]).any():
                self.faults.append(f"layer {layer} was read before it came")

        self.rig.engine.run(kernel)

    def forward(self) -> None:
        """Launch one forward: it reads what is restored, layer by layer or at once, and computes new pages."""
        running = self.begin()
        fresh = self.take(self.blocks, 3)
        content = self.rng.integers(0, 256, (len(fresh), self.rig.memory.layout.slice_bytes), np.uint8)
        hooks = self.rng.random() < 0.6
        if not hooks:
            assert all(restore.join(LIMIT_S) for restore, _, _ in running)
        for layer in range(len(self.rig.memory.layout.layers)):
            for restore, plan, wanted in running:
                assert not hooks or restore.wait_layer(layer, LIMIT_S)
                self.read(plan, layer, wanted)
        self.compute(fresh, content)
        for restore, plan, _ in running:
            assert restore.join(LIMIT_S)
            self.blocks.update(plan.blocks.tolist())  # The next forward may write them: it comes after every byte.
        self.publish(fresh, content)

    def forget(self) -> None:
        """Let a request go in the middle: its restore is joined, and its blocks are written by another at once."""
        for restore, plan, _ in self.begin():
            assert restore.join(LIMIT_S)
            content = self.rng.integers(0, 256, (len(plan.blocks), self.rig.memory.layout.slice_bytes), np.uint8)
            self.compute(plan.blocks.tolist(), content)
            self.publish(plan.blocks.tolist(), content)

    def compute(self, blocks: list[int], content: Bytes) -> None:
        """Launch a kernel that writes pages."""
        self.rig.engine.run(lambda: self.rig.memory.write(np.array(blocks, np.int64), content))

    def publish(self, blocks: list[int], content: Bytes) -> None:
        places = self.take(self.places, len(blocks)) if blocks else []
        if places:
            plan = self.rig.plan(blocks[: len(places)], places)
            self.publishes.append((self.rig.publish(plan), plan, content[: len(places)]))
        self.blocks.update(blocks[len(places) :])

    def settle(self) -> None:
        """Wait for the end of everything and check what is stored."""
        assert all(restore.wait_all(LIMIT_S) for restore in self.restores)
        for publish, plan, content in self.publishes:
            assert publish.wait_all(LIMIT_S)
            if (self.rig.stored(plan) != content).any():
                self.faults.append("a page was stored before it was computed")
            self.blocks.update(plan.blocks.tolist())
            self.places.update(int(each) // self.rig.spacing for each in plan.locations)
        self.places.update(self.read_places)
        self.publishes, self.restores, self.read_places = [], [], []


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("layout", ["layer by layer", "split K and V"])
def test_an_engine_never_reads_or_stores_other_bytes(layout: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_publishes, "YIELD_SECONDS", 0.0)
    with Rig(
        layout, seed, held=True, first_operations=(0, 3, 1024)[seed % 3], unit_bytes=(1, 1 << 30)[seed % 2]
    ) as rig:
        monkeypatch.setattr(_publishes, "PUBLISH_CHUNK_BYTES", rig.memory.layout.slice_bytes)
        engine = Engine(rig, seed)
        for _ in range(ROUNDS):
            for _ in range(FORWARDS):
                engine.forward()
                engine.forget()
            rig.driver.go()
            engine.settle()
            rig.driver.hold()
            assert rig.driver.drain() == 0
            assert not engine.faults, f"seed {seed}: {engine.faults[0]}"
        assert engine.reads > 0
