"""The device backend on a fake device: exact bytes, and an order that no wait less would give."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest

from harness.device import HIGHEST, LIMIT_S, LOWEST, FakeDriver
from harness.device_rig import BLOCKS, Rig, Stop
from harness.kv import LAYOUTS, UNIT
from harness.manager import eventually
from orbitkv._arenas import Arena
from orbitkv.errors import TransferError
from orbitkv.transfer import DeviceSite, Transfer, _common, _publishes, _restores
from orbitkv.transfer._common import Common
from orbitkv.transfer._mover import Group, Mover
from orbitkv.transfer._registration import Registrations

Bytes = npt.NDArray[np.uint8]


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig(held=True) as made:
        yield made


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_pages_go_and_come_back_byte_for_byte(layout: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over two arenas that are registered in small chunks, by publishes of several chunks and groups of three plans."""
    monkeypatch.setattr(_common, "Registrations", partial(Registrations, chunk_bytes=3 * UNIT))
    rng = np.random.default_rng(seed)
    with Rig(layout, seed) as rig:
        monkeypatch.setattr(_publishes, "PUBLISH_CHUNK_BYTES", 5 * rig.memory.layout.slice_bytes)
        rig.add_arena(7)
        blocks, places = rng.permutation(BLOCKS), rng.permutation(BLOCKS)
        plans = [rig.plan(blocks[:9], places[:9]), rig.plan(blocks[9:], places[:15], 7)]
        before = {number: arena.view.copy() for number, arena in rig.arenas.items()}
        wanted = [rig.held_slices(plan) for plan in plans]
        assert all(rig.publish(plan).wait_all(LIMIT_S) for plan in plans)
        for plan, content in zip(plans, wanted, strict=True):
            assert (rig.stored(plan) == content).all()
            for location in plan.locations.tolist():
                at = location & ((1 << 48) - 1)
                end = at + rig.memory.layout.slice_bytes
                before[location >> 48][at:end] = rig.arenas[location >> 48].view[at:end]
        assert all((rig.arenas[n].view == before[n]).all() for n in before), "a publish wrote outside of its slices"
        rig.memory.fill(seed + 50)
        untouched = rig.memory.slices(range(BLOCKS))
        targets = rng.permutation(BLOCKS)
        back = [
            rig.plan(targets[:5], places[:5]),
            rig.plan(targets[5:6], places[:1], 7),
            rig.plan(targets[6:14], places[:8]),
        ]
        assert all(restore.wait_all(LIMIT_S) for restore in rig.restore(*back))
        for plan in back:
            untouched[plan.blocks] = rig.stored(plan)
        assert (rig.memory.slices(range(BLOCKS)) == untouched).all()
    assert rig.driver.events_alive == 0
    assert not rig.driver.registered
    assert rig.driver.streams(HIGHEST) == rig.driver.streams(LOWEST) == []


def test_a_restore_comes_after_what_still_reads_its_destination(rig: Rig) -> None:
    plan = rig.plan([3, 4], [1, 2])
    old, seen = rig.held_slices(plan), list[Bytes]()
    rig.read(plan, seen)
    (restore,) = rig.restore(plan)
    rig.handed()
    rig.driver.first = (rig.load,)
    rig.driver.go()
    assert restore.wait_all(LIMIT_S)
    assert (seen[0] == old).all(), "the copy went before a kernel that was launched earlier"


@pytest.mark.parametrize("early", range(3))
def test_every_stream_of_the_engine_is_a_fence(early: int) -> None:
    with Rig(held=True, streams=3) as rig:
        plan = rig.plan([3, 4], [1, 2])
        old, seen = rig.held_slices(plan), list[Bytes]()
        for stream in rig.engine.streams:
            rig.engine.current = stream
            rig.read(plan, seen)
        (restore,) = rig.restore(plan)
        rig.handed()
        rig.driver.first = (rig.engine.streams[early], rig.load)
        rig.driver.go()
        assert restore.wait_all(LIMIT_S)
        assert len(seen) == 3, "the copy went before a stream that might read its destination"
        assert all((each == old).all() for each in seen)


