"""The worker side over the real host backend: bytes, layer waits, load errors, reports and the golden round trip."""

from __future__ import annotations

import logging
import threading
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest

from harness.fakes import FakeManager, FakeTensors
from orbitkv.adapter.attachment import Attachment, RankPlace
from orbitkv.adapter.backends import BackendChoice
from orbitkv.adapter.golden import GoldenResult
from orbitkv.adapter.plans import PublishPlan, RestorePlan, SlicePlace
from orbitkv.adapter.reports import Report
from orbitkv.adapter.settings import read_settings
from orbitkv.client import CacheManagerClient
from orbitkv.errors import ChannelClosed, ConfigurationError
from orbitkv.timeline import Timeline, parse
from orbitkv.transfer import HostBackend, Publish, Restore, Transfer
from orbitkv.vllm.plans import GoldenLoan, StepPlan, StepReport
from orbitkv.vllm.worker import EngineLayers, WorkerSide

LAYERS, BLOCKS, BLOCK_BYTES = 3, 8, 4096
SLICE_BYTES = LAYERS * BLOCK_BYTES
WAIT_SECONDS = 30.0


class Gatekeeper:
    """Holds the copying thread before a layer until the test lets it go."""

    def __init__(self) -> None:
        self.held_layer = -1
        self.held_kind: type[Transfer] = Transfer
        self.reached = threading.Event()
        self.go = threading.Event()

    def __call__(self, transfer: Transfer, layer: int) -> None:
        if layer == self.held_layer and isinstance(transfer, self.held_kind):
            self.reached.set()
            assert self.go.wait(WAIT_SECONDS)


class Rig:
    """One worker side, its engine tensors and a Manager in memory."""

    def __init__(
        self,
        extra: dict[str, object] | None = None,
        storage: bool = True,
        timeline: Timeline = Timeline("test", False),  # noqa: B008 - it has no state
    ) -> None:
        self.tensors = FakeTensors(LAYERS, BLOCKS, BLOCK_BYTES)
        self.manager = FakeManager(SLICE_BYTES)
        self.gate = Gatekeeper()
        self.backend = HostBackend(before_layer=self.gate)
        self.backend.register_arena(self.manager.arena)
        layers = EngineLayers(self.tensors.layout, self.tensors, {f"l{i}": i for i in range(LAYERS)} | {"twin": 0})
        place = RankPlace("engine-1", 0, 1, storage)
        self.attachment = FakeAttachment(self)
        self.side = WorkerSide(
            read_settings(extra or {}, {}),
            place,
            layers,
            {},
            timeline,
            connect=lambda _: cast(Attachment, self.attachment),
        )

    def plan(self, **work: Any) -> StepPlan:
        """Return a step's plan for this Manager's life."""
        return StepPlan(self.manager.incarnation, 0, (SlicePlace(0, 0, 0, SLICE_BYTES),), **work)

    def restore(self, blocks: list[int], lease: int = 9) -> RestorePlan:
        """Return a restore of pages 0, 1, ... of the arena."""
        return RestorePlan("r", lease, np.array(blocks, np.int64), (self.places(len(blocks)),))

    def publish(self, blocks: list[int], ticket: int = 5) -> PublishPlan:
        """Return a publish into pages 0, 1, ... of the arena."""
        ordinals = np.arange(len(blocks), dtype=np.uint32)
        return PublishPlan(ticket, 77, ordinals, np.array(blocks, np.int64), (self.places(len(blocks)),))

    def places(self, pages: int) -> npt.NDArray[np.uint64]:
        """Return where pages 0, 1, ... lie."""
        return np.arange(pages, dtype=np.uint64) * np.uint64(self.manager.page_bytes)

    def until_report(self) -> StepReport:
        """Step without work until something is reported."""
        report = StepReport()
        while not report:
            self.side.end_step(StepPlan())
            report = self.side.report()
        return report

    def close(self) -> None:
        """End the threads."""
        self.gate.go.set()
        self.side.close()
        self.backend.close()


