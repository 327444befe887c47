"""The device backend when calls fail, the device breaks or stands still: ends are told once, or never when unknown."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

from harness.device import LIMIT_S
from harness.device_rig import BLOCKS, Rig, Stop
from orbitkv.errors import ConfigurationError, DeviceError, EngineFault, TransferError, TransferStalled
from orbitkv.transfer import (
    STALL_SECONDS,
    CopyPlan,
    Restore,
    Transfer,
    _device,
    _publishes,
    choose_backend,
    make_backend,
)
from orbitkv.transfer._calibrate import Rates
from orbitkv.transfer._mover import Group

Bytes = npt.NDArray[np.uint8]


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig(held=True) as made:
        yield made


def works(rig: Rig) -> None:
    """A copy there and one back succeed."""
    plan = rig.plan([20], [20])
    wanted = rig.held_slices(plan)
    assert rig.publish(plan).wait_all(LIMIT_S)
    back = rig.plan([21], [20])
    assert rig.restore(back)[0].wait_all(LIMIT_S)
    assert (rig.held_slices(back) == wanted).all()
    rig.backend.check()


def test_what_was_begun_but_not_handed_over_is_reported_although_the_device_faults(rig: Rig) -> None:
    """Its pages are as they were, so its extents need not stay reserved."""
    stop = Stop()

    def before(call: str, group: Group, _: int) -> None:
        if call == "prepare" and group.blocks[0] == 4:
            stop.here()

    rig.mover.before = before
    (lost,) = rig.restore(rig.plan([3], [1]))
    (clean,) = rig.restore(rig.plan([4], [2]))
    assert stop.reached.wait(LIMIT_S)
    rig.driver.break_now()
    with pytest.raises(EngineFault):
        lost.wait_all(LIMIT_S)
    stop.go.set()
    assert not clean.wait_all(LIMIT_S)
    assert not lost.done


@pytest.mark.parametrize("kind", ["restore", "publish"])
@pytest.mark.parametrize("call", ["record", "create_event"])
def test_a_fault_at_the_fence_refuses_the_plan(rig: Rig, kind: str, call: str) -> None:
    rig.driver.fail(call)
    with pytest.raises(DeviceError, match="by the test"):
        rig.restore(rig.plan([3], [1])) if kind == "restore" else rig.publish(rig.plan([3], [1]))
    rig.driver.go()
    works(rig)
    assert len(rig.ended) == 2


@pytest.mark.parametrize(
    "fault", [DeviceError("call", 1, "by the test"), OSError("by the test"), KeyError("by the test")]
)
@pytest.mark.parametrize("kind", ["restore", "publish"])
def test_a_fault_before_anything_was_handed_over_fails_the_plan_alone(rig: Rig, kind: str, fault: Exception) -> None:
    def before(call: str, group: Group, _: int) -> None:
        if call == "prepare" and group.blocks[0] == 3:
            raise fault

    rig.mover.before = before
    plan = rig.plan([3, 4], [1, 2])
    transfer: Transfer = rig.restore(plan)[0] if kind == "restore" else rig.publish(plan)
    assert transfer.wait_all(LIMIT_S) is False
    if isinstance(transfer, Restore):
        assert not transfer.wait_layer(0, LIMIT_S)
        assert not transfer.join(LIMIT_S)
    assert rig.driver.entries(rig.engine.current) == ["record"], "nobody waits for what never was on its way"
    rig.driver.go()
    works(rig)
    assert rig.ended.count(transfer) == 1


@pytest.mark.parametrize(
    ("call", "after", "layers"), [("copy_batch", 0, 0), ("copy_batch", 3, 3), ("record", 2, 2), ("record", 4, 4)]
)
def test_a_restore_that_fails_in_the_middle_ends_after_what_was_handed_over(
    rig: Rig, call: str, after: int, layers: int
) -> None:
    plan, other = rig.plan([3, 4], [1, 2]), rig.plan([9], [5])
    stop = Stop()
    rig.mover.before = lambda name, _, __: stop.here() if name == "prepare" and not stop.go.is_set() else None
    restores = rig.restore(plan, other)
    assert stop.reached.wait(LIMIT_S)
    rig.driver.fail(call, after)
    stop.go.set()
    for restore in restores:
        assert all(restore.wait_layer(layer, LIMIT_S) for layer in range(layers))
        assert not restore.wait_layer(layers, LIMIT_S)
        assert not restore.join(LIMIT_S)
        assert not restore.done, "copies of it may run"
    new = np.random.default_rng(5).integers(0, 256, rig.held_slices(plan).shape, np.uint8)
    rig.engine.run(lambda: rig.memory.write(plan.blocks, new))
    rig.driver.first = (rig.engine.current,)
    rig.driver.go()
    for restore in restores:
        assert restore.wait_all(LIMIT_S) is False
        assert restore.times is None
    rig.driver.hold()
    assert rig.driver.drain() == 0
    assert (rig.held_slices(plan) == new).all(), "a copy wrote over what the engine computed after the join"
    rig.driver.go()
    works(rig)
    assert [rig.ended.count(each) for each in restores] == [1, 1]


@pytest.mark.parametrize(("call", "after"), [("copy_batch", 0), ("copy_batch", 1), ("record", 0), ("record", 1)])
def test_a_publish_that_fails_in_the_middle_ends_after_what_was_handed_over(
    rig: Rig, call: str, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_publishes, "PUBLISH_CHUNK_BYTES", 1)
    stop = Stop()
    rig.mover.before = lambda name, _, __: stop.here() if name == "prepare" and not stop.go.is_set() else None
    publish = rig.publish(rig.plan(range(4), range(4)))
    assert stop.reached.wait(LIMIT_S)
    rig.driver.fail(call, after)
    stop.go.set()
    rig.driver.until(
        lambda: rig.driver.pending(rig.save, "record") == 1 + after, "the event after what was handed over"
    )
    assert not publish.done
    rig.driver.go()
    assert publish.wait_all(LIMIT_S) is False
    works(rig)
    assert rig.ended.count(publish) == 1


@pytest.mark.parametrize("kind", ["restore", "publish"])
def test_a_device_that_breaks_leaves_no_end_and_ends_the_engine(rig: Rig, kind: str) -> None:
    restores, transfer = list[Restore](), None
    if kind == "restore":
        restores = rig.restore(rig.plan([3], [1]), rig.plan([4], [2]))
        rig.handed()
    else:
        transfer = rig.publish(rig.plan([3], [1]))
        rig.driver.until(lambda: rig.driver.pending(rig.save, "record") == 1, "the chunk")
    lost = [*restores, *([transfer] if transfer is not None else [])]
    stop = Stop()
    rig.mover.before = lambda *_: stop.here()
    (queued,) = rig.restore(rig.plan([9], [5]))
    assert stop.reached.wait(LIMIT_S)
    rig.driver.break_now()
    for each in lost:
        with pytest.raises(EngineFault, match="faulted"):
            each.wait_all(LIMIT_S)
    for restore in restores:
        with pytest.raises(EngineFault, match="faulted"):
            restore.wait_layer(0, LIMIT_S)
        with pytest.raises(EngineFault, match="faulted"):
            restore.join(LIMIT_S)
    with pytest.raises(EngineFault, match="restart the engine"):
        rig.backend.check()
    for submit in (lambda: rig.restore(rig.plan([9], [5])), lambda: rig.publish(rig.plan([9], [5]))):
        with pytest.raises(TransferError, match="nothing more is copied"):
            submit()
    stop.go.set()
    rig.backend.unregister_arena(0)
    rig.backend.close()
    assert not any(each.done for each in lost)
    assert not any(each in rig.ended for each in lost), "its extents would be used again"
    assert rig.driver.registered, "the device may still use the arena"
    assert queued.done or not queued.layer_ready(0)


def test_a_fault_seen_in_one_direction_leaves_no_end_in_the_other(rig: Rig) -> None:
    """After a fault no event of the device says anything any more, even one that passes."""
    stop = Stop()
    rig.mover.before = lambda call, _, __: stop.here() if call == "pages" else None
    publish = rig.publish(rig.plan([3], [1]))
    assert stop.reached.wait(LIMIT_S)
    (restore,) = rig.restore(rig.plan([4], [2]))
    rig.handed()
    rig.driver.until(lambda: rig.driver.calls[-1][:2] == ("orbitkv-restored", "synchronize"), "the watcher waits")
    rig.driver.fail("synchronize")
    stop.go.set()
    with pytest.raises(EngineFault, match="a publish of 1 pages ran"):
        publish.wait_all(LIMIT_S)
    rig.driver.go()
    with pytest.raises(EngineFault, match="a publish of 1 pages ran"):
        restore.wait_all(LIMIT_S)
    rig.backend.close()
    assert not rig.ended
    assert rig.driver.registered, "the device may still use the arena"
    assert _device.KEPT[-1].fault is not None, "nor is its memory unmapped when the backend goes"


def test_what_waits_when_the_device_breaks_fails_cleanly(rig: Rig) -> None:
    """Nothing of it was handed over, so its end is known."""
    stop = Stop()
    rig.mover.before = lambda *_: stop.here()
    first, second = rig.restore(rig.plan([3], [1])), rig.restore(rig.plan([4], [2]))
    assert stop.reached.wait(LIMIT_S)
    publish = rig.publish(rig.plan([9], [5]))
    rig.driver.break_now()
    stop.go.set()
    assert [each.wait_all(LIMIT_S) for each in (*first, *second, publish)] == [False] * 3
    assert len(rig.ended) == 3


@pytest.mark.parametrize("kind", ["restore", "publish"])
def test_a_device_that_stands_still_is_seen_by_the_check(rig: Rig, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(rig.backend, "_clock", lambda: time.monotonic() + now[0])
    transfer: Transfer
    if kind == "restore":
        (transfer,) = rig.restore(rig.plan([3], [1]))
    else:
        transfer = rig.publish(rig.plan([3], [1]))
        rig.driver.until(lambda: rig.driver.pending(rig.save, "record") == 1, "the chunk")
    rig.backend.check()
    now[0] = STALL_SECONDS + 1
    with pytest.raises(TransferStalled, match="has not ended"):
        rig.backend.check()
    with pytest.raises(TransferStalled, match="did not end"):
        transfer.wait_all(0.0)
    rig.driver.go()
    assert transfer.wait_all(LIMIT_S)
    rig.driver.until(lambda: transfer in rig.ended, "the end")
    with rig.driver.changed:
        rig.driver.hold()
    rig.backend.close()
    rig.backend.check()


def test_waits_stall_when_a_group_is_not_handed_over(rig: Rig) -> None:
    stop = Stop()
    rig.mover.before = lambda *_: stop.here()
    (restore,) = rig.restore(rig.plan([3], [1]))
    with pytest.raises(TransferStalled, match="layer 0"):
        restore.wait_layer(0, 0.0)
    with pytest.raises(TransferStalled, match="handed over"):
        restore.join(0.0)
    stop.go.set()
    assert restore.join(LIMIT_S)


def test_closing_gives_up_on_a_device_that_stands_still(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orbitkv.transfer._device.STALL_SECONDS", 0.05)
    (restore,) = rig.restore(rig.plan([3], [1]))
    rig.handed()
    rig.backend.close()
    assert not restore.done
    assert rig.driver.registered, "copies may still use it"
    rig.driver.go()
    assert restore.wait_all(LIMIT_S)


def test_an_engine_that_cannot_be_made_to_wait_must_end(rig: Rig) -> None:
    (restore,) = rig.restore(rig.plan([3], [1]))
    assert restore.wait_layer(4, LIMIT_S)
    other = rig.restore(rig.plan([4], [1]))[0]
    rig.handed(2)
    rig.driver.fail("wait")
    with pytest.raises(EngineFault, match="cannot be made to wait"):
        other.join(LIMIT_S)


@pytest.mark.parametrize("fault", [OSError, KeyError, TypeError, ZeroDivisionError])
def test_threads_outlive_whoever_is_told(rig: Rig, fault: type[Exception]) -> None:
    def raising(_: Transfer) -> None:
        raise fault("by the test")

    rig.driver.go()
    assert rig.backend.restore([rig.plan([3], [1])], on_done=raising)[0].wait_all(LIMIT_S)
    assert rig.backend.publish(rig.plan([3], [1]), on_done=raising).wait_all(LIMIT_S)
    works(rig)


class Digests:
    """A verifier that says what a test tells it, and notes what it was asked."""

    def __init__(self, bad: list[int]) -> None:
        self.bad = bad
        self.asked: list[str] = []

    def prepare(self, group: Group) -> Group:
        self.asked.append("prepare")
        return group

    def before_publish(self, checked: Group, first: int, past: int, stream: int) -> int:
        del checked, stream
        self.asked.append(f"publish {first} {past}")
        return 1

    def after_restore(self, checked: Group, stream: int) -> int:
        del checked, stream
        self.asked.append("restore")
        return 1

    def result(self, checked: Group) -> npt.NDArray[np.int64]:
        del checked
        return np.array(self.bad, np.int64)

    def release(self, checked: Group) -> None:
        del checked
        self.asked.append("release")

    def close(self) -> None:
        self.asked.append("close")


def test_pages_that_a_verifier_refuses_fail_their_plans_alone() -> None:
    digests = Digests([2, 4])
    with Rig(verifier=digests) as rig:
        rig.mover.before = lambda call, _, at: digests.asked.append(f"{call} {at}")
        good, bad, last = rig.restore(rig.plan([3, 4], [1, 2]), rig.plan([5, 6, 7], [3, 4, 5]), rig.plan([8], [6]))
        assert good.wait_all(LIMIT_S)
        assert bad.wait_all(LIMIT_S) is False
        assert last.wait_all(LIMIT_S)
        assert [each.bad.tolist() for each in (good, bad, last)] == [[], [0, 2], []]
        rig.driver.until(lambda: rig.mover.released == 1, "the end")
        assert rig.publish(rig.plan([3, 4], [1, 2])).wait_all(LIMIT_S)
    steps = [f"step {step}" for step in range(5)]
    wanted = ["prepare 0", "prepare", *steps, "restore", "release", "prepare 0", "prepare", "publish 0 2", "pages 0"]
    assert digests.asked == [*wanted, "release", "close"]


@dataclass
class Running:
    """A transfer of the model: whose pages it has, and what they must hold at its end."""

    transfer: Transfer
    plan: CopyPlan
    content: Bytes
    places: list[int]


class Model:
    """Submits, settles and breaks at random. Blocks and places belong to one transfer at a time."""

    CALLS = ("copy_batch", "copy_strided", "record", "wait", "create_event", "synchronize")

    def __init__(self, rig: Rig, seed: int, faulty: int) -> None:
        self.rig = rig
        self.seed = seed
        self.rng = np.random.default_rng(seed)
        self.faulty = faulty  # of the calls, the first so many may fail
        self.blocks, self.places = set(range(BLOCKS)), set(range(BLOCKS))
        self.running: list[Running] = []
        self.submitted = self.right = self.failed = self.refused = 0
        self.lost: list[Transfer] = []

    def take(self, free: set[int], count: int) -> list[int]:
        chosen = [int(each) for each in self.rng.permutation(sorted(free))[:count]]
        free.difference_update(chosen)
        return chosen

    def submit(self) -> None:
        sizes = self.rng.integers(1, 4, int(self.rng.integers(1, 4)))
        if sizes.sum() > min(len(self.blocks), len(self.places)):
            return
        chosen = [(self.take(self.blocks, int(n)), self.take(self.places, int(n))) for n in sizes]
        plans = [self.rig.plan(*each) for each in chosen]
        restore = self.rng.random() < 0.6
        if not restore:
            for plan in plans:
                self.rig.memory.write(
                    plan.blocks, self.rng.integers(0, 256, self.rig.held_slices(plan).shape, np.uint8)
                )
        contents = [self.rig.stored(plan) if restore else self.rig.held_slices(plan) for plan in plans]
        transfers: list[Transfer | None] = []
        try:
            if restore:
                transfers.extend(self.rig.restore(*plans))
            else:
                for plan in plans:
                    transfers.append(None)
                    transfers[-1] = self.rig.publish(plan)
        except TransferError:
            self.refused += 1
        transfers += [None] * (len(plans) - len(transfers))
        for transfer, plan, content, (blocks, places) in zip(transfers, plans, contents, chosen, strict=True):
            if transfer is None:
                self.give(blocks, places)
            else:
                self.submitted += 1
                self.running.append(Running(transfer, plan, content, places))

    def give(self, blocks: Sequence[int], places: Sequence[int]) -> None:
        self.blocks.update(blocks)
        self.places.update(places)

    def settle(self) -> None:
        one = self.running.pop(int(self.rng.integers(len(self.running))))
        if isinstance(one.transfer, Restore) and self.rng.random() < 0.5:
            with suppress(EngineFault):  # The engine would end. Its copies do, too, and are told.
                one.transfer.wait_layer(int(self.rng.integers(8)), LIMIT_S)
                one.transfer.join(LIMIT_S)
        try:
            arrived = one.transfer.wait_all(LIMIT_S)
        except EngineFault:
            self.lost.append(one.transfer)
            return
        if arrived:
            restore = isinstance(one.transfer, Restore)
            now = self.rig.held_slices(one.plan) if restore else self.rig.stored(one.plan)
            assert (now == one.content).all(), f"seed {self.seed}, transfer {self.submitted}"
        self.right += arrived
        self.failed += not arrived
        self.give(one.plan.blocks.tolist(), one.places)

    def run(self, count: int) -> None:
        for _ in range(count):
            if self.faulty and self.rng.random() < 0.1:
                call = self.CALLS[int(self.rng.integers(self.faulty))]
                self.rig.driver.fail(call, int(self.rng.integers(0, 30)))
            if self.running and self.rng.random() < 0.55:
                self.settle()
            elif not self.lost:
                self.submit()
        while self.running:
            self.settle()

    def judge(self) -> None:
        told = self.rig.ended
        assert len(told) == len({id(each) for each in told}), f"seed {self.seed}: an end was told twice"
        assert not {id(each) for each in self.lost} & {id(each) for each in told}, (
            f"seed {self.seed}: unknown, and told"
        )
        assert len(told) + len(self.lost) == self.submitted, f"seed {self.seed}"
        assert self.right + self.failed + len(self.lost) == self.submitted
        assert self.right > 0


FIRST = (0, 5, 1024)  # operations of a restore that its caller hands over: none, some, all
UNIT = (1, 20000, 1 << 30)  # bytes of a unit: one step, some, all but the first


def test_every_end_is_told_once_under_random_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restores, publishes and failing calls in any order: bytes are right, or the plan failed, or nobody knows."""
    monkeypatch.setattr(_publishes, "YIELD_SECONDS", 0.001)
    failed = lost = refused = 0
    for seed in range(16):
        # Four runs without faults, eight whose calls fail, four whose device may break as well.
        faulty = 0 if seed % 4 == 0 else 6 if seed % 4 == 3 else 5
        with Rig("split K and V", seed, first_operations=FIRST[seed % 3], unit_bytes=UNIT[seed // 3 % 3]) as rig:
            monkeypatch.setattr(_publishes, "PUBLISH_CHUNK_BYTES", 2 * rig.memory.layout.slice_bytes)
            model = Model(rig, seed, faulty)
            model.run(250)
            rig.driver.forgive()
            rig.backend.close()
            model.judge()
            if not model.lost:
                rig.backend.check()
                assert rig.driver.events_alive == 0, f"seed {seed}: events are left"
            assert faulty or (model.failed, model.refused) == (0, 0)
            failed, lost, refused = failed + model.failed, lost + len(model.lost), refused + model.refused
    assert min(failed, lost, refused) > 0, "the schedules were too kind"


def test_a_backend_is_chosen_by_where_the_kv_lies_and_what_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    with Rig() as rig:
        layout, site = rig.memory.layout, rig.engine.site
        assert choose_backend("auto", layout, None) == choose_backend("host", layout, None) == "host"
        assert choose_backend("direct", layout, site) == "direct"
        assert choose_backend("kernel", layout, site) == "kernel"
        for setting, where, words in (
            ("direct", None, "host memory.*'auto'"),
            ("kernel", None, "host memory.*'auto'"),
            ("host", site, "CUDA device 0.*'auto'"),
            ("warp", site, "auto, host, direct, kernel"),
        ):
            with pytest.raises(ConfigurationError, match=words):
                choose_backend(setting, layout, where)
        for batch, installed, wanted in ((0.9, True, "direct"), (0.3, True, "kernel"), (0.3, False, "direct")):
            monkeypatch.setattr("orbitkv.transfer.measure", lambda *_, batch=batch: Rates(1e9, batch * 1e9))
            found = object() if installed else None
            monkeypatch.setattr("importlib.util.find_spec", lambda _, found=found: found)
            assert choose_backend("auto", layout, site) == wanted

        def no_room(*_: object) -> Rates:
            raise DeviceError("cuMemAlloc", 2, "out of memory")

        monkeypatch.setattr("orbitkv.transfer.measure", no_room)
        assert choose_backend("auto", layout, site) == "direct"


def test_backends_are_made_by_name() -> None:
    with Rig() as rig:
        layout, site = rig.memory.layout, rig.engine.site
        backend = make_backend("direct", layout=layout, site=site)
        assert backend.name == "direct"
        backend.close()
        with pytest.raises(ConfigurationError, match="needs a CUDA device"):
            make_backend("direct", layout=layout)
        with pytest.raises(ConfigurationError, match="host, direct, kernel"):
            make_backend("warp", layout=layout, site=site)
        with pytest.raises(ConfigurationError, match=r"torch and triton.*'direct'"):
            make_backend("kernel", layout=layout, site=site)
