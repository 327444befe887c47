"""Both sides of the vLLM adapter against a real Manager, with engine tensors in plain memory and one or two ranks."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from python.tests.manager.vllm_rig import BLOCK_BYTES, BLOCKS, LAYERS, PAGE, Replica

from harness.fakes import FakeTensors, keys_of
from harness.manager import ManagerProcess, eventually
from orbitkv.adapter.attachment import RankPlace
from orbitkv.adapter.settings import read_settings
from orbitkv.errors import ConfigurationError, Refused
from orbitkv.timeline import Timeline
from orbitkv.vllm.plans import Progress
from orbitkv.vllm.worker import EngineLayers, WorkerSide

LIMIT = "RLIMIT_MEMLOCK is 64 KiB: raise it"
Make = Callable[..., Replica]


@pytest.mark.parametrize("world", [1, 2])
def test_bytes_come_back_exactly(replica: Make, world: int) -> None:
    engine = replica(world)
    for name, tokens in (("a", 200), ("b", 16), ("c", 257)):
        assert engine.serve(name, tokens)[0] == 0
        engine.settle()
        assert engine.serve(name, tokens)[0] == (tokens - 1) // PAGE
        engine.settle()


def test_replicated_content_is_stored_once_and_restored_by_every_rank(manager: ManagerProcess, replica: Make) -> None:
    engine = replica(2, replicated=True)
    engine.serve("a", 200)
    engine.settle()
    session = engine.side._usable()
    assert session is not None
    assert [place.rank for place in session.slices] == [0]
    assert engine.serve("a", 200)[0] == 12
    engine.settle()
    loaded = 2 * 12 * LAYERS * BLOCK_BYTES
    eventually(lambda: manager.metric("orbitkv_load_bytes_total") == loaded, "both ranks reported")


def test_a_second_engine_with_equal_facts_shares_and_another_does_not(replica: Make) -> None:
    first = replica(name="engine-1")
    first.serve("a", 200)
    first.settle()
    assert replica(name="engine-2").serve("a", 200)[0] == 12
    assert replica(name="engine-3", fact="other").serve("a", 200)[0] == 0


def test_ranks_that_differ_are_refused_with_the_fact(manager: ManagerProcess, replica: Make) -> None:
    replica(name="engine-1", world=1)
    with pytest.raises(Refused, match=r"rank 0|model"):
        Replica(manager.socket, name="engine-1", fact="other")


def test_a_restarted_manager_is_joined_again_and_device_blocks_are_published_again(
    manager: ManagerProcess, replica: Make
) -> None:
    engine = replica(2)
    engine.serve("a", 200)
    engine.settle()
    manager.kill()
    assert engine.serve("a", 200)[0] == 0, "nobody is there: computed"
    engine.settle()
    manager.start()
    eventually(engine.usable, "the new Manager was proven")
    assert engine.serve("a", 200)[0] == 0, "its memory is new"
    engine.settle()
    assert engine.serve("a", 200)[0] == 12
    engine.settle()


def test_begun_copies_of_a_dead_manager_are_used(manager: ManagerProcess, replica: Make) -> None:
    engine = replica()
    engine.serve("a", 200)
    engine.settle()
    keys = keys_of("a", 12)
    assert engine.side.matched_tokens(Progress("r", 200, 0, 0, keys), 0) == 192
    blocks = [block.block_id for block in engine.pool.get_new_blocks(13)]
    engine.side.allocated("r", 192, blocks)
    manager.kill()
    engine.step([Progress("r", 200, 192, 192, keys)], {"r": blocks})
    assert engine.errors == set()
    engine.check(blocks[:12], keys)
    manager.start()


def test_a_stopped_manager_costs_a_bounded_wait_and_nothing_else(manager: ManagerProcess, replica: Make) -> None:
    engine = replica(query_wait_us=1000, timeout_ms=1000)
    manager.pause()
    try:
        assert engine.serve("a", 200)[0] == 0
        assert engine.side.breaker.opened == 1
        engine.settle()
    finally:
        os.kill(manager.pid, signal.SIGCONT)
    eventually(lambda: engine.serve("b", 200)[0] == 12, "hits come back by themselves")


@pytest.mark.parametrize("side", ["worker", "scheduler"])
def test_a_connection_that_breaks_is_no_death(manager: ManagerProcess, replica: Make, side: str) -> None:
    """A copy that runs meanwhile is told on the next session, and nothing stays held for good."""
    engine = replica(host_copy_delay_us=100_000)
    keys = keys_of("a", 12)
    blocks = [block.block_id for block in engine.pool.get_new_blocks(12)]
    for block, key in zip(blocks, keys, strict=True):
        engine.fill(0, block, key)
    engine.side.allocated("r", 0, blocks)
    engine.step([Progress("r", 200, 0, 0, keys)], {"r": blocks})
    progress = Progress("r", 201, 200, 200, keys)
    eventually(lambda: bool(engine.step([progress], {}).publishes), "the plan leaves")
    link = engine.workers[0]._link if side == "worker" else engine.side.link
    session = link.session
    assert session is not None
    session.client._channel.close("broken by the test")
    engine.side.finished(progress)
    engine.pool.free_blocks([engine.pool.blocks[block] for block in blocks])
    engine.settle()
    eventually(engine.usable, "the session is resumed")
    eventually(lambda: stored(manager) == 12, "the pages that were copied meanwhile are sealed")
    assert engine.serve("a", 200)[0] == 12
    engine.settle()
    held = ("leases", "reservations", "quarantined_bytes", "abandoned_bytes", "settling_bytes")
    # The last report has no reply: the Manager may not have read it yet.
    eventually(lambda: all(manager.status()["cache"]["stats"][name] == 0 for name in held), "nothing stays held")


@pytest.mark.parametrize("kind", ["committed", "restored"])
def test_a_report_that_is_lost_with_its_connection_is_told_again(
    manager: ManagerProcess, replica: Make, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """It was in a queue, or in a socket that the Manager had not read."""
    engine = replica()
    engine.serve("a", 200)
    if kind == "restored":
        engine.settle()
    session = engine.workers[0]._link.session
    assert session is not None
    monkeypatch.setattr(session.client._channel, "report", lambda _: None)
    monkeypatch.setattr(session._reports, "confirm", lambda: None)
    if kind == "restored":
        assert engine.serve("a", 200)[0] == 12
    engine.settle()
    monkeypatch.undo()
    session.client._channel.close("broken by the test")
    eventually(lambda: engine.workers[0]._link.session is not None, "the worker is back")
    eventually(lambda: stored(manager) == 12, "the pages are sealed")
    eventually(lambda: manager.status()["cache"]["stats"]["leases"] == 0, "the lease ended")
    eventually(lambda: engine.usable() and engine.serve("a", 200)[0] == 12, "restored once the arenas are mapped anew")
    engine.settle()


def test_grants_that_no_worker_was_told_of_are_free_again(manager: ManagerProcess, replica: Make) -> None:
    engine = replica()
    engine.serve("a", 200)
    engine.side.build_plan([], {}, [])  # The reserve leaves, and its answer is not taken before the connection breaks.
    eventually(lambda: reservations(manager) == 1, "the pages are granted")
    session = engine.side.link.session
    assert session is not None
    session.client._channel.close("broken by the test")
    engine.settle()
    eventually(engine.usable, "the session is resumed")
    eventually(lambda: reservations(manager) == 0, "nobody will write them")
    assert engine.serve("a", 200)[0] == 0
    engine.settle()
    assert engine.serve("a", 200)[0] == 12


def test_a_worker_that_breaks_between_a_reset_and_the_next_step_comes_back(replica: Make) -> None:
    engine = replica()
    engine.serve("a", 200)
    engine.settle()
    engine.side.reset()
    eventually(lambda: engine.side._registered() is not None, "the Manager is in the new epoch")
    link = engine.workers[0]._link
    assert link.session is not None
    link.session.client._channel.close("broken by the test")
    eventually(lambda: "epoch" in link._refusal, "the worker still is in the old one")
    eventually(engine.usable, "the step brings the new one")
    eventually(lambda: link.session is not None and link.session.attached, "the rank is back")
    engine.serve("b", 200)
    engine.settle()
    eventually(lambda: engine.serve("b", 200)[0] == 12, "restored once the arenas are mapped anew")
    engine.settle()


def test_a_replica_that_is_shut_down_leaves_nothing_at_the_manager(manager: ManagerProcess, replica: Make) -> None:
    """Its process may live on and make another."""
    engine = replica(2)
    engine.serve("a", 200)
    engine.settle()
    assert len(manager.status()["cache"]["instances"]) == 1
    engine.close()
    cache = manager.status()["cache"]
    assert (cache["instances"], cache["stats"]["sessions_disconnected"]) == ([], 0)


def reservations(manager: ManagerProcess) -> int:
    """Return how many reservations are open."""
    return int(manager.status()["cache"]["stats"]["reservations"])


def stored(manager: ManagerProcess) -> int:
    """Return the pages that were stored since the Manager started."""
    return int(manager.metric("orbitkv_cache_block_insertions_total"))


def test_a_reset_leaves_the_old_pages_out_of_reach(replica: Make) -> None:
    engine = replica()
    engine.serve("a", 200)
    engine.settle()
    engine.side.reset()
    eventually(engine.usable, "the new epoch is registered")
    assert engine.serve("a", 200)[0] == 0
    engine.settle()
    assert engine.serve("a", 200)[0] == 12


def test_a_golden_mismatch_refuses_to_start(manager: ManagerProcess) -> None:
    tensors = FakeTensors(LAYERS, BLOCKS, BLOCK_BYTES)
    tensors.shift = 8
    layers = EngineLayers(tensors.layout, tensors, {})
    settings = read_settings({"orbitkv.socket": manager.socket, "orbitkv.timeout_ms": 30_000}, {})
    worker = WorkerSide(settings, RankPlace("engine-1", 0, 1), layers, {}, Timeline("test", False))
    with pytest.raises(ConfigurationError, match="golden"):
        worker.begin()
    worker.close()


def test_a_worker_that_can_register_no_arena_refuses_to_start(
    manager: ManagerProcess, refuse_arenas: Callable[[str], None]
) -> None:
    refuse_arenas(LIMIT)
    with pytest.raises(ConfigurationError, match=LIMIT):
        Replica(manager.socket)
    eventually(lambda: not manager.status()["cache"]["instances"], "the worker that refused has left")


def test_arenas_that_cannot_be_registered_later_cost_the_hits_and_not_the_engine(
    manager: ManagerProcess, replica: Make, refuse_arenas: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    engine = replica()
    engine.serve("a", 200)
    engine.settle()
    refuse_arenas(LIMIT)
    manager.kill()
    manager.start()
    counted: list[float] = []

    def refused() -> bool:
        engine.step([], {})
        counted.append(engine.workers[0].stats.take().get("arenas_refused", 0.0))  # type: ignore[arg-type]
        return sum(counted) > 0

    eventually(refused, "the arena of the new Manager is refused")
    assert LIMIT in caplog.text
    for _ in range(2):
        assert engine.serve("a", 200)[0] == 0
