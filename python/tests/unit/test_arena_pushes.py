"""Arenas that a scripted Manager pushes: mapped, registered by the owner, and said to be usable or not."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import socket
import threading
from pathlib import Path

import pytest

from harness.peer import DEADLINE, Peer, scripted
from orbitkv import _wire
from orbitkv.client import Arena
from orbitkv.errors import ArenaError

SEALS = 0x0002 | 0x0004 | 0x0001


def test_an_arena_is_mapped_registered_and_said_to_be_so(tmp_path: Path) -> None:
    def script(peer: Peer) -> None:
        for number in (0, 1):
            descriptor = os.memfd_create("arena", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
            os.ftruncate(descriptor, 65536)
            if number == 0:
                fcntl.fcntl(descriptor, 1033, SEALS)
            with mmap.mmap(descriptor, 65536) as mapping:
                mapping[4096] = 42
            socket.send_fds(peer.socket, [_wire.encode(_wire.Arena(number, -1, 65536))], [descriptor])
            os.close(descriptor)
            mapped = peer.expect(_wire.Mapped)[1]
            assert isinstance(mapped, _wire.Mapped)
            assert (mapped.arena, mapped.ok) == (number, number == 0)
            assert mapped.ok or "seals" in mapped.text
        both.set()
        peer.put(_wire.Pong(0), peer.expect(_wire.Ping)[0])

    both = threading.Event()
    seen: list[int] = []
    with scripted(tmp_path, script, on_arena=lambda arena: seen.append(arena.address)) as client:
        assert both.wait(DEADLINE)
        assert client.wait_arenas(1, DEADLINE) == 1
        view = client.arenas[0].view
        assert view[4096] == 42
        assert "dc" in flags_of(view.ctypes.data), "a child would inherit the arena"
        assert not any(os.get_inheritable(each) for each in open_memfds())
        assert seen == [client.arenas[0].address]
        assert 1 not in client.arenas
        assert client.arenas_unusable_because is None, "one of them can be used"
    assert view[4096] == 42, "memory that is still viewed was unmapped"


def flags_of(address: int) -> list[str]:
    """Return the kernel's flags of the mapping that starts at an address."""
    lines = iter(Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines())
    for line in lines:
        if line.startswith(f"{address:x}-"):
            return next(each for each in lines if each.startswith("VmFlags:")).split()[1:]
    raise AssertionError(f"nothing is mapped at {address:#x}")


def open_memfds() -> list[int]:
    """Return this process's descriptors of memory files."""
    found = []
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if "memfd:arena" in str(each.readlink()):
                found.append(int(each.name))
    return found


def push_arena(peer: Peer, number: int) -> None:
    """Push a sound arena."""
    descriptor = os.memfd_create("arena", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.ftruncate(descriptor, 4096)
    fcntl.fcntl(descriptor, 1033, SEALS)
    socket.send_fds(peer.socket, [_wire.encode(_wire.Arena(number, -1, 4096))], [descriptor])
    os.close(descriptor)


def send_arena(peer: Peer, number: int) -> _wire.Mapped:
    """Push a sound arena and return what the client says of it."""
    push_arena(peer, number)
    mapped = peer.expect(_wire.Mapped)[1]
    assert isinstance(mapped, _wire.Mapped)
    return mapped


@pytest.mark.parametrize(
    "fault",
    [RuntimeError("memlock limit"), KeyError("memlock"), TypeError("memlock"), OSError("memlock of \udc80")],
    ids=lambda fault: type(fault).__name__,
)
def test_a_device_that_refuses_an_arena_is_told_to_the_manager(tmp_path: Path, fault: Exception) -> None:
    def script(peer: Peer) -> None:
        for number in (3, 4):  # The thread that tells of the first must be there for the second.
            mapped = send_arena(peer, number)
            assert (mapped.arena, mapped.ok) == (number, False)
            assert "memlock" in mapped.text
            assert type(fault).__name__ in mapped.text

    def refuse(_: object) -> None:
        raise type(fault)(*fault.args)  # A new one: the traceback of one that is kept would keep the arena.

    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - the count alone
    counted: list[str] = []
    with scripted(tmp_path, script, on_arena=refuse, on_bound=counted.append) as client:
        assert client.wait_arenas(1, 0.0) == 0
    assert client.arenas_unusable_because is not None
    assert client.arenas_unusable_because.startswith("arena 3 could not be registered"), "the first one says why"
    assert counted == ["arenas_refused"] * 2
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208 - the count alone


def test_an_owner_that_ends_is_brought_no_further_arenas(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    inside, ended, stopped = threading.Event(), threading.Event(), threading.Event()
    seen: list[int] = []

    def script(peer: Peer) -> None:
        push_arena(peer, 0)
        push_arena(peer, 1)
        assert stopped.wait(DEADLINE)
        push_arena(peer, 2)
        peer.put(_wire.Pong(0), peer.expect(_wire.Ping)[0])
        ended.set()
        mapped = peer.expect(_wire.Mapped)[1]
        assert isinstance(mapped, _wire.Mapped)
        assert (mapped.arena, mapped.ok) == (0, False)

    def register(arena: Arena) -> None:
        seen.append(arena.id)
        inside.set()
        assert ended.wait(DEADLINE)
        raise ArenaError(f"arena {arena.id} was let go of")

    counted: list[str] = []
    with scripted(tmp_path, script, on_arena=register, on_bound=counted.append) as client:
        assert inside.wait(DEADLINE)
        client.stop_pushes()
        stopped.set()
        client.ping()  # The third arena was read before the answer, and the channel lives.
    assert seen == [0]
    assert (caplog.messages, counted) == ([], []), "what an owner lets go of is no error"
    assert client.arenas_unusable_because is None
    assert open_memfds() == []


def test_a_closed_channel_ends_a_wait_for_arenas(tmp_path: Path) -> None:
    """A link that waited longer would come back to the next Manager that much later."""
    with scripted(tmp_path, lambda _: None) as client:
        assert client.wait_arenas(1, threading.TIMEOUT_MAX) == 0
        assert not client.alive


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_what_ends_the_thread_of_the_pushes_ends_the_channel(tmp_path: Path) -> None:
    """A client that says that it is alive and maps no arenas would publish and restore nothing, silently."""

    class Unheard(Exception):
        pass

    def script(peer: Peer) -> None:
        mapped = send_arena(peer, 3)
        assert not mapped.ok
        assert "Unheard: of" in mapped.text
        with pytest.raises(AssertionError, match="the client closed"):
            peer.take()

    def refuse(_: object) -> None:
        raise Unheard("of")

    with scripted(tmp_path, script, on_arena=refuse) as client:
        client._channel._thread.join(DEADLINE)
        assert client.closed_because == "the thread that maps arenas ended: Unheard: of"