def test_a_publish_comes_after_what_writes_its_source(rig: Rig) -> None:
    plan = rig.plan([3, 4], [1, 2])
    content = np.random.default_rng(1).integers(0, 256, rig.held_slices(plan).shape, np.uint8)
    rig.engine.run(lambda: rig.memory.write(plan.blocks, content))
    publish = rig.publish(plan)
    rig.driver.until(lambda: rig.driver.pending(rig.save, "record") == 1, "the chunk")
    rig.driver.first = (rig.save,)
    rig.driver.go()
    assert publish.wait_all(LIMIT_S)
    assert (rig.stored(plan) == content).all(), "the copy went before the kernel that wrote its pages"


@pytest.mark.parametrize("layout", ["layer by layer", "split K and V"])
def test_a_forward_reads_each_layer_after_its_copy_and_the_host_waits_for_none(layout: str) -> None:
    with Rig(layout, held=True) as rig:
        plans = [rig.plan([3, 4], [1, 2]), rig.plan([9], [7])]
        restores = rig.restore(*plans)
        seen: list[list[Bytes]] = [[], []]
        for layer in range(len(rig.memory.layout.layers)):
            for restore, plan, into in zip(restores, plans, seen, strict=True):
                assert restore.wait_layer(layer, LIMIT_S), "the device is held, so this did not wait for a copy"
                rig.read_layer(plan, layer, into)
        assert not any(restore.done for restore in restores)
        waits = [call for call in rig.driver.calls if call[1:] == ("wait", rig.engine.current)]
        assert len(waits) == rig.steps, "one wait a step serves all of the group's restores and layers"
        rig.driver.first = (rig.engine.current,)
        rig.driver.go()
        assert all(restore.wait_all(LIMIT_S) for restore in restores)
        rig.driver.hold()
        assert rig.driver.drain() == 0
        for plan, into in zip(plans, seen, strict=True):
            assert (np.concatenate(into, axis=1) == rig.stored(plan)).all()


def test_what_follows_a_join_reads_every_layer(rig: Rig) -> None:
    plan, seen = rig.plan([3, 4], [1, 2]), list[Bytes]()
    (restore,) = rig.restore(plan)
    assert restore.join(LIMIT_S)
    assert not restore.done
    rig.read(plan, seen)
    rig.driver.first = (rig.engine.current,)
    rig.driver.go()
    assert restore.wait_all(LIMIT_S)
    rig.driver.hold()
    assert rig.driver.drain() == 0
    assert (seen[0] == rig.stored(plan)).all()


def test_each_stream_that_asks_waits_for_itself() -> None:
    with Rig(held=True, streams=2) as rig:
        plan, seen = rig.plan([3, 4], [1, 2]), list[Bytes]()
        (restore,) = rig.restore(plan)
        for stream in rig.engine.streams:
            rig.engine.current = stream
            assert restore.join(LIMIT_S)
            rig.read(plan, seen)
        rig.driver.first = tuple(rig.engine.streams)
        assert rig.driver.drain() == 0
        assert all((each == rig.stored(plan)).all() for each in seen)


def test_an_older_group_does_not_wait_for_a_newer_fence(rig: Rig) -> None:
    """The newer fence lies behind a kernel that ends only when the older group has: waiting for it would never end."""
    stop = Stop()

    def before(call: str, group: Group, _: int) -> None:
        if call == "prepare" and group.blocks[0] == 3:
            stop.here()

    rig.mover.before = before
    older, newer = rig.plan([3], [1]), rig.plan([4], [2])
    (first,) = rig.restore(older)
    assert stop.reached.wait(LIMIT_S)
    rig.driver.launch(rig.engine.current, lambda: None, gate=lambda: first.done)
    (second,) = rig.restore(newer)
    stop.go.set()
    rig.handed(2)
    assert rig.driver.entries(rig.load) == ["wait", *["copy", "record"] * rig.steps] * 2
    rig.driver.go()
    assert first.wait_all(LIMIT_S)
    assert second.wait_all(LIMIT_S)


