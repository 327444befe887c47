"""Hints against a real Manager: pages come from the SSD without a poll, exactly, and nothing of a hint is left."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from python.tests.manager.conftest import Start

from harness import oracle
from harness import ssd as tier
from harness.manager import ManagerProcess, eventually
from harness.replica import Replica, Shape
from harness.ssd import STALLING, Volume
from orbitkv.client import State

PAGES = 60


@pytest.fixture
def manager(start_manager: Start, volume: Volume) -> ManagerProcess:
    """Return a Manager with a pool of 64 MiB whose SSD tier a test can stall."""
    return start_manager("64mib", *volume.options(STALLING))


def put_away(manager: ManagerProcess, replica: Replica, *prefixes: bytes) -> None:
    """Publish prefixes and return when they are on the SSD alone."""
    for keys in prefixes:
        before = tier.stored(manager)
        tier.wait_stored(manager, before + replica.publish(keys))
    tier.empty_memory(manager)


def reserved(manager: ManagerProcess, phase: str) -> int:
    """Return the bytes of the query budgets that a phase holds."""
    return int(manager.metrics("orbitkv_query_reserved_bytes_by_phase")[f'phase="{phase}"'])


def wait_idle(manager: ManagerProcess) -> None:
    """Return when hints hold neither bytes nor permits, by the Manager's own word: no client asks for it."""

    def idle() -> bool:
        return reserved(manager, "warming") == 0 and manager.metrics("orbitkv_operations")['state="warming"'] == 0

    eventually(idle, "hints hold nothing")
    assert manager.violations() == []
    assert manager.status()["cache"]["hints"] == []


