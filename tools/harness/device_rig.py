"""The device backend on a fake device, with an engine's memory and arenas whose every byte is known."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.device import HIGHEST, LIMIT_S, LOWEST, FakeDriver, FakeEngine
from harness.kv import LAYOUTS, footprint
from orbitkv._arenas import Arena
from orbitkv.transfer import CopyPlan, DeviceBackend, Publish, Restore, Transfer
from orbitkv.transfer._direct import DirectMover, Planned
from orbitkv.transfer._mover import Group

BLOCKS = 24
Numbers = npt.NDArray[np.int64]


class HookedMover(DirectMover):
    """Moves as `direct` does, and calls a test's function before each call of its own."""

    def __init__(self, driver: FakeDriver) -> None:
        super().__init__(driver)
        self.before: Callable[[str, Group, int], None] = lambda _, __, ___: None
        self.released = 0

    def prepare(self, group: Group) -> Planned:
        """See Mover.prepare."""
        self.before("prepare", group, 0)
        return super().prepare(group)

    def submit_steps(self, prepared: Planned, first: int, past: int, stream: int) -> int:
        """See Mover.submit_steps."""
        self.before("step", prepared.group, first)
        return super().submit_steps(prepared, first, past, stream)

    def submit_pages(self, prepared: Planned, first: int, past: int, stream: int) -> int:
        """See Mover.submit_pages."""
        self.before("pages", prepared.group, first)
        return super().submit_pages(prepared, first, past, stream)

    def release(self, prepared: Planned) -> None:
        """See Mover.release."""
        self.released += 1
        super().release(prepared)


class Rig:
    """See the module's text. Arena 0 has a place for each of the engine's blocks, and more can be added."""

    def __init__(
        self,
        layout: str = "layer by layer",
        seed: int = 0,
        *,
        held: bool = False,
        streams: int = 1,
        first_operations: int = 0,
        unit_bytes: int = 1,
        **options: Any,
    ) -> None:
        """By default the submitting thread hands everything over, step by step, so that a test can hold it there."""
        self.driver = FakeDriver(seed, held=held)
        self.memory = LAYOUTS[layout](BLOCKS)
        self.memory.fill(seed)
        self.engine = FakeEngine(self.driver, self.memory.address, self.memory.memory.nbytes, streams)
        self.mover = HookedMover(self.driver)
        self.backend = DeviceBackend(
            self.engine.site, self.mover, first_operations=first_operations, unit_bytes=unit_bytes, **options
        )
        (self.load,), (self.save,) = self.driver.streams(HIGHEST), self.driver.streams(LOWEST)
        self.spacing = footprint(self.memory.layout)
        self.arenas: dict[int, Arena] = {}
        self.ended: list[Transfer] = []
        self.add_arena(0)

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *fault: object) -> None:
        self.driver.go()
        self.backend.close()
        self.driver.close()
        if fault[0] is None:
            assert not self.driver.violations

    @property
    def steps(self) -> int:
        """Return the number of the layout's steps."""
        return len(self.memory.layout.steps)

    def add_arena(self, number: int) -> None:
        """Register one more arena, filled with bytes of its own."""
        content = np.random.default_rng([number, 99]).integers(0, 256, BLOCKS * self.spacing, np.uint8)
        self.arenas[number] = Arena(number, -1, len(content), content)
        self.backend.register_arena(self.arenas[number])

    def plan(self, blocks: Sequence[int] | Numbers, places: Sequence[int] | Numbers, arena: int = 0) -> CopyPlan:
        """Return a plan between blocks and places of one arena."""
        offsets = np.asarray(places, np.int64) * self.spacing
        locations = (np.uint64(arena) << np.uint64(48)) | offsets.astype(np.uint64)
        return CopyPlan(self.memory.layout, np.asarray(blocks, np.int64), locations)

    def restore(self, *plans: CopyPlan) -> list[Restore]:
        """Submit a group whose ends are noted."""
        return self.backend.restore(plans, on_done=self.note)

    def publish(self, plan: CopyPlan) -> Publish:
        """Submit a publish whose end is noted."""
        return self.backend.publish(plan, on_done=self.note)

    def note(self, transfer: Transfer) -> None:
        """Note an end; waiters are woken by the driver's condition."""
        with self.driver.changed:
            self.ended.append(transfer)
            self.driver.changed.notify_all()

    def stored(self, plan: CopyPlan) -> npt.NDArray[np.uint8]:
        """Return the slices that lie at a plan's locations."""
        rows = []
        for location in plan.locations.tolist():
            at = location & ((1 << 48) - 1)
            rows.append(self.arenas[location >> 48].view[at : at + self.memory.layout.slice_bytes])
        return np.stack(rows)

    def held_slices(self, plan: CopyPlan) -> npt.NDArray[np.uint8]:
        """Return the slices that the engine's memory has in a plan's blocks."""
        return self.memory.slices(plan.blocks)

    def read(self, plan: CopyPlan, into: list[npt.NDArray[np.uint8]]) -> None:
        """Launch a kernel that reads a plan's blocks."""
        self.engine.run(lambda: into.append(self.held_slices(plan)))

    def read_layer(self, plan: CopyPlan, layer: int, into: list[npt.NDArray[np.uint8]]) -> None:
        """Launch a kernel that reads one layer of a plan's blocks."""
        place = self.memory.layout.layers[layer]
        columns = slice(place.offset, place.offset + place.block_bytes)
        self.engine.run(lambda: into.append(self.held_slices(plan)[:, columns]))

    def handed(self, groups: int = 1) -> None:
        """Wait until the load stream has every step of so many groups, of which none was executed."""
        self.driver.until(
            lambda: self.driver.pending(self.load, "record") >= groups * self.steps,
            f"{groups} groups on the load stream",
        )


class Stop:
    """A place at which a hooked mover waits until the test lets it go on."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.go = threading.Event()

    def here(self) -> None:
        """Wait here."""
        self.reached.set()
        assert self.go.wait(LIMIT_S)
