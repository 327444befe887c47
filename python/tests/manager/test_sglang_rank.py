"""A rank of SGLang against a real Manager: exact bytes, lost Managers and channels, and books that end at zero."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
from python.tests.manager.sglang_rig import BLOCK_BYTES, LAYERS, Admitted, Ranks, books, drained, keys_of

from harness.manager import ManagerProcess, eventually
from orbitkv._channel import Channel
from orbitkv.adapter.backends import BackendChoice
from orbitkv.adapter.golden import GoldenCheck, GoldenResult
from orbitkv.client import CacheManagerClient, Namespace
from orbitkv.errors import CallTimeout, ConfigurationError
from orbitkv.sglang.loads import IN_FLIGHT_MAX

Make = Callable[..., Ranks]


@pytest.fixture
def ranks(manager: ManagerProcess) -> Iterator[Make]:
    """Return a function that makes the rank of an instance; the fixture ends every one."""
    made: list[Ranks] = []

    def make(name: str = "engine-1", **options: object) -> Ranks:
        made.append(Ranks([manager.socket], name, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for each in made:
        each.close()


def stored_pages(manager: ManagerProcess) -> int:
    """Return the pages that were stored since the Manager started."""
    return int(manager.metric("orbitkv_cache_block_insertions_total"))


def promised(engine: Ranks, name: str, pages: int) -> list[str]:
    """Store a prompt, and ask for it until its pages are promised; the pass is open."""
    keys = keys_of(name, pages)
    assert engine.ask(f"{name}-again", keys) == pages
    return keys


def admitted_at_once(engine: Ranks, names: Sequence[str]) -> list[Admitted]:
    """Store a short prompt each, and admit all of them in one pass, which is open."""
    for name in names:
        engine.serve(name, 2)
    engine.begin_pass()
    batch = []
    for name in names:
        assert engine.match(name, keys_of(name, 2)) == 2
        batch.append(engine.admit(name, keys_of(name, 2), 2))
    return batch


def test_bytes_come_back_exactly(manager: ManagerProcess, ranks: Make) -> None:
    engine = ranks()
    for name, pages in (("a", 12), ("b", 1), ("c", 40)):
        assert engine.serve(name, pages) == 0
        assert engine.serve(name, pages) == pages
    assert engine.serve("a", 30) == 12, "a longer prompt restores what is there"
    assert engine.serve("a", 30) == 30
    drained(manager)
    loaded = (12 + 1 + 40 + 12 + 30) * LAYERS * BLOCK_BYTES
    assert manager.metric("orbitkv_load_bytes_total") == loaded


def test_another_instance_restores_what_one_published_and_other_facts_hide_it(
    manager: ManagerProcess, ranks: Make
) -> None:
    assert ranks("engine-1").serve("a", 12) == 0
    assert ranks("engine-2").serve("a", 12) == 12
    assert ranks("engine-3", fact="other").serve("a", 12) == 0
    drained(manager)


def test_pages_that_the_device_got_meanwhile_are_left_out(manager: ManagerProcess, ranks: Make) -> None:
    engine = ranks()
    engine.serve("a", 6)
    keys = promised(engine, "a", 6)
    pages = engine.admit("a-again", keys, 0).pages
    side = engine.sides[0]
    assert engine.match("partial", keys) == 6
    side.queue_load("partial", [keys[at] for at in (1, 2, 4)], np.array(pages[:3], np.int64))
    engine.forward()
    eventually(lambda: side.loads.completed() == 1, "it arrives")
    side.loads.pop()
    for key, page in zip((keys[1], keys[2], keys[4]), pages[:3], strict=True):
        engine.check_page(0, key, page)
    drained(manager)


def test_a_batch_of_many_restores_lands(manager: ManagerProcess, ranks: Make) -> None:
    engine = ranks(host_copy_delay_us=500)
    names = [f"p{number}" for number in range(2 * IN_FLIGHT_MAX)]
    engine.forward(admitted_at_once(engine, names))
    engine.settle()
    drained(manager)


# Lost Managers.


def test_a_new_life_of_the_manager_gets_everything_again(manager: ManagerProcess, ranks: Make) -> None:
    engine = ranks()
    engine.serve("a", 12)
    assert len(engine.stored) == 12
    manager.kill()
    assert engine.serve("b", 12) == 0, "nobody is there: computed"
    assert len(engine.stored) == 12, "what could not be published is not marked"
    manager.start()
    engine.wait_usable()
    assert engine.lives == 2
    assert engine.stored == set()
    assert engine.serve("a", 12) == 0, "its memory is new"
    assert engine.serve("a", 12) == 12
    drained(manager)


@pytest.mark.parametrize("restarted", ["before the forward", "after the forward"])
def test_a_promised_restore_lands_although_its_manager_ends(
    manager: ManagerProcess, ranks: Make, restarted: str
) -> None:
    engine = ranks(host_copy_delay_us=20_000)
    engine.serve("a", 12)
    keys = promised(engine, "a", 12)
    manager.kill()
    admitted = engine.admit("a-again", keys, 12)
    if restarted == "before the forward":
        manager.start()
    engine.forward([admitted])
    engine.settle()
    if restarted == "after the forward":
        manager.start()
    engine.wait_usable()
    assert engine.lives == 2
    engine.serve("b", 3)
    assert engine.serve("b", 3) == 3
    drained(manager)


def test_a_manager_that_ends_in_the_middle_of_the_copies_costs_nothing(manager: ManagerProcess, ranks: Make) -> None:
    engine = ranks(host_copy_delay_us=20_000)
    names = [f"p{number}" for number in range(IN_FLIGHT_MAX + 3)]
    batch = admitted_at_once(engine, names)
    index = engine.start()
    manager.kill()
    manager.start()
    engine.forward(batch, index)
    engine.settle()
    engine.wait_usable()
    assert engine.lives == 2
    drained(manager)


# Lost channels.


@pytest.mark.parametrize("side", ["scheduler", "worker"])
@pytest.mark.parametrize("when", ["promised", "queued", "copying"])
def test_a_channel_that_breaks_costs_no_promised_restore(
    manager: ManagerProcess, ranks: Make, side: str, when: str
) -> None:
    engine = ranks(host_copy_delay_us=20_000)
    engine.serve("a", 12)
    keys = promised(engine, "a", 12)
    if when == "promised":
        engine.breaks_in_the_pass(side)
    admitted = engine.admit("a-again", keys, 12)
    if when == "queued":
        engine.breaks_in_the_pass(side)
    index = engine.start()
    if when == "copying":
        engine.breaks(side)
    engine.forward([admitted], index)
    engine.settle()
    engine.wait_usable()
    assert engine.lives == 1, "the Manager lived on"
    drained(manager)
    assert engine.serve("a", 12) == 12


def test_restores_that_wait_for_their_turn_outlive_a_channel(manager: ManagerProcess, ranks: Make) -> None:
    """The session that follows closes the backend that they need."""
    engine = ranks(host_copy_delay_us=10_000)
    names = [f"p{number}" for number in range(IN_FLIGHT_MAX + 4)]
    batch = admitted_at_once(engine, names)
    engine.breaks_in_the_pass("worker")
    engine.breaks_in_the_pass("scheduler")
    engine.forward(batch)
    engine.settle()
    engine.wait_usable()
    drained(manager)


@pytest.mark.parametrize("side", ["scheduler", "worker"])
def test_a_channel_that_breaks_while_a_save_runs_loses_no_page(manager: ManagerProcess, ranks: Make, side: str) -> None:
    engine = ranks(host_copy_delay_us=50_000)
    keys = keys_of("a", 12)
    admitted = engine.admit("a", keys, engine.ask("a", keys))
    engine.forward()
    engine.compute(admitted)
    eventually(lambda: engine.begin_pass() and bool(engine.sides[0].offloads._reserves.copies), "its copies run")
    engine.breaks(side)
    engine.settle()
    engine.wait_usable()
    eventually(lambda: stored_pages(manager) == 12, "the pages that were copied meanwhile are sealed")
    drained(manager)
    assert engine.serve("a", 12) == 12


# A Manager that stands still.


def test_a_stopped_manager_costs_a_pass_no_more_than_its_bound(
    manager: ManagerProcess, ranks: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is asked of the channel is the bound; how long a busy machine takes for it is not the product's."""
    engine = ranks(query_wait_us=2000, timeout_ms=1000)
    eventually(lambda: engine.serve("a", 12) == 12, "it is stored")
    waits: list[float | None] = []
    wait = Channel.wait

    def noted(channel: Channel, reply: object, timeout: float | None) -> bool:
        if threading.current_thread() is threading.main_thread():
            waits.append(timeout)
        return wait(channel, reply, timeout)  # type: ignore[arg-type]

    monkeypatch.setattr(Channel, "wait", noted)
    manager.pause()
    try:
        for number in range(20):
            waits.clear()
            engine.begin_pass()
            for request in range(12):
                engine.match(f"r{request}", keys_of(f"r{request}", 3))
            engine.forward()
            assert sum(each or 0.0 for each in waits) <= 2e-3, f"pass {number}"
            assert None not in waits
        assert engine.sides[0].lookups.breaker.opened >= 1
        assert engine.serve("computed", 3) == 0
    finally:
        manager.go_on()
    monkeypatch.undo()
    eventually(lambda: engine.serve("a", 12) == 12, "hits come back by themselves")
    drained(manager)


