"""A real engine's HTTP server as a process group: started, asked for its health, stopped, and nothing of it left.

Whoever starts an engine owns its end. The server is a session of its own, so that every process it starts can be found
and ended by that session's id; a sentinel beside it does so when the starter is killed. What is said to the server is
the engine's own matter: `harness.engine` is vLLM's, `harness.sglang` is SGLang's.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from harness import http
from harness.sentinel import kill_session, session_members

if TYPE_CHECKING:
    from typing_extensions import Self

START_LIMIT_S = 900.0  # Generous: a slow machine is no failure, only a dead process or this limit is.
STOP_LIMIT_S = 30.0  # From SIGTERM to SIGKILL.
END_LIMIT_S = 20.0  # For the kernel and init to bury what was killed.
POLL_S = 0.25
LOG_TAIL_BYTES = 6000
TOOLS = Path(__file__).resolve().parents[1]
SOURCE = TOOLS.parent / "python" / "src"


class EngineFailure(Exception):
    """The engine did not start, died or did not end; the text carries the tail of its log."""


class ServerConfig(Protocol):
    """What a server is started from; equal values may share one process."""

    def command(self, port: int) -> list[str]:
        """Return the server's command line, run by the interpreter that runs this."""

    def whole_environment(self) -> dict[str, str]:
        """Return the whole environment of the server."""


Config = TypeVar("Config", bound=ServerConfig)


@dataclass
class Server(Generic[Config]):
    """A running server. Use `start`, or a pool in tests; `stop` may be called twice."""

    config: Config
    process: subprocess.Popen[bytes]
    sentinel: subprocess.Popen[bytes]
    port: int
    log: Path
    ended: bool = field(default=False)

    @classmethod
    def start(cls, config: Config, log: Path, limit_s: float = START_LIMIT_S) -> Self:
        """Start the server and return when it answers /health; on failure nothing is left running."""
        port = free_port()
        log.parent.mkdir(parents=True, exist_ok=True)
        command, environment = config.command(port), config.whole_environment()
        with log.open("wb") as out:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment, start_new_session=True
            )
        engine = cls(config, process, start_sentinel(process.pid), port, log)
        try:
            engine.wait_ready(limit_s)
        except BaseException:
            engine.kill()
            raise
        return engine

    def wait_ready(self, limit_s: float) -> None:
        """Return once /health answers 200; raise when the process died or the limit passed."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise EngineFailure(self.report(f"the engine ended with {self.process.returncode} while starting"))
            if self.healthy():
                return
            time.sleep(POLL_S)
        raise EngineFailure(self.report(f"the engine was not ready after {limit_s:.0f} s"))

    def healthy(self) -> bool:
        """Return whether /health answers 200 now."""
        try:
            return http.get(self.port, "/health").status == 200
        except OSError:
            return False

    def counters(self) -> Mapping[str, float]:
        """Return every sample of /metrics, keyed by name with its labels as the engine prints them."""
        return http.samples(http.get(self.port, "/metrics").text())

    def counter(self, name: str) -> float:
        """Return the sum over all label sets of one metric; an absent metric is an error, never 0."""
        found = [value for key, value in self.counters().items() if key.partition("{")[0] == name]
        if not found:
            raise EngineFailure(f"the engine has no metric {name}")
        return sum(found)

    def processes(self) -> list[int]:
        """Return the ids of every live process of the server's session."""
        return session_members(self.process.pid)

    def stop(self) -> None:
        """End the server with SIGTERM, with SIGKILL after STOP_LIMIT_S, and check that nothing of it is left."""
        if self.ended:
            return
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(STOP_LIMIT_S)
            self._await_end(STOP_LIMIT_S)
        except (subprocess.TimeoutExpired, EngineFailure):
            self.kill()
            raise EngineFailure(self.report(f"the engine did not end within {STOP_LIMIT_S:.0f} s of SIGTERM")) from None
        self._ended()

    def kill(self) -> None:
        """End every process of the server with SIGKILL and wait until they are gone."""
        kill_session(self.process.pid)
        self.process.wait(END_LIMIT_S)
        self._await_end(END_LIMIT_S)
        self._ended()

    def _ended(self) -> None:
        """Tell the sentinel that nothing is left to end, and wait for it."""
        if not self.ended:
            self.sentinel.communicate(b"e", END_LIMIT_S)
        self.ended = True

    def _await_end(self, limit_s: float) -> None:
        end = time.monotonic() + limit_s
        while left := self.processes():
            if time.monotonic() > end:
                raise EngineFailure(self.report(f"processes of the engine are left: {left}"))
            time.sleep(POLL_S)

    def report(self, what: str) -> str:
        """Return the message with the end of the server's log."""
        tail = self.log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
        return f"{what}; the end of {self.log}:\n{tail}"


def start_sentinel(session: int) -> subprocess.Popen[bytes]:
    """Start the process that ends the session when this one is killed."""
    command = [sys.executable, "-m", "harness.sentinel", str(session)]
    environment = {**os.environ, "PYTHONPATH": str(TOOLS)}
    return subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, start_new_session=True)


def search_path(*first: Path) -> str:
    """Return the value of PYTHONPATH that an engine finds the product by, with folders before it."""
    given = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join(part for part in (*map(str, first), str(SOURCE), given) if part)


def free_port() -> int:
    """Return a loopback port that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
