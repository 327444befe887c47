"""The worker side on a device: steps as vLLM takes them, on a fake driver that does its work in any allowed order.

The device does nothing while a step is taken, so whatever waits on the host hangs here. What the engine's stream reads
and writes is noted when it is executed, with the engine's stream ahead of the copies wherever nothing holds it.
"""

from __future__ import annotations

import logging
import mmap
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
from python.tests.unit.vllm.test_worker import FakeAttachment

from harness.device import LOWEST, FakeDriver, FakeEngine
from harness.fakes import FakeManager, FakeTensors
from harness.manager import eventually
from orbitkv.adapter.attachment import Attachment, RankPlace
from orbitkv.adapter.backends import BackendChoice
from orbitkv.adapter.golden import GoldenResult, TensorCheck
from orbitkv.adapter.plans import PublishPlan, RestorePlan, SlicePlace
from orbitkv.adapter.settings import read_settings
from orbitkv.client import Arena
from orbitkv.errors import EngineFault
from orbitkv.timeline import Timeline
from orbitkv.transfer import DIGEST_LAYER, DeviceBackend, TransferBackend
from orbitkv.transfer._direct import DirectMover
from orbitkv.vllm.plans import GoldenLoan, StepPlan
from orbitkv.vllm.worker import EngineLayers, WorkerSide

LAYERS, BLOCKS, BLOCK_BYTES, PAGES = 3, 8, 1024, 4
SLICE_BYTES = LAYERS * BLOCK_BYTES
SEEDS = range(4)
NEXT_OWNER = 0x77
Bytes = npt.NDArray[np.uint8]
Reads = dict[tuple[int, int], Bytes]  # what was read, by layer and block


class DevicePages:
    """Pages by functions on a stream that copies know nothing of, as late as a device may be.

    What is written stays undone until somebody settles or reads. With `prompt` it is launched at once.
    """

    def __init__(self, driver: FakeDriver, tensors: FakeTensors) -> None:
        driver.bind()
        self.stream = driver.create_stream(LOWEST - 1)
        self.prompt = False
        self._driver = driver
        self._tensors = tensors
        self._late: list[Callable[[], None]] = []
        self._given = 0
        self._done = 0

    def write(self, layer: int, block: int, content: Bytes) -> None:
        """Write a block, sooner or later."""
        kept = content.copy()
        self._late.append(lambda: self._tensors.write(layer, block, kept))
        if self.prompt:
            self.launch()

    def read(self, layer: int, block: int) -> Bytes:
        """Return the block's bytes once the stream came to it."""
        found: list[Bytes] = []
        self._late.append(lambda: found.append(self._tensors.read(layer, block)))
        self.settle()
        return found[0]

    def settle(self) -> None:
        """Wait until everything that was written is done."""
        self.launch()
        given = self._given
        self._driver.until(lambda: self._done >= given, "what was launched")

    def launch(self) -> None:
        """Give the stream what is still to be done."""
        late, self._late = self._late, []
        for action in late:
            self._given += 1
            self._driver.launch(self.stream, partial(self._run, action))

    def _run(self, action: Callable[[], None]) -> None:
        action()
        self._done += 1


