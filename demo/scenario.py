"""The requests of the demo and what must be true of each.

A prompt is sent cold, then again from the device, then pushed off the device by other prompts, then sent a third time:
now OrbitKV must restore it and the output must be the device hit's. It is pushed off again, the Manager's pool is
emptied, and the next restore must come from the SSD with the same output. Then it is pushed off once more, every byte
in the pool is inverted, and the same restore must give another output: so the equal output before was the work of the
bytes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from demo.engines import BLOCK_TOKENS, Cached, DemoEngine
from demo.table import mebibytes, milliseconds
from harness.checkpoint import FIRST_WORD, Checkpoint
from harness.engine import Completion

PROMPT_TOKENS = 4096
PRESSURE_TOKENS = 6000
WARMUP_TOKENS = 100  # Less than a block: it leaves nothing in any cache.
OUTPUT_TOKENS = 32
# Full blocks below the last prompt token, since that one must be computed to have something to sample from.
RESTORABLE_TOKENS = (PROMPT_TOKENS - 1) // BLOCK_TOKENS * BLOCK_TOKENS
HEADER = ("request", "prompt", "computed", "from device", "from OrbitKV", "restored", "TTFT", "output")


class Cache(Protocol):
    """What the scenario asks of the Manager."""

    def restored_bytes(self) -> int:
        """Return the bytes that engines have confirmed as restored."""

    def wait_stored(self, pages: int) -> None:
        """Return once so many pages are stored since the Manager started; raise when they do not come."""

    def leave_to_ssd(self) -> None:
        """Empty the pool once every page is on the SSD; raise when a page does not get there."""

    def ssd_bytes(self) -> int:
        """Return the bytes that were read from the SSD."""

    def spoil(self) -> int:
        """Invert every byte in the pool and return how many bytes that were."""


@dataclass(frozen=True)
class Row:
    """One request: what the engine and the Manager counted, and what its output was compared with."""

    name: str
    answer: Completion
    cached: Cached
    restored_bytes: int
    output: str = ""

    def cells(self) -> tuple[str, ...]:
        """Return the row as the table shows it."""
        computed = self.answer.prompt_tokens - self.cached.device - self.cached.external
        counts = (self.answer.prompt_tokens, computed, self.cached.device, self.cached.external)
        ttft = milliseconds(self.answer.first_token_s)
        return (self.name, *(f"{n:,}" for n in counts), mebibytes(self.restored_bytes), ttft, self.output)


class Scenario:
    """Runs the requests on one engine. Without a cache the same requests show what the engine does alone."""

    def __init__(self, engine: DemoEngine, cache: Cache | None, say: Callable[[str], None]) -> None:
        self.rows: list[Row] = []
        self.failures: list[str] = []
        self._engine = engine
        self._cache = cache
        self._say = say
        self._prompt = words(1, PROMPT_TOKENS)
        self._pressures = 0

    def run(self) -> None:
        """Send everything; `rows` and `failures` hold the result, also when a later request raises."""
        self._engine.complete(words(0, WARMUP_TOKENS), 1)
        cold = self._send("cold", self._prompt, "")
        self._check(cold.cached == Cached(0, 0), "the first request was not cold: it was answered from a cache")
        if self._cache is not None:
            self._cache.wait_stored(RESTORABLE_TOKENS // BLOCK_TOKENS)
        hit = self._send("device hit", self._prompt, "the reference")
        self._check(
            hit.cached == Cached(RESTORABLE_TOKENS, 0), "the repeat was not answered from the device's own cache"
        )
        self._note(0, f"{_relation(cold.answer, hit.answer)} (may differ)")
        self._press()
        again = self._send("repeat after pressure", self._prompt, "")
        self._check_pushed_out(again)
        if self._cache is None:
            self._note(-1, _relation(again.answer, hit.answer))
            self._check(again.cached.external == 0, "an engine without OrbitKV counted external hits")
            return
        self._judge_restore(again, hit.answer, must_be_equal=True)
        self._press()
        self._take_from_ssd(self._cache, hit.answer)
        self._press()
        self._say(f"inverting {mebibytes(self._cache.spoil())} of stored bytes on purpose")
        spoiled = self._send("repeat, stored bytes inverted", self._prompt, "")
        self._check_pushed_out(spoiled)
        self._judge_restore(spoiled, hit.answer, must_be_equal=False)

    def _take_from_ssd(self, cache: Cache, reference: Completion) -> None:
        """Empty the pool and send the prompt, which is left on the SSD alone."""
        self._say("emptying the pool: what is left lies on the SSD")
        cache.leave_to_ssd()
        before = cache.ssd_bytes()
        row = self._send("repeat from the SSD", self._prompt, "")
        self._check_pushed_out(row)
        self._judge_restore(row, reference, must_be_equal=True)
        self._check(cache.ssd_bytes() > before, f"{row.name}: the Manager read nothing from the SSD")

    def _press(self) -> None:
        """Send two prompts that no request had before; together they fill the device's blocks."""
        for _ in range(2):
            self._pressures += 1
            self._send(f"other prompt {self._pressures}", words(100 + self._pressures, PRESSURE_TOKENS), "-", 1)

    def _send(self, name: str, prompt: list[int], output: str, max_tokens: int = OUTPUT_TOKENS) -> Row:
        before, loaded = self._engine.cached(), self._restored_bytes()
        answer = self._engine.complete(prompt, max_tokens)
        cached = self._engine.cached().since(before)
        row = Row(name, answer, cached, self._restored_bytes() - loaded, output)
        self.rows.append(row)
        self._say(f"{name}: first token after {milliseconds(answer.first_token_s)}")
        told = answer.cached_tokens
        self._check(
            told == cached.device + cached.external,
            f"{name}: the answer names {told} cached tokens, the engine's counters {cached.device} + {cached.external}",
        )
        return row

    def _restored_bytes(self) -> int:
        return 0 if self._cache is None else self._cache.restored_bytes()

    def _check_pushed_out(self, row: Row) -> None:
        self._check(row.cached.device == 0, f"{row.name}: {row.cached.device} tokens were still on the device")

    def _judge_restore(self, row: Row, reference: Completion, must_be_equal: bool) -> None:
        equal = row.answer.tokens == reference.tokens
        self._note(-1, _relation(row.answer, reference) + (", as it must" if equal == must_be_equal else ": WRONG"))
        self._check(
            row.cached.external == RESTORABLE_TOKENS and row.restored_bytes > 0,
            f"{row.name}: {row.cached.external} of {RESTORABLE_TOKENS} tokens came from OrbitKV, and the Manager "
            f"counted {row.restored_bytes} restored bytes: the prefix was not restored",
        )
        if must_be_equal:
            self._check(equal, f"{row.name}: the output differs from the device hit's")
        else:
            self._check(not equal, f"{row.name}: the output is still equal, so the comparison shows nothing")

    def _note(self, at: int, output: str) -> None:
        row = self.rows[at]
        self.rows[at] = Row(row.name, row.answer, row.cached, row.restored_bytes, output)

    def _check(self, holds: bool, text: str) -> None:
        if not holds:
            self.failures.append(text)


def words(seed: int, count: int) -> list[int]:
    """Return a prompt of ordinary words that the seed decides."""
    draw = random.Random(seed)
    return [draw.randrange(FIRST_WORD, Checkpoint().vocabulary) for _ in range(count)]


def _relation(answer: Completion, reference: Completion) -> str:
    return "equal" if answer.tokens == reference.tokens else "differs"
