"""Restores and saves of one rank over the device backend and a fake device whose order a test decides."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from python.tests.unit.sglang.offload_rig import OffloadRig
from python.tests.unit.sglang.rank_rig import BLOCK_BYTES, LAYERS, LoadRig

from harness.device import HIGHEST, LIMIT_S, LOWEST, FakeDriver, Work
from harness.fakes import PAGE_BYTES, FakeManager
from orbitkv.sglang.device import EngineStreams
from orbitkv.sglang.loads import Load
from orbitkv.transfer import DeviceSite, Restore, TransferBackend
from orbitkv.transfer._device import DeviceBackend
from orbitkv.transfer._direct import DirectMover

STEPS = (0, 0, 1, 1)  # keys and values of two layers of the engine
PAGES = 48


class Device:
    """A fake device with SGLang's two streams. In other threads than the engine's a third one is current."""

    def __init__(self, seed: int = 0) -> None:
        self.driver = FakeDriver(seed, held=True)
        self.driver.bind()
        self.schedule, self.forward, self.stray = (self.driver.create_stream(LOWEST - 1) for _ in range(3))
        self.current = self.schedule
        self.read: list[str] = []  # what kernels of the engine read that was wrong
        engine = threading.current_thread()

        def current() -> int:
            return self.current if threading.current_thread() is engine else self.stray

        streams = EngineStreams(current, self.forward)
        self.site = DeviceSite(self.driver, streams.current, streams.fences)

    def backend(self) -> TransferBackend:
        """Return a backend of copy engines on it."""
        return DeviceBackend(self.site, DirectMover(self.driver))

    @property
    def load(self) -> int:
        """Return the backend's stream for restores."""
        return self.driver.streams(HIGHEST)[0]

    @property
    def save(self) -> int:
        """Return the backend's stream for publishes."""
        return self.driver.streams(LOWEST)[0]

    def expect(self, stream: int, what: str, holds: Callable[[], bool]) -> None:
        """Launch a kernel that reads memory and notes when it is not what it should be."""

        def kernel() -> None:
            if not holds():
                self.read.append(what)

        self.driver.launch(stream, kernel)

    def launch_behind(self, stream: int, gate: threading.Event, action: Callable[[], None] = lambda: None) -> None:
        """Put a kernel on a stream that does not begin before a gate opens."""
        with self.driver.changed:
            self.driver._queues[stream].append(Work("kernel", gate.is_set, action=action))

    def hold(self) -> None:
        """Let the device do nothing but what the test drains."""
        self.driver.hold()

    def run(self, *first: int) -> None:
        """Let the device work; these streams go first whenever they can."""
        self.driver.first = first
        self.driver.go()


class DeviceLoads(LoadRig):
    """Restores of pages 0, 1, ... of an arena, whose every byte is known."""

    def __init__(self, seed: int = 0, *, layers_ask: bool = True) -> None:
        self.device = Device(seed)
        self.manager = FakeManager(PAGE_BYTES, PAGES)
        self.manager.fill(PAGES)
        self.backend = self.device.backend()
        self.backend.register_arena(self.manager.arena)
        super().__init__(self.backend, STEPS, layers_ask=layers_ask, current=self.device.site.current_stream)
        self.device.driver.own(int(self.tensors.memory.ctypes.data), self.tensors.memory.size)

    def close(self) -> None:
        """Let copies end and stop the device."""
        self.device.run()
        self.backend.close()
        self.device.driver.close()

    def queued(self, names: Sequence[str], pages: int = 3) -> list[Load]:
        """Queue a restore each."""
        loads = [self.load(name, pages) for name in names]
        for load in loads:
            self.loads.queue(load)
        return loads

    def handed(self, load: Load) -> Restore:
        """Return a restore once every copy of it is in the device's queue."""
        restore = self.loads._submitted(load)
        with restore._changed:
            assert restore._changed.wait_for(lambda: restore.layer_ready(LAYERS - 1), LIMIT_S)
        return restore

    def is_there(self, load: Load, layers: Sequence[int] = range(LAYERS)) -> bool:
        """Return whether layers of a restore's pages hold their bytes."""
        return all(
            np.array_equal(self.tensors.read(layer, block), self.manager.layer(page, layer, BLOCK_BYTES))
            for page, block in enumerate(load.pages.tolist())
            for layer in layers
        )

    def forward_reads(self, index: int, loads: Sequence[Load]) -> None:
        """Launch a forward on the current stream that reads every layer after its wait."""
        self.loads.set_consumer(index)
        for step in range(self.steps):
            self.loads.wait_until(step)
            self.expect_step(step, loads)

    def expect_step(self, step: int, loads: Sequence[Load]) -> None:
        """Launch the read of one of the engine's layers on the current stream."""
        layers = [layer for layer, at in enumerate(STEPS) if at == step]
        for load in loads:
            self.device.expect(
                self.device.current, f"layer {step} of {load.request}", partial(self.is_there, load, layers)
            )


class DeviceOffloads(OffloadRig):
    """Saves into an arena of its own."""

    def __init__(self, seed: int = 0) -> None:
        self.device = Device(seed)
        super().__init__(backend=self.device.backend())
        self.device.driver.own(int(self.tensors.memory.ctypes.data), self.tensors.memory.size)

    def close(self) -> None:
        """Let copies end and stop the device."""
        self.device.run()
        self.backend.close()
        self.device.driver.close()
