"""The benchmark of decoding neighbours, without an engine: what it arranges, what counts, what it makes of times."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Callable, Iterator
from types import SimpleNamespace
from typing import Any, TypeAlias

import pytest

from bench.neighbours import COLD, HIT, NOTHING, RESTORED, Row, Table, lines, parser, pool_bytes
from bench.streaming import CONTROL_TOKENS, WARM_TOKENS, Beside, Ended, Streaming, gaps_in
from qualify.offline import Counts

PAGE, TOKEN_BYTES = 16, 8
PLENTY = 10_000


class FakeLLM:
    """An engine's face and a Manager's: it computes nothing, caches whole prompts and gives a token a turn of the loop.

    `lossy` lets nothing be restored beside requests that decode.
    """

    def __init__(self, lossy: bool = False) -> None:
        self.lossy = lossy
        self.device: set[tuple[int, ...]] = set()
        self.stored: set[tuple[int, ...]] = set()
        self.found = Counts(0, 0, 0, 0)
        self.loaded = 0
        self.decoding: list[int] = []  # tokens of each request for more than one that is under way
        self.seen: list[tuple[int, list[int]]] = []  # tokens of each prompt for one token, and what decoded beside it
        self.ended = 0
        self.longest = 0  # tokens of the longest answer

    async def generate(self, prompt: dict[str, list[int]], tokens: int, _: str) -> AsyncIterator[Any]:
        ids = prompt["prompt_token_ids"]
        cached = self.look(tuple(ids))
        if tokens == 1:
            self.seen.append((len(ids), list(self.decoding)))
            for _turn in range(3):
                await asyncio.sleep(0)
            yield SimpleNamespace(outputs=[SimpleNamespace(token_ids=[7])], num_cached_tokens=cached)
            return
        place = len(self.decoding)
        self.decoding.append(0)
        try:
            for _turn in range(tokens):
                await asyncio.sleep(0)
                self.decoding[place] += 1
                yield SimpleNamespace(outputs=[SimpleNamespace(token_ids=[7])], num_cached_tokens=cached)
        finally:
            self.ended += 1
            self.longest = max(self.longest, self.decoding[place])
            if self.ended == len(self.decoding):
                self.decoding, self.ended = [], 0

    def look(self, ids: tuple[int, ...]) -> int:
        whole = (len(ids) - 1) // PAGE * PAGE
        if ids in self.device:
            self.found = dataclasses.replace(self.found, device=self.found.device + whole)
            return whole
        self.device.add(ids)
        if ids in self.stored and not (self.lossy and self.decoding):
            self.found = dataclasses.replace(self.found, external=self.found.external + whole)
            self.loaded += whole * TOKEN_BYTES
            return whole
        self.stored.add(ids)
        return 0

    async def reset_prefix_cache(self) -> bool:
        self.device.clear()
        return True

    def shutdown(self) -> None:
        """End nothing."""


Opened: TypeAlias = Callable[[FakeLLM], Streaming]


@pytest.fixture
def opened() -> Iterator[Opened]:
    """What opens an engine, which is closed after the test."""
    every: list[Streaming] = []

    def opened(llm: FakeLLM) -> Streaming:
        every.append(Streaming(lambda: llm, lambda tokens: tokens, lambda: llm.found))
        return every[-1]

    yield opened
    for engine in every:
        engine.close()


def table_of(llm: FakeLLM, engine: Streaming, manager: bool = True) -> Table:
    rig: Any = SimpleNamespace(
        quiet=lambda: None,
        manager=SimpleNamespace(metric=lambda _: float(llm.loaded)),
    )
    options = SimpleNamespace(lengths=[64, 160], decoders=3, decoder_tokens=PLENTY, samples=2)
    return Table(engine, rig if manager else None, options, PAGE, TOKEN_BYTES)


def test_a_gap_is_of_the_window_in_which_its_middle_lies() -> None:
    times = [0.0, 1.0, 2.0, 6.0, 6.0, 7.0]
    assert gaps_in(times, 1.9, 6.01) == [4.0, 0.0]
    assert gaps_in(times, 0.4, 1.5) == [1.0, 1.0]
    assert gaps_in(times[:1], 0.0, 9.0) == []


def test_a_prompt_comes_beside_requests_that_all_decode_and_end_with_it(opened: Opened) -> None:
    llm = FakeLLM()
    engine = opened(llm)
    seen = engine.beside([[1] * 4, [2] * 4, [3] * 4], PLENTY, [9] * 40)
    ((_, beside),) = [each for each in llm.seen if each[0] == 40]
    assert len(beside) == 3
    assert min(beside) >= WARM_TOKENS
    assert (seen.cached, llm.decoding) == (0, [])
    assert len(seen.gaps) >= 3
    assert WARM_TOKENS < llm.longest < PLENTY
    control = engine.beside([[4] * 4], PLENTY, None)
    assert len(control.gaps) >= CONTROL_TOKENS - 1


def test_requests_that_end_too_early_give_no_figures(opened: Opened) -> None:
    engine = opened(FakeLLM())
    for tokens in (WARM_TOKENS - 1, WARM_TOKENS + 1):
        with pytest.raises(Ended, match=f"after {tokens} tokens"):
            engine.beside([[1] * 4], tokens, None)


def test_every_row_is_sampled_in_both_orders_and_is_what_it_says(opened: Opened) -> None:
    llm = FakeLLM()
    engine = opened(llm)
    table = table_of(llm, engine)
    table.measure()
    kinds = [(COLD, 0), (HIT, 63 // PAGE * PAGE), (RESTORED, 63 // PAGE * PAGE)]
    kinds += [(COLD, 0), (HIT, 159 // PAGE * PAGE), (RESTORED, 159 // PAGE * PAGE)]
    assert [row.kind for row in table.rows] == [NOTHING, *[kind for kind, _ in kinds]]
    assert all(len(row.samples) == 4 and not row.unproven for row in table.rows)
    assert [{sample.cached for sample in row.samples} for row in table.rows[1:]] == [{cached} for _, cached in kinds]
    beside = [tokens for tokens, decoding in llm.seen if decoding]
    assert beside == [64] * 3 + [160] * 3 + ([64] * 3 + [160] * 3) * 2 + ([160] * 3 + [64] * 3) * 2


def test_without_a_manager_nothing_is_restored(opened: Opened) -> None:
    llm = FakeLLM(lossy=True)
    engine = opened(llm)
    table = table_of(llm, engine, manager=False)
    table.measure()
    assert [row.kind for row in table.rows] == [NOTHING, COLD, HIT, COLD, HIT]
    assert all(len(row.samples) == 4 for row in table.rows)


def test_a_restore_that_was_none_does_not_count(opened: Opened) -> None:
    llm = FakeLLM(lossy=True)
    engine = opened(llm)
    table = table_of(llm, engine)
    table.measure()
    for row in table.rows:
        assert bool(row.samples) == (row.kind != RESTORED)
        assert len(row.unproven) == (4 if row.kind == RESTORED else 0)
    printed = list(lines(table.rows))
    assert sum(text.startswith("does not count: restored, 160 tokens: Counts(device=0") for text in printed) == 4
    assert printed[4].split() == ["restored", "64", "0", "-", "-", "-", "-", "-"]


@pytest.mark.parametrize(
    ("found", "loaded", "cached", "gaps", "says"),
    [
        (Counts(0, 48, 0, 0), 48 * TOKEN_BYTES, 48, (0.1,), ""),
        (Counts(48, 0, 0, 0), 48 * TOKEN_BYTES, 48, (0.1,), "device=48"),
        (Counts(0, 48, 1, 0), 48 * TOKEN_BYTES, 48, (0.1,), "preemptions=1"),
        (Counts(0, 48, 0, 1), 48 * TOKEN_BYTES, 48, (0.1,), "load_failures=1"),
        (Counts(0, 48, 0, 0), 32 * TOKEN_BYTES, 48, (0.1,), "256 restored bytes, not 384"),
        (Counts(0, 48, 0, 0), 48 * TOKEN_BYTES, 32, (0.1,), "32 cached tokens, not 48"),
        (Counts(0, 48, 0, 0), 48 * TOKEN_BYTES, 48, (), "no token of a neighbour"),
    ],
)
def test_each_account_must_agree(
    opened: Opened, found: Counts, loaded: int, cached: int, gaps: tuple[float, ...], says: str
) -> None:
    llm = FakeLLM()
    engine = opened(llm)
    reason = table_of(llm, engine).proven(Row(RESTORED, 64), found, loaded, Beside(1.0, cached, gaps))
    assert says in reason
    assert bool(reason) == bool(says)


def test_figures_are_medians_over_samples_of_quantiles_over_gaps() -> None:
    row = Row(COLD, 64, [Beside(0.1, 0, (0.01, 0.01, 0.09)), Beside(0.3, 0, (0.02,) * 3), Beside(0.2, 0, (0.03,) * 2)])
    figures = json.loads(json.dumps(row.figures()))
    assert (figures["n"], figures["gaps"]) == (3, 3)
    assert figures["window_ms"] == pytest.approx(200)
    assert figures["gap_p50_ms"] == pytest.approx(20)
    assert figures["gap_max_ms"] == pytest.approx(30)
    assert next(text for text in lines([row]) if text.startswith(COLD)).split()[:4] == ["cold", "64", "3", "200.00"]


def test_the_pool_holds_what_comes_again_and_the_latest_turns() -> None:
    assert pool_bytes([64], 100, 1) == 1 << 29
    assert pool_bytes([8000, 32000], 1000, 1 << 17) == (40_000 + 3 * (40_000 + 7 * 1000)) << 17
    assert parser().parse_args(["--lengths", "8192,32768"]).lengths == [8192, 32768]
