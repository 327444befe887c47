"""A real Manager beside a real engine, for tests of what happens between them: what is the same for both engines.

The socket's path is fixed, so that Managers come and go while one engine lives.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from harness import http as web
from harness.checkpoint import FIRST_WORD, Checkpoint
from harness.engine import Completion
from harness.gate import Gate
from harness.http import HTTPFailure
from harness.manager import ManagerProcess, eventually
from harness.server import EngineFailure

POOL = "256mib"
QUERY_WAIT_US = 200_000  # a small busy machine answers late; the bound itself has tests of its own
PROBES = 1 << 32  # seeds above it are of probes alone
REQUESTS_MAX = 64  # requests that a rig has under way at once
SETTLED_AT_ZERO = (
    *("leases", "reservations", "operations_waiting", "operations_ready", "query_reserved_bytes", "retired_bytes"),
    *("operations_preparing", "operations_draining", "reading_pages", "tier_write_bytes"),
    *("writing_bytes", "abandoned_bytes", "quarantined_bytes", "settling_bytes", "stalled_bytes"),
)
INSERTED = "orbitkv_cache_block_insertions_total"


def words(seed: int, tokens: int) -> list[int]:
    """Return a prompt of ordinary words that no other seed gives, but for the sign: -1 gives those of 1."""
    draw = random.Random(seed)
    return [draw.randrange(FIRST_WORD, Checkpoint().vocabulary) for _ in range(tokens)]


class ManagerRig:
    """At most one Manager on a fixed socket, a gate in the engine's copying threads, and threads for requests."""

    def __init__(self, binary: Path, folder: Path) -> None:
        self.gate = Gate(folder / "gate")
        self._binary = binary
        self._folder = folder
        self._manager: ManagerProcess | None = None
        self._threads = ThreadPoolExecutor(REQUESTS_MAX, "request")
        self._probes = itertools.count(1)

    @property
    def manager(self) -> ManagerProcess:
        """Return the Manager that runs."""
        assert self._manager is not None, "no Manager runs"
        return self._manager

    @property
    def socket(self) -> str:
        """Return the path of the socket of every Manager of this rig."""
        return str(self._folder / "orbitkv.sock")

    def close(self) -> None:
        """End the Manager, which must end in order, and the threads."""
        self.gate.open()
        self._threads.shutdown()
        manager, self._manager = self._manager, None
        if manager is not None:
            manager.stop()

    def serve(self, pool: str = POOL, *options: str, binary: Path | None = None) -> ManagerProcess:
        """Start a fresh Manager with options of its own; one that runs is ended in order first."""
        manager, self._manager = self._manager, None
        if manager is not None:
            manager.stop()
        self._manager = ManagerProcess(binary or self._binary, self._folder, pool, *options).start()
        return self._manager

    def kill_manager(self) -> None:
        """End the Manager by SIGKILL; without one nothing happens."""
        manager, self._manager = self._manager, None
        if manager is not None:
            manager.kill()

    def wait_publishes(self, ask: Callable[[list[int]], object], tokens: int) -> None:
        """Return once the engine publishes to the Manager: seen by a page of a prompt that nobody had before.

        `ask` lets the engine answer a prompt of so many tokens, which must be more than one page.
        """

        def publishes() -> bool:
            before = self.inserted()
            ask(words(PROBES + next(self._probes), tokens))
            try:
                eventually(lambda: self.inserted() > before, "a probe is published", limit_s=2.0)
            except AssertionError:
                return False
            return True

        eventually(publishes, "the engine publishes to the Manager")

    def inserted(self) -> int:
        """Return how many pages the Manager has taken since its start."""
        return int(self.manager.metric(INSERTED))

    def wait_inserted(self, pages: int) -> None:
        """Return once the Manager has taken so many pages since its start."""
        eventually(lambda: self.inserted() >= pages, f"{pages} pages are published")

    def stats(self) -> dict[str, Any]:
        """Return the figures of the Manager's ownership rules."""
        found: dict[str, Any] = self.manager.status()["cache"]["stats"]
        return found

    def quiet(self) -> None:
        """Return once no lease, reservation or unsealed byte is left; the Manager's own check must then hold."""
        eventually(lambda: not self.unsettled(), "the Manager holds nothing for anybody")
        self.verify()

    def unsettled(self) -> dict[str, int]:
        """Return every figure that must be zero when no engine copies or asks."""
        stats = self.stats()
        return {name: stats[name] for name in SETTLED_AT_ZERO if stats[name]}

    def verify(self) -> None:
        """Let the Manager check its invariants."""
        answer = web.get(self.manager.port, "/verify")
        assert answer.status == 200, answer.text()


class Load:
    """Two clients that send more prompts than the device holds, round and round, and compare every answer."""

    def __init__(self, ask: Callable[[list[int]], Completion], prompts: list[list[int]]) -> None:
        self.answered = 0
        self.wrong: list[int] = []
        self.failures: list[str] = []
        self._ask = ask
        self._prompts = prompts
        self._right: list[tuple[int, ...]] = []
        self._over = threading.Event()
        self._turns = itertools.cycle(range(len(prompts)))
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._client, name=f"load-{number}") for number in range(2)]

    def learn(self) -> None:
        """Take the right answers."""
        self._right = [self._ask(prompt).tokens for prompt in self._prompts]

    def run(self) -> None:
        """Start the clients."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the clients after their current requests."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _client(self) -> None:
        while not self._over.is_set():
            with self._lock:
                turn = next(self._turns)
            try:
                tokens = self._ask(self._prompts[turn]).tokens
            except (EngineFailure, HTTPFailure, OSError) as failure:
                self.failures.append(repr(failure))
                return
            with self._lock:
                self.answered += 1
                if tokens != self._right[turn]:
                    self.wrong.append(turn)