def account(manager: ManagerProcess) -> tuple[int, int, int, int]:
    """Return the pages that were prepared, restored, unused and are pending, by footprint."""
    page = int(manager.status()["cache"]["instances"][0]["page_bytes"])
    names = ("prepared_bytes_total", "restored_bytes_total", "unused_bytes_total", "pending_bytes")
    prepared, restored, unused, pending = (int(manager.metric(f"orbitkv_warmup_{name}")) // page for name in names)
    assert prepared == restored + unused + pending
    return prepared, restored, unused, pending


def outcomes(manager: ManagerProcess) -> dict[str, int]:
    """Return how many hints became what."""
    found = manager.metrics("orbitkv_warmup_hints_total")
    return {label.removeprefix('outcome="').removesuffix('"'): int(count) for label, count in found.items() if count}


@pytest.mark.parametrize("world", [1, 2])
def test_hinted_pages_are_leased_from_memory_byte_for_byte(manager: ManagerProcess, world: int) -> None:
    with Replica(manager.socket, "one", Shape(world=world)) as replica:
        keys = oracle.prefix(1, PAGES)
        put_away(manager, replica, keys)
        hint = replica.scheduler.warm_prefix(replica.namespace, keys, instance="one", request="a", wait_us=None)
        assert hint is True
        wait_idle(manager)
        assert tier.read(manager) == PAGES
        assert account(manager) == (PAGES, 0, 0, PAGES)
        query = replica.scheduler.query(replica.namespace, keys, instance="one", request="a", wait_us=None)
        assert query.state is State.READY, "it is answered from memory at once"
        assert query.lease is not None
        assert query.lease.pages == PAGES
        assert account(manager) == (PAGES, 0, 0, PAGES), "a lease decides nothing"
        assert replica.take(query.lease, keys) == PAGES
        eventually(lambda: account(manager) == (PAGES, PAGES, 0, 0), "the copies count, once for all ranks")
        assert tier.read(manager) == PAGES
        assert manager.metrics("orbitkv_warmup_wait_byte_seconds_total")['outcome="restored"'] > 0
        assert outcomes(manager) == {"accepted": 1}


def test_what_nobody_asks_for_goes_first_and_is_unused(manager: ManagerProcess) -> None:
    with Replica(manager.socket, "one") as replica:
        keys = oracle.prefix(1, PAGES)
        put_away(manager, replica, keys)
        assert replica.scheduler.warm_prefix(replica.namespace, keys, instance="one", request="a", wait_us=None)
        wait_idle(manager)
        assert manager.metrics("orbitkv_cache_resident_blocks")['class="reclaimable"'] == PAGES
        tier.empty_memory(manager)
        assert account(manager) == (PAGES, 0, PAGES, 0)
        assert replica.restore(keys, expect=PAGES) == PAGES
        assert account(manager) == (PAGES, 0, PAGES, 0), "a query read them, which is another story"


def test_a_lease_keeps_hints_out(manager: ManagerProcess) -> None:
    with Replica(manager.socket, "one") as replica:
        first, second = oracle.prefix(1, PAGES), oracle.prefix(2, PAGES)
        put_away(manager, replica, second)
        replica.publish(first)
        query = replica.scheduler.query(replica.namespace, first, instance="one", request="a", wait_us=None)
        assert query.lease is not None
        hint = replica.scheduler.warm_prefix(replica.namespace, second, instance="one", request="b", wait_us=None)
        assert hint is False
        assert manager.metric("orbitkv_warmup_foreground_skips_total") == 1
        query.lease.release()
        assert replica.scheduler.warm_prefix(replica.namespace, second, instance="one", request="b", wait_us=None)
        wait_idle(manager)
        assert outcomes(manager) == {"accepted": 1, "foreground": 1}


def test_a_query_takes_over_what_its_hint_reads(manager: ManagerProcess, volume: Volume) -> None:
    """One read of each page, counted once, whoever waits for it."""
    with Replica(manager.socket, "one") as replica:
        keys = oracle.prefix(1, PAGES)
        put_away(manager, replica, keys)
        volume.stall()
        assert replica.scheduler.warm_prefix(replica.namespace, keys, instance="one", request="a", wait_us=None)
        assert manager.status()["cache"]["hints"][0]["reading_pages"] == PAGES
        query = replica.scheduler.query(replica.namespace, keys, instance="one", request="a", wait_us=None)
        assert query.state is State.PREPARING
        assert manager.metrics("orbitkv_warmup_ends_total")['reason="cancelled"'] == 1, "the client ends it first"
        assert reserved(manager, "warming") > 0, "what was submitted drains under its own charge"
        volume.resume()
        assert query.wait(60.0) is State.READY
        assert query.lease is not None
        assert replica.take(query.lease, keys) == PAGES
        wait_idle(manager)
        assert tier.read(manager) == PAGES
        eventually(lambda: account(manager) == (PAGES, PAGES, 0, 0), "each page counts once")


@pytest.mark.parametrize("end", ["cancel", "close", "stop", "clear"])
def test_a_hint_that_ends_in_the_middle_leaves_nothing(manager: ManagerProcess, volume: Volume, end: str) -> None:
    ends: dict[str, Callable[[Replica], object]] = {
        "cancel": lambda replica: replica.scheduler.cancel_warm("one", "a"),
        "close": lambda replica: replica.close(),
        "clear": lambda _: manager.verb("/cache/clear"),
        "stop": lambda _: volume.resume(),
    }
    with Replica(manager.socket, "one") as replica:
        keys = oracle.prefix(1, PAGES)
        put_away(manager, replica, keys)
        volume.stall()
        assert replica.scheduler.warm_prefix(replica.namespace, keys, instance="one", request="a", wait_us=None)
        ends[end](replica)
        if end == "stop":
            manager.stop()
            return
        eventually(lambda: manager.metrics("orbitkv_operations")['state="warming"'] == 1, "its reads drain")
        assert manager.violations() == []
        volume.resume()
        wait_idle(manager)


def test_sixteen_hints_are_pending_at_most(manager: ManagerProcess) -> None:
    with Replica(manager.socket, "one") as replica:
        prefixes = [oracle.prefix(seed, 2) for seed in range(17)]
        put_away(manager, replica, *prefixes)

        def hint(number: int) -> bool:
            request = str(number)
            keys = prefixes[number]
            return replica.scheduler.warm_prefix(replica.namespace, keys, instance="one", request=request, wait_us=None)

        assert [hint(number) for number in range(16)] == [True] * 16
        wait_idle(manager)
        assert not hint(16), "the client keeps a note of each until its request is asked for"
        assert not hint(0)
        assert replica.restore(prefixes[3], expect=2) == 2
        assert outcomes(manager)["accepted"] == 16
        replica.scheduler.cancel_warm("one", "3")
        assert hint(16)
        wait_idle(manager)
