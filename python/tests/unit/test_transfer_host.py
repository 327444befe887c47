"""The host backend against numpy arrays: exact bytes, order of layers, bounds, overtaking and closing."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from orbitkv._arenas import Arena
from orbitkv.errors import ConfigurationError, TransferError, TransferStalled
from orbitkv.transfer import CopyPlan, HostBackend, KVLayout, Transfer, make_backend

DEADLINE = 60.0
UNIT = 4096
Bytes = npt.NDArray[np.uint8]


class Tensor:
    """The face of a torch tensor over a numpy array."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self.array = array
        self.shape = array.shape

    def stride(self) -> tuple[int, ...]:
        return tuple(n // self.array.itemsize for n in self.array.strides)

    def element_size(self) -> int:
        return self.array.itemsize

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data)


class Engine:
    """KV tensors of a small engine, all layers in one allocation as [layer, block, head, token, content]."""

    def __init__(self, layers: int, blocks: int, inner: tuple[int, int, int] = (2, 16, 24)) -> None:
        self.memory = np.zeros((layers, blocks, *inner), np.float16)
        self.tensors = {f"layer.{i}": Tensor(self.memory[i]) for i in range(layers)}
        self.layout = KVLayout.from_tensors(self.tensors)

    def fill(self, seed: int) -> None:
        raw = self.memory.view(np.uint8)
        raw[...] = np.random.default_rng(seed).integers(0, 256, raw.shape, np.uint8)

    def slices(self, blocks: npt.NDArray[np.int64]) -> Bytes:
        """Return each block's slice as the stored layout has it: layer after layer, unpadded."""
        raw = self.memory.view(np.uint8).reshape(self.memory.shape[0], self.memory.shape[1], -1)
        return np.ascontiguousarray(raw[:, blocks].transpose(1, 0, 2)).reshape(len(blocks), -1)


def arena(number: int, size: int) -> Arena:
    return Arena(number, -1, size, np.full(size, 0xEE, np.uint8))