class FakeAttachment:
    """An attached session over the rig's backend."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.client = rig.manager
        self.backend = rig.backend
        self.incarnation = rig.manager.incarnation
        self.alive = True
        self.attached = True
        self.told: list[tuple[Any, ...]] = []
        self.told_first = True

    def advance(self) -> bool:
        return True

    def tell(self, report: Report) -> None:
        report.send(cast(CacheManagerClient, self.client))

    def restored(self, lease: int, ok: bool, ranges: tuple[tuple[int, int], ...]) -> None:
        self.told.append(("restored", lease, ok, sum(count for _, count in ranges)))

    def committed(self, reservation: int, ranges: list[tuple[int, int]]) -> None:
        self.told_first = self.told_first and not self.rig.side._report
        self.told.append(("committed", reservation, list(ranges)))

    def abandoned(self, reservation: int, ranges: list[tuple[int, int]]) -> None:
        self.told.append(("abandoned", reservation, list(ranges)))

    def detach(self) -> None:
        self.told.append(("detach",))

    def close(self) -> None:
        self.alive = False


@pytest.fixture
def rig() -> Any:
    """Return a started rig."""
    rig = Rig()
    rig.side.begin()
    yield rig
    rig.close()


def test_the_golden_round_trip_proves_the_tensors_at_start(rig: Rig) -> None:
    assert rig.side.proven == rig.manager.incarnation
    assert rig.manager.private_closed
    assert not rig.tensors.memory.any(), "the spare blocks are blank again"


def test_a_golden_mismatch_refuses_to_start() -> None:
    rig = Rig()
    rig.manager.damage = True
    with pytest.raises(ConfigurationError, match="golden"):
        rig.side.begin()
    rig.close()


def test_a_layout_that_was_read_wrongly_is_a_mismatch() -> None:
    rig = Rig()
    rig.tensors.shift = 64  # The engine's own view begins elsewhere than the addresses that copies use.
    with pytest.raises(ConfigurationError, match="golden"):
        rig.side.begin()
    rig.close()


@pytest.mark.parametrize("arenas", [0, 1])
def test_the_engine_goes_on_once_its_tensors_are_proved_or_cannot_be(
    monkeypatch: pytest.MonkeyPatch, arenas: int
) -> None:
    rig = Rig()
    rig.manager.arenas_there = arenas
    proven: list[bytes] = []
    monkeypatch.setattr(BackendChoice, "serve", lambda _: proven.append(rig.side.proven))
    rig.side.begin()
    assert proven == [rig.manager.incarnation if arenas else b""]
    rig.close()


def test_without_arenas_the_round_trip_is_still_due() -> None:
    rig = Rig()
    rig.manager.arenas_there = 0
    rig.side.begin()
    assert rig.side.proven == b""
    rig.close()


def test_arenas_that_nothing_can_register_refuse_to_start() -> None:
    rig = Rig()
    rig.manager.arenas_there = 0
    rig.manager.arenas_unusable_because = "arena 0 cannot be locked. RLIMIT_MEMLOCK is 64 KiB: raise it."
    with pytest.raises(ConfigurationError, match=r"no hits: arena 0 cannot be locked\. RLIMIT_MEMLOCK is .*raise it"):
        rig.side.begin()
    assert rig.attachment.told == [("detach",)]
    rig.close()


def test_lent_blocks_are_answered_in_a_later_step(rig: Rig) -> None:
    rig.side.end_step(rig.plan(golden=GoldenLoan(3, 4, 5)))
    assert rig.until_report().golden == {3: (1, GoldenResult.PASSED)}


@pytest.mark.parametrize("direction", [Restore, Publish])
def test_a_golden_copy_that_is_late_keeps_its_blocks_until_it_ends(
    caplog: pytest.LogCaptureFixture, direction: type[Transfer]
) -> None:
    """Its destination would be another request's block by then (I2)."""
    rig = Rig({"orbitkv.timeout_ms": 10})
    rig.gate.held_kind, rig.gate.held_layer = direction, 0
    with caplog.at_level(logging.WARNING, "vllm.orbitkv"):
        rig.side._link.start()
        rig.side.end_step(rig.plan(golden=GoldenLoan(3, 4, 5)))
        assert rig.gate.reached.wait(WAIT_SECONDS)
        while "stay lent" not in caplog.text:
            rig.side.end_step(rig.plan())
            assert not rig.side.report(), "the copy has not ended"
    assert rig.tensors.read(1, 4).any(), "nothing is blanked under a copy"
    rig.gate.go.set()
    assert rig.until_report().golden == {3: (1, GoldenResult.PASSED)}
    assert not rig.tensors.memory.any()
    rig.close()


