"""Restores of one rank: order, bounds, layers, reuse of the layer sets, and what happens when a copy fails."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from python.tests.unit.sglang.rank_rig import BLOCK_BYTES, LAYERS, HeldCopies, LoadRig

from harness.fakes import PAGE_BYTES, FakeManager
from orbitkv.client import ranges_of
from orbitkv.errors import EngineFault, LeaseLost
from orbitkv.sglang import loads as loads_module
from orbitkv.sglang.loads import IN_FLIGHT_MAX, SETS_MIN, LoadState
from orbitkv.transfer import HostBackend

WAIT_SECONDS = 60.0


@pytest.fixture
def rig() -> LoadRig:
    """Return restores whose copies the test moves."""
    return LoadRig()


def test_a_begin_is_written_before_the_copy_is_submitted(rig: LoadRig, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[list[object]] = []
    submit = HeldCopies.restore

    def restore(backend: HeldCopies, *arguments: object, **options: object) -> object:
        begun.append([message[:2] for message in rig.client.sent if message[0] == "begin"])
        return submit(backend, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(HeldCopies, "restore", restore)
    rig.batch("a", "b")
    assert begun[0] == [("begin", 1), ("begin", 2)]


def test_a_batch_is_one_group_and_above_the_bound_several_one_after_the_other(rig: LoadRig) -> None:
    names = [f"r{index}" for index in range(3 * IN_FLIGHT_MAX)]
    rig.batch(*names)
    groups = [names[at : at + IN_FLIGHT_MAX] for at in range(0, len(names), IN_FLIGHT_MAX)]
    for begun in range(len(groups)):
        for _ in range(len(groups[begun])):
            assert rig.held.groups == groups[: begun + 1], "a restore of the group before is on its way"
            rig.held.arrive()
    assert rig.held.groups == groups
    assert rig.acknowledged() == [names]


def test_a_group_is_cut_at_its_bytes_and_a_restore_above_them_goes_alone(
    rig: LoadRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loads_module, "IN_FLIGHT_BYTES_MAX", 5 * PAGE_BYTES)
    for name, pages in (("a", 2), ("b", 3), ("c", 1), ("long", 9), ("d", 4)):
        rig.loads.queue(rig.load(name, pages))
    rig.loads.start()
    groups = [["a", "b"], ["c"], ["long"], ["d"]]
    for begun, group in enumerate(groups):
        assert rig.held.groups == groups[: begun + 1]
        for _ in group:
            rig.held.arrive()
    assert rig.held.groups == groups
    assert rig.acknowledged() == [["a", "b", "c", "long", "d"]]


def test_a_batch_joins_those_in_flight_when_all_of_it_has_a_place(rig: LoadRig) -> None:
    rig.batch("a", "b")
    rig.batch(*(f"r{index}" for index in range(IN_FLIGHT_MAX - 2)))
    rig.batch("late", "later")
    assert len(rig.held.restores) == IN_FLIGHT_MAX
    rig.held.arrive()
    assert rig.held.groups[-1] != ["late", "later"], "one place is not enough"
    rig.held.arrive()
    assert rig.held.groups[-1] == ["late", "later"]


def test_a_batch_is_acknowledged_when_all_of_it_arrived_and_in_order(rig: LoadRig) -> None:
    """I11."""
    rig.batch("a", "b")
    rig.batch("c")
    rig.held.arrive(at=2)
    rig.held.arrive(at=0)
    assert rig.acknowledged() == [], "b is on its way, and c comes after it"
    assert rig.loads.pending("c")
    rig.held.arrive(at=0, layers=LAYERS - 1)
    assert rig.acknowledged() == [], "a layer of b is on its way"
    rig.held.arrive(at=0, layers=1)
    assert rig.acknowledged() == [["a", "b"], ["c"]]
    assert not rig.loads.pending("c")


def test_without_anything_queued_there_is_no_batch(rig: LoadRig) -> None:
    assert rig.loads.start() == -1
    rig.loads.set_consumer(-1)
    rig.loads.wait_until(LAYERS - 1)
    assert rig.acknowledged() == []


def test_a_begin_on_a_closed_channel_still_copies(rig: LoadRig) -> None:
    rig.client.alive = False
    rig.batch("a")
    assert rig.client.sent == [("register", "engine-1", 0)]
    rig.held.arrive_all()
    assert rig.acknowledged() == [["a"]]
    assert rig.attachment.told == [("restored", 1, True, [(0, 1)])]


def test_a_lease_that_was_lost_is_no_copy(rig: LoadRig) -> None:
    load = rig.load("a")
    load.lease.release()
    rig.loads.queue(load)
    with pytest.raises(LeaseLost):
        rig.loads.start()
    assert rig.held.groups == []


def test_pages_that_the_device_has_meanwhile_are_reported_and_not_copied(rig: LoadRig) -> None:
    rig.loads.queue(rig.load("a", 7, places=[1, 2, 5]))
    rig.loads.start()
    assert ("begin", 1, 6) in rig.client.sent, "up to the last one that is copied"
    assert rig.attachment.told == [("restored", 1, False, [(0, 1), (3, 2)])]
    (job,) = rig.held.restores
    assert job.transfer.plan.locations.tolist() == [PAGE_BYTES, 2 * PAGE_BYTES, 5 * PAGE_BYTES]
    rig.held.arrive_all()
    assert rig.attachment.told[1:] == [("restored", 1, True, [(1, 2), (5, 1)])]


@pytest.mark.parametrize(
    ("places", "runs"),
    [([], ()), ([0], ((0, 1),)), ([0, 1, 2], ((0, 3),)), ([3, 5, 6, 9], ((3, 1), (5, 2), (9, 1)))],
)
def test_places_are_told_as_runs(places: list[int], runs: tuple[tuple[int, int], ...]) -> None:
    assert tuple(ranges_of(np.array(places, np.int64))) == runs


# Layer waits.


class Waiter(threading.Thread):
    """A forward that passes layers in a thread of its own."""

    def __init__(self, rig: LoadRig, index: int) -> None:
        super().__init__(daemon=True)
        self.rig = rig
        self.index = index
        self.passed = [threading.Event() for _ in range(LAYERS)]
        self.fault: BaseException | None = None

    def run(self) -> None:
        self.rig.loads.set_consumer(self.index)
        try:
            for layer in range(LAYERS):
                self.rig.loads.wait_until(layer)
                self.passed[layer].set()
        except EngineFault as fault:
            self.fault = fault

    def end(self) -> None:
        self.join(WAIT_SECONDS)
        assert not self.is_alive()


def test_a_forward_waits_for_each_layer_of_every_restore(rig: LoadRig) -> None:
    forward = Waiter(rig, rig.batch("a", "b"))
    forward.start()
    for layer in range(LAYERS):
        rig.held.restores[0].transfer.advance()
        assert not forward.passed[layer].is_set(), "the other restore has not got there"
        rig.held.restores[1].transfer.advance()
        assert forward.passed[layer].wait(WAIT_SECONDS)
    forward.end()
    resumed = rig.stats.take()["restore_resume_seconds"]
    assert isinstance(resumed, list)
    assert len(resumed) == 2, "one for each restore, when the forward has passed its last layer"
    assert rig.acknowledged() == [], "layers are no end"
    rig.held.finish()
    rig.held.finish()
    assert rig.acknowledged() == [["a", "b"]]


def test_a_forward_waits_for_a_restore_that_has_no_place_yet(rig: LoadRig) -> None:
    forward = Waiter(rig, rig.batch(*(f"r{index}" for index in range(IN_FLIGHT_MAX + 1))))
    forward.start()
    for _ in range(IN_FLIGHT_MAX):
        assert not forward.passed[0].is_set()
        rig.held.arrive()
    rig.held.arrive(layers=1)
    assert forward.passed[0].wait(WAIT_SECONDS)
    assert not forward.passed[1].is_set()
    rig.held.arrive(layers=LAYERS - 1)
    forward.end()


def test_an_engine_layer_waits_for_the_last_of_its_stored_layers() -> None:
    rig = LoadRig(steps=(0, 0, 1, 1))  # keys and values of two layers
    rig.loads.set_consumer(rig.batch("a"))
    rig.held.arrive(layers=2)
    rig.loads.wait_until(0)
    forward = threading.Thread(target=rig.loads.wait_until, args=(1,), daemon=True)
    forward.start()
    rig.held.arrive(layers=1)
    assert forward.is_alive()
    rig.held.arrive(layers=1)
    forward.join(WAIT_SECONDS)
    assert not forward.is_alive()


class SlowRig(LoadRig):
    """Restores over the host backend with a delay before each layer, from memory with content."""

    def __init__(self) -> None:
        self.manager = FakeManager(PAGE_BYTES, 64)
        self.manager.fill(64)
        self.backend = HostBackend(layer_delay_us=3000)
        self.backend.register_arena(self.manager.arena)
        super().__init__(self.backend)

    def is_there(self, blocks: Sequence[int], layer: int) -> bool:
        """Return whether a layer of the blocks holds the bytes of pages 0, 1, ..."""
        return all(
            np.array_equal(self.tensors.read(layer, block), self.manager.layer(page, layer, BLOCK_BYTES))
            for page, block in enumerate(blocks)
        )


@pytest.fixture
def slow() -> Iterator[SlowRig]:
    """Return restores that take their time."""
    rig = SlowRig()
    yield rig
    rig.backend.close()


def test_bytes_are_there_when_the_wait_of_their_layer_returns(slow: SlowRig) -> None:
    loads = [slow.load(name, 5) for name in "abc"]
    for load in loads:
        slow.loads.queue(load)
    slow.loads.set_consumer(slow.loads.start())
    for layer in range(LAYERS):
        slow.loads.wait_until(layer)
        assert all(slow.is_there(load.pages.tolist(), layer) for load in loads)
    slow.loads.quiesce()


# Layer sets.


def test_a_stale_index_never_waits() -> None:
    rig = LoadRig(device=True)
    first = rig.batch("a")
    rig.forward(first)
    rig.held.arrive_all()
    for number in range(SETS_MIN - 1):
        rig.forward(rig.batch(f"r{number}"))
        rig.waits()
        rig.forward(first)
        assert rig.waits() == []
        rig.held.arrive_all()
    rig.forward(rig.batch("takes the set of a"))
    assert rig.loads.sets == SETS_MIN
    rig.waits()
    rig.forward(first)
    assert rig.waits() == [], "the batch that has the set now is another one"


def test_a_forward_that_names_no_batch_waits_for_the_one_that_was_started_last(rig: LoadRig) -> None:
    """SGLang's forward of an embedding model calls no `set_consumer`."""
    rig.loads.set_consumer(-1)
    index = rig.batch("a")
    assert rig.loads.consumer_index == index


