"""Every restored byte equals the oracle's: under pressure, from several clients, with one and two ranks."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from harness import oracle
from harness.manager import ManagerProcess, eventually
from harness.replica import Replica, Shape, WrongBytes

TOKENS_PER_PAGE = 128


@pytest.mark.parametrize("world", [1, 2])
def test_published_pages_come_back_byte_for_byte(manager: ManagerProcess, world: int) -> None:
    with Replica(manager.socket, "one", Shape(world=world)) as replica:
        keys = oracle.prefix(1, 200)
        assert replica.restore(keys) == 0
        assert replica.publish(keys) == 200
        assert replica.restore(keys, expect=200) == 200
        assert replica.publish(keys) == 0, "sealed pages are present, not granted"
        other_tail = keys[: 150 * 32] + oracle.prefix(2, 50)
        assert replica.restore(other_tail, expect=150) == 150
        restored = 350 * replica.shape.slice_bytes * world
        eventually(lambda: manager.metric("orbitkv_load_bytes_total") == restored, "every restored byte is counted")


def test_a_second_instance_with_equal_facts_hits_and_one_with_others_does_not(manager: ManagerProcess) -> None:
    keys = oracle.prefix(1, 20)
    with Replica(manager.socket, "one") as replica:
        replica.publish(keys)
    with Replica(manager.socket, "two") as replica:
        assert replica.restore(keys, expect=20) == 20
    with Replica(manager.socket, "three", Shape(model="another")) as replica:
        assert replica.restore(keys) == 0
    with Replica(manager.socket, "four", Shape(world=2)) as replica:
        assert replica.restore(keys) == 0


def test_a_new_epoch_hides_every_old_page(manager: ManagerProcess) -> None:
    keys = oracle.prefix(1, 20)
    with Replica(manager.socket, "one") as replica:
        replica.publish(keys)
        old = replica.namespace
        replica.namespace = replica.scheduler.new_epoch("one", 0x1234567890ABCDEF)
        assert replica.namespace.handle != old.handle
        assert replica.restore(keys) == 0
        assert replica.publish(keys) == 20
        assert replica.restore(keys, expect=20) == 20


@pytest.mark.parametrize("world", [1, 2])
def test_a_working_set_of_many_pools_never_gives_a_wrong_byte(start_manager: Callable[..., Any], world: int) -> None:
    manager = start_manager("32mib")
    order = random.Random(world)
    fresh = older = saved = seed = 0
    with Replica(manager.socket, "one", Shape(world=world)) as replica:
        while saved * replica.namespace.page_bytes < 6 * (32 << 20):
            keys = oracle.prefix(seed, order.randint(1, 200))
            saved += replica.publish(keys)
            fresh += replica.restore(keys)
            older += replica.restore(oracle.prefix(order.randint(max(0, seed - 8), seed), 200))
            seed += 1
        assert manager.metric("orbitkv_cache_block_evictions_total") > 0
    assert fresh > 0
    assert older > 0


def test_recent_pages_survive_pressure(start_manager: Callable[..., Any]) -> None:
    manager = start_manager("32mib")
    with Replica(manager.socket, "one") as replica:
        for seed in range(20):
            keys = oracle.prefix(seed, 100)
            assert replica.publish(keys) == 100
            assert replica.restore(keys, expect=100) == 100


def test_several_processes_share_pages_under_pressure(
    start_manager: Callable[..., Any], spawn: Callable[..., Any]
) -> None:
    manager = start_manager("24mib")
    clients = [spawn(manager.socket, f"instance-{n}", 10 * (n + 1), "run", 25) for n in range(4)]
    restored = 0
    for client in clients:
        output, _ = client.communicate(timeout=600)
        assert client.returncode == 0, "a client saw a wrong byte or an error"
        restored += int(output.split()[1])
    assert restored > 0


def test_several_threads_share_one_client(manager: ManagerProcess) -> None:
    """Queries of one session from many threads at once; the answers must not be mixed up."""
    with Replica(manager.socket, "one") as replica:
        lengths = [1 + 7 * n for n in range(16)]
        for seed, pages in enumerate(lengths):
            assert replica.publish(oracle.prefix(seed, pages)) == pages
        faults: list[str] = []

        def ask(number: int) -> None:
            order = random.Random(number)
            for _ in range(50):
                seed = order.randrange(len(lengths))
                keys = oracle.prefix(seed, 128)
                query = replica.scheduler.query(replica.namespace, keys, instance="one", wait_us=None)
                if query.pages != lengths[seed] or query.lease is None:
                    faults.append(f"seed {seed}: {query.pages} pages, {query.state}")
                else:
                    query.lease.release()

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert faults == []


@pytest.mark.parametrize("tokens", [1, 127, 128, 129, 1000, 4096, 8192, 32768, 131072])
def test_every_full_page_of_a_prompt_is_saved(shared_manager: ManagerProcess, tokens: int) -> None:
    pages = tokens // TOKENS_PER_PAGE
    with Replica(shared_manager.socket, f"prompt of {tokens}", Shape(layers=2, layer_bytes=4096)) as replica:
        keys = oracle.prefix(tokens, pages)
        assert replica.publish(keys) == pages
        assert (replica.restore(keys, expect=pages) if pages else 0) == pages


def test_an_operation_of_65536_keys(start_manager: Callable[..., Any]) -> None:
    manager = start_manager("400mib")
    shape = Shape(layers=1, layer_bytes=4096, blocks=8192)
    with Replica(manager.socket, "one", shape, timeout_ms=60_000) as replica:
        keys = b"".join(n.to_bytes(32, "big") for n in range(65536))
        reserve = replica.scheduler.reserve(replica.namespace, keys, instance="one", wait_us=None)
        assert reserve.pages == 65536
        assert len(np.unique(reserve.locations())) == 65536
        replica.scheduler.abandoned(reserve.reservation, 0xFFFF, [(0, 65536)])
        assert replica.publish(keys) == 65536
        assert replica.restore(keys, expect=65536) == 65536


def test_a_corrupted_arena_is_seen(manager: ManagerProcess) -> None:
    """The control of every test here: the comparison fails when one stored byte changes."""
    with Replica(manager.socket, "one") as replica:
        keys = oracle.prefix(1, 10)
        replica.publish(keys)
        query = replica.scheduler.query(replica.namespace, keys, instance="one", wait_us=None)
        assert query.lease is not None
        location = int(query.lease.locations()[7])
        query.lease.release()
        arena = replica.ranks[0].client.arenas[location >> 48]
        arena.view[(location & ((1 << 48) - 1)) + replica.shape.slice_bytes - 1] ^= 1
        with pytest.raises(WrongBytes, match="1 of 10 pages, the first is 7"):
            replica.restore(keys, expect=10)
