"""One `orbitkv serve` on a private socket and port: started, asked, killed, started again, stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import http
from harness.server import free_port

START_LIMIT_S = 120.0
STOP_LIMIT_S = 60.0
POLL_S = 0.02
LOG_TAIL_BYTES = 4000


class ManagerFailure(Exception):
    """The Manager did not start, or did not end as it should; the text carries the end of its log."""


class ManagerProcess:
    """A Manager in a folder of its own. `stop` must find it alive and see it end with status 0."""

    def __init__(self, binary: Path, folder: Path, pool: str = "256mib", *options: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.socket = str(folder / "orbitkv.sock")
        self.port = free_port()
        self.log = folder / "manager.log"
        self._command = [str(binary), "serve", "--socket", self.socket, "--pool-size", pool]
        self._command += ["--http-addr", f"127.0.0.1:{self.port}", *options]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Return the process id of the running Manager."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> ManagerProcess:
        """Start it and return when it lends memory; on failure nothing is left running."""
        with self.log.open("ab") as out:
            # A session of its own: an interrupt at the terminal is the starter's, which stops the Manager in order.
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        end = time.monotonic() + START_LIMIT_S
        while not self.ready():
            if self._process.poll() is not None or time.monotonic() > end:
                self.kill()
                raise ManagerFailure(f"the Manager did not become ready; its log ends with:\n{self.log_tail()}")
            time.sleep(POLL_S)
        return self

    def ready(self) -> bool:
        """Return whether /readyz says so."""
        try:
            return http.get(self.port, "/readyz", 10.0).status == 200
        except OSError:
            return False

    def status(self) -> Any:
        """Return /status as JSON."""
        return http.get(self.port, "/status", 60.0).json()

    def violations(self) -> Any:
        """Return what /verify finds wrong."""
        return http.get(self.port, "/verify", 60.0).json()["violations"]

    def metric(self, name: str) -> float:
        """Return the sum of a metric over its labels."""
        samples = http.samples(http.get(self.port, "/metrics", 60.0).text())
        found = [value for key, value in samples.items() if key.partition("{")[0] == name]
        if not found:
            raise ManagerFailure(f"the Manager has no metric {name}")
        return sum(found)

    def metrics(self, name: str) -> dict[str, float]:
        """Return the samples of a metric by their labels as printed, none when it has none."""
        samples = http.samples(http.get(self.port, "/metrics", 60.0).text())
        return {
            key.partition("{")[2].rstrip("}"): value for key, value in samples.items() if key.startswith(name + "{")
        }

    def verb(self, path: str) -> Any:
        """POST to a path that changes state; return its answer as JSON."""
        token = Path(self.socket + ".token").read_text(encoding="ascii").strip()
        answer = http.post(self.port, path, None, token=token)
        if answer.status != 200:
            raise ManagerFailure(f"the Manager answered {answer.status} to {path}: {answer.text()}")
        return answer.json()

    def descriptors(self) -> int:
        """Return how many files the Manager has open."""
        return sum(1 for _ in Path(f"/proc/{self.pid}/fd").iterdir())

    def resident_bytes(self) -> int:
        """Return the Manager's resident memory."""
        fields = Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")

    def pause(self) -> None:
        """Stop it by SIGSTOP and return when every thread of it stands still."""
        os.kill(self.pid, signal.SIGSTOP)
        eventually(lambda: {task.state for task in tasks(self.pid)} == {"T"}, "the Manager stands still")

    def go_on(self) -> None:
        """Continue it after `pause`."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End it by SIGKILL and bury it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """End it by SIGTERM. ManagerFailure when it was dead, ends with another status than 0, or leaves its socket."""
        if self._process is None:
            return
        process, self._process = self._process, None
        died = process.poll() is not None
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            status = process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
        if died or status != 0:
            when = "by itself" if died else "on SIGTERM"
            raise ManagerFailure(f"the Manager ended {when} with {status}; its log ends with:\n{self.log_tail()}")
        if Path(self.socket).exists():
            raise ManagerFailure(f"the Manager left {self.socket} behind")

    def log_tail(self) -> str:
        """Return the end of its log."""
        text = self.log.read_bytes() if self.log.exists() else b""
        return text[-LOG_TAIL_BYTES:].decode(errors="replace")


@dataclass(frozen=True)
class Task:
    """A thread of a process; `state` is the letter of proc(5)."""

    id: int
    state: str


def tasks(pid: int) -> list[Task]:
    """Return the threads of a process; one that ends meanwhile is left out."""
    found = []
    for folder in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            after_name = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2]
            found.append(Task(int(folder.name), after_name.split()[0]))
    return found


def eventually(holds: Callable[[], bool], what: str, limit_s: float = 120.0) -> None:
    """Return once a condition holds; AssertionError with `what` at a generous limit."""
    end = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > end:
            raise AssertionError(f"not within {limit_s:.0f} s: {what}")
        time.sleep(POLL_S)
