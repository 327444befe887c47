"""An engine never outlives whoever started it, however that one ended."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.engine import Engine, EngineConfig
from harness.sentinel import _tracks_resources, kill_session, session_members
from harness.server import start_sentinel

# One write a process: what two of them say may not be mixed.
HANG = "import os, signal; os.fork(); os.write(1, b'%d\\n' % os.getpid()); signal.pause()"
Session = tuple["subprocess.Popen[bytes]", list[int]]


@pytest.fixture
def hanging() -> Iterator[Session]:
    """Yield a session of two processes that end only when they are killed."""
    leader = subprocess.Popen([sys.executable, "-c", HANG], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert leader.stdout is not None
        yield leader, sorted(int(leader.stdout.readline()) for _ in range(2))
    finally:
        kill_session(leader.pid)
        leader.communicate(timeout=60)


def test_session_is_ended_when_its_starter_is_gone(hanging: Session) -> None:
    leader, pids = hanging
    watched = [os.pidfd_open(pid) for pid in pids]
    sentinel = start_sentinel(leader.pid)
    assert session_members(leader.pid) == pids
    assert sentinel.stdin is not None
    sentinel.stdin.close()  # As the kernel does for a starter that was killed.
    for descriptor in watched:
        assert select.select([descriptor], [], [], 60)[0], "a process of the session was left"
        os.close(descriptor)
    assert sentinel.wait(60) == 0


def test_session_is_left_alone_after_an_end_in_order(hanging: Session) -> None:
    leader, pids = hanging
    sentinel = start_sentinel(leader.pid)
    sentinel.communicate(b"e", 60)
    assert sentinel.returncode == 0
    assert session_members(leader.pid) == pids


def test_kill_ends_the_session_and_the_sentinel(hanging: Session) -> None:
    leader, _ = hanging
    engine = Engine(EngineConfig(), leader, start_sentinel(leader.pid), 0, Path(os.devnull))
    engine.kill()
    assert session_members(leader.pid) == []
    assert engine.sentinel.returncode == 0


def test_shared_memory_of_the_killed_is_removed() -> None:
    code = (
        "from multiprocessing.shared_memory import SharedMemory; import os, signal; "
        "m = SharedMemory(create=True, size=4096); os.write(1, m.name.encode() + b'\\n'); signal.pause()"
    )
    leader = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    assert leader.stdout is not None
    name = leader.stdout.readline().decode().strip()
    assert Path("/dev/shm", name).exists()
    # Between its fork and its start the tracker looks like the leader, and would die with it.
    while not any(_tracks_resources(pid) for pid in session_members(leader.pid)):
        os.sched_yield()
    kill_session(leader.pid)
    leader.communicate(timeout=60)
    assert not Path("/dev/shm", name).exists()
    assert session_members(leader.pid) == []