def test_a_newer_fence_is_not_before_the_steps_of_an_older_group(rig: Rig) -> None:
    stop = Stop()

    def before(call: str, group: Group, step: int) -> None:
        if (call, step) == ("step", 1) and group.blocks[0] == 3:
            stop.here()

    rig.mover.before = before
    (first,) = rig.restore(rig.plan([3], [1]))
    assert stop.reached.wait(LIMIT_S)
    (second,) = rig.restore(rig.plan([4], [2]))
    assert rig.driver.entries(rig.load) == ["wait", "copy", "record"], "the newer fence is not on the stream yet"
    stop.go.set()
    rig.handed(2)
    rig.driver.go()
    assert first.wait_all(LIMIT_S)
    assert second.wait_all(LIMIT_S)


def test_the_watcher_learns_of_a_group_that_is_begun_later_than_it_was_submitted(rig: Rig) -> None:
    restores, changed = rig.backend._restores, rig.backend._common.changed
    stop, next_group = Stop(), restores._next

    def late() -> object:
        stop.here()
        return next_group()

    rig.driver.go()
    setattr(restores, "_next", late)  # noqa: B010 - the thread's next turn, not the one that it is in
    assert rig.restore(rig.plan([3], [1]))[0].wait_all(LIMIT_S)
    assert stop.reached.wait(LIMIT_S)
    (restore,) = rig.restore(rig.plan([4], [2]))
    # The watcher was told of the submission, found nothing begun and waits again, as the publishing thread does.
    eventually(lambda: len(getattr(changed, "_waiters")) == 2, "both other threads wait")  # noqa: B009
    middle = Stop()
    rig.mover.before = lambda call, _, step: middle.here() if (call, step) == ("step", 1) else None
    stop.go.set()
    assert middle.reached.wait(LIMIT_S)
    watched = ("orbitkv-restored", "synchronize")
    rig.driver.until(lambda: sum(call[:2] == watched for call in rig.driver.calls) == 3, "the wait for its first step")
    middle.go.set()
    assert restore.wait_all(LIMIT_S)


def test_a_restore_ends_with_its_last_step_not_with_its_first(rig: Rig) -> None:
    last = [False]

    def before(call: str, _: Group, step: int) -> None:
        if (call, step) == ("step", rig.steps - 1):
            rig.driver.launch(rig.load, lambda: None, gate=lambda: last[0])

    rig.mover.before = before
    plan = rig.plan([3], [1])
    (restore,) = rig.restore(plan)
    rig.handed()
    rig.driver.go()
    watched = ("orbitkv-restored", "synchronize")
    rig.driver.until(lambda: sum(call[:2] == watched for call in rig.driver.calls) == 2, "the wait for the last step")
    assert not restore.done
    with rig.driver.changed:
        last[0] = True
        rig.driver.changed.notify_all()
    assert restore.wait_all(LIMIT_S)
    assert (rig.held_slices(plan) == rig.stored(plan)).all()


def test_copies_have_the_highest_and_the_lowest_priority(rig: Rig) -> None:
    assert rig.driver.priority_of[rig.load] == HIGHEST
    assert rig.driver.priority_of[rig.save] == LOWEST
    restore, publish = rig.restore(rig.plan([3], [1]))[0], rig.publish(rig.plan([5], [6]))
    rig.driver.go()
    assert restore.wait_all(LIMIT_S)
    assert publish.wait_all(LIMIT_S)
    threads = {call[2]: call[0] for call in rig.driver.calls if call[1] in ("copy_batch", "copy_strided")}
    assert threads == {rig.load: "orbitkv-restore", rig.save: "orbitkv-publish"}


def test_at_most_two_chunks_of_a_publish_are_on_the_device(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_publishes, "PUBLISH_CHUNK_BYTES", 2 * rig.memory.layout.slice_bytes + 1)
    pages: list[int] = []
    rig.mover.before = lambda call, _, first: pages.append(first) if call == "pages" else None
    plan = rig.plan(range(11), range(11))
    wanted = rig.held_slices(plan)
    publish = rig.publish(plan)
    rig.driver.until(lambda: rig.driver.pending(rig.save, "record") == 2, "two chunks")
    rig.driver.go()
    assert publish.wait_all(LIMIT_S)
    assert rig.driver.peaks[rig.save] == 2
    assert pages == [0, 2, 4, 6, 8, 10]
    assert (rig.stored(plan) == wanted).all()