class Rig:
    """One worker side on a fake device."""

    def __init__(self, seed: int = 0, extra: dict[str, object] | None = None, backend: Any = None) -> None:
        self.driver = FakeDriver(seed)
        self.tensors = FakeTensors(LAYERS, BLOCKS, BLOCK_BYTES)
        memory = self.tensors.memory
        self.engine = FakeEngine(self.driver, int(memory.ctypes.data), len(memory))
        self.pages = DevicePages(self.driver, self.tensors)
        self.manager = FakeManager(SLICE_BYTES)
        # Whole pages, since a device locks nothing less.
        self.manager.memory = np.frombuffer(mmap.mmap(-1, len(self.manager.memory)), np.uint8)
        self.manager.arena = Arena(0, -1, len(self.manager.memory), self.manager.memory)
        self.layout = self.tensors.layout
        self.settings = read_settings({"orbitkv.transfer_backend": "direct", **(extra or {})}, {})
        self.choice = BackendChoice(self.settings, self.layout, self.engine.site)
        self.backend: TransferBackend = backend(self) if backend else self.choice.make()
        self.backend.register_arena(self.manager.arena)
        names = {f"l{i}": i for i, layer in enumerate(self.layout.layers) if layer.name != DIGEST_LAYER}
        layers = EngineLayers(self.layout, self.pages, names, self.engine.site)
        self.attachment = FakeAttachment(cast(Any, self))
        self.side = WorkerSide(
            self.settings,
            RankPlace("engine-1", 0, 1),
            layers,
            {},
            Timeline("test", False),
            connect=lambda _: cast(Attachment, self.attachment),
        )
        self.names = tuple(names)
        self.read: Reads = {}
        self.side._link.start()

    def close(self) -> None:
        """End the threads."""
        self.driver.go()
        self.side.close()
        self.backend.close()
        self.driver.close()

    def plan(self, **work: Any) -> StepPlan:
        """Return a step's plan for this Manager's life."""
        return StepPlan(self.manager.incarnation, 0, (SlicePlace(0, 0, 0, SLICE_BYTES),), **work)

    def restore(self, blocks: Sequence[int], first: int = 0, lease: int = 9) -> RestorePlan:
        """Return a restore of pages of the arena, from one on."""
        places = np.arange(first, first + len(blocks), dtype=np.uint64) * np.uint64(self.manager.page_bytes)
        return RestorePlan(f"r{lease}", lease, np.array(blocks, np.int64), (places,))

    def forward(self, blocks: Sequence[int], skip: int = -1) -> None:
        """Launch a forward that reads these blocks, layer by layer, with the hooks; `skip` names one that is left out.

        A step without hooks looks the same to the side: it hears of none.
        """
        for layer, name in enumerate(self.names):
            if layer != skip:
                self.side.wait_layer(name)
            self.launch_read(layer, blocks)

    def launch_read(self, layer: int, blocks: Sequence[int], into: Reads | None = None) -> None:
        """Launch a read of one layer, as a graph's replay does without a hook."""
        reads = self.read if into is None else into

        def note() -> None:
            for block in blocks:
                reads[layer, block] = self.tensors.read(layer, block)

        self.engine.run(note)

    def replay(self, blocks: Sequence[int], into: Reads | None = None) -> None:
        """Launch a forward that runs no hooks."""
        for layer in range(len(self.names)):
            self.launch_read(layer, blocks, into)

    def overwrite(self, blocks: Sequence[int]) -> None:
        """Launch what the blocks' next owner does: it fills them."""

        def fill() -> None:
            for layer in range(LAYERS):
                for block in blocks:
                    self.tensors.write(layer, block, np.full(BLOCK_BYTES, NEXT_OWNER, np.uint8))

        self.engine.run(fill)

    def hold(self) -> None:
        """Do nothing on the device, and afterwards the engine's work first."""
        self.driver.hold()
        self.driver.first = (self.engine.current,)

    def finish(self) -> None:
        """Let the device do everything, and see that it could."""
        self.pages.launch()
        self.driver.go()
        self.driver.until(lambda: not any(self.driver._queues.values()), "the end of the device's work")
        assert self.driver.violations == []

    def arrived(self, blocks: Sequence[int], first: int = 0) -> bool:
        """Return whether the forward read what the arena holds."""
        return all(
            np.array_equal(self.read[layer, block], self.manager.layer(first + page, layer, BLOCK_BYTES))
            for layer in range(len(self.names))
            for page, block in enumerate(blocks)
        )

    def until_told(self, count: int) -> list[tuple[Any, ...]]:
        """Return what the Manager was told once there is so much of it."""
        eventually(lambda: len(self.attachment.told) >= count, f"{count} reports")
        return sorted(self.attachment.told)


@pytest.fixture
def rigs() -> Iterator[Any]:
    """Return what makes rigs; the fixture closes them."""
    made: list[Rig] = []

    def make(*arguments: Any, **options: Any) -> Rig:
        made.append(Rig(*arguments, **options))
        made[-1].manager.fill(PAGES)
        return made[-1]

    yield make
    for rig in made:
        rig.close()