def test_a_set_is_not_reused_before_its_restores_arrived() -> None:
    rig = LoadRig(device=True)
    indexes = []
    for number in range(SETS_MIN + 2):
        indexes.append(rig.batch(f"r{number}"))
        rig.forward(indexes[-1])
    assert rig.loads.sets == SETS_MIN + 2, "each batch has one of its own"
    assert indexes == sorted(set(indexes))
    rig.held.arrive(at=0)
    last = rig.batch("last")
    assert rig.loads.sets == SETS_MIN + 2, "the first one is free"
    rig.waits()
    rig.forward(last)
    assert rig.waits() == [(rig.stream, "last", layer) for layer in range(LAYERS)]
    rig.stream += 1
    rig.forward(indexes[1])
    assert rig.waits() == [(rig.stream, "r1", layer) for layer in range(LAYERS)], "it still has its own"
    rig.held.arrive_all()
    assert rig.acknowledged() == [[f"r{number}"] for number in range(SETS_MIN + 2)] + [["last"]]


# Streams.


def test_each_layer_is_waited_for_once_on_each_stream_that_reads_it() -> None:
    rig = LoadRig(device=True, steps=(0, 0, 1, 1))
    index = rig.batch("a", "b")
    rig.loads.set_consumer(index)
    rig.loads.wait_until(0)
    rig.loads.wait_until(0)
    assert rig.waits() == [(7, "a", 1), (7, "b", 1)], "keys and values of a layer are one step"
    rig.stream = 8
    rig.loads.wait_until(1)
    assert rig.waits() == [(8, "a", 1), (8, "b", 1), (8, "a", 3), (8, "b", 3)]
    rig.stream = 7
    rig.loads.wait_until(1)
    assert rig.waits() == [(7, "a", 3), (7, "b", 3)]


