"""A vLLM server that goes on answering while what it depends on is killed.

An answer has two right values: that of a device hit, whose shape a restore has too, and the cold one, to which a failed
restore falls back. Which steps compute them differs, and so may the rounding.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable
from typing import Any

from harness.base import ManagerRig, words
from harness.checkpoint import SHAPES, ensure
from harness.engine import Engine, EngineConfig
from harness.http import HTTPFailure
from harness.manager import eventually
from harness.rig import counted, reset
from harness.server import EngineFailure
from qualify.offline import EngineChoice
from qualify.report import Figures, Wrong

PROMPTS = 3
OUTPUT_TOKENS = 8
FRESH = 1 << 21  # seeds above it are of prompts that are new
AFTER_KILL = 2  # rounds of answers that are waited for after a Manager was killed
HOST_DELAY_US = 20_000  # a layer of the host backend: on a CPU the copies would be over before they are seen
DEVICE_PROMPTS = 2.5  # prompts that the device holds


def engine_config(options: Any, socket: str) -> EngineConfig:
    """Return the server's configuration."""
    checkpoint = SHAPES[options.checkpoint]
    blocks = int(DEVICE_PROMPTS * (options.tokens // options.block_size + 2))
    choice = EngineChoice(
        model=options.model or ensure(checkpoint),
        device=options.device,
        block_tokens=options.block_size,
        device_blocks=blocks,
        max_model_len=options.tokens + 128,
        batched_tokens=2048,
        backend=options.transfer_backend,
    )
    connector = choice.connector(socket)
    words_ = ["--prefix-caching-hash-algo", "sha256_cbor", "--max-num-batched-tokens", str(choice.batched_tokens)]
    words_ += ["--model", str(choice.model)]
    if options.device == "cpu":
        words_ += ["--dtype", "float32"]
        connector["kv_connector_extra_config"]["orbitkv.host_copy_delay_us"] = HOST_DELAY_US
    return EngineConfig(
        checkpoint=checkpoint,
        block_size=options.block_size,
        device_blocks=blocks,
        max_model_len=choice.max_model_len,
        kv_transfer=json.dumps(connector),
        arguments=tuple(words_),
        environment=(("VLLM_SERVER_DEV_MODE", "1"),),  # serves /reset_prefix_cache
    )


class Serving:
    """A server, its Manager, and a few long prompts with their right answers."""

    def __init__(self, rig: ManagerRig, engine: Engine, page: int, tokens: int) -> None:
        self.rig = rig
        self.engine = engine
        self._page = page
        self._prompts = [words(number, tokens - number) for number in range(1, PROMPTS + 1)]
        self._right: list[set[tuple[int, ...]]] = []
        self._fresh = itertools.count(FRESH)

    def learn(self) -> Figures:
        """Take the right answers: cold and from the device."""
        self.attached()
        self._right = []
        for prompt in self._prompts:
            cold, hit = self._ask(prompt), self._ask(prompt)
            self._right.append({cold, hit})
        stored = self.store()
        return {"prompts": PROMPTS, "pages": stored, "values": [len(right) for right in self._right]}

    def attached(self) -> None:
        """Return once the engine publishes to the Manager of now."""
        self.rig.wait_publishes(lambda prompt: self.engine.complete(prompt, 2), self._page + 1)

    def store(self) -> int:
        """Return once every prompt's pages can be restored, and how many that are."""
        pages = 0
        for prompt in self._prompts:
            whole = (len(prompt) - 1) // self._page * self._page

            def restored(prompt: list[int] = prompt, whole: int = whole) -> bool:
                self.forget()
                before = counted(self.engine)
                self._ask(prompt)
                return counted(self.engine).since(before).external == whole

            eventually(restored, "a whole prompt is restored")
            pages += whole // self._page
        return pages

    def forget(self) -> None:
        """Empty the device's own cache."""
        eventually(lambda: reset(self.engine), "the engine's own cache is emptied: nobody holds a block")

    def kill_manager(self, moment: float, pool: str) -> Figures:
        """Kill the Manager in mid-restore; the engine goes on, and a new Manager gets everything again."""
        asking = Asking(self._restores)
        asking.start()
        try:
            self._wait_lent(asking, "leases")
            time.sleep(moment)  # The moment itself is what is drawn.
            taken = self._taken()
            self.rig.kill_manager()
            answered = asking.answered
            eventually(
                lambda: asking.answered >= answered + AFTER_KILL or asking.failed,
                "the engine answers without a Manager",
            )
        finally:
            asking.stop()
        asking.check()
        self.rig.serve(pool)
        self.attached()
        stored = self.store()
        self.rig.quiet()
        return {"moment": round(moment, 4), "answered": asking.answered, "stored_again": stored, **taken}

    def kill_engine(self, moment: float, taken: Callable[[], dict[str, int]]) -> dict[str, int]:
        """Kill the engine while one client's prompts are restored and another's are published; return what was lent."""
        asking, publishing = Asking(self._restores), Asking(self._publishes)
        asking.start()
        publishing.start()
        try:
            self._wait_lent(asking, "leases", "reservations")
            time.sleep(moment)  # The moment itself is what is drawn.
            found = taken()
            self.engine.kill()
        finally:
            asking.stop()
            publishing.stop()
        asking.check(dead=True)
        return found

    def succeed(self, engine: Engine) -> Figures:
        """Let another engine restore what the one before published; its answers must be right."""
        self.engine = engine
        self.attached()
        before = counted(engine)
        for number in range(PROMPTS):
            self._restore(number)
        return {"restored_tokens": counted(engine).since(before).external, "pages": self.store()}

    def _restores(self) -> None:
        for number in range(PROMPTS):
            self._restore(number)

    def _restore(self, number: int) -> None:
        reset(self.engine)  # Best effort: the other client may hold blocks, and prompts push one another out anyway.
        if (answer := self._ask(self._prompts[number])) not in self._right[number]:
            raise Wrong(f"prompt {number} was answered {answer}, not one of {sorted(self._right[number])}")

    def _publishes(self) -> None:
        self.engine.complete(words(next(self._fresh), len(self._prompts[0]) // 2), 2)

    def _ask(self, prompt: list[int]) -> tuple[int, ...]:
        return self.engine.complete(prompt, OUTPUT_TOKENS).tokens

    def _taken(self) -> dict[str, int]:
        stats = self.rig.stats()
        return {name: int(stats[name]) for name in ("leases", "query_reserved_bytes", "load_bytes_total")}

    def _wait_lent(self, asking: Asking, *names: str) -> None:
        """Return once the Manager has lent something of each name."""

        def lent() -> bool:
            stats = self.rig.stats()
            return asking.failed or all(stats[name] > 0 for name in names)

        eventually(lent, f"the engine has {' and '.join(names)}")


class Asking(threading.Thread):
    """A client that asks round and round until it is stopped or something fails."""

    def __init__(self, ask: Callable[[], None]) -> None:
        super().__init__(name="asking", daemon=True)
        self.answered = 0
        self._ask = ask
        self._over = threading.Event()
        self._wrong: Wrong | None = None
        self._broken = ""

    @property
    def failed(self) -> bool:
        """Return whether it ended by itself."""
        return self._wrong is not None or bool(self._broken)

    def run(self) -> None:
        """Ask."""
        while not self._over.is_set():
            try:
                self._ask()
            except Wrong as wrong:
                self._wrong = wrong
                return
            except (EngineFailure, HTTPFailure, OSError) as failure:
                self._broken = repr(failure)
                return
            self.answered += 1

    def stop(self) -> None:
        """End it after the current request."""
        self._over.set()
        self.join()

    def check(self, dead: bool = False) -> None:
        """Raise what went wrong; an engine that was killed may break a request."""
        if self._wrong is not None:
            raise self._wrong
        if self._broken and not dead:
            raise AssertionError(f"the engine failed a request: {self._broken}")