def padded(size: int) -> int:
    return -(-size // UNIT) * UNIT


def locate(number: int, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    return (np.uint64(number) << np.uint64(48)) | offsets.astype(np.uint64)


def ignore(_: Transfer) -> None:
    return None


def stored(arenas: dict[int, Arena], locations: npt.NDArray[np.uint64], at: int, size: int) -> Bytes:
    rows = [arenas[int(n >> np.uint64(48))].view[int(n & np.uint64((1 << 48) - 1)) + at :][:size] for n in locations]
    return np.stack(rows)


@pytest.mark.parametrize("spacing", ["even", "random", "two arenas", "single"])
@pytest.mark.parametrize("offset", [0, 8192])
def test_publish_then_restore_moves_exactly_the_bytes(spacing: str, offset: int) -> None:
    engine, other = Engine(5, 64), Engine(5, 64)
    engine.fill(1)
    other.fill(2)
    footprint = padded(engine.layout.slice_bytes) + 8192
    arenas = {n: arena(n, footprint * 64) for n in (0, 7)}
    rng = np.random.default_rng(3)
    count = 1 if spacing == "single" else 40
    sources, targets = rng.permutation(64)[:count], rng.permutation(64)[:count]
    places = np.arange(64)[:count] if spacing == "even" else rng.permutation(64)[:count]
    locations = locate(7, places * footprint)
    if spacing == "two arenas":
        locations[1::3] = locate(0, places[1::3] * footprint)
    before = other.slices(np.arange(64))
    untouched = {n: a.view.copy() for n, a in arenas.items()}
    with HostBackend() as backend:
        for each in arenas.values():
            backend.register_arena(each)
        plan = CopyPlan(engine.layout, sources, locations, offset)
        assert backend.publish(plan, on_done=ignore).wait_all(DEADLINE)
        assert (stored(arenas, locations, offset, engine.layout.slice_bytes) == engine.slices(sources)).all()
        back = backend.restore([CopyPlan(other.layout, targets, locations, offset)], on_done=ignore)[0]
        assert back.wait_all(DEADLINE)
        assert back.bytes == count * engine.layout.slice_bytes
    assert (other.slices(targets) == engine.slices(sources)).all()
    rest = np.setdiff1d(np.arange(64), targets)
    assert (other.slices(rest) == before[rest]).all(), "a restore wrote outside of its blocks"
    for number, each in arenas.items():
        kept = np.ones(each.bytes, bool)
        for location in locations[locations >> np.uint64(48) == np.uint64(number)]:
            at = int(location & np.uint64((1 << 48) - 1)) + offset
            kept[at : at + engine.layout.slice_bytes] = False
        assert (each.view[kept] == untouched[number][kept]).all(), "a publish wrote outside of its slices"


def test_layers_arrive_in_forward_order_and_the_first_before_the_last() -> None:
    engine = Engine(4, 8)
    gates = [threading.Event() for _ in range(4)]

    def hold(_: Transfer, layer: int) -> None:
        assert gates[layer].wait(DEADLINE)

    with HostBackend(before_layer=hold) as backend:
        backend.register_arena(arena(0, UNIT * 64))
        restore = backend.restore([CopyPlan(engine.layout, np.array([3]), locate(0, np.array([0])))], on_done=ignore)[0]
        for layer in range(4):
            assert not restore.layer_ready(layer)
            with pytest.raises(TransferStalled):
                restore.wait_layer(layer, 0.0)
            gates[layer].set()
            assert restore.wait_layer(layer, DEADLINE)
            assert restore.layer_ready(layer)
            assert not restore.layer_ready(layer + 1)
        assert restore.wait_all(DEADLINE)


def test_a_reader_that_forgets_a_wait_sees_old_bytes() -> None:
    """The delay makes a forgotten wait visible; without it this reader could be lucky."""
    engine = Engine(2, 8)
    engine.fill(5)
    gate = threading.Event()

    def hold(_: Transfer, layer: int) -> None:
        assert layer == 0 or gate.wait(DEADLINE)

    with HostBackend(before_layer=hold) as backend:
        store = arena(0, UNIT * 64)
        backend.register_arena(store)
        old = engine.slices(np.array([2])).copy()
        restore = backend.restore([CopyPlan(engine.layout, np.array([2]), locate(0, np.array([0])))], on_done=ignore)[0]
        assert restore.wait_layer(0, DEADLINE)
        now = engine.slices(np.array([2]))
        half = engine.layout.layers[1].offset
        assert (now[:, :half] == 0xEE).all()
        assert (now[:, half:] == old[:, half:]).all()
        gate.set()
        assert restore.wait_layer(1, DEADLINE)
        assert (engine.slices(np.array([2])) == 0xEE).all()


def test_a_group_is_copied_layer_by_layer_over_all_of_its_plans() -> None:
    engine, store = Engine(3, 16), arena(0, UNIT * 64)
    store.view[...] = np.random.default_rng(4).integers(0, 256, store.bytes, np.uint8)
    order: list[tuple[str, int]] = []

    def note(transfer: Transfer, layer: int) -> None:
        order.append((transfer.plan.request, layer))

    blocks = {"a": np.array([3, 1]), "b": np.array([2]), "c": np.array([7, 9, 8])}
    offsets = {"a": np.array([0, 5]) * UNIT * 2, "b": np.array([3]) * UNIT * 2, "c": np.array([9, 8, 7]) * UNIT * 2}
    ended: list[str] = []
    with HostBackend(before_layer=note) as backend:
        backend.register_arena(store)
        plans = [CopyPlan(engine.layout, blocks[name], locate(0, offsets[name]), request=name) for name in blocks]
        restores = backend.restore(plans, on_done=lambda each: ended.append(each.plan.request))
        assert all(each.join(DEADLINE) for each in restores)
    assert order == [(name, layer) for layer in range(3) for name in "abc"]
    assert ended == ["a", "b", "c"]
    for restore, (name, mine) in zip(restores, blocks.items(), strict=True):
        wanted = stored({0: store}, locate(0, offsets[name]), 0, engine.layout.slice_bytes)
        assert (engine.slices(mine) == wanted).all()
        times = restore.times
        assert times is not None
        assert (times.pieces, times.copies, times.thread) == (6 * 3, 3 * 3, "orbitkv-restore")
        assert 0 < times.build_seconds <= times.first_layer_seconds <= times.last_layer_seconds


def test_one_plan_of_a_group_fails_alone() -> None:
    engine = Engine(3, 8)

    def before(transfer: Transfer, layer: int) -> None:
        if transfer.plan.request == "bad" and layer == 1:
            raise OSError("by the test")

    ended: dict[str, bool] = {}

    def note(transfer: Transfer) -> None:
        assert transfer.plan.request not in ended, "a plan is reported once"
        ended[transfer.plan.request] = transfer.ok

    with HostBackend(before_layer=before) as backend:
        backend.register_arena(arena(0, UNIT * 64))
        names = {"good": 1, "bad": 2, "other": 3}
        plans = [CopyPlan(engine.layout, np.array([n]), locate(0, np.array([0])), request=k) for k, n in names.items()]
        good, bad, other = backend.restore(plans, on_done=note)
        assert good.join(DEADLINE)
        assert other.join(DEADLINE)
        assert bad.wait_layer(0, DEADLINE)
        assert not bad.wait_layer(1, DEADLINE)
        assert not bad.join(DEADLINE)
        assert bad.times is None
    assert ended == {"good": True, "bad": False, "other": True}


def test_a_group_is_taken_as_a_whole_or_not_at_all() -> None:
    engine, twin = Engine(2, 8), Engine(2, 8)
    here = locate(0, np.array([0]))
    good = CopyPlan(engine.layout, np.array([1]), here)
    wrong: list[tuple[list[CopyPlan], str]] = [
        ([], "without plans"),
        ([good, CopyPlan(engine.layout, np.array([8]), here)], "block 8"),
        ([good, CopyPlan(engine.layout, np.array([1]), here)], "two plans"),
        ([good, CopyPlan(twin.layout, np.array([2]), here)], "layouts"),
        ([good, CopyPlan(engine.layout, np.array([2]), locate(3, np.array([0])))], "arena 3"),
    ]
    before = engine.slices(np.arange(8))
    with HostBackend(queue_max=1) as backend:
        backend.register_arena(arena(0, UNIT * 64))
        for plans, words in wrong:
            with pytest.raises(TransferError, match=words):
                backend.restore(plans, on_done=lambda _: pytest.fail("it was not submitted"))
        with pytest.raises(TransferError, match="wait already"):
            backend.restore([good, CopyPlan(engine.layout, np.array([2]), here)], on_done=ignore)
        assert backend.refused == 2
        backend.check()
    assert (engine.slices(np.arange(8)) == before).all()


def test_restores_pass_a_publish_that_stands() -> None:
    engine = Engine(2, 8)
    engine.fill(6)
    order: list[str] = []
    begun, go = threading.Event(), threading.Event()

    def note(name: str) -> Callable[[Transfer], None]:
        return lambda _: order.append(name)

    def hold(transfer: Transfer, _: int) -> None:
        if transfer.plan.request == "publish":
            begun.set()
            assert go.wait(DEADLINE)

    with HostBackend(before_layer=hold) as backend:
        store = arena(0, UNIT * 64)
        backend.register_arena(store)
        location = locate(0, np.array([0]))
        saved = CopyPlan(engine.layout, np.array([1]), location, request="publish")
        publish = backend.publish(saved, on_done=note("publish"))
        assert begun.wait(DEADLINE)
        for _ in range(20):
            plan = CopyPlan(engine.layout, np.array([2]), location)
            assert backend.restore([plan], on_done=note("restore"))[0].wait_all(DEADLINE)
        assert not publish.done
        go.set()
        assert publish.wait_all(DEADLINE)
        assert (store.view[: engine.layout.slice_bytes] == engine.slices(np.array([1]))[0]).all()
    assert order == ["restore"] * 20 + ["publish"]


def test_a_running_publish_steps_aside_for_a_restore_but_not_for_ever() -> None:
    engine = Engine(3, 8)
    reached, go = threading.Event(), threading.Event()
    restoring, finish = threading.Event(), threading.Event()

    def hold(transfer: Transfer, layer: int) -> None:
        if transfer.plan.request == "publish" and layer == 1:
            reached.set()
            assert go.wait(DEADLINE)
        if transfer.plan.request == "restore" and layer == 0:
            restoring.set()
            assert finish.wait(DEADLINE)

    with HostBackend(before_layer=hold) as backend:
        backend.register_arena(arena(0, UNIT * 64))
        location = locate(0, np.array([0]))
        publish = backend.publish(CopyPlan(engine.layout, np.array([1]), location, request="publish"), on_done=ignore)
        assert reached.wait(DEADLINE)
        restore = backend.restore(
            [CopyPlan(engine.layout, np.array([2]), location, request="restore")], on_done=ignore
        )[0]
        assert restoring.wait(DEADLINE)
        go.set()
        assert publish.wait_all(DEADLINE), "a publish must not starve while a restore stands"
        assert backend.late_publish_batches == 2
        finish.set()
        assert restore.wait_all(DEADLINE)


@pytest.mark.parametrize("kind", ["restore", "publish"])
@pytest.mark.parametrize("fault", [OSError, KeyError, TypeError, AttributeError, BufferError, ZeroDivisionError])
def test_a_copying_thread_outlives_a_fault(kind: str, fault: type[Exception]) -> None:
    """Without it every later copy would stall, and a stalled copy ends the engine."""
    engine = Engine(2, 4)
    store = arena(0, padded(engine.layout.slice_bytes))
    faulty, ended = [True], threading.Event()

    def before(_: Transfer, __: int) -> None:
        if faulty[0]:
            raise fault("by the test")

    def raising(_: Transfer) -> None:
        ended.set()
        raise fault("by the test")

    with HostBackend(before_layer=before) as backend:
        backend.register_arena(store)

        def submit(plan: CopyPlan, on_done: Callable[[Transfer], None]) -> Transfer:
            if kind == "restore":
                return backend.restore([plan], on_done=on_done)[0]
            return backend.publish(plan, on_done=on_done)

        plan = CopyPlan(engine.layout, np.array([1], np.int64), locate(0, np.zeros(1, np.int64)))
        first = submit(plan, on_done=raising)
        assert ended.wait(DEADLINE)
        assert first.failed
        faulty[0] = False
        assert submit(plan, on_done=ignore).wait_all(DEADLINE)


def test_closing_lets_go_of_the_arenas() -> None:
    engine = Engine(2, 8)
    backend = HostBackend()
    memory = np.full(UNIT * 64, 0xEE, np.uint8)
    view = weakref.ref(memory)
    backend.register_arena(Arena(0, -1, UNIT * 64, memory))
    del memory
    plan = CopyPlan(engine.layout, np.array([1]), locate(0, np.array([0])))
    assert backend.restore([plan], on_done=ignore)[0].wait_all(DEADLINE)
    assert view() is not None
    backend.close()
    assert view() is None, "a dead Manager's memory would stay mapped"


def test_closing_finishes_every_accepted_restore_and_fails_publishes_that_have_not_begun() -> None:
    """An engine may have promised the bytes of a restore that waits; nobody misses a page that stays unpublished."""
    engine = Engine(2, 8)
    engine.fill(8)
    held: dict[str, threading.Event] = {name: threading.Event() for name in ("restore", "publish")}
    begun: dict[str, threading.Event] = {name: threading.Event() for name in held}
    results: dict[str, bool] = {}

    def hold(transfer: Transfer, layer: int) -> None:
        name = transfer.plan.request
        if layer == 0 and name in held:
            begun[name].set()
            assert held[name].wait(DEADLINE)

    def plan(name: str, block: int) -> CopyPlan:
        return CopyPlan(engine.layout, np.array([block]), locate(0, np.array([0])), request=name)

    def note(transfer: Transfer) -> None:
        results[transfer.plan.request] = transfer.ok

    backend = HostBackend(before_layer=hold)
    backend.register_arena(arena(0, UNIT * 64))
    backend.publish(plan("publish", 0), on_done=note)
    assert begun["publish"].wait(DEADLINE)
    backend.restore([plan("restore", 1)], on_done=note)
    assert begun["restore"].wait(DEADLINE)
    waiting = [backend.restore([plan(f"restore {block}", block)], on_done=note)[0] for block in range(2, 8)]
    unbegun = backend.publish(plan("later publish", 1), on_done=note)
    closer = threading.Thread(target=backend.close)
    closer.start()
    held["publish"].set()
    assert unbegun.wait_all(DEADLINE) is False
    with pytest.raises(TransferError, match="closed"):
        backend.restore([plan("late", 1)], on_done=ignore)
    assert not any(each.done for each in waiting), "they wait for the one that runs"
    held["restore"].set()
    closer.join(DEADLINE)
    assert not closer.is_alive()
    assert results.pop("later publish") is False
    assert all(results.values())
    assert len(results) == 8
    assert (engine.slices(np.arange(1, 8)) == engine.slices(np.array([0]))).all()


def test_bounds_are_checked_before_a_byte_moves() -> None:
    engine = Engine(2, 8)
    size = engine.layout.slice_bytes
    one = locate(0, np.array([0]))
    wrong = [
        (CopyPlan(engine.layout, np.array([8]), one), "block 8"),
        (CopyPlan(engine.layout, np.array([-1]), one), "block -1"),
        (CopyPlan(engine.layout, np.array([1, 1]), locate(0, np.array([0, UNIT]))), "twice"),
        (CopyPlan(engine.layout, np.array([1, 2]), one), "locations"),
        (CopyPlan(engine.layout, np.array([], np.int64), locate(0, np.array([], np.int64))), "without pages"),
        (CopyPlan(engine.layout, np.array([1]), locate(3, np.array([0]))), "arena 3"),
        (CopyPlan(engine.layout, np.array([1]), locate(0, np.array([padded(size) * 2]))), "ends at byte"),
        (CopyPlan(engine.layout, np.array([1]), locate(0, np.array([100]))), "multiple"),
        (CopyPlan(engine.layout, np.array([1]), one, -UNIT), "ends at byte"),
        (CopyPlan(engine.layout, np.array([1]), one, padded(size) * 2 - size + 1), "ends at byte"),
    ]
    with HostBackend() as backend:
        backend.register_arena(arena(0, padded(size) * 2))
        for plan, words in wrong:
            with pytest.raises(TransferError, match=words):
                backend.restore([plan], on_done=ignore)
        backend.unregister_arena(0)
        with pytest.raises(TransferError, match="not registered"):
            backend.restore([CopyPlan(engine.layout, np.array([1]), one)], on_done=ignore)


def test_a_full_queue_refuses_and_counts() -> None:
    engine = Engine(1, 8)
    begun, go = threading.Event(), threading.Event()

    def hold(_: Transfer, __: int) -> None:
        begun.set()
        assert go.wait(DEADLINE)

    with HostBackend(before_layer=hold, queue_max=2) as backend:
        backend.register_arena(arena(0, UNIT * 64))
        plan = CopyPlan(engine.layout, np.array([1]), locate(0, np.array([0])))
        accepted = [backend.restore([plan], on_done=ignore)[0]]
        assert begun.wait(DEADLINE)
        accepted += [backend.restore([plan], on_done=ignore)[0] for _ in range(2)]
        with pytest.raises(TransferError, match="2 plans with"):
            backend.restore([plan], on_done=ignore)
        assert backend.refused == 1
        go.set()
        assert all(t.wait_all(DEADLINE) for t in accepted)


def test_layouts_are_read_from_strides() -> None:
    base = np.zeros((4, 6, 2, 16, 8), np.float32)
    outermost = {f"l{i}": Tensor(base[:, i]) for i in range(6)}
    layout = KVLayout.from_tensors(outermost)
    assert [x.offset for x in layout.layers] == [i * 1024 for i in range(6)]
    assert {x.block_stride for x in layout.layers} == {6 * 1024}
    kernel_blocks = {"l0": Tensor(np.zeros((8, 2, 16, 8), np.float32))}
    assert KVLayout.from_tensors(kernel_blocks, 4).layers[0].block_bytes == 2048
    permuted = {"l0": Tensor(np.zeros((4, 16, 2, 8), np.float32).transpose(0, 2, 1, 3))}
    assert KVLayout.from_tensors(permuted).layers[0].block_bytes == 1024
    with pytest.raises(ConfigurationError, match="not contiguous"):
        KVLayout.from_tensors({"l0": Tensor(np.zeros((2, 4, 16, 8), np.float32).transpose(1, 0, 2, 3))})
    with pytest.raises(ConfigurationError, match="do not adjoin"):
        KVLayout.from_tensors(outermost, 2)
    with pytest.raises(ConfigurationError, match="multiple"):
        KVLayout.from_tensors(kernel_blocks, 3)
    with pytest.raises(ConfigurationError, match="no KV tensors"):
        KVLayout.from_tensors({})


def test_the_factory_names_what_exists() -> None:
    layout = Engine(1, 1).layout
    backend = make_backend("host", layout=layout, layer_delay_us=1)
    assert backend.name == "host"
    backend.close()
    with pytest.raises(ConfigurationError, match="host"):
        make_backend("warp", layout=layout)