@pytest.mark.parametrize("hooks", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_forward_reads_restored_bytes_without_a_wait_of_the_host(rigs: Any, seed: int, hooks: bool) -> None:
    """With hooks layer by layer (piecewise and eager), without them as a whole (a replayed full graph)."""
    rig = rigs(seed)
    plan = rig.plan(restores=[rig.restore([6, 3], 0, 8), rig.restore([5], 2, 9)])
    rig.hold()
    rig.side.start(plan, hooks=hooks)
    (rig.forward if hooks else rig.replay)([6, 3, 5])
    rig.side.end_step(plan)
    rig.overwrite([3, 5])
    rig.finish()
    assert rig.arrived([6, 3, 5])
    assert rig.until_told(2) == [("restored", 8, True, 2), ("restored", 9, True, 1)]
    assert rig.side.load_errors() == set()
    resumed = rig.side.stats.take()["restore_resume_seconds"]
    assert isinstance(resumed, list)
    assert len(resumed) == 2, "one for each restore"
    for layer in range(LAYERS):
        for block in (3, 5):
            assert (rig.tensors.read(layer, block) == NEXT_OWNER).all(), "a copy came after the block's next owner"


@pytest.mark.parametrize("seed", SEEDS)
def test_the_next_owner_of_a_block_comes_after_its_restore_though_no_hook_ran(rigs: Any, seed: int) -> None:
    """A request that is preempted, or whose hooks were missed, leaves a copy on its way to blocks that are given on."""
    rig = rigs(seed)
    plan = rig.plan(restores=[rig.restore([6, 3])])
    rig.hold()
    rig.side.start(plan, hooks=True)
    rig.replay([6, 3])
    rig.side.end_step(plan)
    rig.overwrite([6, 3])
    rig.finish()
    assert rig.side.load_errors() == {3, 6}
    rig.until_told(1)
    for layer in range(LAYERS):
        for block in (6, 3):
            assert (rig.tensors.read(layer, block) == NEXT_OWNER).all()


@pytest.mark.parametrize("missing", range(LAYERS))
def test_a_hook_that_did_not_run_is_a_load_error(rigs: Any, missing: int) -> None:
    rig = rigs()
    plan = rig.plan(restores=[rig.restore([6], 0, 8), rig.restore([3], 1, 9)])
    rig.hold()
    rig.side.start(plan, hooks=True)
    rig.forward([6, 3], skip=missing)
    rig.side.end_step(plan)
    assert rig.side.load_errors() == {3, 6}
    assert rig.side.stats.take()["load_unwaited"] == 2
    rig.finish()


@pytest.mark.parametrize("hooks", [True, False])
def test_restored_pages_wait_for_the_forward_that_still_reads_them(rigs: Any, hooks: bool) -> None:
    rig = rigs()
    rig.tensors.scramble()
    before = {(layer, 3): rig.tensors.read(layer, 3) for layer in range(LAYERS)}
    rig.driver.hold()
    rig.driver.first = tuple(rig.driver.streams(rig.driver.priorities()[1]))  # the copies' stream
    earlier: Reads = {}
    rig.replay([3], earlier)
    plan = rig.plan(restores=[rig.restore([3])])
    rig.side.start(plan, hooks=hooks)
    (rig.forward if hooks else rig.replay)([3])
    rig.side.end_step(plan)
    rig.finish()
    assert all(np.array_equal(earlier[place], before[place]) for place in before)
    assert rig.arrived([3])


@pytest.mark.parametrize("seed", SEEDS)
def test_a_publish_reads_what_the_forward_wrote(rigs: Any, seed: int) -> None:
    rig = rigs(seed)
    rig.driver.hold()
    rig.driver.first = tuple(rig.driver.streams(LOWEST))
    content = [np.full(BLOCK_BYTES, 10 + layer, np.uint8) for layer in range(LAYERS)]
    for layer in range(LAYERS):
        rig.engine.run(lambda at=layer: rig.tensors.write(at, 5, content[at]))
    places = (np.zeros(1, np.uint64),)
    publish = PublishPlan(5, 77, np.zeros(1, np.uint32), np.array([5], np.int64), places)
    rig.side.end_step(rig.plan(publishes=[publish]))
    rig.finish()
    assert rig.until_told(1) == [("committed", 77, [(0, 1)])]
    for layer in range(LAYERS):
        assert np.array_equal(rig.manager.layer(0, layer, BLOCK_BYTES), content[layer])


@pytest.mark.parametrize("after", [0, 1])
def test_a_group_that_fails_reports_each_of_its_leases(rigs: Any, after: int) -> None:
    """With its first step, or with what is handed over after it: the two others, which are short."""
    rig = rigs()
    plan = rig.plan(restores=[rig.restore([6, 4], 0, 8), rig.restore([3], 2, 9)])
    rig.driver.fail("copy_batch", after)
    rig.side.start(plan, hooks=True)
    rig.forward([6, 4, 3])
    rig.side.end_step(plan)
    assert rig.side.load_errors() == {3, 4, 6}
    assert rig.until_told(2) == [("restored", 8, False, 2), ("restored", 9, False, 1)]
    rig.driver.fail("record")
    rig.side.start(plan, hooks=False)
    rig.side.end_step(plan)
    assert rig.side.load_errors() == {3, 4, 6}, "its fence could not be taken"
    assert len(rig.until_told(4)) == 4


def test_a_device_that_faulted_ends_the_engine_at_its_next_step(rigs: Any) -> None:
    """Its pages' content is unknown, and no lease that a copy may still read is reported (I8)."""
    rig = rigs()
    plan = rig.plan(restores=[rig.restore([6])])
    rig.hold()
    rig.side.start(plan, hooks=True)
    rig.forward([6])
    rig.side.end_step(plan)
    rig.driver.break_now()
    eventually(lambda: rig.backend._common.fault is not None, "the fault is noted")
    with pytest.raises(EngineFault):
        rig.side.end_step(rig.plan())
    assert rig.attachment.told == []
    rig.side.start(plan, hooks=False)
    assert rig.side.load_errors() == {6}, "nothing more is submitted"


@pytest.mark.parametrize("hooks", [True, False])
@pytest.mark.parametrize(("fault", "differs"), [("corrupt-restore", True), ("poison-destination", False)])
def test_injected_faults_do_what_they_say(rigs: Any, fault: str, differs: bool, hooks: bool) -> None:
    rig = rigs(extra={"orbitkv.fault_injection": fault})
    if differs:
        rig.pages.stream, rig.pages.prompt = rig.engine.current, True  # as the engine's thread would
    plan = rig.plan(restores=[rig.restore([6])])
    rig.side.start(plan, hooks=hooks)
    (rig.forward if hooks else rig.replay)([6])
    rig.side.end_step(plan)
    rig.finish()
    assert rig.arrived([6]) is not differs
    rig.replay([6])
    rig.finish()
    assert rig.arrived([6]) is not differs


def test_the_golden_round_trip_settles_what_it_wrote_before_it_is_copied(rigs: Any) -> None:
    """Copies go first wherever they can, and no fence knows of the stream that the pattern is written on."""
    rig = rigs()
    rig.driver.first = (*rig.driver.streams(LOWEST), *rig.driver.streams(rig.driver.priorities()[1]))
    rig.side.begin()
    assert rig.side.proven == rig.manager.incarnation
    assert not rig.tensors.memory.any(), "the spare blocks are blank again"
    rig.side.end_step(rig.plan(golden=GoldenLoan(3, 4, 5)))
    eventually(lambda: bool(rig.side._report), "the loan is answered")
    assert rig.side.report().golden == {3: (1, GoldenResult.PASSED)}


def test_the_golden_round_trip_waits_for_what_may_still_write_its_blocks(rigs: Any) -> None:
    """The blocks were free when they were lent, for a scheduler that is ahead of the device."""
    rig = rigs()
    rig.side.begin()
    rig.driver.hold(rig.engine.current)
    rig.engine.run(lambda: rig.tensors.write(0, 4, np.full(BLOCK_BYTES, NEXT_OWNER, np.uint8)))
    settle = rig.pages.settle

    def settle_all() -> None:
        rig.driver.go()
        rig.driver.until(lambda: not rig.driver.entries(rig.engine.current), "the forward's end")
        settle()

    rig.pages.settle = settle_all
    rig.pages.prompt, rig.driver.first = True, (rig.pages.stream,)
    rig.side.end_step(rig.plan(golden=GoldenLoan(3, 4, 5)))
    eventually(lambda: bool(rig.side._report), "the loan is answered")
    assert rig.side.report().golden == {3: (1, GoldenResult.PASSED)}


def test_a_round_trip_needs_no_manager_and_locks_memory_of_its_own(rigs: Any) -> None:
    rig = rigs()
    before = dict(rig.driver.registered)
    backend = rig.choice.make()
    assert TensorCheck(backend, rig.layout, rig.pages, 30.0).run(1, 2) is GoldenResult.PASSED
    backend.close()
    assert rig.driver.registered == before
    rig.tensors.shift = 64  # The engine's own view begins elsewhere than the addresses that copies use.
    backend = rig.choice.make()
    assert TensorCheck(backend, rig.layout, rig.pages, 30.0).run(1, 2) is GoldenResult.MISMATCH
    backend.close()


def test_a_golden_copy_on_a_device_that_faulted_ends_the_engines_start(rigs: Any) -> None:
    """Its blocks stay as they are: the copy may still write them."""
    rig = rigs()
    blank = threading.Event()
    rig.pages.settle = blank.set  # the device does nothing, so nothing settles
    rig.driver.hold()
    rig.driver.fail("synchronize", broken=True)
    with pytest.raises(EngineFault):
        rig.side.begin()
    assert blank.is_set()


class FalseDigests:
    """A verifier that finds the pages wrong whose positions it is told."""

    def __init__(self, bad: Sequence[int]) -> None:
        self.bad = np.array(bad, np.int64)

    def prepare(self, group: Any) -> Any:
        return group

    def before_publish(self, *_: Any) -> int:
        return 0

    def after_restore(self, *_: Any) -> int:
        return 0

    def result(self, _: Any) -> npt.NDArray[np.int64]:
        return self.bad

    def release(self, _: Any) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.mark.parametrize("hooks", [True, False])
def test_a_page_with_another_digest_is_a_load_error_of_its_own(rigs: Any, hooks: bool) -> None:
    """The second page of the first restore and the only one of the second are wrong. The digests' layer has no hook."""

    def verified(rig: Rig) -> TransferBackend:
        last = replace(rig.layout.layers[-1], name=DIGEST_LAYER)
        rig.layout = replace(rig.layout, layers=(*rig.layout.layers[:-1], last))
        return DeviceBackend(rig.engine.site, DirectMover(rig.driver), verifier=FalseDigests([1, 2]))

    rig = rigs(backend=verified)
    plan = rig.plan(restores=[rig.restore([6, 4], 0, 7), rig.restore([3], 2, 8), rig.restore([5], 3, 9)])
    rig.side.start(plan, hooks=hooks)
    (rig.forward if hooks else rig.replay)([6, 4, 3, 5])
    rig.side.end_step(plan)
    assert rig.side.load_errors() == {4, 3}
    assert rig.until_told(3) == [("restored", 7, False, 2), ("restored", 8, False, 1), ("restored", 9, True, 1)]
    assert "load_unwaited" not in rig.side.stats.take()


def test_a_choice_on_a_device_says_where_in_one_line(
    rigs: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = rigs()
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/somewhere")
    with caplog.at_level(logging.INFO, "orbitkv.adapter"):
        choice = BackendChoice(rig.settings, rig.layout, replace(rig.engine.site, numa=1))
    assert (choice.name, choice.writer) == ("direct", "cuda_shared")
    assert len(caplog.messages) == 1
    assert "direct backend on CUDA device 0 (0000:00:00.0), NUMA node 1" in caplog.messages[0]
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY")
    monkeypatch.setattr("orbitkv.adapter.backends.may_share_device", lambda: False)
    assert BackendChoice(rig.settings, rig.layout, rig.engine.site).writer == "cuda"
