"""SGLang waits for the SSD while that is faster than computing, by what both did last, and not for longer."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import pytest
from python.tests.sglang.ssd_rig import put_away, serve, staged

from harness import ssd as tier
from harness.base import words
from harness.manager import eventually
from harness.sglang import Generation, SglangConfig, SglangEngine
from harness.sglang_rig import PAGE_TOKENS, SLICE_BYTES, SglangRig, restorable
from harness.ssd import STALLING, Volume

TOKENS = 3000
HOPELESS = f"read-rate={SLICE_BYTES * 10}b"  # a second: 187 pages take 19 seconds, and computing them one or two
TRIES = 10
SEEDS = itertools.count(5000)


@pytest.fixture(scope="module")
def config(rig: SglangRig) -> SglangConfig:
    """Return an engine that would wait for minutes, if that paid."""
    plain = rig.config()
    environment = dict(plain.environment) | {"ORBITKV_LOAD_WAIT_MS": "600000"}
    return dataclasses.replace(plain, environment=tuple(environment.items()))


@pytest.fixture(scope="module", autouse=True)
def without_tier(rig: SglangRig) -> Iterator[None]:
    """Serve a Manager without the tier after this module."""
    yield
    rig.serve()


def figure(engine: SglangEngine, name: str) -> int:
    """Return a figure of the adapter, which is absent before it counts for the first time."""
    return int(sum(value for key, value in engine.counters().items() if key.startswith(f"sglang:orbitkv_{name}{{")))


def measured(rig: SglangRig, config: SglangConfig, volume: Volume, fault: str = "") -> SglangEngine:
    """Start a Manager on the folder and return the engine once it knows how fast it computes."""
    engine = serve(rig, config, volume, fault)

    def known() -> bool:
        engine.generate(words(next(SEEDS), TOKENS), max_tokens=2)
        return figure(engine, "prefill_tokens_per_second") > 0

    eventually(known, "the rate of prefill is measured")
    engine.flush()
    return engine


def ask_stored(rig: SglangRig, engine: SglangEngine) -> Generation:
    """Ask for a prompt whose pages lie on the SSD alone."""
    prompt = words(next(SEEDS), TOKENS)
    hit = put_away(rig, engine, prompt)
    answer = engine.generate(prompt)
    assert answer.tokens == hit.tokens
    return answer


def wait_out(rig: SglangRig, engine: SglangEngine) -> None:
    """Ask for stored prompts until a request waits for all its pages: a disk that others use may halt at any time."""
    for _ in range(TRIES):
        waits = len(staged(engine))
        answer = ask_stored(rig, engine)
        (wait,) = staged(engine)[waits:]
        if not wait["stopped"]:
            assert answer.external_tokens == restorable(TOKENS)
            return
    pytest.fail(f"none of {TRIES} requests waited until its pages were there")


def test_a_disk_that_pays_is_waited_for(rig: SglangRig, config: SglangConfig, volume: Volume) -> None:
    engine = measured(rig, config, volume)
    wait_out(rig, engine)
    rig.quiet()


def test_a_disk_that_is_too_slow_is_not_waited_for(rig: SglangRig, config: SglangConfig, volume: Volume) -> None:
    """The patience is ten minutes. What the first request began to read tells how slow the disk is."""
    engine = measured(rig, config, volume, HOPELESS)
    ask_stored(rig, engine)
    eventually(lambda: tier.read(rig.manager) > 0, "a page was read")
    waits, before = len(staged(engine)), figure(engine, "prefetch_outpaced_total")
    answer = ask_stored(rig, engine)
    assert answer.external_tokens < restorable(TOKENS)
    (wait,) = staged(engine)[waits:]
    assert (wait["pages"], wait["stopped"], wait["outpaced"]) == (answer.external_tokens // PAGE_TOKENS, True, True)
    eventually(lambda: figure(engine, "prefetch_outpaced_total") == before + 1, "it is counted")
    rig.quiet()


def test_a_disk_that_hangs_costs_no_request_its_patience_and_is_used_when_it_answers(
    rig: SglangRig, config: SglangConfig, volume: Volume
) -> None:
    """Requests go on once the oldest read is older than computing takes, ten minutes before their patience ends."""
    engine = measured(rig, config, volume, STALLING)
    wait_out(rig, engine)
    prompts = [words(next(SEEDS), TOKENS) for _ in range(3)]
    hits = [put_away(rig, engine, prompt) for prompt in prompts]
    volume.stall()
    for prompt, hit in zip(prompts, hits, strict=True):
        waits = len(staged(engine))
        answer = engine.generate(prompt)
        assert (answer.tokens, answer.external_tokens) == (hit.tokens, 0)
        assert rig.stats()["reading_pages"] > 0, "what was begun is read to its end"
        assert all(wait["stopped"] for wait in staged(engine)[waits:]), "there is none once the disk is passed by"
        engine.flush()
    volume.resume()
    eventually(lambda: rig.stats()["reading_pages"] == 0, "the disk answers again")
    wait_out(rig, engine)
    rig.quiet()
