"""Ends an engine whose starter was killed: an engine's processes notice nothing and would run for ever.

Run as a process of its own beside the engine. Its stdin is a pipe that only the starter holds: a byte says that the
engine has ended in order, an end of file without one says that the starter is gone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

TRACKER_LIMIT_S = 10.0  # For a resource tracker to clean up after the killed.
POLL_S = 0.05


def session_members(session: int) -> list[int]:
    """Return the live processes of a session, zombies left out: they hold nothing any more."""
    members = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            facts = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if facts[0] not in "ZX" and int(facts[3]) == session:
            members.append(int(entry.name))
    return sorted(members)


def kill_session(session: int) -> None:
    """End every process of a session with SIGKILL; one that starts another meanwhile is met in the next round.

    Python's resource trackers go last: when all others are gone they remove the shared memory that those left in
    /dev/shm, hundreds of megabytes of an engine, and end by themselves.
    """
    while members := [pid for pid in session_members(session) if not _tracks_resources(pid)]:
        _kill(members)
    end = time.monotonic() + TRACKER_LIMIT_S
    while session_members(session) and time.monotonic() < end:
        time.sleep(POLL_S)
    while members := session_members(session):
        _kill(members)


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _tracks_resources(pid: int) -> bool:
    try:
        return b"multiprocessing.resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def main() -> int:
    """Wait for the starter's byte or its end."""
    # An interrupt at the terminal is the starter's to handle; this process ends through its pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not os.read(0, 1):
        kill_session(int(sys.argv[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
