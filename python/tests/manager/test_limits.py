"""Bounds of the Manager as a client meets them: a full pool, a small pool, the budget, revokes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harness import oracle
from harness.manager import ManagerProcess, eventually
from harness.replica import Replica, Shape
from orbitkv.client import CacheManagerClient, Grant, Role, State, Status
from orbitkv.errors import LeaseLost, Refused


def test_a_full_pool_grants_nothing_until_leases_go(start_manager: Callable[..., Any]) -> None:
    manager = start_manager("16mib", "--query-budget", "16mib")
    with Replica(manager.socket, "one") as replica:
        held, saved = [], 0
        for seed in range(64):
            keys = oracle.prefix(seed, 32)
            saved += replica.publish(keys)
            query = replica.scheduler.query(replica.namespace, keys, instance="one", wait_us=None)
            if query.lease is not None:
                held.append(query.lease)
            else:
                query.cancel()
        assert saved < 64 * 32
        reserve = replica.scheduler.reserve(replica.namespace, oracle.prefix(999, 8), instance="one", wait_us=None)
        assert set(reserve.grants.tolist()) == {int(Grant.NO_ROOM)}
        assert reserve.reservation == 0
        for lease in held:
            lease.release()
        assert replica.publish(oracle.prefix(999, 8)) == 8
        assert replica.restore(oracle.prefix(999, 8), expect=8) == 8


def test_a_pool_smaller_than_a_page_is_a_miss_and_no_error(start_manager: Callable[..., Any]) -> None:
    manager = start_manager("1mib")
    with Replica(manager.socket, "one", Shape(layers=2, layer_bytes=1 << 20, blocks=8)) as replica:
        assert replica.publish(oracle.prefix(1, 4)) == 0
        assert replica.restore(oracle.prefix(1, 4)) == 0


def test_a_demand_over_the_budget_is_cut_to_what_fits(start_manager: Callable[..., Any]) -> None:
    manager = start_manager("64mib", "--query-budget", "1mib")
    with Replica(manager.socket, "one") as replica:
        keys = oracle.prefix(1, 100)
        assert replica.publish(keys) == 100
        fits = (1 << 20) // replica.namespace.page_bytes
        assert replica.restore(keys, expect=fits) == fits
        query = replica.scheduler.query(replica.namespace, keys, instance="one", wait_us=None)
        assert query.cut
        waiting = replica.scheduler.query(replica.namespace, keys, instance="one", wait_us=None)
        assert waiting.state is State.WAITING
        assert query.lease is not None
        query.lease.release()
        assert waiting.wait(60) is State.READY
        assert waiting.lease is not None
        waiting.lease.release()


def test_operation_129_is_busy_and_begin_still_goes_through(manager: ManagerProcess) -> None:
    with Replica(manager.socket, "one") as replica:
        keys = oracle.prefix(1, 1)
        replica.publish(keys)
        queries = [
            replica.scheduler.query(replica.namespace, keys, instance="one", wait_us=None)
            for _ in range(replica.scheduler.limits.session_operations_max + 1)
        ]
        assert [query.state for query in queries[:-1]] == [State.READY] * (len(queries) - 1)
        assert queries[-1].state is State.BUSY
        first = queries[0].lease
        assert first is not None
        first.begin(1)
        replica.ranks[0].client.restored(first.id, 0, True, replica.shape.slice_bytes, [(0, 1)])
        again = replica.scheduler.query(replica.namespace, keys, instance="one", wait_us=None)
        assert again.state is State.READY, "a begun operation is no longer outstanding"
        for query in [*queries[1:-1], again]:
            query.cancel()
        eventually(lambda: manager.metric("orbitkv_query_reserved_bytes") == 0, "every lease was given back")


def test_an_unbegun_lease_is_revoked_and_a_held_one_is_not(manager: ManagerProcess) -> None:
    with Replica(manager.socket, "one") as replica:
        keys = oracle.prefix(1, 4)
        replica.publish(keys)
        ask: dict[str, Any] = {"instance": "one", "wait_us": None}
        plain = replica.scheduler.query(replica.namespace, keys, **ask).lease
        held = replica.scheduler.query(replica.namespace, keys, **ask).lease
        assert plain is not None
        assert held is not None
        assert held.hold()
        eventually(lambda: not plain.alive, "the Manager revokes what was not begun", 600)
        with pytest.raises(LeaseLost):
            plain.begin(4)
        assert held.alive
        held.begin(4)
        replica.ranks[0].client.restored(held.id, 0, True, 4 * replica.shape.slice_bytes, [(0, 4)])
        eventually(lambda: manager.metric("orbitkv_query_reserved_bytes") == 0, "the restored lease ends")


def test_a_differing_fact_is_refused_by_name(manager: ManagerProcess) -> None:
    with (
        CacheManagerClient(manager.socket, role=Role.WORKER) as first,
        CacheManagerClient(manager.socket, role=Role.WORKER) as second,
    ):
        options: dict[str, Any] = {"slice_bytes": 4096, "writer": "host"}
        assert first.attach("one", 0, 2, facts={"dtype": "bfloat16", "model": "m"}, **options) == 1
        with pytest.raises(Refused, match="dtype") as caught:
            second.attach("one", 1, 2, facts={"dtype": "float16", "model": "m"}, **options)
        assert caught.value.status == Status.CONFLICT
        assert "bfloat16" in caught.value.text
        assert "float16" in caught.value.text
        with pytest.raises(Refused) as early:
            first.register("one")
        assert early.value.status in (Status.NOT_READY, Status.DENIED)


def test_the_golden_namespace_is_private_and_leaves_no_trace(manager: ManagerProcess) -> None:
    with Replica(manager.socket, "one") as replica:
        client = replica.ranks[0].client
        before = manager.metric("orbitkv_cache_block_insertions_total")
        private = client.open_private(replica.shape.slice_bytes)
        keys = oracle.prefix(5, 2)
        reserve = client.reserve(private, keys, instance="one", wait_us=None)
        assert reserve.pages == 2
        client.committed(reserve.reservation, 0, [(0, 2)])
        query = client.query(private, keys, instance="one", wait_us=None)
        assert query.pages == 2
        assert query.lease is not None
        query.lease.begin(2)
        client.restored(query.lease.id, 0, True, 2 * replica.shape.slice_bytes, [(0, 2)])
        client.close_private()
        assert replica.restore(keys) == 0
        assert manager.metric("orbitkv_cache_block_insertions_total") == before
