"""An engine never outlives whoever started it, however that one ended."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

from harness.engine import Engine, EngineConfig, _sentinel
from harness.sentinel import session_members

HANG = "import os, signal; os.fork(); print(os.getpid(), flush=True); signal.pause()"


def hanging_session() -> tuple[subprocess.Popen[str], list[int]]:
    """Return a session of two processes that end only when they are killed."""
    leader = subprocess.Popen([sys.executable, "-c", HANG], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert leader.stdout is not None
    pids = sorted(int(leader.stdout.readline()) for _ in range(2))
    leader.stdout.close()
    return leader, pids


def test_session_is_ended_when_its_starter_is_gone() -> None:
    leader, pids = hanging_session()
    watched = [os.pidfd_open(pid) for pid in pids]
    sentinel = _sentinel(leader.pid)
    assert session_members(leader.pid) == pids
    assert sentinel.stdin is not None
    sentinel.stdin.close()  # As the kernel does for a starter that was killed.
    for descriptor in watched:
        assert select.select([descriptor], [], [], 60)[0], "a process of the session was left"
        os.close(descriptor)
    assert sentinel.wait(60) == 0
    leader.wait(60)


def test_session_is_left_alone_after_an_end_in_order() -> None:
    leader, pids = hanging_session()
    sentinel = _sentinel(leader.pid)
    sentinel.communicate(b"e", 60)
    assert sentinel.returncode == 0
    assert session_members(leader.pid) == pids
    engine = Engine(EngineConfig(), as_bytes(leader), _sentinel(leader.pid), 0, Path(os.devnull))
    engine.kill()
    assert session_members(leader.pid) == []
    assert engine.sentinel.returncode == 0


def as_bytes(process: subprocess.Popen[str]) -> subprocess.Popen[bytes]:
    """Return the same process under the type that an engine has; its pipes are closed."""
    return process  # type: ignore[return-value]