def test_a_prefill_that_asks_for_no_layer_comes_after_every_byte() -> None:
    rig = LoadRig(device=True, layers_ask=False)
    index = rig.batch("a", "b")
    assert rig.waits() == [(7, "a", None), (7, "b", None)], "on the stream behind which the forward is launched"
    rig.loads.set_consumer(index)
    rig.loads.set_consumer(index)
    assert rig.waits() == [], "the forward and the first decode have nothing to add"


def test_a_prefill_that_asks_for_no_layer_holds_the_host_backend_until_all_is_there() -> None:
    rig = LoadRig(layers_ask=False)
    started = threading.Event()

    def run() -> None:
        rig.batch(*(f"r{index}" for index in range(IN_FLIGHT_MAX + 1)))
        started.set()

    forward = threading.Thread(target=run, daemon=True)
    forward.start()
    assert rig.held.taken.wait(WAIT_SECONDS)
    for _ in range(IN_FLIGHT_MAX + 1):
        assert not started.is_set()
        rig.held.arrive()
    assert started.wait(WAIT_SECONDS)


def test_a_forward_comes_after_the_batches_that_it_overtakes() -> None:
    """A batch that never ran, such as one whose requests were aborted: its pages are in the tree all the same."""
    rig = LoadRig(device=True)
    index = rig.batch("a")
    rig.loads.set_consumer(-1)
    assert rig.waits() == [(7, "a", None)]
    rig.loads.set_consumer(-1)
    rig.loads.set_consumer(index)
    rig.loads.wait_until(LAYERS - 1)
    assert rig.waits() == []


