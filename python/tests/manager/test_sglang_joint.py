"""Two ranks of SGLang that schedule one instance together, each with delays of its own in what it hears."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from python.tests.manager.sglang_rig import BLOCK_BYTES, LAYERS, WORLD, Ranks, Traffic, books, drained, keys_of

from harness.manager import ManagerProcess, eventually
from orbitkv.adapter import breaker as breaker_module

PASSES = 100
RESTORED = 60  # pages

Make = Callable[..., Ranks]


def test_both_slices_come_back_exactly(manager: ManagerProcess, ranks: Make) -> None:
    engine = ranks()
    for name, pages in (("a", 12), ("b", 1), ("c", 40)):
        assert engine.serve(name, pages) == 0
        assert engine.serve(name, pages) == pages
    drained(manager)
    assert manager.metric("orbitkv_load_bytes_total") == WORLD * (12 + 1 + 40) * LAYERS * BLOCK_BYTES


def test_the_ranks_have_one_operation_and_one_lease(manager: ManagerProcess, ranks: Make) -> None:
    engine = ranks()
    engine.serve("a", 12)
    keys = keys_of("a", 12)
    engine.begin_pass()
    assert engine.match("again", keys) == 12
    held = books(manager)
    assert (held["leases"], held["operations_ready"]) == (1, 1)
    leases = {side.lookups._table["again"].lease.id for side in engine.sides}  # type: ignore[union-attr]
    assert len(leases) == 1
    engine.forward([engine.admit("again", keys, 12)])
    engine.settle()
    offered = engine.admit("b", keys_of("b", 3), 0)
    engine.compute(offered)
    engine.begin_pass()
    eventually(lambda: books(manager).get("reservations") == 1, "one reservation")
    engine.settle()
    drained(manager)


def test_other_instances_share_what_both_ranks_stored(manager: ManagerProcess, ranks: Make) -> None:
    assert ranks("engine-1").serve("a", 12) == 0
    assert ranks("engine-2").serve("a", 12) == 12
    drained(manager)


def test_a_page_that_one_rank_did_not_store_is_not_there(manager: ManagerProcess, ranks: Make) -> None:
    engine = ranks()
    keys = keys_of("a", 6)
    admitted = engine.admit("a", keys, engine.ask("a", keys))
    engine.forward()
    engine.breaks("scheduler", rank=1)
    engine.compute(admitted)
    engine.settle()
    engine.wait_usable()
    # The Manager learns with the rank's next reserve that it left this one out.
    eventually(lambda: engine.serve("a", 6) == 6, "both ranks publish it again")
    drained(manager)


@pytest.mark.parametrize("breaker", ["breaker", "no breaker"])
@pytest.mark.parametrize("seed", range(3))
def test_the_ranks_never_decide_differently_although_each_hears_at_its_own_time(
    manager: ManagerProcess, ranks: Make, monkeypatch: pytest.MonkeyPatch, seed: int, breaker: str
) -> None:
    """Waits are shorter than delays: each rank has its answers in other passes, or takes the Manager for lost."""
    if breaker == "no breaker":
        monkeypatch.setattr(breaker_module, "UNANSWERED_MAX", 1 << 30)
    engine = ranks(delays=seed, query_wait_us=500, load_wait_ms=60_000, host_copy_delay_us=200)
    traffic = Traffic(engine, random.Random(seed))
    while traffic.passes < PASSES or (breaker == "no breaker" and traffic.restored < RESTORED):
        traffic.step()
    traffic.end()
    drained(manager)
    assert engine.skipped > 0, "some answers were late"


@pytest.mark.parametrize("seed", range(3))
def test_whatever_breaks_at_random_both_ranks_go_on_alike(manager: ManagerProcess, ranks: Make, seed: int) -> None:
    """Channels of either rank break anywhere in a pass, and twice the Manager ends and another one begins."""
    engine = ranks(load_wait_ms=200, query_wait_us=2000, host_copy_delay_us=500)
    order = random.Random(100 + seed)
    restarts = [PASSES // 3, 2 * PASSES // 3]

    def disturb() -> None:
        if restarts and traffic.passes >= restarts[0]:
            restarts.pop(0)
            manager.kill()
            manager.start()
        elif order.random() < 0.02:
            which, rank = order.choice(("scheduler", "worker")), order.randrange(WORLD)
            # A grant that a golden round trip did not hear of is nobody's to give back.
            if engine.sides[rank]._sessions() is not None:
                engine.breaks(which, rank)

    traffic = Traffic(engine, order, disturb)
    while traffic.passes < 2 * PASSES or restarts:
        traffic.step()
    traffic.disturb = lambda: None
    while traffic.restored < RESTORED:
        traffic.step()
    traffic.end()
    engine.wait_usable()
    engine.serve("the reserve that tells what a rank left out", 1)
    drained(manager)


# A rank that skips.


@pytest.mark.parametrize("which", ["scheduler", "worker"])
@pytest.mark.parametrize("rank", range(WORLD))
def test_a_rank_that_lost_its_channel_leaves_no_reference_behind(
    manager: ManagerProcess, ranks: Make, rank: int, which: str
) -> None:
    engine = ranks()
    engine.serve("a", 12)
    engine.breaks(which, rank)
    found = engine.serve("a", 12)
    assert found in (0, 12)
    engine.wait_usable()
    assert engine.lives == 1
    drained(manager)
    assert engine.serve("a", 12) == 12
    drained(manager)


@pytest.mark.parametrize("rank", range(WORLD))
def test_a_rank_whose_breaker_is_open_leaves_no_reference_behind(
    manager: ManagerProcess, ranks: Make, rank: int
) -> None:
    engine = ranks()
    engine.serve("a", 12)
    engine.sides[rank].lookups.breaker._until = engine.sides[rank]._clock() + 1.0
    assert engine.serve("a", 12) == 0, "the other rank's promise is worth nothing"
    assert engine.decisions[-1][1] == 0
    drained(manager)
    eventually(lambda: engine.serve("a", 12) == 12, "hits come back with the second's end")
    drained(manager)


@pytest.mark.parametrize("which", ["scheduler", "worker"])
@pytest.mark.parametrize("rank", range(WORLD))
def test_a_channel_that_breaks_after_the_promise_costs_no_restore(
    manager: ManagerProcess, ranks: Make, rank: int, which: str
) -> None:
    engine = ranks(host_copy_delay_us=20_000)
    engine.serve("a", 12)
    keys = keys_of("a", 12)
    assert engine.ask("again", keys) == 12
    engine.breaks_in_the_pass(which, rank)
    engine.forward([engine.admit("again", keys, 12)])
    engine.settle()
    engine.wait_usable()
    drained(manager)
    assert engine.serve("a", 12) == 12


def test_a_new_life_of_the_manager_is_used_by_both_ranks_at_once(manager: ManagerProcess, ranks: Make) -> None:
    engine = ranks()
    engine.serve("a", 12)
    manager.kill()
    assert engine.serve("b", 3) == 0
    manager.start()
    engine.wait_usable()
    assert engine.lives == 2
    assert engine.serve("a", 12) == 0
    assert engine.serve("a", 12) == 12
    drained(manager)


def test_promised_restores_of_both_ranks_land_although_the_manager_ends(manager: ManagerProcess, ranks: Make) -> None:
    engine = ranks(host_copy_delay_us=20_000)
    engine.serve("a", 12)
    keys = keys_of("a", 12)
    assert engine.ask("again", keys) == 12
    manager.kill()
    engine.forward([engine.admit("again", keys, 12)])
    manager.start()
    engine.settle()
    engine.wait_usable()
    drained(manager)


def test_both_ranks_enter_a_new_epoch(manager: ManagerProcess, ranks: Make) -> None:
    engine = ranks()
    engine.serve("a", 12)
    for side in engine.sides:
        side.rest(0x5EED)
    assert engine.serve("a", 12) == 0
    engine.flush()
    engine.wait_usable()
    assert engine.serve("a", 12) == 0
    assert engine.serve("a", 12) == 12
    drained(manager)