def test_a_publish_that_moves_on_does_not_count_as_stalled(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may take longer than a stall as a whole, while restores overtake it."""
    monkeypatch.setattr(_publishes, "PUBLISH_CHUNK_BYTES", 1)
    ended = [0]

    def before(call: str, _: Group, first: int) -> None:
        if call == "pages":
            rig.driver.launch(rig.save, lambda: None, gate=lambda: ended[0] > first)

    rig.mover.before = before
    rig.driver.go()
    publish = rig.publish(rig.plan(range(5), range(5)))
    watched = ("orbitkv-publish", "synchronize")
    moved: list[float] = []
    for chunk in range(3):
        rig.driver.until(lambda: sum(call[:2] == watched for call in rig.driver.calls) > len(moved), "the next wait")
        with rig.backend._common.changed:
            since = rig.backend._publishes.oldest()
        assert since is not None
        moved.append(since)
        with rig.driver.changed:
            ended[0] = chunk + 1
            rig.driver.changed.notify_all()
    with rig.driver.changed:
        ended[0] = 5
        rig.driver.changed.notify_all()
    assert publish.wait_all(LIMIT_S)
    assert moved == sorted(set(moved)), "each chunk that ended counts"


def test_the_chunks_of_a_publish_are_in_the_order_of_the_arena(rig: Rig) -> None:
    """Neighbours of one chunk adjoin there, which is what few operations need."""
    hosts: list[list[int]] = []
    rig.mover.before = lambda call, group, _: hosts.append(group.hosts.tolist()) if call == "pages" else None
    plan = rig.plan(range(6), [5, 0, 3, 1, 4, 2])
    wanted = rig.held_slices(plan)
    publish = rig.publish(plan)
    rig.driver.go()
    assert publish.wait_all(LIMIT_S)
    assert hosts[0] == sorted(hosts[0])
    assert (rig.stored(plan) == wanted).all()


def test_a_ranks_slice_lies_at_its_offset_in_a_page(rig: Rig) -> None:
    rig.driver.go()
    there, back = rig.plan([3], [2]), rig.plan([4], [5])
    wanted = rig.held_slices(there)
    assert rig.publish(replace(rig.plan([3], [1]), slice_offset=rig.spacing)).wait_all(LIMIT_S)
    assert (rig.stored(there) == wanted).all()
    (restore,) = rig.restore(replace(rig.plan([4], [4]), slice_offset=rig.spacing))
    assert restore.wait_all(LIMIT_S)
    assert (rig.held_slices(back) == rig.stored(back)).all()


def test_few_events_wait_to_be_used_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_common, "EVENTS_IDLE_MAX", 3)
    rig.driver.bind()
    pool, before = _common.EventPool(rig.driver), rig.driver.events_alive
    events = [pool.take() for _ in range(5)]
    pool.give(events[:4])
    pool.give(events[4:])
    assert rig.driver.events_alive - before == 3
    pool.close()
    assert rig.driver.events_alive == before


def test_a_page_larger_than_a_chunk_goes_alone(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_publishes, "PUBLISH_CHUNK_BYTES", 1)
    plan = rig.plan(range(3), range(3))
    wanted = rig.held_slices(plan)
    publish = rig.publish(plan)
    rig.driver.go()
    assert publish.wait_all(LIMIT_S)
    assert (rig.stored(plan) == wanted).all()


def test_a_restore_overtakes_a_publish_that_runs(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_publishes, "PUBLISH_CHUNK_BYTES", 1)
    rig.driver.go()
    rig.driver.hold(rig.save)
    publish = rig.publish(rig.plan(range(6), range(6)))
    rig.driver.until(lambda: rig.driver.pending(rig.save, "record") == 2, "two chunks")
    (restore,) = rig.restore(rig.plan([9], [7]))
    assert restore.wait_all(LIMIT_S)
    assert not publish.done
    rig.driver.go()
    assert publish.wait_all(LIMIT_S)


def test_no_chunk_is_handed_over_while_a_restore_copies(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_publishes, "YIELD_SECONDS", LIMIT_S)
    (restore,) = rig.restore(rig.plan([9], [7]))
    rig.handed()
    publish = rig.publish(rig.plan(range(6), range(6)))
    rig.driver.until(lambda: rig.driver.pending(rig.save, "wait") == 1, "the publish has begun")
    rig.driver.go()
    assert restore.wait_all(LIMIT_S)
    assert publish.wait_all(LIMIT_S)
    calls = [call[1:] for call in rig.driver.calls]
    ends = [at for at, call in enumerate(calls) if call[0] == "synchronize"]
    assert calls.index(("copy_strided", rig.save)) > ends[1], "the watcher had seen the restore's last event by then"
    assert rig.backend.late_publish_batches == 0


def test_a_publish_does_not_wait_for_restores_for_ever(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_publishes, "PUBLISH_CHUNK_BYTES", 1)
    monkeypatch.setattr(_publishes, "YIELD_SECONDS", 0.01)
    rig.driver.go()
    rig.driver.hold(rig.load)
    (restore,) = rig.restore(rig.plan([9], [7]))
    publish = rig.publish(rig.plan(range(3), range(3)))
    assert publish.wait_all(LIMIT_S)
    assert rig.backend.late_publish_batches == 3
    assert not restore.done
    rig.driver.go()
    assert restore.wait_all(LIMIT_S)


def test_layers_are_told_in_order_before_the_end() -> None:
    told: list[tuple[int, int, bool]] = []

    def on_layer(transfer: Transfer, layer: int) -> None:
        told.append((int(transfer.plan.blocks[0]), layer, transfer.done))
        raise OSError("by the test")

    with Rig("split K and V", on_layer=on_layer) as rig:
        restores = rig.restore(rig.plan([3], [1]), rig.plan([4], [2]))
        assert all(restore.wait_all(LIMIT_S) for restore in restores)
    order = [(block, layer) for step in range(4) for block in (3, 4) for layer in (2 * step, 2 * step + 1)]
    assert told == [(block, layer, False) for block, layer in order]


def test_times_say_where_a_restore_was(rig: Rig) -> None:
    restores = rig.restore(rig.plan(range(8), range(8)), rig.plan([20], [20]))
    rig.driver.go()
    for restore in restores:
        assert restore.wait_all(LIMIT_S)
        times = restore.times
        assert times is not None
        assert (times.pieces, times.copies, times.thread) == (9 * 5, 2 * 5, "orbitkv-restore")
        assert 0 < times.build_seconds < times.first_layer_seconds <= times.last_layer_seconds
        assert 0 < times.submit_seconds <= times.last_layer_seconds
    publish = rig.publish(rig.plan(range(3), range(3)))
    assert publish.wait_all(LIMIT_S)
    assert publish.times is not None
    assert (publish.times.pieces, publish.times.copies, publish.times.thread) == (15, 15, "orbitkv-publish")


def test_plans_are_refused_as_a_whole_at_the_bounds(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_restores, "QUEUE_MAX", 3)
    monkeypatch.setattr(_publishes, "QUEUE_MAX", 0)
    monkeypatch.setattr(_restores, "BEGUN_MAX", 1)
    first = rig.restore(rig.plan([0], [0]))
    rig.handed()
    waiting = rig.restore(rig.plan([1], [0]), rig.plan([2], [0]))
    events = rig.driver.events_alive
    with pytest.raises(TransferError, match=r"2 plans with .* wait already"):
        rig.restore(rig.plan([3], [0]), rig.plan([4], [0]))
    with pytest.raises(TransferError, match=r"0 plans with .* wait already"):
        rig.publish(rig.plan([3], [0]))
    assert rig.backend.refused == 3
    assert rig.driver.events_alive == events + 1, "the fence of the second is the first's again"
    assert rig.driver.pending(rig.load, "record") == rig.steps, "a second group is begun when the first has ended"
    rig.driver.go()
    assert all(restore.wait_all(LIMIT_S) for restore in [*first, *waiting])


def test_a_wrong_plan_is_refused_and_holds_nothing(rig: Rig) -> None:
    good = rig.plan([1], [0])
    for plans, words in (
        ([good, rig.plan([1], [2])], "two plans"),
        ([good, rig.plan([2], [0], 5)], "arena 5"),
        ([good, rig.plan([2], [BLOCKS])], "ends at byte"),
        ([rig.plan([BLOCKS], [0])], f"block {BLOCKS}"),
    ):
        with pytest.raises(TransferError, match=words):
            rig.restore(*plans)
    rig.backend.unregister_arena(0)
    assert not rig.driver.registered, "no plan holds it"
    with pytest.raises(TransferError, match="not registered"):
        rig.publish(good)


def test_the_engine_is_asked_whether_it_serves_while_an_arena_is_locked() -> None:
    asked: list[bool] = []

    def serving() -> bool:
        asked.append(True)
        return False

    with FakeDriver() as driver:
        common = Common(DeviceSite(driver, lambda: 0, lambda: (), serving=serving), cast(Mover[Any], None), None)
        common.register(Arena(0, -1, UNIT, np.zeros(UNIT, np.uint8)))
        assert asked == [True]
        common.unregister(0)


def test_an_arena_stays_locked_until_the_last_copy_that_uses_it_has_ended(rig: Rig) -> None:
    rig.add_arena(7)
    restores = [*rig.restore(rig.plan([3], [1], 7)), *rig.restore(rig.plan([4], [1]), rig.plan([5], [1], 7))]
    publish = rig.publish(rig.plan([6], [8], 7))
    wanted = rig.stored(rig.plan([3], [1], 7))
    rig.handed(2)
    rig.backend.unregister_arena(7)
    with pytest.raises(TransferError, match="arena 7 is not registered"):
        rig.restore(rig.plan([9], [1], 7))
    assert len(rig.driver.registered) == 2
    rig.driver.go()
    assert all(each.wait_all(LIMIT_S) for each in [*restores, publish])
    rig.driver.until(lambda: len(rig.driver.registered) == 1, "the arena is let go of")
    assert (rig.held_slices(rig.plan([3], [1], 7)) == wanted).all()
    assert not rig.driver.violations


def test_closing_ends_what_runs_and_gives_everything_back(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_publishes, "PUBLISH_CHUNK_BYTES", 1)
    monkeypatch.setattr(_publishes, "YIELD_SECONDS", 0.0)
    monkeypatch.setattr(_restores, "BEGUN_MAX", 1)
    running = rig.publish(rig.plan(range(6), range(6)))
    rig.driver.until(lambda: rig.driver.pending(rig.save, "record") == 2, "the publish runs")
    restores = [*rig.restore(rig.plan([9], [7])), *rig.restore(rig.plan([10], [7]))]
    waiting = rig.publish(rig.plan([12], [12]))
    rig.handed()
    closer = threading.Thread(target=rig.backend.close)
    closer.start()
    rig.driver.go()
    closer.join(LIMIT_S)
    assert not closer.is_alive()
    assert all(each.ok for each in [running, *restores]), "an accepted restore is carried out"
    assert waiting.failed
    assert len(rig.ended) == 4
    assert rig.driver.events_alive == 0
    assert not rig.driver.registered
    assert rig.mover.released == 3
    with pytest.raises(TransferError, match="closed"):
        rig.restore(rig.plan([9], [7]))


def test_two_threads_submit_at_once() -> None:
    """The engine's thread and the one of a golden check: neither's fences or pages are the other's."""
    with Rig(seed=4) as rig:
        faults: list[str] = []

        def work(first: int) -> None:
            rng = np.random.default_rng(first)
            for _ in range(40):
                blocks = first + rng.permutation(8)[:3]
                places = first + rng.permutation(8)[:3]
                saved = rig.plan(blocks, places)
                wanted = rig.held_slices(saved)
                back = rig.plan(first + 8 - 1 - rng.permutation(8)[:3], places)
                if not rig.publish(saved).wait_all(LIMIT_S) or (rig.stored(saved) != wanted).any():
                    faults.append("a publish")
                if not rig.restore(back)[0].wait_all(LIMIT_S) or (rig.held_slices(back) != wanted).any():
                    faults.append("a restore")

        threads = [threading.Thread(target=work, args=(first,)) for first in (0, 8, 16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
        assert not faults
        assert len(rig.ended) == 3 * 80


def test_closing_lets_go_of_the_arenas() -> None:
    """Whoever still knows an ended restore, or the closed backend, must not keep a dead Manager's memory mapped."""
    with Rig() as rig:
        view = weakref.ref(rig.arenas[0].view)
        (restore,) = rig.restore(rig.plan([1], [1]))
        assert restore.wait_all(LIMIT_S)
        rig.backend.close()
        rig.arenas.clear()
        assert view() is None