@pytest.mark.parametrize("asked", [0, LAYERS - 1])
@pytest.mark.parametrize("decode", ["the same index", "another index"])
def test_a_forward_that_did_not_ask_for_each_layer_ends_the_engine(asked: int, decode: str) -> None:
    rig = LoadRig(device=True)
    rig.forward(-1, LAYERS if asked else 0)
    index = rig.batch("a")
    rig.forward(index, asked)
    rig.waits()
    with pytest.raises(EngineFault, match=f"{asked} of their {LAYERS} layers"):
        rig.loads.set_consumer(index if decode == "the same index" else -1)
    assert rig.waits() == [(7, "a", None)], "what comes next is in order"


def test_a_layer_that_no_forward_reads_need_not_be_asked_for() -> None:
    rig = LoadRig(device=True)
    rig.forward(-1, LAYERS - 1)
    index = rig.batch("a")
    rig.forward(index, LAYERS - 1)
    rig.loads.set_consumer(index)
    rig.loads.set_consumer(-1)
    assert len(rig.waits()) == LAYERS - 1


def test_a_forward_need_not_ask_for_what_was_there_when_it_began() -> None:
    rig = LoadRig(device=True)
    index = rig.batch("a")
    rig.held.arrive()
    rig.loads.set_consumer(index)
    rig.loads.set_consumer(index)
    rig.loads.set_consumer(-1)


# Injected faults.


def test_a_skipped_layer_is_not_waited_for_and_the_others_are() -> None:
    rig = LoadRig(fault_injection="skip-layer-wait=1")
    rig.loads.set_consumer(rig.batch("a"))
    rig.held.arrive(layers=1)
    rig.loads.wait_until(0)
    rig.loads.wait_until(1)
    forward = threading.Thread(target=rig.loads.wait_until, args=(2,), daemon=True)
    forward.start()
    rig.held.arrive(layers=1)
    assert forward.is_alive()
    rig.held.arrive(layers=1)
    forward.join(WAIT_SECONDS)
    assert not forward.is_alive()


def test_a_layer_is_corrupted_once(rig: LoadRig) -> None:
    rig = LoadRig(steps=(0, 0, 1, 1), fault_injection="corrupt-restore")
    rig.tensors.scramble()
    load = rig.load("a", 2)
    blocks = load.pages.tolist()
    before = [[rig.tensors.read(layer, block) for block in blocks] for layer in range(LAYERS)]
    rig.loads.queue(load)
    rig.loads.set_consumer(rig.loads.start())
    rig.held.arrive_all()
    for engine_layer in (0, 0, 1, 0, 1):
        rig.loads.wait_until(engine_layer)
    for layer in range(LAYERS):
        for place, block in enumerate(blocks):
            assert np.array_equal(rig.tensors.read(layer, block), ~before[layer][place])


# Failures.


def test_a_failed_copy_ends_the_engine_at_the_wait_and_at_the_next_pass(rig: LoadRig) -> None:
    rig.loads.set_consumer(rig.batch("a", "b"))
    rig.held.arrive(at=1)
    rig.held.arrive(layers=1)
    rig.loads.wait_until(0)
    rig.held.finish(ok=False)
    with pytest.raises(EngineFault, match="request a"):
        rig.loads.wait_until(1)
    with pytest.raises(EngineFault, match="request a"):
        rig.loads.completed()
    with pytest.raises(EngineFault, match="request a"):
        rig.loads.quiesce()
    assert ("restored", 1, False, [(0, 1)]) in rig.attachment.told


