"""Pages that left the pool come back from the SSD: exact bytes, under stops, faults, ends of the Manager and delays."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from python.tests.manager.conftest import Start
from python.tests.manager.sglang_rig import Ranks, Traffic, drained, keys_of
from python.tests.manager.vllm_rig import PAGE
from python.tests.manager.vllm_rig import Replica as VllmReplica

from harness import oracle
from harness import ssd as tier
from harness.fakes import keys_of as vllm_keys_of
from harness.manager import ManagerProcess, eventually
from harness.replica import Replica, Shape
from harness.ssd import STALLING, Volume
from orbitkv.adapter import breaker as breaker_module
from orbitkv.client import State
from orbitkv.vllm.plans import Progress

PAGES = 100
TOKENS = 20 * PAGE + 1
PASSES, PASSES_MAX = 150, 20_000
RESTORED = 60


@pytest.fixture
def fault() -> str:
    """Return the fault of the disk that is injected: none, unless a test is parametrized with one."""
    return ""


@pytest.fixture
def manager(start_manager: Start, volume: Volume, fault: str) -> ManagerProcess:
    """Return a Manager with a pool of 64 MiB and an SSD tier."""
    return start_manager("64mib", *volume.options(fault))


def put_away(manager: ManagerProcess, replica: Replica, keys: bytes) -> None:
    """Publish pages and return when they are on the SSD alone."""
    before = tier.stored(manager)
    pages = replica.publish(keys)
    tier.wait_stored(manager, before + pages)
    tier.empty_memory(manager)


# Exact bytes.


@pytest.mark.parametrize("world", [1, 2])
def test_what_left_the_pool_comes_back_byte_for_byte(manager: ManagerProcess, world: int) -> None:
    with Replica(manager.socket, "one", Shape(world=world)) as replica:
        keys = oracle.prefix(1, PAGES)
        put_away(manager, replica, keys)
        assert replica.restore(keys, expect=PAGES) == PAGES
        assert tier.read(manager) == PAGES
        assert replica.restore(keys, expect=PAGES) == PAGES
        assert tier.read(manager) == PAGES, "they are in the pool again"


def test_a_working_set_of_many_pools_is_all_there(start_manager: Start, volume: Volume) -> None:
    manager = start_manager("16mib", *volume.options())
    prefixes = [oracle.prefix(seed, PAGES) for seed in range(15)]
    with Replica(manager.socket, "one") as replica:
        for number, keys in enumerate(prefixes):
            assert replica.publish(keys) == PAGES
            tier.wait_stored(manager, (number + 1) * PAGES)
        assert manager.metric("orbitkv_cache_block_evictions_total") > 0
        order = random.Random(7)
        for _ in range(2 * len(prefixes)):
            assert replica.restore(order.choice(prefixes), expect=PAGES) == PAGES
    assert tier.read(manager) > len(prefixes) * PAGES // 2
    assert tier.unreadable(manager) == 0


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_the_pages_outlive_the_manager(start_manager: Start, volume: Volume, end: str) -> None:
    manager = start_manager("64mib", *volume.options())
    keys = oracle.prefix(1, PAGES)
    with Replica(manager.socket, "one") as replica:
        put_away(manager, replica, keys)
        if end == "kill":
            manager.kill()
    if end == "stop":
        manager.stop()
    manager.start()
    assert tier.stored(manager) == PAGES
    with Replica(manager.socket, "two") as replica:
        assert replica.restore(keys, expect=PAGES) == PAGES
    with Replica(manager.socket, "three", Shape(model="another")) as replica:
        assert replica.restore(keys) == 0


def test_spoilt_bytes_are_a_miss_and_are_published_again(manager: ManagerProcess, volume: Volume) -> None:
    with Replica(manager.socket, "one") as replica:
        keys = oracle.prefix(1, PAGES)
        put_away(manager, replica, keys)
        assert volume.spoil() >= PAGES
        assert replica.restore(keys) == 0
        assert tier.read(manager) == 0
        assert manager.metrics("orbitkv_ssd_prefetch_failures_total")['reason="digest"'] > 0

        def healed() -> bool:
            replica.publish(keys)
            tier.wait_stored(manager, 0)
            tier.empty_memory(manager)
            return replica.restore(keys) == PAGES

        # A page is found to be spoilt when it is read, and one read ends the prefix.
        eventually(healed, "every page was written anew")


@pytest.mark.parametrize("fault", ["read-flip=20", "read-eio=20"])
def test_a_page_that_cannot_be_read_ends_the_prefix_before_it(manager: ManagerProcess) -> None:
    keys = oracle.prefix(1, PAGES)
    with Replica(manager.socket, "one") as replica:
        put_away(manager, replica, keys)
        assert 0 < replica.restore(keys) < PAGES
    assert tier.unreadable(manager) > 0


# Stops.


@pytest.mark.parametrize("fault", [STALLING])
@pytest.mark.parametrize("there", [0, 1, 30])
def test_a_query_that_is_read_is_stopped_with_what_is_there(
    manager: ManagerProcess, volume: Volume, there: int
) -> None:
    keys = oracle.prefix(1, PAGES)
    with Replica(manager.socket, "one") as replica:
        put_away(manager, replica, keys)
        if there:
            assert replica.restore(keys[: 32 * there], expect=there) == there
        volume.stall()
        query = replica.scheduler.query(replica.namespace, keys, instance="one", wait_us=None)
        assert query.state is State.PREPARING
        assert query.stop(None) is State.READY
        assert query.pages == there
        assert (query.lease is None) == (there == 0)
        if query.lease is not None:
            query.lease.release()
        volume.resume()
        assert replica.restore(keys, expect=PAGES) == PAGES
    drained(manager)


def test_a_query_that_has_no_budget_is_stopped_with_nothing(start_manager: Start) -> None:
    manager = start_manager("16mib", "--query-budget", "4mib")
    shape = Shape()
    with Replica(manager.socket, "one", shape) as one, Replica(manager.socket, "two", shape) as two:
        keys = oracle.prefix(1, (4 << 20) // shape.slice_bytes)
        one.publish(keys)
        held = one.scheduler.query(one.namespace, keys, instance="one", wait_us=None)
        query = two.scheduler.query(two.namespace, keys, instance="two", wait_us=None)
        assert query.state is State.WAITING
        assert (query.stop(None), query.lease) == (State.READY, None)
        assert held.lease is not None
        held.lease.release()
        assert two.restore(keys, expect=len(keys) // 32) == len(keys) // 32
    drained(manager)


# vLLM's adapter.


def test_vllm_restores_what_left_the_pool(manager: ManagerProcess, replica: Callable[..., VllmReplica]) -> None:
    engine = replica(load_wait_ms=60_000)
    engine.serve("a", TOKENS)
    engine.settle()
    tier.wait_stored(manager, 20)
    tier.empty_memory(manager)
    assert engine.serve("a", TOKENS)[0] == 20
    engine.settle()
    assert tier.read(manager) == 20
    values = engine.side.stats.take()
    assert len(values["prefetch_staging_seconds"]) == 1  # type: ignore[arg-type]
    assert "prefetch_stopped" not in values
    drained(manager)


@pytest.mark.parametrize("fault", [STALLING])
def test_vllm_serves_others_while_a_prefix_is_read(
    manager: ManagerProcess, volume: Volume, replica: Callable[..., VllmReplica]
) -> None:
    engine = replica(load_wait_ms=600_000)
    engine.serve("a", TOKENS)
    engine.settle()
    tier.wait_stored(manager, 20)
    tier.empty_memory(manager)
    volume.stall()
    slow = Progress("slow", TOKENS, 0, 0, vllm_keys_of("a", 20))
    assert engine.side.matched_tokens(slow, 0) is None
    for number in range(3):
        assert engine.serve(f"other {number}", TOKENS)[0] == 0
        engine.settle()
        assert engine.serve(f"other {number}", TOKENS)[0] == 20
        assert engine.side.matched_tokens(slow, 0) is None
    assert tier.read(manager) == 0
    volume.resume()
    eventually(lambda: engine.side.matched_tokens(slow, 0) == 20 * PAGE, "its pages are there")
    engine.side.finished(slow)
    engine.settle()
    drained(manager)


@pytest.mark.parametrize("fault", [STALLING])
@pytest.mark.parametrize("there", [0, 7])
def test_vllm_computes_what_is_not_read_in_time(
    manager: ManagerProcess, volume: Volume, replica: Callable[..., VllmReplica], there: int
) -> None:
    engine = replica(load_wait_ms=300)
    engine.serve("a", TOKENS)
    engine.settle()
    tier.wait_stored(manager, 20)
    tier.empty_memory(manager)
    if there:
        eventually(lambda: engine.serve("a", there * PAGE + 1)[0] == there, "the first pages are in memory")
        engine.settle()
    engine.side.stats.take()
    volume.stall()
    assert engine.serve("a", TOKENS)[0] == there
    values = engine.side.stats.take()
    assert (values["prefetch_stopped"], values["prefetch_stopped_blocks"]) == (1, [there])
    assert len(values["prefetch_staging_seconds"]) == 1  # type: ignore[arg-type]
    assert "query_unanswered" not in values
    volume.resume()
    engine.settle()
    drained(manager)


# SGLang's ranks.


def test_both_ranks_get_what_left_the_pool(manager: ManagerProcess, ranks: Callable[..., Ranks]) -> None:
    engine = ranks()
    engine.serve("a", 40)
    tier.wait_stored(manager, 40)
    tier.empty_memory(manager)
    assert engine.serve("a", 40) == 40
    assert tier.read(manager) == 40
    assert engine.skipped > 0, "the request waited while it was read"
    drained(manager)


@pytest.mark.parametrize("fault", [STALLING])
def test_both_ranks_go_on_with_others_and_take_what_is_there_together(
    manager: ManagerProcess, volume: Volume, ranks: Callable[..., Ranks]
) -> None:
    engine = ranks(load_wait_ms=600_000)
    engine.serve("a", 40)
    tier.wait_stored(manager, 40)
    tier.empty_memory(manager)
    assert engine.serve("a", 10) == 10
    volume.stall()
    keys = keys_of("a", 40)
    engine.begin_pass()
    assert engine.match("slow", keys) is None
    engine.forward()
    for number in range(3):
        assert engine.serve(f"other {number}", 8) == 0
        assert engine.serve(f"other {number}", 8) == 8
        engine.begin_pass()
        assert engine.match("slow", keys) is None
        engine.forward()
    for side in engine.sides[:1]:  # The patience of one of them ends.
        side.lookups._patience["slow"].spent += 600.0
    assert engine.ask("slow", keys) == 10
    admitted = engine.admit("slow", keys, 10)
    assert [int(side.stats.take().get("prefetch_stopped", 0)) for side in engine.sides] == [1, 0]  # type: ignore[arg-type]
    engine.forward([admitted])
    volume.resume()
    engine.compute(admitted)
    engine.settle()
    drained(manager)


@pytest.mark.parametrize("load_wait_ms", [60_000, 3], ids=["patient", "impatient"])
@pytest.mark.parametrize("seed", range(2))
def test_the_ranks_never_decide_differently_while_pages_come_from_the_ssd(
    manager: ManagerProcess,
    ranks: Callable[..., Ranks],
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    load_wait_ms: int,
) -> None:
    """Each rank hears at its own time that a prefix is being read, is there, or was stopped by the other."""
    monkeypatch.setattr(breaker_module, "UNANSWERED_MAX", 1 << 30)
    engine = ranks(delays=seed, query_wait_us=2000, load_wait_ms=load_wait_ms, host_copy_delay_us=200)
    order = random.Random(seed)
    traffic = Traffic(engine, order)
    while traffic.passes < PASSES or traffic.restored < RESTORED or tier.read(manager) < RESTORED:
        if order.random() < 0.1:
            manager.verb("/cache/memory/cleanup")
        traffic.step()
        assert traffic.passes < PASSES_MAX
    traffic.end()
    drained(manager)
    assert engine.skipped > 0
    values = [side.stats.take() for side in engine.sides]
    assert all("prefetch_staging_seconds" in each for each in values)
    assert any("prefetch_stopped" in each for each in values) == (load_wait_ms < 1000)
