"""The client against a scripted peer: late answers, leases, reserves, notices and the start."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from harness.manager import eventually
from harness.peer import DEADLINE, Peer, scripted
from orbitkv import _channel, _connect, _query, _wire
from orbitkv.client import (
    ALL_RANKS,
    CacheManagerClient,
    Estimate,
    Namespace,
    Notice,
    Role,
    State,
    Status,
    Topic,
    ranges_of,
)
from orbitkv.errors import (
    ChannelClosed,
    ChannelFull,
    ConfigurationError,
    LeaseLost,
    ManagerUnavailable,
    ProtocolError,
    Refused,
)

SPACE = Namespace(3, 0, 8192, (8192,), ())


def result(
    operation: int, outcome: _wire.Outcome, pages: int = 0, lease: int = 0, estimate: tuple[int, int] = (0, 0)
) -> _wire.Result:
    runs = [(0, pages, 4096)] if lease else []
    return _wire.Result(operation, 1, outcome, False, 0, 1, pages, 0, lease, *estimate, runs)


def test_a_late_answer_of_a_query_is_taken_at_the_next_refresh(tmp_path: Path) -> None:
    asked, answer = threading.Event(), threading.Event()

    def script(peer: Peer) -> None:
        request, message = peer.expect(_wire.Query)
        assert isinstance(message, _wire.Query)
        asked.set()
        assert answer.wait(DEADLINE)
        peer.put(result(message.operation, _wire.Outcome.READY, 2, 77), request)
        assert peer.expect(_wire.Begin)[1] == _wire.Begin(77, ALL_RANKS, 1)

    with scripted(tmp_path, script) as client:
        query = client.query(SPACE, bytes(64), instance="i", wait_us=0)
        assert asked.wait(DEADLINE)
        assert query.refresh() is State.UNANSWERED
        answer.set()
        assert query.wait(DEADLINE) is State.READY
        assert query.lease is not None
        assert query.lease.locations().tolist() == [4096, 4096 + 8192]
        query.lease.begin(1)
        assert client.leases_in_use == [77]


def test_who_takes_over_says_each_begin_again(tmp_path: Path) -> None:
    """The older connection may have lost it, and the Manager counts reports only of what was begun."""

    def older(peer: Peer) -> None:
        request, message = peer.expect(_wire.Query)
        assert isinstance(message, _wire.Query)
        peer.put(result(message.operation, _wire.Outcome.READY, 2, 77), request)
        peer.expect(_wire.Begin)
        with pytest.raises(AssertionError):
            peer.take()  # The session is closed before anything of it is claimed.

    def later(peer: Peer) -> None:
        request, message = peer.expect(_wire.Resume)
        assert message == _wire.Resume(b"t" * 16, (77,), (5,))
        peer.put(_wire.Resumed((77,), (5,)), request)
        assert peer.expect(_wire.Begin)[1] == _wire.Begin(77, 1, 2)

    (tmp_path / "later").mkdir()
    with scripted(tmp_path, older) as first, scripted(tmp_path / "later", later) as second:
        lease = first.query(SPACE, bytes(64), instance="i", wait_us=None).lease
        assert lease is not None
        lease.begin(2, rank=1)
        assert second.take_over(first, [5]) == ([77], [5])
        assert not first.alive
        assert second.leases_in_use == [77]
        with pytest.raises(ChannelClosed):
            lease.begin(2, rank=0)


def test_a_take_over_that_was_not_answered_is_found_by_the_next(tmp_path: Path) -> None:
    """The Manager may have handed everything to the client that heard no answer."""

    def silent(peer: Peer) -> None:
        peer.expect(_wire.Resume)

    def last(peer: Peer) -> None:
        for token in (b"2" * 16, b"t" * 16):
            request, message = peer.expect(_wire.Resume)
            assert message == _wire.Resume(token, (), (5,))
            answer = _wire.Resumed((), (5,)) if token[:1] == b"t" else _wire.Error(Status.UNKNOWN, "no such session")
            peer.put(answer, request)

    for name in "123":
        (tmp_path / name).mkdir()
    with scripted(tmp_path / "1", lambda _: None) as first:
        with scripted(tmp_path / "2", silent) as second:
            second.token = b"2" * 16
            with pytest.raises(ChannelClosed):
                second.take_over(first, [5])
        with scripted(tmp_path / "3", last) as third:
            assert third.take_over(first, [5]) == ([], [5])


@pytest.mark.parametrize("poll_seconds", [0.05, 3600.0], ids=["lost notice", "notice"])
def test_a_waiting_query_is_polled_after_a_notice_and_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, poll_seconds: float
) -> None:
    monkeypatch.setattr(_query, "POLL_SECONDS", poll_seconds)

    def script(peer: Peer) -> None:
        request, message = peer.expect(_wire.Query)
        assert isinstance(message, _wire.Query)
        peer.put(result(message.operation, _wire.Outcome.WAITING), request)
        if poll_seconds > 1:
            peer.put(Notice(Topic.QUERY, message.operation, 1))
        request, _ = peer.expect(_wire.Poll)
        peer.put(result(message.operation, _wire.Outcome.READY), request)

    with scripted(tmp_path, script) as client:
        query = client.query(SPACE, bytes(32), instance="i", wait_us=None)
        assert query.state is State.WAITING
        assert query.wait(DEADLINE) is State.READY
        assert query.lease is None


def test_a_query_that_is_read_is_stopped_once_and_answered_with_what_is_there(tmp_path: Path) -> None:
    def script(peer: Peer) -> None:
        request, message = peer.expect(_wire.Query)
        assert isinstance(message, _wire.Query)
        peer.put(result(message.operation, _wire.Outcome.PREPARING, estimate=(250_000, 3)), request)
        request, stop = peer.expect(_wire.Stop)
        assert stop == _wire.Stop(message.operation, 1)
        peer.put(result(message.operation, _wire.Outcome.READY, 2, 77), request)
        assert peer.expect(_wire.Begin)[1] == _wire.Begin(77, ALL_RANKS, 2)

    with scripted(tmp_path, script) as client:
        query = client.query(SPACE, bytes(96), instance="i", wait_us=None)
        assert query.state is State.PREPARING
        assert query.estimate == Estimate(0.25, 3)
        assert query.stop(None) is State.READY
        assert query.stop(None) is State.READY, "a final query is not stopped again"
        assert query.lease is not None
        query.lease.begin(2)


def test_the_answer_to_a_poll_under_way_does_not_hide_that_of_the_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_query, "POLL_SECONDS", 0.0)
    stopped = threading.Event()

    def script(peer: Peer) -> None:
        request, message = peer.expect(_wire.Query)
        assert isinstance(message, _wire.Query)
        peer.put(result(message.operation, _wire.Outcome.PREPARING), request)
        polled = peer.expect(_wire.Poll)[0]
        request, _ = peer.expect(_wire.Stop)
        peer.put(result(message.operation, _wire.Outcome.PREPARING), polled)
        assert stopped.wait(DEADLINE)
        peer.put(result(message.operation, _wire.Outcome.READY, 1, 77), request)

    with scripted(tmp_path, script) as client:
        query = client.query(SPACE, bytes(64), instance="i", wait_us=None)
        assert query.refresh() is State.PREPARING
        assert query.stop() is State.PREPARING
        assert query.stop() is State.PREPARING, "it waits for the one answer"
        stopped.set()
        assert query.stop(None) is State.READY
        assert query.pages == 1


def test_a_stop_that_is_answered_too_late_leaves_no_lease(tmp_path: Path) -> None:
    given_up = threading.Event()

    def script(peer: Peer) -> None:
        request, message = peer.expect(_wire.Query)
        assert isinstance(message, _wire.Query)
        peer.put(result(message.operation, _wire.Outcome.PREPARING), request)
        request, _ = peer.expect(_wire.Stop)
        assert given_up.wait(DEADLINE)
        peer.put(result(message.operation, _wire.Outcome.READY, 1, 5), request)
        assert peer.expect(_wire.Cancel)[1] == _wire.Cancel(message.operation, 1)
        peer.put(_wire.Done(0), peer.expect(_wire.Detach)[0])

    with scripted(tmp_path, script) as client:
        query = client.query(SPACE, bytes(32), instance="i", wait_us=None)
        assert query.stop(100) is State.PREPARING
        query.cancel()
        given_up.set()
        client.detach("answered behind the result")
        assert client._leases.state(5) is None


def test_a_notice_is_seen_before_its_answer_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_query, "POLL_SECONDS", 3600.0)
    quiet, asked = threading.Event(), threading.Event()

    def script(peer: Peer) -> None:
        request, message = peer.expect(_wire.Query)
        assert isinstance(message, _wire.Query)
        peer.put(result(message.operation, _wire.Outcome.PREPARING), request)
        assert quiet.wait(DEADLINE)
        peer.put(Notice(Topic.QUERY, message.operation, 1))
        request, _ = peer.expect(_wire.Poll)
        peer.put(Notice(Topic.QUERY, message.operation, 1))
        assert asked.wait(DEADLINE)
        peer.put(result(message.operation, _wire.Outcome.READY, 1, 5), request)

    with scripted(tmp_path, script) as client:
        query = client.query(SPACE, bytes(32), instance="i", wait_us=None)
        assert not query.noticed
        assert query.refresh() is State.PREPARING
        quiet.set()
        eventually(lambda: query.noticed, "the notice is seen")
        assert query.refresh() is State.PREPARING
        eventually(lambda: query.refresh() is State.PREPARING and query.notice.complete, "a second notice comes")
        assert not query.noticed, "the poll is under way"
        asked.set()
        assert query.refresh(None) is State.READY


def test_a_cancelled_query_never_enters_its_lease(tmp_path: Path) -> None:
    cancelled = threading.Event()

    def script(peer: Peer) -> None:
        request, message = peer.expect(_wire.Query)
        assert isinstance(message, _wire.Query)
        assert cancelled.wait(DEADLINE)
        peer.expect(_wire.Cancel)
        peer.put(result(message.operation, _wire.Outcome.READY, 1, 5), request)
        peer.put(_wire.Done(0), peer.expect(_wire.Detach)[0])

    with scripted(tmp_path, script) as client:
        query = client.query(SPACE, bytes(32), instance="i", wait_us=0)
        query.cancel()
        cancelled.set()
        client.detach("answered behind the result")
        assert query.refresh() is State.CANCELLED
        assert client._leases.state(5) is None, "a lease that the Manager dropped stays in the table"


def test_a_revoke_beats_begin_and_a_hold_beats_a_revoke(tmp_path: Path) -> None:
    held, free, kept, lost = (threading.Event() for _ in range(4))

    def script(peer: Peer) -> None:
        request, message = peer.expect(_wire.Query)
        assert isinstance(message, _wire.Query)
        peer.put(result(message.operation, _wire.Outcome.READY, 1, 6), request)
        assert held.wait(DEADLINE)
        peer.put(_wire.Revoke(6))
        assert peer.expect(_wire.Revoked)[1] == _wire.Revoked(6, False)
        kept.set()
        assert free.wait(DEADLINE)
        peer.put(_wire.Revoke(6))
        assert peer.expect(_wire.Revoked)[1] == _wire.Revoked(6, True)
        lost.set()

    with scripted(tmp_path, script) as client:
        query = client.query(SPACE, bytes(32), instance="i", wait_us=None)
        assert query.lease is not None
        assert query.lease.hold()
        held.set()
        assert kept.wait(DEADLINE)
        query.lease.unhold()
        free.set()
        assert lost.wait(DEADLINE)
        with pytest.raises(LeaseLost):
            query.lease.begin(1)


def test_grants_of_a_dropped_reserve_are_abandoned(tmp_path: Path) -> None:
    dropped = threading.Event()

    def script(peer: Peer) -> None:
        request, message = peer.expect(_wire.Reserve)
        assert isinstance(message, _wire.Reserve)
        assert dropped.wait(DEADLINE)
        peer.put(_wire.Reserved(message.operation, 1, 0, 1, 2, 9, [(1, 2)], [(0, 2, 0)]), request)
        assert peer.expect(_wire.Abandoned)[1] == _wire.Abandoned(9, ALL_RANKS, ((0, 2),))

    with scripted(tmp_path, script) as client:
        reserve = client.reserve(SPACE, bytes(64), instance="i", wait_us=0)
        assert not reserve.answered
        reserve.drop()
        dropped.set()


def test_grants_that_were_read_with_the_reserve_are_abandoned_once(tmp_path: Path) -> None:
    def script(peer: Peer) -> None:
        request, message = peer.expect(_wire.Reserve)
        assert isinstance(message, _wire.Reserve)
        peer.put(_wire.Reserved(message.operation, 1, 0, 1, 2, 9, [(1, 2)], [(0, 2, 0)]), request)
        assert peer.expect(_wire.Abandoned)[1] == _wire.Abandoned(9, ALL_RANKS, ((0, 2),))
        request, _ = peer.expect(_wire.Ping)
        peer.put(_wire.Pong(0), request)

    with scripted(tmp_path, script) as client:
        reserve = client.reserve(SPACE, bytes(64), instance="i", wait_us=None)
        assert reserve.answered
        reserve.drop()
        reserve.drop()
        client.ping()


def test_a_reserve_in_parts_is_joined(tmp_path: Path) -> None:
    def script(peer: Peer) -> None:
        parts = [peer.expect(_wire.Reserve) for _ in range(2)]
        assert parts[0][0] == 0, "only the last part is answered"
        operation, request = parts[0][1].operation, parts[1][0]  # type: ignore[union-attr]
        assert [len(m.keys) for _, m in parts] == [1984 * 32, 16 * 32]  # type: ignore[union-attr]
        peer.put(_wire.Reserved(operation, 1, 0, 2, 1999, 9, [(1, 1000), (2, 1)], [(0, 1000, 0)]), request)
        peer.put(_wire.Reserved(operation, 1, 1, 2, 1999, 9, [(1, 999)], [(0, 999, 1 << 48)]), request)

    with scripted(tmp_path, script) as client:
        reserve = client.reserve(SPACE, bytes(2000 * 32), instance="i", wait_us=None)
        assert (reserve.pages, reserve.reservation, len(reserve.grants)) == (1999, 9, 2000)
        assert 1000 not in reserve.granted()
        locations = reserve.locations()
        assert locations[999] == 999 * 8192
        assert locations[1000] == 1 << 48
        assert len(locations) == 1999


def test_a_ping_is_answered_without_a_caller(tmp_path: Path) -> None:
    answered = threading.Event()

    def script(peer: Peer) -> None:
        peer.put(_wire.Ping(123))
        assert peer.expect(_wire.Pong)[1] == _wire.Pong(123)
        answered.set()

    with scripted(tmp_path, script):
        assert answered.wait(DEADLINE)


def test_a_sealed_notice_reaches_the_owner(tmp_path: Path) -> None:
    got = threading.Event()
    with scripted(tmp_path, lambda peer: peer.put(Notice(Topic.SEALED, 4, 0)), on_notice=lambda _: got.set()) as client:
        assert got.wait(DEADLINE)
        assert client.token == b"t" * 16


def test_a_notice_that_the_owner_cannot_take_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    got = threading.Event()

    def take(notice: Notice) -> None:
        if notice.id == 4:
            raise KeyError("no reservation 4")
        got.set()

    def script(peer: Peer) -> None:
        for number in (4, 5):
            peer.put(Notice(Topic.SEALED, number, 0))
        assert got.wait(DEADLINE)

    with scripted(tmp_path, script, on_notice=take):
        pass
    assert "could not take a notice about sealed 4" in caplog.text
    assert "no reservation 4" in caplog.text


def test_a_refused_hello_names_both_abis(tmp_path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.listen()

    def refuse() -> None:
        connection = listener.accept()[0]
        peer = Peer(connection)
        peer.take()
        peer.put(_wire.Error(Status.WRONG_ABI, "the client speaks ABI 5, this Manager ABI 6"))
        connection.close()

    thread = threading.Thread(target=refuse)
    thread.start()
    with listener, pytest.raises(Refused, match="ABI 5, this Manager ABI 6") as caught:
        CacheManagerClient(str(tmp_path / "s"), role=Role.SCHEDULER)
    assert caught.value.status == Status.WRONG_ABI
    thread.join(DEADLINE)


def test_an_absent_manager_names_every_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ORBITKV_SOCKET", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert _connect.socket_paths(None)[-1] == "/run/orbitkv/orbitkv.sock"
    monkeypatch.setattr(_connect, "SYSTEM_PATH", str(tmp_path / "system.sock"))
    with pytest.raises(ManagerUnavailable) as caught:
        CacheManagerClient()
    assert [path for path, _ in caught.value.tried] == [
        str(tmp_path / "orbitkv" / "orbitkv.sock"),
        str(tmp_path / "system.sock"),
    ]
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(tmp_path / "dead"))
    dead.close()
    with pytest.raises(ManagerUnavailable, match="its Manager is gone"):
        CacheManagerClient(str(tmp_path / "dead"))


def test_a_manager_of_another_user_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes would be computed with."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen(1)
        own = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: own + 1)
        with pytest.raises(ManagerUnavailable, match=f"runs as user {own} and this process as user {own + 1}"):
            CacheManagerClient(str(tmp_path / "s"))


@pytest.mark.parametrize("what", ["socket", "epoll", "thread"])
def test_a_process_without_descriptors_or_threads_finds_no_manager(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread") if what == "thread" else OSError(24, "Too many open files")

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen(1)
        if what == "socket":
            monkeypatch.setattr(socket, "socket", refuse)
        elif what == "epoll":
            monkeypatch.setattr(select, "epoll", refuse)
        else:
            monkeypatch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(ManagerUnavailable, match=r"Too many open files|start new thread"):
            CacheManagerClient(str(tmp_path / "s"))
        if what != "socket":
            monkeypatch.undo()
            with contextlib.closing(listener.accept()[0]) as connection:
                connection.settimeout(DEADLINE)
                assert connection.recv(1) == b"", "no socket is left behind"


def test_a_stopped_manager_does_not_hold_up_the_start(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen(0)
        with pytest.raises(ManagerUnavailable, match="did not answer"):
            CacheManagerClient(str(tmp_path / "s"), timeout_ms=10)
        with contextlib.ExitStack() as stack:
            for _ in range(8):
                filler = stack.enter_context(socket.socket(socket.AF_UNIX))
                filler.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    filler.connect(str(tmp_path / "s"))
            with pytest.raises(ManagerUnavailable, match="accepts no connections"):
                CacheManagerClient(str(tmp_path / "s"), timeout_ms=10)


def test_a_message_that_finds_the_queue_full_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Event()
    told: list[str] = []
    monkeypatch.setattr(_channel, "PENDING_MAX", 1)

    def script(peer: Peer) -> None:
        peer.expect(_wire.Query)
        assert asked.wait(DEADLINE)

    with scripted(tmp_path, script, on_bound=told.append) as client:
        client.query(SPACE, bytes(64), instance="i", wait_us=0)
        with pytest.raises(ChannelFull):
            client.query(SPACE, bytes(64), instance="i", wait_us=0)
        asked.set()
    assert told == ["messages_refused"]


def test_bad_keys_are_refused_before_they_are_sent(tmp_path: Path) -> None:
    with scripted(tmp_path, lambda _: None) as client:
        for keys in (b"", bytes(31), bytes(32 * 65537)):
            with pytest.raises(ProtocolError, match="1 to 65536 keys"):
                client.query(SPACE, keys, instance="i")


WRONG_CALLS: dict[str, Callable[[CacheManagerClient], object]] = {
    "keys must be bytes, 32 for each key": lambda client: client.query(SPACE, [bytes(32)], instance="i"),  # type: ignore[arg-type]
    "keys must be bytes, .* \\(str\\)": lambda client: client.reserve(SPACE, "k" * 32, instance="i"),  # type: ignore[arg-type]
    "writer must be .* one of 'host', 'cuda', 'cuda_shared', got 'gpu'": lambda client: attach(client, writer="gpu"),
    "writer must be .* got 1 \\(int\\)": lambda client: attach(client, writer=1),
    "backend must be the name .* got None": lambda client: attach(client, backend=None),
    "facts must map strings to strings, got 'a': 1": lambda client: attach(client, facts={"a": 1}),
    "previous must be an older client, got the client itself": lambda client: client.take_over(client),
    "previous must be an older client, got": lambda client: client.resume_after(client),
    "previous must be the older client, got None": lambda client: client.take_over(None),  # type: ignore[arg-type]
}


def attach(client: CacheManagerClient, **wrong: object) -> int:
    """Attach with one argument that is not as it should be."""
    options = {"facts": {}, "slice_bytes": 64, **wrong}
    return client.attach("i", 0, 1, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", WRONG_CALLS)
def test_a_wrong_argument_is_named_and_the_client_goes_on(tmp_path: Path, text: str) -> None:
    def script(peer: Peer) -> None:
        peer.put(_wire.Pong(0), peer.expect(_wire.Ping)[0])

    with scripted(tmp_path, script) as client:
        with pytest.raises((ConfigurationError, ProtocolError), match=text):
            WRONG_CALLS[text](client)
        client.ping()


@pytest.mark.parametrize("timeout_ms", [0, -1, 0.5, "5000", None, True])
def test_a_timeout_in_which_nothing_can_end_is_refused(tmp_path: Path, timeout_ms: object) -> None:
    with pytest.raises(ConfigurationError, match="timeout_ms must be a whole number of milliseconds, at least 1, got"):
        CacheManagerClient(str(tmp_path / "s"), timeout_ms=timeout_ms)  # type: ignore[arg-type]


def test_long_reports_are_cut_into_frames_and_bytes_add_up(tmp_path: Path) -> None:
    ranges = [(2 * i, 1) for i in range(_wire.FRAME_RANGES_MAX + 10)]

    def script(peer: Peer) -> None:
        reports = [peer.expect(_wire.Restored)[1] for _ in range(2)]
        parts = [report for report in reports if isinstance(report, _wire.Restored)]
        assert [len(part.ranges) for part in parts] == [_wire.FRAME_RANGES_MAX, 10]
        assert sum(part.bytes for part in parts) == 1000 * len(ranges) + 1

    with scripted(tmp_path, script) as client:
        client.restored(1, 0, True, 1000 * len(ranges) + 1, ranges)


def test_ordinals_become_ranges() -> None:
    assert ranges_of(np.array([], np.int64)) == []
    assert ranges_of(np.array([3])) == [(3, 1)]
    assert ranges_of(np.array([0, 1, 2, 5, 7, 8])) == [(0, 3), (5, 1), (7, 2)]
