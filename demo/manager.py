"""One `orbitkv serve` with a small pool, a private socket and a private port, ended with the demo."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from pathlib import Path

from demo.damage import invert_arenas
from harness import http
from harness.engine import free_port

BINARY = Path(__file__).resolve().parent.parent / "bin" / "orbitkv"
POOL_SIZE = "256mib"
START_LIMIT_S = 60.0
STORE_LIMIT_S = 60.0
STOP_LIMIT_S = 20.0
POLL_S = 0.1
LOG_TAIL_BYTES = 4000


class ManagerFailure(Exception):
    """The Manager did not start, died, or did not get what the engine should have published."""


class Manager:
    """A running Manager; `stop` ends it."""

    def __init__(self, folder: Path) -> None:
        """Start it and return when it is ready to lend memory; on failure nothing is left running."""
        self.socket = folder / "orbitkv.sock"
        self._log = folder / "manager.log"
        self._port = free_port()
        command = [str(BINARY), "serve", "--socket", str(self.socket), "--pool-size", POOL_SIZE]
        command += ["--http-addr", f"127.0.0.1:{self._port}"]
        with self._log.open("wb") as out:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        try:
            self._wait_ready()
        except BaseException:
            self._end()
            raise

    def stop(self) -> None:
        """End it; that it ended by itself before, or badly now, is a failure."""
        died = self._process.poll() is not None
        status = self._end()
        if died or status != 0:
            when = "before the demo did" if died else "on SIGTERM"
            raise ManagerFailure(f"the Manager ended {when} with {status}; its log ends with:\n{self._log_tail()}")

    def restored_bytes(self) -> int:
        """Return the bytes that engines have confirmed as restored."""
        return self._counter("orbitkv_load_bytes_total")

    def wait_stored(self, pages: int) -> None:
        """Return once so many pages were stored since the start."""
        end = time.monotonic() + STORE_LIMIT_S
        while (stored := self._counter("orbitkv_cache_block_insertions_total")) < pages:
            if time.monotonic() > end:
                raise ManagerFailure(f"the engine published {stored} of {pages} pages within {STORE_LIMIT_S:.0f} s")
            time.sleep(POLL_S)

    def spoil(self) -> int:
        """Invert every stored byte and return how many bytes that were."""
        return invert_arenas(self._process.pid)

    def _wait_ready(self) -> None:
        end = time.monotonic() + START_LIMIT_S
        while not self._ready():
            if self._process.poll() is not None or time.monotonic() > end:
                raise ManagerFailure(f"the Manager did not become ready; its log ends with:\n{self._log_tail()}")
            time.sleep(POLL_S)

    def _ready(self) -> bool:
        try:
            return http.get(self._port, "/readyz", POLL_S * 10).status == 200
        except OSError:
            return False

    def _counter(self, name: str) -> int:
        samples = http.samples(http.get(self._port, "/metrics").text())
        found = [value for key, value in samples.items() if key.partition("{")[0] == name]
        if not found:
            raise ManagerFailure(f"the Manager has no metric {name}")
        return int(sum(found))

    def _end(self) -> int:
        """End the process, by force when it takes too long, and return its exit status."""
        if self._process.poll() is None:
            self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(STOP_LIMIT_S)
        self._process.kill()
        return self._process.wait()

    def _log_tail(self) -> str:
        with self._log.open("rb") as log:
            log.seek(max(0, self._log.stat().st_size - LOG_TAIL_BYTES), os.SEEK_SET)
            return log.read().decode(errors="replace")
