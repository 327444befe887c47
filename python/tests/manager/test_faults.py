"""Killed, stopped, disconnected and garbled: the client recovers, and the Manager keeps what may be in use."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import oracle
from harness.manager import ManagerProcess, eventually
from harness.replica import Rank, Replica, Shape, WrongBytes
from orbitkv import _wire
from orbitkv.client import ALL_RANKS, CacheManagerClient, Role, State, Status
from orbitkv.errors import CallTimeout, ManagerUnavailable, OrbitKVError, Refused

KILLS = 20
CYCLES = 50


class Worker(threading.Thread):
    """Publishes and restores for as long as it is told to, with a new replica after every fault of the channel."""

    def __init__(self, path: str, number: int) -> None:
        super().__init__(daemon=True)
        self.path = path
        self.number = number
        self.stop = threading.Event()
        self.restored = 0
        self.faults = 0
        self.wrong: BaseException | None = None

    def run(self) -> None:
        order = random.Random(self.number)
        while not self.stop.is_set() and self.wrong is None:
            try:
                with Replica(self.path, f"worker-{self.number}", timeout_ms=20_000) as replica:
                    while not self.stop.is_set():
                        keys = oracle.prefix(order.randint(1, 6), order.randint(1, 64))
                        replica.publish(keys)
                        self.restored += replica.restore(keys)
            except OrbitKVError:
                self.faults += 1
            except (WrongBytes, AssertionError) as fault:
                self.wrong = fault


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_twenty_kills_under_load(start_manager: Callable[..., Any]) -> None:
    manager = start_manager("32mib")
    workers = [Worker(manager.socket, n) for n in range(3)]
    for worker in workers:
        worker.start()
    try:
        for _ in range(KILLS):
            before = [worker.restored for worker in workers]
            eventually(
                lambda before=before: all(  # type: ignore[misc]
                    w.restored > b or w.wrong for w, b in zip(workers, before, strict=True)
                ),
                "every client restores from the Manager of now",
            )
            manager.kill()
            manager.start()
    finally:
        for worker in workers:
            worker.stop.set()
        for worker in workers:
            worker.join(300)
    assert [worker.wrong for worker in workers] == [None] * len(workers)
    assert all(not worker.is_alive() for worker in workers)
    assert sum(worker.faults for worker in workers) >= KILLS, "the kills hit nobody at work"


def test_a_begun_copy_survives_its_manager(manager: ManagerProcess) -> None:
    with Replica(manager.socket, "one") as replica:
        keys = oracle.prefix(1, 16)
        replica.publish(keys)
        lease = replica.scheduler.query(replica.namespace, keys, instance="one", wait_us=None).lease
        assert lease is not None
        lease.begin(16)
        manager.kill()
        locations = lease.locations()
        arena = replica.ranks[0].client.arenas[0]
        for index, one in enumerate(oracle.split(keys)):
            at = int(locations[index]) & ((1 << 48) - 1)
            got = arena.view[at : at + replica.shape.slice_bytes]
            assert (got == oracle.content(one, 0, replica.shape.slice_bytes)).all()
        with pytest.raises(OrbitKVError):
            replica.restore(keys)
    manager.start()
    with Replica(manager.socket, "one") as replica:
        assert replica.restore(keys) == 0
        assert replica.publish(keys) == 16
        assert replica.restore(keys, expect=16) == 16


def test_a_stopped_manager_never_holds_a_caller_beyond_its_bound(manager: ManagerProcess) -> None:
    with Replica(manager.socket, "one") as replica:
        keys = oracle.prefix(1, 16)
        replica.publish(keys)
        lease = replica.scheduler.query(replica.namespace, keys, instance="one", wait_us=None).lease
        assert lease is not None
        manager.pause()
        replica.scheduler.timeout_ms = 200
        query = replica.scheduler.query(replica.namespace, keys, instance="one", wait_us=1000)
        assert query.state is State.UNANSWERED
        assert query.refresh() is State.UNANSWERED
        reserve = replica.scheduler.reserve(replica.namespace, oracle.prefix(2, 4), instance="one", wait_us=1000)
        assert not reserve.answered
        dropped = replica.scheduler.reserve(replica.namespace, oracle.prefix(3, 4), instance="one", wait_us=1000)
        dropped.drop()
        lease.begin(16)
        with pytest.raises(CallTimeout):
            replica.scheduler.register("one")
        with pytest.raises(ManagerUnavailable):
            CacheManagerClient(manager.socket, timeout_ms=200)
        manager.go_on()
        assert query.wait(120) is State.READY
        eventually(reserve.refresh, "the late answer of the reserve comes")
        assert reserve.pages == 4
        replica.scheduler.abandoned(reserve.reservation, ALL_RANKS, [(0, 4)])
        query.cancel()
        replica.ranks[0].client.restored(lease.id, 0, True, 16 * replica.shape.slice_bytes, [(0, 16)])
        eventually(lambda: manager.metric("orbitkv_query_reserved_bytes") == 0, "nothing stays charged")
        assert replica.publish(oracle.prefix(3, 4)) == 4, "what the dropped reserve was granted is free again"


def unaccounted() -> set[str]:
    """Return the files of /dev/shm that no living process maps: what a dead one left behind."""
    names = {each.name for each in Path("/dev/shm").iterdir()}
    for process in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            maps = process.read_text(encoding="utf-8", errors="replace")
            names = {name for name in names if f"/dev/shm/{name}" not in maps}
    return names


def test_fifty_killed_clients_leave_nothing_behind(manager: ManagerProcess, spawn: Callable[..., Any]) -> None:
    def cycle(number: int) -> None:
        client = spawn(manager.socket, f"victim-{number}", 7, "hold")
        assert client.stdout.readline() == "holding\n"
        client.kill()
        client.wait()

    def settled() -> bool:
        sessions = manager.metric("orbitkv_sessions")
        return sessions == 0 and manager.metric("orbitkv_query_reserved_bytes") == 0

    cycle(0)
    eventually(settled, "the first client's sessions and leases go")
    used = manager.metric("orbitkv_pool_used_bytes")
    descriptors = manager.descriptors()
    resident = manager.resident_bytes()
    shared = unaccounted()
    for number in range(1, CYCLES + 1):
        cycle(number)
    eventually(settled, "every client's sessions and leases go")
    eventually(lambda: manager.metric("orbitkv_pool_used_bytes") == used, "every reserved page is free again")
    eventually(lambda: manager.descriptors() <= descriptors, "every descriptor is closed")
    assert unaccounted() <= shared
    assert manager.resident_bytes() < resident + (16 << 20)


def test_one_dead_rank_of_two_frees_its_slices_and_ends_its_reading(
    manager: ManagerProcess, spawn: Callable[..., Any]
) -> None:
    keys, fresh = oracle.prefix(1, 16), oracle.prefix(2, 8)
    with Replica(manager.socket, "before", Shape(world=2)) as replica:
        replica.publish(keys)
        used = manager.metric("orbitkv_pool_used_bytes")
    other = spawn(manager.socket, "one", 0, "rank", 1)
    with contextlib.closing(Rank(manager.socket, "one", 0, Shape(world=2))) as rank:
        assert other.stdout.readline() == "attached\n"
        rank.client.wait_arenas()
        with CacheManagerClient(manager.socket, role=Role.SCHEDULER) as scheduler:
            namespace = scheduler.register("one")
            lease = scheduler.query(namespace, keys, instance="one", wait_us=None).lease
            assert lease is not None
            lease.begin(16)
            reserve = scheduler.reserve(namespace, fresh, instance="one", wait_us=None)
            assert reserve.pages == 8
            rank.client.restored(lease.id, 0, True, 16 * rank.shape.slice_bytes, [(0, 16)])
            rank.client.committed(reserve.reservation, 0, [(0, 8)])
            rank.client.ping()
            assert manager.metric("orbitkv_query_reserved_bytes") > 0, "rank 1 may still read"
            assert manager.metric("orbitkv_pool_used_bytes") > used, "rank 1 may still write"
            other.kill()
            eventually(lambda: manager.metric("orbitkv_query_reserved_bytes") == 0, "a dead reader is harmless")
            eventually(lambda: manager.metric("orbitkv_pool_used_bytes") == used, "a dead host writer is quiet")
            assert scheduler.query(namespace, fresh, instance="one", wait_us=None).pages == 0


def test_a_closed_socket_of_a_living_process_frees_nothing_and_resume_takes_it_over(manager: ManagerProcess) -> None:
    with Replica(manager.socket, "one") as replica:
        keys, fresh = oracle.prefix(1, 16), oracle.prefix(2, 8)
        replica.publish(keys)
        ask: dict[str, Any] = {"instance": "one", "wait_us": None}
        lease = replica.scheduler.query(replica.namespace, keys, **ask).lease
        assert lease is not None
        lease.begin(16)
        reserve = replica.scheduler.reserve(replica.namespace, fresh, **ask)
        old = replica.scheduler
        held = manager.metric("orbitkv_query_reserved_bytes")
        assert held > 0
        old.close()
        with CacheManagerClient(manager.socket, role=Role.SCHEDULER) as other:
            with pytest.raises(Refused) as caught:
                other.resume(bytes(16), [lease.id], [])
            assert caught.value.status == Status.UNKNOWN
        assert manager.metric("orbitkv_query_reserved_bytes") == held, "a closed socket freed what a copy may use"
        replica.scheduler = CacheManagerClient(manager.socket, role=Role.SCHEDULER)
        taken = replica.scheduler.resume(old.token, old.leases_in_use, [reserve.reservation])
        assert taken == ([lease.id], [reserve.reservation])
        rank = replica.ranks[0]
        rank.client.restored(lease.id, 0, True, 16 * replica.shape.slice_bytes, [(0, 16)])
        eventually(lambda: manager.metric("orbitkv_query_reserved_bytes") == 0, "the resumed lease ends")
        replica.scheduler.abandoned(reserve.reservation, ALL_RANKS, [(0, 8)])
        replica.namespace = replica.scheduler.register("one")
        assert replica.restore(fresh) == 0
        assert replica.publish(fresh) == 8
        assert replica.restore(fresh, expect=8) == 8


def test_a_begin_that_was_lost_with_its_connection_is_said_again(manager: ManagerProcess) -> None:
    with Replica(manager.socket, "one") as replica:
        keys = oracle.prefix(1, 8)
        replica.publish(keys)
        lease = replica.scheduler.query(replica.namespace, keys, instance="one", wait_us=None).lease
        assert lease is not None
        old = replica.scheduler
        old._leases.begin(lease.id, ALL_RANKS, 8, lambda: None)  # It sat in the queue when the connection broke.
        old._channel.close("broken by the test")
        replica.scheduler = CacheManagerClient(manager.socket, role=Role.SCHEDULER)
        assert replica.scheduler.take_over(old) == ([lease.id], [])
        replica.ranks[0].client.restored(lease.id, 0, True, 8 * replica.shape.slice_bytes, [(0, 8)])
        eventually(lambda: manager.metric("orbitkv_query_reserved_bytes") == 0, "the lease ends with its last report")


GARBAGE = {
    "zeros": bytes(4096),
    "ones": b"\xff" * 4096,
    "oversize": (1 << 30).to_bytes(4, "little") + bytes(12),
    "unknown type": _wire.HEADER_BYTES.to_bytes(4, "little") + b"\xee\xee" + bytes(10),
    "truncated body": _wire.encode(_wire.Begin(1, 0, 1))[:-2],
    "a frame of the Manager": _wire.encode(_wire.Done(1), 3),
    "a foreign lease": _wire.encode(_wire.Restored(99, 0, True, 1, [(0, 1)])),
    "a foreign reservation": _wire.encode(_wire.Committed(99, 0, [(0, 1)])),
    "ranges past the end": _wire.encode(_wire.Committed(1, 0, [(0xFFFFFFFF, 0xFFFFFFFF)])),
    "random": random.Random(5).randbytes(65536),
}


@pytest.mark.parametrize("name", list(GARBAGE))
def test_garbage_ends_that_session_alone(shared_manager: ManagerProcess, name: str) -> None:
    manager = shared_manager
    with Replica(manager.socket, name) as replica:
        keys = oracle.prefix(1, 8)
        replica.publish(keys)
        with socket.socket(socket.AF_UNIX) as raw:
            raw.settimeout(120)
            raw.connect(manager.socket)
            raw.sendall(_wire.encode(_wire.Hello(_wire.ABI, Role.TOOL, "garbage"), 1))
            assert raw.recv(_wire.FRAME_BYTES_MAX)
            # The Manager may close at the first bad frame, before the rest was sent or anything was read.
            with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                raw.sendall(GARBAGE[name])
                raw.shutdown(socket.SHUT_WR)
                while raw.recv(_wire.FRAME_BYTES_MAX):
                    pass
        assert replica.restore(keys, expect=8) == 8
        assert replica.scheduler.alive


def test_another_abi_is_refused_with_both_numbers(shared_manager: ManagerProcess) -> None:
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(120)
        raw.connect(shared_manager.socket)
        raw.sendall(_wire.encode(_wire.Hello(6, Role.TOOL, "from the future"), 1))
        _, answer = _wire.decode(raw.recv(_wire.FRAME_BYTES_MAX))
    assert isinstance(answer, _wire.Error)
    assert answer.status is Status.WRONG_ABI
    assert "5" in answer.text
    assert "6" in answer.text


def test_a_client_that_reads_nothing_holds_up_nobody(shared_manager: ManagerProcess) -> None:
    manager = shared_manager
    with Replica(manager.socket, "beside the mute") as replica, socket.socket(socket.AF_UNIX) as mute:
        keys = oracle.prefix(1, 8)
        replica.publish(keys)
        mute.connect(manager.socket)
        mute.sendall(_wire.encode(_wire.Hello(_wire.ABI, Role.TOOL, "mute"), 1))
        mute.setblocking(False)
        frame = _wire.encode(_wire.Poll(1, 1), 2)
        try:
            for _ in range(200_000):
                mute.send(frame)
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            pass
        assert replica.restore(keys, expect=8) == 8


def test_the_socket_of_a_dead_manager_is_replaced_and_a_living_one_is_refused(
    manager: ManagerProcess, orbitkv_binary: Path, tmp_path: Path
) -> None:
    manager.kill()
    assert Path(manager.socket).exists()
    manager.start()
    second = ManagerProcess(orbitkv_binary, tmp_path / "second")
    second.socket = manager.socket
    second._command[second._command.index("--socket") + 1] = manager.socket
    with pytest.raises(Exception, match="did not become ready"):
        second.start()
    with CacheManagerClient(manager.socket) as client:
        assert client.alive
