"""The client of a rank that schedules an instance together with the other ranks, against a scripted peer."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from harness.peer import DEADLINE, Peer, scripted
from orbitkv import _wire
from orbitkv.client import ALL_RANKS, LeaseState, Namespace, Slice, State
from orbitkv.errors import ChannelClosed, ConfigurationError, LeaseLost

BUDGET = 1 << 30
SLICES = ((0, 0, 0, 4096), (1, 0, 4096, 4096))
SPACE = Namespace(3, 0, 8192, (8192,), tuple(Slice(*each) for each in SLICES), 1, BUDGET)
READER = SPACE._replace(slices=SPACE.slices[:1])
LEASE = 77


def ready(operation: int) -> _wire.Result:
    return _wire.Result(operation, 1, _wire.Outcome.READY, False, 0, 1, 2, 0, LEASE, 0, 0, [(0, 2, 4096)])


def answer_query(peer: Peer) -> None:
    request, message = peer.expect(_wire.Query)
    assert isinstance(message, _wire.Query)
    peer.put(ready(message.operation), request)


def test_a_namespace_knows_the_rank_that_the_session_schedules_for_and_the_budget(tmp_path: Path) -> None:
    def script(peer: Peer) -> None:
        for asked, epoch in (
            (_wire.Register("i", 1), 0),
            (_wire.Epoch("i", 9), 9),
            (_wire.Register("i", ALL_RANKS), 0),
        ):
            request, message = peer.expect(type(asked))
            assert message == asked
            peer.put(_wire.Registered(3, epoch, 8192, BUDGET, [8192], SLICES), request)

    with scripted(tmp_path, script) as client:
        assert client.register("i", 1) == SPACE
        assert client.new_epoch("i", 9, 1) == SPACE._replace(epoch=9)
        assert client.register("i") == SPACE._replace(rank=ALL_RANKS)
        assert SPACE.writes
        assert not READER.writes
        assert READER._replace(rank=ALL_RANKS).writes


def test_operations_have_the_numbers_that_the_ranks_gave_them(tmp_path: Path) -> None:
    def script(peer: Peer) -> None:
        for kind, number in ((_wire.Query, 7), (_wire.Reserve, 5), (_wire.Query, 1 << 63)):
            request, message = peer.expect(kind)
            assert isinstance(message, _wire.Query | _wire.Reserve)
            assert message.operation == number
            grants = [(int(_wire.Grant.PRESENT), 2)]
            reserved = _wire.Reserved(number, 1, 0, 1, 0, 0, grants, [])
            peer.put(ready(number) if kind is _wire.Query else reserved, request)

    with scripted(tmp_path, script) as client:
        keys = bytes(64)
        assert client.query(SPACE, keys, instance="i", wait_us=None, operation=7).operation == 7
        for used in (7, 0, -1, 1 << 64, True, "8"):
            with pytest.raises(ConfigurationError, match="operation must be"):
                client.query(SPACE, keys, instance="i", operation=used)  # type: ignore[arg-type]
        # A reserve may wait in its rank while later queries are asked: each kind has its own order.
        assert client.reserve(SPACE, keys, instance="i", wait_us=None, operation=5).operation == 5
        with pytest.raises(ConfigurationError, match="than 5, that of this client's last reserve"):
            client.reserve(SPACE, keys, instance="i", operation=4)
        assert client.query(SPACE, keys, instance="i", wait_us=None, operation=1 << 63).state is State.READY


def test_a_rank_begins_and_gives_back_its_own_part(tmp_path: Path) -> None:
    released = threading.Event()

    def script(peer: Peer) -> None:
        answer_query(peer)
        assert peer.expect(_wire.Begin)[1] == _wire.Begin(LEASE, 1, 2)
        answer_query(peer)
        assert peer.expect(_wire.Release)[1] == _wire.Release(LEASE, 1)
        released.set()

    with scripted(tmp_path, script) as client:
        lease = client.query(SPACE, bytes(64), instance="i", wait_us=None).lease
        assert lease is not None
        lease.begin(2)
        lease.ended()
        lease = client.query(SPACE, bytes(64), instance="i", wait_us=None).lease
        assert lease is not None
        lease.release()
        assert released.wait(DEADLINE)


@pytest.mark.parametrize("space", [SPACE, READER], ids=["writer", "reader"])
def test_a_dropped_reserve_abandons_the_slices_of_its_rank(tmp_path: Path, space: Namespace) -> None:
    dropped, told = threading.Event(), threading.Event()

    def script(peer: Peer) -> None:
        request, message = peer.expect(_wire.Reserve)
        assert isinstance(message, _wire.Reserve)
        assert dropped.wait(DEADLINE)
        grants = [(int(_wire.Grant.GRANTED), 2)]
        peer.put(_wire.Reserved(message.operation, 1, 0, 1, 2, 5, grants, [(0, 2, 4096)]), request)
        if space.writes:
            assert peer.expect(_wire.Abandoned)[1] == _wire.Abandoned(5, 1, ((0, 2),))
        request, _ = peer.expect(_wire.Ping)  # And nothing else came before it.
        peer.put(_wire.Pong(0), request)
        told.set()

    with scripted(tmp_path, script) as client:
        reserve = client.reserve(space, bytes(64), instance="i", wait_us=0)
        reply = reserve._reply
        assert reply is not None
        reserve.drop()
        dropped.set()
        assert client._channel.wait(reply, DEADLINE)
        client.ping()
        assert told.wait(DEADLINE)


def test_a_begin_that_cannot_be_taken_back_stands_without_the_manager_and_is_said_again(tmp_path: Path) -> None:
    def later(peer: Peer) -> None:
        request, message = peer.expect(_wire.Resume)
        assert message == _wire.Resume(b"t" * 16, (LEASE,), ())
        peer.put(_wire.Resumed((LEASE,), ()), request)
        assert peer.expect(_wire.Begin)[1] == _wire.Begin(LEASE, 1, 2)

    (tmp_path / "later").mkdir()
    with scripted(tmp_path, answer_query) as first, scripted(tmp_path / "later", later) as second:
        lease = first.query(SPACE, bytes(64), instance="i", wait_us=None).lease
        assert lease is not None
        first._channel._thread.join(DEADLINE)  # The peer has closed.
        assert not first.alive
        with pytest.raises(ChannelClosed):
            lease.begin(2)
        assert not lease.begun
        lease.begin(2, closed_ok=True)
        assert first._leases.state(LEASE) is LeaseState.ACTIVE
        assert second.take_over(first) == ([LEASE], [])


def test_a_lease_that_a_revoke_won_cannot_be_begun_without_the_manager_either(tmp_path: Path) -> None:
    yielded = threading.Event()

    def script(peer: Peer) -> None:
        answer_query(peer)
        peer.put(_wire.Revoke(LEASE))
        assert peer.expect(_wire.Revoked)[1] == _wire.Revoked(LEASE, True)
        yielded.set()

    with scripted(tmp_path, script) as client:
        lease = client.query(SPACE, bytes(64), instance="i", wait_us=None).lease
        assert lease is not None
        assert yielded.wait(DEADLINE)
        with pytest.raises(LeaseLost):
            lease.begin(2, closed_ok=True)