# Reset, weights, golden.


def test_a_flush_while_copies_run_leaves_nothing_behind(manager: ManagerProcess, ranks: Make) -> None:
    engine = ranks(host_copy_delay_us=10_000)
    engine.serve("a", 12)
    keys = promised(engine, "a", 12)
    engine.admit("a-again", keys, 12)
    engine.start()
    engine.offload(keys_of("b", 3), [90, 91, 92])
    engine.begin_pass()
    assert engine.match("c", keys) == 12
    engine.admit("c", keys, 12)
    engine.flush()
    engine.begin_pass()
    drained(manager)
    assert engine.serve("a", 12) == 12, "the Manager keeps its pages"


def test_after_a_change_of_weights_old_pages_are_out_of_reach(manager: ManagerProcess, ranks: Make) -> None:
    engine = ranks()
    engine.serve("a", 12)
    engine.sides[0].rest(0x5EED)
    assert engine.serve("a", 12) == 0
    assert engine.serve("a", 12) == 0, "nothing is published before the flush"
    engine.flush()
    engine.wait_usable()
    assert engine.serve("a", 12) == 0, "the pages of the old weights are of another epoch"
    assert engine.serve("a", 12) == 12
    drained(manager)


def test_a_golden_mismatch_at_the_start_stops_it(
    manager: ManagerProcess, ranks: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GoldenCheck, "run", lambda *_: GoldenResult.MISMATCH)
    with pytest.raises(ConfigurationError, match="golden"):
        ranks(wait=False)


