"""A throttled folder under the real Manager: what it says of a prefix that it reads, and who waits for it.

The adapters' rate of prefill is set by hand, so that computing is much faster than the folder or much slower.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from python.tests.manager.conftest import Start
from python.tests.manager.sglang_rig import Ranks, drained, keys_of
from python.tests.manager.vllm_rig import PAGE
from python.tests.manager.vllm_rig import Replica as VllmReplica

from harness import oracle
from harness import ssd as tier
from harness.manager import ManagerProcess, eventually
from harness.replica import Replica, Shape
from harness.ssd import STALLING, Volume
from orbitkv.client import State

PAGES = 20
TOKENS = PAGES * PAGE + 1
INSTANT, SLUGGISH = 1e12, 1e-3  # tokens a second
PATIENCE_MS = 600_000
PAGE_KIB = 20  # of both adapters' pages, padded, about
THROTTLED = f"read-rate={PAGE_KIB * PAGES // 4}kib"  # a second: a prefix takes about four


@pytest.fixture
def fault() -> str:
    """Return the fault of the disk that is injected."""
    return THROTTLED


@pytest.fixture
def manager(start_manager: Start, volume: Volume, fault: str) -> ManagerProcess:
    """Return a Manager with a pool of 64 MiB and a slow SSD tier."""
    return start_manager("64mib", *volume.options(fault))


def estimate_of(replica: Replica, keys: bytes) -> tuple[float, int]:
    """Return what is said of a prefix that is read, whose query is stopped then."""
    query = replica.scheduler.query(replica.namespace, keys, instance="one", wait_us=None)
    assert query.state is State.PREPARING
    estimate = query.estimate
    assert query.stop(None) is State.READY
    if query.lease is not None:
        query.lease.release()
    return estimate


def test_an_answer_says_when_a_prefix_will_be_there(manager: ManagerProcess) -> None:
    """Only the least that the folder needs is certain: the machine may be slower still."""
    shape = Shape()
    keys, per_second = oracle.prefix(1, 3 * PAGES), PAGE_KIB * PAGES // 4 * 1024
    with Replica(manager.socket, "one", shape) as replica:
        pages = replica.publish(keys)
        tier.wait_stored(manager, pages)
        tier.empty_memory(manager)
        first = keys[: 32 * PAGES]
        assert replica.restore(first, expect=PAGES) == PAGES
        seconds, missing = estimate_of(replica, keys)
        assert missing == pages - PAGES
        assert seconds > missing * shape.slice_bytes / per_second / 2
    drained(manager)


@pytest.mark.parametrize("fault", [STALLING])
def test_the_estimate_of_a_folder_that_hangs_grows_without_an_end(manager: ManagerProcess, volume: Volume) -> None:
    keys = oracle.prefix(1, PAGES)
    with Replica(manager.socket, "one") as replica:
        tier.wait_stored(manager, replica.publish(keys))
        tier.empty_memory(manager)
        volume.stall()
        query = replica.scheduler.query(replica.namespace, keys, instance="one", wait_us=None)
        eventually(lambda: query.refresh(None) is State.PREPARING and query.estimate.seconds > 1, "it says a second")
        eventually(lambda: query.refresh(None) is State.PREPARING and query.estimate.seconds > 3, "it says three")
        volume.resume()
        assert query.wait(60) is State.READY
        assert query.pages == PAGES
        assert query.estimate == (0.0, 0)
        query.cancel()
    drained(manager)


def vllm_with(engine: VllmReplica, manager: ManagerProcess, rate: float) -> None:
    """Let the adapter believe in a rate of prefill, and a prefix of "a" lie on the SSD alone."""
    engine.serve("a", TOKENS)
    engine.settle()
    tier.wait_stored(manager, PAGES)
    tier.empty_memory(manager)
    engine.side.stats.take()
    engine.side.prefill.rate = rate


def test_vllm_does_not_wait_for_what_it_computes_sooner(
    manager: ManagerProcess, replica: Callable[..., VllmReplica]
) -> None:
    engine = replica(load_wait_ms=PATIENCE_MS)
    vllm_with(engine, manager, INSTANT)
    assert engine.serve("a", TOKENS)[0] < PAGES
    values = engine.side.stats.take()
    assert (values["prefetch_stopped"], values["prefetch_outpaced"]) == (1, 1)
    engine.settle()
    eventually(lambda: tier.read(manager) == PAGES, "what was begun is read to its end")
    assert engine.serve("a", TOKENS)[0] == PAGES, "and is in memory for the next one"
    engine.settle()
    drained(manager)


def test_vllm_waits_for_what_it_computes_later(manager: ManagerProcess, replica: Callable[..., VllmReplica]) -> None:
    engine = replica(load_wait_ms=PATIENCE_MS)
    vllm_with(engine, manager, SLUGGISH)
    assert engine.serve("a", TOKENS)[0] == PAGES
    values = engine.side.stats.take()
    assert "prefetch_stopped" not in values
    assert len(values["prefetch_staging_seconds"]) == 1  # type: ignore[arg-type]
    engine.settle()
    drained(manager)


def test_vllm_waits_as_long_as_the_policy_says(manager: ManagerProcess, replica: Callable[..., VllmReplica]) -> None:
    engine = replica(load_wait_ms=PATIENCE_MS, load_wait_policy="always")
    vllm_with(engine, manager, INSTANT)
    assert engine.serve("a", TOKENS)[0] == PAGES
    engine.settle()
    drained(manager)


@pytest.mark.parametrize("hasty", [0, 1])
def test_both_ranks_take_the_same_when_one_of_them_computes_sooner(
    manager: ManagerProcess, ranks: Callable[..., Ranks], hasty: int
) -> None:
    engine = ranks(load_wait_ms=PATIENCE_MS)
    engine.serve("a", PAGES)
    tier.wait_stored(manager, PAGES)
    tier.empty_memory(manager)
    for side in engine.sides:
        side.stats.take()
        side.prefill.rate = SLUGGISH
    engine.sides[hasty].prefill.rate = INSTANT
    found = engine.ask("again", keys_of("a", PAGES))
    assert found < PAGES
    admitted = engine.admit("again", keys_of("a", PAGES), found)
    values = [side.stats.take() for side in engine.sides]
    assert [int(each.get("prefetch_outpaced", 0)) for each in values] == [int(rank == hasty) for rank in range(2)]  # type: ignore[arg-type]
    engine.finish(admitted)
    assert len(set(engine.decisions)) == len(engine.decisions)
    drained(manager)
