"""Hints of the client against a scripted peer: what it sends, what it keeps, and what it never asks."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from harness.peer import DEADLINE, Peer, scripted
from orbitkv import _wire
from orbitkv._hints import STALE_SECONDS, TICKETS_MAX, Hints, Request
from orbitkv._wire import Hint
from orbitkv.client import CacheManagerClient, Namespace, State, Status
from orbitkv.errors import CallTimeout, ConfigurationError, ProtocolError, Refused

SPACE = Namespace(3, 0, 8192, (8192,), ())
KEYS = bytes(64)


def hint(client: CacheManagerClient, request: str, wait_us: int | None = None) -> bool:
    return client.warm_prefix(SPACE, KEYS, instance="i", request=request, wait_us=wait_us)


def answer(peer: Peer, outcome: Hint = Hint.ACCEPTED) -> _wire.Warm:
    """Answer the next frame, which must be a hint."""
    request, message = peer.expect(_wire.Warm)
    assert isinstance(message, _wire.Warm)
    peer.put(_wire.Warmed(outcome, 0), request)
    return message


def test_a_hint_is_one_frame_and_its_answer(tmp_path: Path) -> None:
    def script(peer: Peer) -> None:
        assert answer(peer) == _wire.Warm(1, 0, 1, 3, "i", "a", KEYS)
        assert answer(peer, Hint.COMPLETE).ticket == 2
        for outcome in list(Hint)[2:]:
            answer(peer, outcome)

    with scripted(tmp_path, script) as client:
        assert hint(client, "a") is True
        assert hint(client, "b") is True
        skipped = list(Hint)[2:]
        assert [hint(client, "b") for _ in skipped] == [False] * len(skipped), (
            "one that is done or skipped is forgotten"
        )


def test_a_long_hint_comes_in_parts(tmp_path: Path) -> None:
    def script(peer: Peer) -> None:
        parts = [peer.expect(_wire.Warm) for _ in range(2)]
        assert [(m.ticket, m.part, m.parts, len(m.keys)) for _, m in parts] == [  # type: ignore[union-attr]
            (1, 0, 2, 1984 * 32),
            (1, 1, 2, 16 * 32),
        ]
        assert parts[0][0] == 0, "only the last part is answered"
        peer.put(_wire.Warmed(Hint.ACCEPTED, 2000), parts[1][0])

    with scripted(tmp_path, script) as client:
        assert client.warm_prefix(SPACE, bytes(2000 * 32), instance="i", request="a", wait_us=None)


def test_what_needs_no_asking_is_not_asked(tmp_path: Path) -> None:
    def script(peer: Peer) -> None:
        for _ in range(TICKETS_MAX):
            answer(peer)
        assert peer.expect(_wire.Ping)

    with scripted(tmp_path, script) as client:
        assert client.warm_prefix(SPACE, b"", instance="i", request="a") is False
        assert all(hint(client, str(number)) for number in range(TICKETS_MAX))
        assert hint(client, "0") is False, "its hint is pending"
        assert hint(client, "one more") is False
        client._channel.send(_wire.Ping(0))


def test_a_query_of_the_request_ends_the_hint_first(tmp_path: Path) -> None:
    again = threading.Event()

    def script(peer: Peer) -> None:
        ticket = answer(peer).ticket
        assert peer.expect(_wire.CancelWarm)[1] == _wire.CancelWarm(ticket)
        request, message = peer.expect(_wire.Query)
        assert isinstance(message, _wire.Query)
        assert again.wait(DEADLINE)
        peer.put(_wire.Result(message.operation, 1, _wire.Outcome.READY, False, 0, 1, 0, 0, 0, 0, 0, ()), request)
        assert answer(peer).ticket > ticket

    with scripted(tmp_path, script) as client:
        assert hint(client, "a")
        query = client.query(SPACE, KEYS, instance="i", request="a", wait_us=0)
        assert query.state is State.UNANSWERED
        assert hint(client, "a") is False, "the request is asked for"
        again.set()
        assert query.wait(DEADLINE) is State.READY
        assert hint(client, "a")


def test_queries_of_others_end_nothing(tmp_path: Path) -> None:
    def script(peer: Peer) -> None:
        answer(peer)
        for _ in range(2):
            request, message = peer.expect(_wire.Query)
            assert isinstance(message, _wire.Query)
            peer.put(_wire.Result(message.operation, 1, _wire.Outcome.READY, False, 0, 1, 0, 0, 0, 0, 0, ()), request)

    with scripted(tmp_path, script) as client:
        assert hint(client, "a")
        client.query(SPACE, KEYS, instance="i", request="b", wait_us=None)
        client.query(SPACE, KEYS, instance="j", request="a", wait_us=None)


def test_a_cancel_ends_the_hint_once(tmp_path: Path) -> None:
    def script(peer: Peer) -> None:
        ticket = answer(peer).ticket
        assert peer.expect(_wire.CancelWarm)[1] == _wire.CancelWarm(ticket)
        assert answer(peer).ticket > ticket

    with scripted(tmp_path, script) as client:
        assert hint(client, "a")
        client.cancel_warm("i", "a")
        client.cancel_warm("i", "a")
        client.cancel_warm("i", "never hinted at")
        assert hint(client, "a")


def test_a_late_answer_is_no_news_but_a_refusal(tmp_path: Path) -> None:
    asked, late = threading.Event(), threading.Event()

    def script(peer: Peer) -> None:
        request, _ = peer.expect(_wire.Warm)
        asked.set()
        assert late.wait(DEADLINE)
        peer.put(_wire.Warmed(Hint.FOREGROUND, 0), request)
        assert peer.expect(_wire.Ping)
        peer.put(_wire.Pong(0), 2 + 1)
        answer(peer)

    with scripted(tmp_path, script) as client:
        assert hint(client, "a", wait_us=0) is True
        assert asked.wait(DEADLINE)
        assert hint(client, "a", wait_us=0) is False
        late.set()
        client.ping()
        assert hint(client, "a") is True, "the note went with the answer that it was skipped"


def test_errors_leave_no_ticket(tmp_path: Path) -> None:
    def script(peer: Peer) -> None:
        request, _ = peer.expect(_wire.Warm)
        peer.put(_wire.Error(Status.STALE, "namespace 3 was replaced by 4"), request)
        request, _ = peer.expect(_wire.Warm)
        peer.put(_wire.Done(1), request)
        peer.expect(_wire.Warm)
        assert peer.expect(_wire.CancelWarm)

    with scripted(tmp_path, script, timeout_ms=2000) as client:
        with pytest.raises(Refused, match="replaced"):
            hint(client, "a")
        with pytest.raises(ProtocolError, match="answered warm with done"):
            hint(client, "a")
        with pytest.raises(CallTimeout):
            hint(client, "a")
        with pytest.raises(ConfigurationError, match="request must be"):
            hint(client, "")
        with pytest.raises(ProtocolError, match="32 bytes"):
            client.warm_prefix(SPACE, b"x", instance="i", request="a")


def test_old_tickets_go_with_the_next_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]

    def script(peer: Peer) -> None:
        old = answer(peer).ticket
        now[0] += STALE_SECONDS
        assert peer.expect(_wire.CancelWarm)[1] == _wire.CancelWarm(old)
        answer(peer)

    with scripted(tmp_path, script) as client:
        client._hints = Hints(lambda: now[0])
        assert hint(client, "a")
        assert hint(client, "a"), "nobody asked for it in time"


def test_tickets_are_the_requests_own() -> None:
    now = [0.0]
    hints = Hints(lambda: now[0])
    one, two = Request("i", "1"), Request("i", "2")
    assert (hints.take(one), hints.take(two), hints.take(one)) == (1, 2, None)
    assert hints.drop(one, 2) is None, "an answer that comes late names the ticket that it is of"
    now[0] = STALE_SECONDS / 2
    assert hints.drop(one, 1) == 1
    assert hints.take(one) == 3
    now[0] = STALE_SECONDS
    assert hints.stale() == [2]
    assert hints.drop(two) is None
    hints.asked(7, two)
    assert hints.take(two) is None
    hints.answered(7)
    assert hints.take(two) == 4