def test_a_loan_ends_when_the_engines_tensors_raise(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("no such block")

    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    monkeypatch.setattr(rig.tensors, "write", refuse)
    rig.side.end_step(rig.plan(golden=GoldenLoan(3, 4, 5)))
    assert rig.until_report().golden == {3: (1, GoldenResult.NOT_RUN)}


def test_a_channel_that_breaks_before_the_golden_round_trip_ends_its_loan(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> int:
        raise ChannelClosed("closed by the test")

    monkeypatch.setattr(rig.manager, "wait_arenas", refuse)
    rig.side.end_step(rig.plan(golden=GoldenLoan(3, 4, 5)))
    assert rig.until_report().golden == {3: (1, GoldenResult.NOT_RUN)}


def test_restored_bytes_are_those_of_the_arena(rig: Rig) -> None:
    rig.manager.fill(2)
    plan = rig.plan(restores=[rig.restore([6, 3])])
    rig.side.start(plan, hooks=True)
    for layer in range(LAYERS):
        rig.side.wait_layer(f"l{layer}")
        for page, block in enumerate((6, 3)):
            assert np.array_equal(rig.tensors.read(layer, block), rig.manager.layer(page, layer, BLOCK_BYTES))
    rig.side.end_step(plan)
    assert rig.side.load_errors() == set()
    assert ("restored", 9, True, 2) in rig.attachment.told
    assert rig.side.stats.take()["load_bytes"] == 2 * SLICE_BYTES


def test_each_layer_waits_for_its_own_bytes(rig: Rig) -> None:
    rig.manager.fill(1)
    rig.gate.held_layer = 1
    plan = rig.plan(restores=[rig.restore([4])])
    rig.side.start(plan, hooks=True)
    rig.side.wait_layer("l0")
    assert rig.gate.reached.wait(WAIT_SECONDS)
    assert np.array_equal(rig.tensors.read(0, 4), rig.manager.layer(0, 0, BLOCK_BYTES)), "layer 0 is usable already"
    assert not rig.tensors.read(1, 4).any()
    passed = threading.Event()

    def pass_layer() -> None:
        rig.side.wait_layer("l1")
        passed.set()

    waiter = threading.Thread(target=pass_layer)
    waiter.start()
    assert not passed.is_set()
    rig.gate.go.set()
    waiter.join(WAIT_SECONDS)
    assert passed.is_set()
    assert np.array_equal(rig.tensors.read(1, 4), rig.manager.layer(0, 1, BLOCK_BYTES))
    rig.side.end_step(plan)


def test_a_forward_without_hooks_begins_after_every_byte(rig: Rig) -> None:
    rig.manager.fill(2)
    rig.gate.held_layer = LAYERS - 1
    plan = rig.plan(restores=[rig.restore([6, 3])])
    started = threading.Event()

    def start() -> None:
        rig.side.start(plan, hooks=False)
        started.set()

    starter = threading.Thread(target=start)
    starter.start()
    assert rig.gate.reached.wait(WAIT_SECONDS)
    assert not started.is_set()
    rig.gate.go.set()
    starter.join(WAIT_SECONDS)
    for layer in range(LAYERS):
        for page, block in enumerate((6, 3)):
            assert np.array_equal(rig.tensors.read(layer, block), rig.manager.layer(page, layer, BLOCK_BYTES))
    rig.side.end_step(plan)
    assert rig.side.load_errors() == set()


@pytest.mark.parametrize("missing", range(LAYERS))
def test_a_layer_whose_hook_did_not_run_is_a_load_error(rig: Rig, missing: int) -> None:
    """Its forward may have read the layer before the bytes: what it computed must not count."""
    rig.manager.fill(2)
    plan = rig.plan(restores=[rig.restore([6], lease=8), rig.restore([3], lease=9)])
    rig.side.start(plan, hooks=True)
    for layer in range(LAYERS):
        if layer != missing:
            rig.side.wait_layer(f"l{layer}")
    rig.side.end_step(plan)
    assert rig.side.load_errors() == {3, 6}
    assert rig.side.stats.take()["load_unwaited"] == 2
    plan = rig.plan(restores=[rig.restore([5])])
    rig.side.start(plan, hooks=True)
    for layer in range(LAYERS):
        rig.side.wait_layer(f"l{layer}")
    rig.side.end_step(plan)
    assert rig.side.load_errors() == set(), "each step is judged by its own hooks"


def test_the_restores_of_a_step_are_one_group(rig: Rig) -> None:
    """The first layer of each comes before the second of any, and each lease has its own report."""
    rig.manager.fill(2)
    rig.gate.held_layer = 1
    plan = rig.plan(restores=[rig.restore([6], lease=8), rig.restore([3], lease=9)])
    rig.side.start(plan, hooks=True)
    assert rig.gate.reached.wait(WAIT_SECONDS)
    rig.side.wait_layer("l0")
    for block in (6, 3):
        assert np.array_equal(rig.tensors.read(0, block), rig.manager.layer(0, 0, BLOCK_BYTES))
    rig.gate.go.set()
    for layer in range(1, LAYERS):
        rig.side.wait_layer(f"l{layer}")
    rig.side.end_step(plan)
    assert rig.side.load_errors() == set()
    assert sorted(rig.attachment.told) == [("restored", 8, True, 1), ("restored", 9, True, 1)]


def test_a_group_that_is_refused_reports_each_of_its_leases(rig: Rig) -> None:
    bad = RestorePlan("r", 9, np.array([3], np.int64), (np.array([1 << 50], np.uint64),))
    plan = rig.plan(restores=[rig.restore([6, 4], lease=8), bad])
    rig.side.start(plan, hooks=True)
    rig.side.end_step(plan)
    assert rig.side.load_errors() == {3, 4, 6}
    assert rig.attachment.told == [("restored", 8, False, 2), ("restored", 9, False, 1)]
    assert rig.side.stats.take()["load_failure"] == 2


def test_a_group_that_fails_reports_each_of_its_leases(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("failed by the test")

    rig.manager.fill(2)
    monkeypatch.setattr(rig.gate, "__class__", type("Failing", (Gatekeeper,), {"__call__": fail}))
    plan = rig.plan(restores=[rig.restore([6], lease=8), rig.restore([3], lease=9)])
    rig.side.start(plan, hooks=True)
    for layer in range(LAYERS):
        rig.side.wait_layer(f"l{layer}")
    rig.side.end_step(plan)
    assert rig.side.load_errors() == {3, 6}
    assert sorted(rig.attachment.told) == [("restored", 8, False, 1), ("restored", 9, False, 1)]


def test_the_end_of_a_restore_says_where_its_time_went(timeline_lines: list[str]) -> None:
    rig = Rig(timeline=Timeline("test", True))
    rig.manager.fill(1)
    rig.side.begin()
    plan = rig.plan(restores=[rig.restore([4])])
    rig.side.start(plan, hooks=False)
    rig.side.end_step(plan)
    rig.close()  # The thread that copied has recorded the end by then.
    ended = [record for line in timeline_lines if (record := parse(line)) and record["stage"] == "gpu_ready"]
    assert [(record["success"], record["pieces"], record["thread"]) for record in ended] == [
        (True, LAYERS, "orbitkv-restore")
    ]
    assert {"build_us", "submit_us", "copies", "first_layer_us", "last_layer_us"} <= ended[0].keys()
    values = rig.side.stats.take()
    for name in ("build_seconds", "submit_seconds", "first_layer_seconds", "last_layer_seconds", "copies", "pieces"):
        assert len(cast(list[float], values[f"restore_{name}"])) == 1


def test_layer_hooks_pass_in_steps_without_restores(rig: Rig) -> None:
    rig.side.wait_layer("l0")
    rig.side.start(rig.plan(), hooks=True)
    rig.side.wait_layer("no such layer")
    rig.side.end_step(rig.plan())
    assert not rig.side.report()


def test_lost_blocks_are_load_errors(rig: Rig) -> None:
    plan = rig.plan(lost=[3, 4])
    rig.side.start(plan, hooks=True)
    assert rig.side.load_errors() == {3, 4}
    assert rig.side.load_errors() == set()


def test_a_restore_of_another_life_of_the_manager_is_recomputed(rig: Rig) -> None:
    plan = StepPlan(b"another", 0, (SlicePlace(0, 0, 0, SLICE_BYTES),), restores=[rig.restore([3, 4])])
    rig.side.start(plan, hooks=True)
    rig.side.end_step(plan)
    assert rig.side.load_errors() == {3, 4}
    assert rig.attachment.told == []


def test_a_restore_outside_of_the_arena_is_recomputed_and_reported(rig: Rig) -> None:
    bad = RestorePlan("r", 9, np.array([3], np.int64), (np.array([1 << 50], np.uint64),))
    plan = rig.plan(restores=[bad])
    rig.side.start(plan, hooks=True)
    rig.side.end_step(plan)
    assert rig.side.load_errors() == {3}
    assert rig.attachment.told == [("restored", 9, False, 1)]


def test_a_restore_finishes_from_the_mapping_of_a_dead_manager(rig: Rig) -> None:
    rig.manager.fill(1)
    rig.attachment.alive = False
    plan = rig.plan(restores=[rig.restore([4])])
    rig.side.start(plan, hooks=False)
    rig.side.end_step(plan)
    assert rig.side.load_errors() == set()
    assert np.array_equal(rig.tensors.read(2, 4), rig.manager.layer(0, 2, BLOCK_BYTES))


def test_published_bytes_are_those_of_the_engine(rig: Rig) -> None:
    rig.tensors.scramble()
    rig.side.end_step(rig.plan(publishes=[rig.publish([5, 2])]))
    assert rig.until_report().copied == {5: 1}
    assert ("committed", 77, [(0, 2)]) in rig.attachment.told
    assert rig.attachment.told_first, "a reservation is claimed until its report is on the way"
    for page, block in enumerate((5, 2)):
        for layer in range(LAYERS):
            assert np.array_equal(rig.manager.layer(page, layer, BLOCK_BYTES), rig.tensors.read(layer, block))


def test_the_step_that_publishes_returns_while_the_copy_is_held(rig: Rig) -> None:
    rig.gate.held_layer = 0
    rig.side.end_step(rig.plan(publishes=[rig.publish([5])]))
    assert rig.gate.reached.wait(WAIT_SECONDS)
    rig.side.end_step(rig.plan())
    assert not rig.side.report(), "its sources are still read"
    rig.gate.go.set()
    assert rig.until_report().copied == {5: 1}


def test_a_dropped_publish_is_abandoned_and_its_sources_go_back(rig: Rig) -> None:
    bad = PublishPlan(5, 77, np.array([4], np.uint32), np.array([5], np.int64), (np.array([1 << 50], np.uint64),))
    rig.side.end_step(rig.plan(publishes=[bad]))
    assert rig.side.report().copied == {5: 1}
    assert rig.attachment.told == [("abandoned", 77, [(4, 1)])]


def test_a_rank_without_storage_gives_sources_back_at_once() -> None:
    rig = Rig(storage=False)
    rig.side.begin()
    rig.side.end_step(rig.plan(publishes=[rig.publish([5])]))
    assert rig.side.report().copied == {5: 1}
    assert rig.attachment.told == []
    rig.close()


def test_a_publish_without_a_manager_gives_sources_back(rig: Rig) -> None:
    rig.side.end_step(StepPlan(b"gone", publishes=[rig.publish([5])]))
    assert rig.side.report().copied == {5: 1}


@pytest.mark.parametrize("hooks", [True, False])
@pytest.mark.parametrize(("fault", "differs"), [("corrupt-restore", True), ("poison-destination", False)])
def test_injected_faults_do_what_they_say(fault: str, differs: bool, hooks: bool) -> None:
    rig = Rig({"orbitkv.fault_injection": fault})
    rig.manager.fill(1)
    rig.side.begin()
    plan = rig.plan(restores=[rig.restore([4])])
    rig.side.start(plan, hooks=hooks)
    for layer in range(LAYERS):
        rig.side.wait_layer(f"l{layer}")
    rig.side.wait_layer("twin")
    rig.side.end_step(plan)
    same = [np.array_equal(rig.tensors.read(i, 4), rig.manager.layer(0, i, BLOCK_BYTES)) for i in range(LAYERS)]
    assert same == [not differs] * LAYERS
    rig.close()


def test_a_skipped_wait_passes_early() -> None:
    rig = Rig({"orbitkv.fault_injection": "skip-layer-wait=1"})
    rig.side.begin()
    rig.manager.fill(1)
    rig.gate.held_layer = 1
    plan = rig.plan(restores=[rig.restore([4])])
    rig.side.start(plan, hooks=True)
    rig.side.wait_layer("l1")
    assert rig.gate.reached.wait(WAIT_SECONDS)
    assert not rig.tensors.read(1, 4).any()
    rig.gate.go.set()
    rig.side.end_step(plan)
    rig.close()
