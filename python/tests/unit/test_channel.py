"""The channel against a scripted peer: who reads, what never blocks, what closes."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.peer import DEADLINE, Peer
from orbitkv import _wire
from orbitkv._channel import PENDING_MAX, QUEUE_BYTES_MAX, Channel
from orbitkv._reply import Reply
from orbitkv.errors import CallTimeout, ChannelClosed, ChannelFull


@pytest.fixture
def peer_and_channel() -> Iterator[tuple[Peer, Channel, list[_wire.Message]]]:
    ours, theirs = socket.socketpair()
    pushed: list[_wire.Message] = []

    def on_push(message: _wire.Message, descriptor: int | None) -> None:
        pushed.append(message)
        if descriptor is not None:
            assert not os.get_inheritable(descriptor), "a child would inherit the arena"
            os.close(descriptor)

    channel = Channel(ours, on_push)
    with theirs:
        yield Peer(theirs), channel, pushed
    channel.close()


def test_pipelined_calls_are_answered_out_of_order_by_the_thread_that_waits(
    peer_and_channel: tuple[Peer, Channel, list[_wire.Message]],
) -> None:
    peer, channel, _ = peer_and_channel
    first = channel.submit([_wire.Detach("a")], Reply())
    second = channel.submit([_wire.Detach("b")], Reply())
    requests = [peer.take()[0], peer.take()[0]]
    peer.put(_wire.Done(2), requests[1])
    assert channel.wait(second, DEADLINE)
    assert not first.complete
    peer.put(_wire.Done(1), requests[0])
    assert channel.wait(first, DEADLINE)
    assert [channel.value(first)[0], channel.value(second)[0]] == [_wire.Done(1), _wire.Done(2)]


def test_many_threads_wait_and_each_gets_its_own_answer(
    peer_and_channel: tuple[Peer, Channel, list[_wire.Message]],
) -> None:
    peer, channel, _ = peer_and_channel
    calls, threads = 200, 8
    seen: list[tuple[int, int]] = []

    def work(number: int) -> None:
        for i in range(calls):
            value = number * calls + i
            head = channel.call(_wire.Ping(value), DEADLINE)[0]
            assert isinstance(head, _wire.Pong)
            seen.append((value, head.nonce))

    def echo() -> None:
        left = calls * threads
        while left:
            waiting = [peer.take()]
            while select.select([peer.socket], [], [], 0)[0]:
                waiting.append(peer.take())
            left -= len(waiting)
            for request, message in reversed(waiting):
                assert isinstance(message, _wire.Ping)
                peer.put(_wire.Pong(message.nonce), request)

    workers = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
    server = threading.Thread(target=echo)
    for thread in [*workers, server]:
        thread.start()
    for thread in [*workers, server]:
        thread.join(DEADLINE)
        assert not thread.is_alive()
    assert len(seen) == calls * threads
    assert all(sent == got for sent, got in seen)


def test_pushes_are_read_while_nobody_waits(peer_and_channel: tuple[Peer, Channel, list[_wire.Message]]) -> None:
    peer, channel, pushed = peer_and_channel
    for nonce in range(5):
        peer.put(_wire.Ping(nonce))
    marker = channel.submit([_wire.Detach("x")], Reply())
    request, _ = peer.take()
    peer.put(_wire.Done(0), request)
    assert channel.wait(marker, DEADLINE)
    assert pushed == [_wire.Ping(n) for n in range(5)]


def test_descriptors_of_pushes_come_with_their_frames_and_are_not_inherited(
    peer_and_channel: tuple[Peer, Channel, list[_wire.Message]],
) -> None:
    peer, channel, pushed = peer_and_channel
    reply = channel.submit([_wire.Detach("x")], Reply())
    request, _ = peer.take()
    with Path("/dev/null").open("rb") as file:
        peer.put(_wire.Ping(1))
        for number in range(3):
            socket.send_fds(peer.socket, [_wire.encode(_wire.Arena(number, -1, 4096))], [file.fileno()])
        peer.put(_wire.Done(0), request)
    assert channel.wait(reply, DEADLINE)
    assert channel.closed is None
    assert pushed == [_wire.Ping(1), *(_wire.Arena(number, -1, 4096) for number in range(3))]


def test_sends_never_block_and_a_full_queue_refuses_calls_but_takes_reports(
    peer_and_channel: tuple[Peer, Channel, list[_wire.Message]],
) -> None:
    peer, channel, _ = peer_and_channel
    keys = bytes(_wire.FRAME_KEYS_MAX * _wire.KEY_BYTES)
    part = _wire.Query(1, 1, 0, 1, 3, 0, "i", "", keys)
    sent = 0
    with contextlib.suppress(ChannelFull):
        while sent < 2 * QUEUE_BYTES_MAX:
            channel.submit([part], Reply())
            sent += 1
    with pytest.raises(ChannelFull):
        channel.submit([part], Reply())
    with contextlib.suppress(ChannelFull):
        while True:
            channel.send(_wire.Begin(1, 0, 1))
    channel.report(_wire.Revoked(1, True))
    assert channel.refused_full >= 2
    frames = 0
    while not isinstance(message := peer.take()[1], _wire.Revoked):
        frames += isinstance(message, _wire.Query)
    assert frames == sent, "a queued frame was lost or torn"


def test_a_peer_that_never_reads_ends_the_channel_instead_of_losing_a_report(
    peer_and_channel: tuple[Peer, Channel, list[_wire.Message]],
) -> None:
    _, channel, _ = peer_and_channel
    many = [(i, 1) for i in range(_wire.FRAME_RANGES_MAX)]
    with contextlib.suppress(ChannelClosed):
        for _ in range(3 * QUEUE_BYTES_MAX // (8 * len(many))):
            channel.report(_wire.Committed(1, 0, many))
    assert "stopped reading" in str(channel.closed)


def test_calls_without_an_answer_are_bounded(peer_and_channel: tuple[Peer, Channel, list[_wire.Message]]) -> None:
    _, channel, _ = peer_and_channel
    for _ in range(PENDING_MAX):
        channel.submit([_wire.Poll(1, 1)], Reply())
    with pytest.raises(ChannelFull, match="1024 calls"):
        channel.submit([_wire.Poll(1, 1)], Reply())


def test_a_call_times_out_and_its_late_answer_is_dropped(
    peer_and_channel: tuple[Peer, Channel, list[_wire.Message]],
) -> None:
    peer, channel, _ = peer_and_channel
    with pytest.raises(CallTimeout):
        channel.call(_wire.Detach("a"), 0.01)
    late, _ = peer.take()
    peer.put(_wire.Done(7), late)
    reply = channel.submit([_wire.Detach("b")], Reply())
    request, _ = peer.take()
    peer.put(_wire.Done(8), request)
    assert channel.wait(reply, DEADLINE)
    assert channel.value(reply) == [_wire.Done(8)]


def test_a_closed_peer_wakes_everybody(peer_and_channel: tuple[Peer, Channel, list[_wire.Message]]) -> None:
    peer, channel, _ = peer_and_channel
    faults: list[BaseException] = []

    def wait() -> None:
        try:
            channel.call(_wire.Detach("a"), DEADLINE)
        except ChannelClosed as fault:
            faults.append(fault)

    threads = [threading.Thread(target=wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in threads:
        peer.take()
    peer.socket.shutdown(socket.SHUT_RDWR)
    for thread in threads:
        thread.join(DEADLINE)
    assert len(faults) == 4
    with pytest.raises(ChannelClosed):
        channel.call(_wire.Detach("b"), DEADLINE)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00" * 16,
        b"\xff" * 64,
        _wire.encode(_wire.Done(1), 99),
        _wire.encode(_wire.Arena(0, 0, 4096)),
        _wire.encode(_wire.Done(1), 1)[:-1] + b"xx",
    ],
    ids=["zero", "ones", "unknown call", "arena without descriptor", "trailing"],
)
def test_what_the_protocol_does_not_allow_closes_the_channel(
    peer_and_channel: tuple[Peer, Channel, list[_wire.Message]], garbage: bytes
) -> None:
    peer, channel, _ = peer_and_channel
    reply = channel.submit([_wire.Detach("a")], Reply())
    peer.take()
    peer.socket.sendall(garbage + b"\x00" * 16)
    assert channel.wait(reply, DEADLINE)
    if garbage[:4] != _wire.encode(_wire.Done(1), 1)[:4] or channel.closed:
        assert "does not allow" in str(channel.closed)