def test_a_rank_goes_on_once_it_is_proved(ranks: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    run = GoldenCheck.run

    def prove(check: GoldenCheck, source: int, target: int) -> GoldenResult:
        order.append("proved")
        return run(check, source, target)

    monkeypatch.setattr(GoldenCheck, "run", prove)
    monkeypatch.setattr(BackendChoice, "serve", lambda _: order.append("goes on"))
    ranks()
    assert order == ["proved", "goes on"]


def test_a_rank_that_can_register_no_arena_refuses_to_start(ranks: Make, refuse_arenas: Callable[[str], None]) -> None:
    refuse_arenas("RLIMIT_MEMLOCK is 64 KiB: raise it")
    with pytest.raises(ConfigurationError, match="RLIMIT_MEMLOCK is 64 KiB: raise it"):
        ranks(wait=False)


def test_a_golden_mismatch_with_a_later_manager_leaves_the_rank_without_hits(
    manager: ManagerProcess, ranks: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = ranks()
    engine.serve("a", 12)
    manager.kill()
    monkeypatch.setattr(GoldenCheck, "run", lambda *_: GoldenResult.MISMATCH)
    manager.start()
    worker = engine.sides[0]._worker
    eventually(
        lambda: worker.session is not None and worker.session.result is GoldenResult.MISMATCH, "the rank is proved anew"
    )
    assert not engine.begin_pass()
    assert engine.serve("a", 12) == 0
    assert engine.serve("a", 12) == 0
    assert stored_pages(manager) == 0


@pytest.mark.parametrize("copy", ["_publish", "_restore"])
def test_a_channel_that_breaks_in_a_golden_round_trip_leaves_nothing_behind(
    manager: ManagerProcess, ranks: Make, monkeypatch: pytest.MonkeyPatch, copy: str
) -> None:
    """The rank comes back, and the page of the round trip is not held for as long as its process lives."""
    broken: list[bool] = []
    engine = ranks()

    def breaking(check: GoldenCheck, *arguments: object) -> GoldenResult:
        result = attempt(check, *arguments)
        if not broken:
            broken.append(True)
            check.client._channel.close("broken by the test")
        return result

    attempt: Callable[..., GoldenResult] = getattr(GoldenCheck, copy)
    monkeypatch.setattr(GoldenCheck, copy, breaking)
    engine.breaks("worker")
    eventually(lambda: bool(broken), "a golden copy ended without its channel")
    engine.wait_usable()
    drained(manager)


def test_a_private_namespace_whose_answer_never_came_is_in_no_later_ones_way(
    manager: ManagerProcess, ranks: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    late: list[int] = []
    engine = ranks()
    attempt = CacheManagerClient.open_private

    def open_late(client: CacheManagerClient, size: int) -> Namespace:
        namespace = attempt(client, size)
        if not late:
            late.append(size)
            raise CallTimeout("not answered in time, by the test")
        return namespace

    monkeypatch.setattr(CacheManagerClient, "open_private", open_late)
    engine.breaks("worker")
    eventually(lambda: bool(late), "a private namespace was opened and its answer missed")
    engine.wait_usable()
    drained(manager)


# Pressure.


def test_a_revoke_loses_against_a_promise_and_wins_after_the_pass(start_manager: Callable[..., ManagerProcess]) -> None:
    manager = start_manager("16mib")
    first, second = Ranks([manager.socket], "engine-1"), Ranks([manager.socket], "engine-2")
    try:
        first.serve("a", 40)
        keys = promised(first, "a", 40)
        for number in range(12):
            second.serve(f"fills the pool {number}", 80)
        assert manager.metric("orbitkv_cache_block_evictions_total") > 0
        first.forward([first.admit("a-again", keys, 40)])
        first.settle()
        drained(manager)
    finally:
        first.close()
        second.close()


def test_an_end_leaves_nothing_at_the_manager(manager: ManagerProcess, ranks: Make) -> None:
    engine = ranks()
    engine.serve("a", 12)
    promised(engine, "a", 12)
    assert books(manager)
    engine.close()
    drained(manager)
    cache = manager.status()["cache"]
    assert (cache["instances"], cache["stats"]["sessions_disconnected"]) == ([], 0)
