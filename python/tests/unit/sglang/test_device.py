"""SGLang's streams and the copies on a device: nobody reads a byte before it is written, or writes what is being read.

The fake device executes in any order that events allow, and the streams that a test names go first whenever they can.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
from python.tests.unit.sglang.device_rig import STEPS, Device, DeviceLoads, DeviceOffloads
from python.tests.unit.sglang.rank_rig import LAYERS, RankRig

from harness.device import LIMIT_S
from harness.fakes import PAGE_BYTES, FakeTensors, keys_of
from orbitkv._arenas import Arena
from orbitkv.adapter.golden import GoldenResult, TensorCheck
from orbitkv.client import Grant
from orbitkv.errors import ConfigurationError, EngineFault
from orbitkv.sglang import loads as loads_module
from orbitkv.sglang.loads import LoadState
from orbitkv.sglang.scratch import DeviceScratch, HostScratch, scratch_of

SEEDS = range(4)


@pytest.fixture(params=SEEDS)
def rig(request: pytest.FixtureRequest) -> Iterator[DeviceLoads]:
    """Return restores over a device that works only when the test says so."""
    rig = DeviceLoads(request.param)
    yield rig
    rig.close()


@pytest.fixture(params=SEEDS)
def saves(request: pytest.FixtureRequest) -> Iterator[DeviceOffloads]:
    """Return saves over such a device."""
    rig = DeviceOffloads(request.param)
    yield rig
    rig.close()


def test_one_stream_is_one_fence() -> None:
    device = Device()
    assert device.site.fences() == (device.schedule, device.forward)
    device.current = device.forward
    assert device.site.fences() == (device.forward,)
    device.driver.close()


# Restores.


@pytest.mark.parametrize("stream", ["schedule", "forward"])
def test_a_restore_waits_for_forwards_that_still_use_its_pages(rig: DeviceLoads, stream: str) -> None:
    """With overlap a forward of the pass before runs on the forward stream, without on the schedule stream."""
    rig.tensors.scramble()
    (load,) = rig.queued(["a"])
    before = [rig.tensors.read(layer, block) for layer in range(LAYERS) for block in load.pages.tolist()]

    def is_as_before() -> bool:
        now = [rig.tensors.read(layer, block) for layer in range(LAYERS) for block in load.pages.tolist()]
        return all(map(np.array_equal, before, now))

    rig.device.expect(getattr(rig.device, stream), "pages of the request that had them before", is_as_before)
    rig.loads.start()
    rig.handed(load)
    rig.device.run(rig.device.load)
    rig.loads.quiesce()
    assert rig.device.driver.drain() == 0
    assert rig.device.read == []
    assert rig.is_there(load)


@pytest.mark.parametrize("stream", ["schedule", "forward"])
def test_so_does_one_that_waited_for_its_turn_and_is_submitted_by_a_copying_thread(
    rig: DeviceLoads, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loads_module, "IN_FLIGHT_MAX", 1)
    (first,) = rig.queued(["first"])
    rig.loads.start()
    (load,) = rig.queued(["second"])
    rig.loads.start()
    gate = threading.Event()

    def note() -> None:
        pages = load.pages.tolist()
        if any(rig.tensors.read(layer, page).any() for layer in range(LAYERS) for page in pages):
            rig.device.read.append("pages of the request that had them before")

    rig.device.launch_behind(getattr(rig.device, stream), gate, note)
    rig.device.run(rig.device.load)
    rig.handed(first).wait_all()
    rig.handed(load)
    rig.device.hold()
    gate.set()
    rig.device.driver.drain()
    rig.loads.quiesce()
    assert rig.device.read == []
    assert rig.is_there(load)


@pytest.mark.parametrize("overlap", [True, False])
def test_each_layer_of_a_forward_reads_its_bytes(rig: DeviceLoads, overlap: bool) -> None:
    loads = rig.queued(["a", "b", "c"], 4)
    index = rig.loads.start()
    rig.device.current = rig.device.forward if overlap else rig.device.schedule
    rig.forward_reads(index, loads)
    # A decode graph asks for nothing.
    rig.loads.set_consumer(index)
    for step in range(rig.steps):
        rig.expect_step(step, loads)
    rig.device.run(rig.device.schedule, rig.device.forward)
    rig.loads.quiesce()
    assert rig.device.driver.drain() == 0
    assert rig.device.read == []


def test_a_forward_that_is_one_graph_reads_its_bytes() -> None:
    for seed in SEEDS:
        rig = DeviceLoads(seed, layers_ask=False)
        loads = rig.queued(["a", "b"], 4)
        index = rig.loads.start()
        # The engine puts its forward behind what the schedule stream has so far.
        event = rig.device.driver.create_event()
        rig.device.driver.record(event, rig.device.schedule)
        rig.device.driver.wait(rig.device.forward, event)
        rig.device.current = rig.device.forward
        rig.loads.set_consumer(index)
        for step in range(rig.steps):
            rig.expect_step(step, loads)
        rig.device.run(rig.device.schedule, rig.device.forward)
        rig.loads.quiesce()
        assert rig.device.driver.drain() == 0
        assert rig.device.read == []
        rig.close()


def test_a_forward_reads_what_a_batch_before_it_restores_although_nobody_asked(rig: DeviceLoads) -> None:
    loads = rig.queued(["a"], 4)
    rig.loads.start()
    rig.device.current = rig.device.forward
    rig.loads.set_consumer(-1)
    for step in range(rig.steps):
        rig.expect_step(step, loads)
    rig.device.run(rig.device.forward)
    rig.loads.quiesce()
    assert rig.device.driver.drain() == 0
    assert rig.device.read == []


def test_keys_and_values_of_a_layer_are_one_batch_with_one_event(rig: DeviceLoads) -> None:
    loads = rig.queued(["a", "b"], 4)
    rig.loads.start()
    for load in loads:
        rig.handed(load)
    recorded = [call for call in rig.device.driver.calls if call[1:] == ("record", rig.device.load)]
    assert len(recorded) == len(set(STEPS))


def test_a_batch_is_acknowledged_only_when_the_device_has_it(rig: DeviceLoads) -> None:
    loads = rig.queued(["a"])
    index = rig.loads.start()
    rig.device.current = rig.device.forward
    rig.forward_reads(index, loads)
    assert rig.loads.completed() == 0
    rig.device.run()
    assert rig.handed(loads[0]).wait_all()
    with rig.loads._lock:
        assert rig.loads._lock.wait_for(lambda: loads[0].state is LoadState.ARRIVED, LIMIT_S)
    assert rig.acknowledged() == [["a"]]
    assert rig.is_there(loads[0])


def test_a_device_that_faults_ends_the_engine(rig: DeviceLoads) -> None:
    loads = rig.queued(["a"])
    index = rig.loads.start()
    rig.loads.set_consumer(index)
    rig.loads.wait_until(0)
    rig.device.driver.break_now()
    with pytest.raises(EngineFault):
        rig.loads._submitted(loads[0]).wait_all()
    with pytest.raises(EngineFault):
        rig.loads.wait_until(1)
    with pytest.raises(EngineFault):
        rig.loads.quiesce(rig.backend.check)
    assert rig.attachment.told == [], "the extents stay reserved until the process has exited (I8)"


# Saves.


@pytest.mark.parametrize("stream", ["schedule", "forward"])
def test_a_save_waits_for_the_forward_that_writes_its_pages(saves: DeviceOffloads, stream: str) -> None:
    memory = np.full(4 * PAGE_BYTES, 0xEE, np.uint8)
    saves.backend.register_arena(Arena(0, -1, len(memory), memory))
    pages = np.array([9, 4, 7], np.int64)
    saves.device.driver.launch(getattr(saves.device, stream), saves.tensors.scramble)
    saves.pump()
    saves.offloads.offer(b"".join(keys_of("a", 3)), pages)
    saves.pump()
    saves.reserves[0].answer([Grant.GRANTED] * 3)
    saves.pump()
    saves.device.driver.until(lambda: saves.device.driver.pending(saves.device.save, "copy") > 0, "a copy")
    saves.device.run(saves.device.save)
    saves.offloads.quiesce()
    expected = [saves.tensors.read(layer, page) for page in pages.tolist() for layer in range(2)]
    assert memory.tobytes() == b"".join(part.tobytes() for part in expected) + b"\xee" * PAGE_BYTES
    assert saves.attachment.told == [("committed", 1, [(0, 3)])]


# Pages for the check.


def test_scratch_on_a_device_holds_pages_of_the_layout_and_is_given_back() -> None:
    device = Device()
    device.run()
    tensors = FakeTensors(LAYERS, 8, 512)
    driver = device.driver
    streams = set(driver.priority_of)
    scratch = scratch_of(tensors.layout, 2, device.site)
    assert isinstance(scratch, DeviceScratch)
    content = {
        (layer, page): np.random.default_rng([layer, page]).integers(0, 256, 512, dtype=np.uint8)
        for layer in range(LAYERS)
        for page in range(2)
    }
    for (layer, page), written in content.items():
        scratch.write(layer, page, written)
    for (layer, page), written in content.items():
        assert np.array_equal(scratch.read(layer, page), written)
    backend = device.backend()
    assert TensorCheck(backend, scratch.layout, scratch, 60.0).run(0, 1) is GoldenResult.PASSED
    backend.close()
    scratch.close()
    assert not driver._allocated
    assert not driver.registered
    assert driver.events_alive == 0
    assert set(driver.priority_of) == streams
    driver.close()


def test_a_device_without_room_for_scratch_stops_the_start() -> None:
    device = Device()
    device.driver.fail("allocate")
    with pytest.raises(ConfigurationError, match=r"4096 bytes of CUDA device 0.*--mem-fraction-static"):
        scratch_of(FakeTensors(LAYERS, 8, 512).layout, 2, device.site)
    device.driver.close()


def test_scratch_in_host_memory_holds_pages_of_the_layout() -> None:
    tensors = FakeTensors(LAYERS, 8, 512)
    scratch = scratch_of(tensors.layout, 2, None)
    assert isinstance(scratch, HostScratch)
    for layer in range(LAYERS):
        for page in range(2):
            scratch.write(layer, page, np.full(512, 16 * layer + page, np.uint8))
    for layer in range(LAYERS):
        for page in range(2):
            assert (scratch.read(layer, page) == 16 * layer + page).all()
            assert (scratch.layout.layers[layer].rows[page] == 16 * layer + page).all()
    assert not tensors.memory.any()


def test_a_rank_proves_its_tensors_on_the_device_at_start() -> None:
    device = Device()
    device.run()
    rig = RankRig(site=device.site, transfer_backend="direct")
    device.driver.own(int(rig.tensors.memory.ctypes.data), rig.tensors.memory.size)
    rig.side.begin()
    rig.tensors.shift = 8
    with pytest.raises(ConfigurationError, match="golden"):
        rig.side.begin()
    rig.side.close()
    device.driver.close()
