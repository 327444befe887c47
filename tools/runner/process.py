"""Run one command as a process group, its output passed on line by line; whatever happens, the group ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

KILL_GRACE_S = 20.0  # From SIGTERM to SIGKILL, for fixtures that end engines.
LIMIT_STATUS = 124  # The status of a command that ran past its limit, as timeout(1) gives it.


def show(line: str) -> None:
    """Print a line at once, so that a log tells where a stage hangs."""
    print(line, flush=True)


def run(
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    limit_s: float,
    on_line: Callable[[str], None] = show,
) -> int:
    """Run a command without stdin, give every line of its output to `on_line`, and return its exit status.

    The limit guards against a hang; it is far above what the command takes and says nothing about speed.
    """
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    assert process.stdout is not None
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        end_group(process)

    guard = threading.Timer(limit_s, expire)
    guard.daemon = True
    guard.start()
    try:
        for line in process.stdout:
            on_line(line.rstrip("\n"))
        status = process.wait()
    finally:
        guard.cancel()
        end_group(process)
        process.stdout.close()
    if expired.is_set():
        show(f"ended: it ran past its limit of {limit_s:.0f} s")
        return LIMIT_STATUS
    return status


def end_group(process: subprocess.Popen[str]) -> None:
    """End what is left of the command's group: SIGTERM to a running leader, then SIGKILL to all."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(KILL_GRACE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