@pytest.mark.parametrize("queued", [1, IN_FLIGHT_MAX + 1])
def test_a_forward_that_waits_learns_of_a_failed_copy(rig: LoadRig, queued: int) -> None:
    forward = Waiter(rig, rig.batch(*(f"r{index}" for index in range(queued))))
    forward.start()
    rig.held.finish(ok=False)
    forward.end()
    assert isinstance(forward.fault, EngineFault)


def test_a_backend_that_takes_no_restore_ends_the_engine(rig: LoadRig) -> None:
    rig.held.refusing = True
    rig.loads.set_consumer(rig.batch("a"))
    with pytest.raises(EngineFault, match="request a"):
        rig.loads.wait_until(0)
    with pytest.raises(EngineFault, match="request a"):
        rig.loads.completed()
    assert rig.attachment.told == [("restored", 1, False, [(0, 1)])]


# The end of everything.


def test_the_engines_reset_waits_for_what_runs_and_gives_back_what_is_queued(rig: LoadRig) -> None:
    index = rig.batch(*(f"r{number}" for number in range(IN_FLIGHT_MAX + 2)))
    rig.loads.queue(rig.load("queued"))
    rig.loads.set_consumer(index)
    reset = threading.Thread(target=rig.loads.quiesce, daemon=True)
    reset.start()
    for _ in range(IN_FLIGHT_MAX + 2):
        assert reset.is_alive(), "a copy runs"
        rig.held.arrive()
    reset.join(WAIT_SECONDS)
    assert not reset.is_alive()
    assert rig.client.sent[-1] == ("release", IN_FLIGHT_MAX + 3)
    assert rig.loads.completed() == 0
    assert not rig.loads.pending("queued")
    rig.loads.set_consumer(index)
    rig.loads.wait_until(LAYERS - 1)
    assert rig.batch("next") > index, "an index is never given twice"


def test_an_exchange_waits_until_the_backend_has_every_begun_restore(rig: LoadRig) -> None:
    rig.batch(*(f"r{number}" for number in range(IN_FLIGHT_MAX + 2)))
    exchange = threading.Thread(target=rig.loads.wait_submitted, daemon=True)
    exchange.start()
    rig.held.arrive()
    assert exchange.is_alive()
    rig.held.arrive()
    exchange.join(WAIT_SECONDS)
    assert not exchange.is_alive()
    rig.held.close()
    rig.held.arrive_all()
    assert rig.loads.completed() == 1


def test_a_random_life_is_acknowledged_whole_and_in_order(rig: LoadRig) -> None:
    order = np.random.default_rng(5)
    names = (f"r{number}" for number in range(10_000))
    started: list[list[str]] = []
    taken: list[list[str]] = []
    for _ in range(400):
        if order.random() < 0.4:
            batch = [next(names) for _ in range(order.integers(1, 5))]
            started.append(batch)
            rig.batch(*batch)
        elif rig.held.restores:
            at = int(order.integers(len(rig.held.restores)))
            ready = next(layer for layer in range(LAYERS) if not rig.held.restores[at].transfer.layer_ready(layer))
            rig.held.arrive(at, int(order.integers(1, LAYERS - ready + 1)))
        assert len(rig.held.restores) <= IN_FLIGHT_MAX
        taken += rig.acknowledged()
    rig.held.arrive_all()
    taken += rig.acknowledged()
    assert taken == started
    assert {load.state for layers in rig.loads._sets for load in layers.loads} == {LoadState.ARRIVED}


def test_a_copy_may_end_before_its_submission_returns(rig: LoadRig, monkeypatch: pytest.MonkeyPatch) -> None:
    submit = HeldCopies.restore

    def restore(backend: HeldCopies, *arguments: object, **options: object) -> object:
        restores = submit(backend, *arguments, **options)  # type: ignore[arg-type]
        backend.arrive_all()
        return restores

    monkeypatch.setattr(HeldCopies, "restore", restore)
    rig.loads.set_consumer(rig.batch(*(f"r{number}" for number in range(IN_FLIGHT_MAX + 2))))
    rig.loads.wait_until(LAYERS - 1)
    assert len(rig.acknowledged()[0]) == IN_FLIGHT_MAX + 2
