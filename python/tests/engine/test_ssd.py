"""vLLM gets back from the SSD what left the pool: equal output, bounded waits, and misses where the disk fails.

The engine's destinations are filled with poison before every restore, so equal output means that the restore wrote
them. What was read is counted by the Manager, what was restored by the engine.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator

import pytest
from python.tests.engine.ssd_rig import PAGE_BYTES, figure, put_away, serve, staged

from harness import ssd as tier
from harness.base import words
from harness.engine import EngineConfig
from harness.manager import eventually
from harness.rig import PAGE_TOKENS, Rig, counted, pages_below_last_token
from harness.ssd import STALLING, Volume

PATIENCE_S = 6
TOKENS = 1500
PAGES = pages_below_last_token(TOKENS)
SLOW = f"read-rate={PAGE_BYTES * 11 // 10}b"  # a second: of eleven pages about six come while a request is patient


@pytest.fixture(scope="module")
def config(rig: Rig) -> EngineConfig:
    """Return an engine that poisons destinations and waits some seconds for a prefix, whatever computing it takes."""
    plain = rig.config()
    transfer = json.loads(plain.kv_transfer)
    transfer["kv_connector_extra_config"] |= {
        "orbitkv.fault_injection": "poison-destination",
        "orbitkv.load_wait_ms": PATIENCE_S * 1000,
        "orbitkv.load_wait_policy": "always",
    }
    return dataclasses.replace(plain, kv_transfer=json.dumps(transfer))


@pytest.fixture(scope="module", autouse=True)
def without_tier(rig: Rig) -> Iterator[None]:
    """Serve a Manager without the tier after this module."""
    yield
    rig.serve()


@pytest.mark.parametrize("tokens", [129, 4096])
def test_what_left_the_pool_is_restored_from_the_ssd(
    rig: Rig, config: EngineConfig, volume: Volume, tokens: int
) -> None:
    """The engine has nothing else to do: it must notice by itself that the pages are there."""
    engine = serve(rig, config, volume)
    prompt, pages = words(1000 + tokens, tokens), pages_below_last_token(tokens)
    hit = put_away(rig, engine, prompt)
    waits, stops, read = len(staged(engine)), figure(engine, "prefetch_stopped_total"), tier.read(rig.manager)
    restored, counts = rig.ask(engine, prompt, logprobs=0)
    assert (counts.device, counts.external) == (0, pages * PAGE_TOKENS)
    assert (restored.tokens, restored.logprobs) == (hit.tokens, hit.logprobs), "not a bit may differ"
    assert tier.read(rig.manager) - read == tokens // PAGE_TOKENS
    (wait,) = staged(engine)[waits:]
    assert (wait["pages"], wait["stopped"]) == (tokens // PAGE_TOKENS, False)
    assert figure(engine, "prefetch_stopped_total") == stops
    rig.quiet()


def test_what_was_pushed_out_of_a_small_pool_is_restored(rig: Rig, config: EngineConfig, volume: Volume) -> None:
    pages = 5 * PAGES  # what is being written may be a quarter of the pool
    engine = serve(rig, config, volume, pool=f"{pages * PAGE_BYTES // 1024}kib")
    prompts = [words(1100 + number, TOKENS) for number in range(6)]
    cold = []
    for prompt in prompts:
        tier.wait_stored(rig.manager, 0)
        stored = tier.stored(rig.manager)
        cold.append(rig.store(engine, prompt))
        tier.wait_stored(rig.manager, stored + TOKENS // PAGE_TOKENS)
    assert sum(rig.stats()["page_evictions_total"].values()) > 0
    for prompt, once in zip(prompts, cold, strict=True):
        rig.reset_device(engine)
        answer, counts = rig.ask(engine, prompt)
        assert (answer.tokens, counts.external) == (once.tokens, PAGES * PAGE_TOKENS)
    assert tier.read(rig.manager) >= 3 * PAGES
    rig.quiet()


def test_spoilt_bytes_are_computed_again(rig: Rig, config: EngineConfig, volume: Volume) -> None:
    engine = serve(rig, config, volume)
    prompt = words(1200, TOKENS)
    hit = put_away(rig, engine, prompt)
    assert volume.spoil() > 0
    answer, counts = rig.ask(engine, prompt)
    assert (answer.tokens, counts.external) == (hit.tokens, 0)
    assert tier.read(rig.manager) == 0
    assert rig.manager.metrics("orbitkv_ssd_prefetch_failures_total")['reason="digest"'] > 0
    rig.quiet()


def test_a_page_that_is_read_wrongly_ends_the_prefix_before_it(rig: Rig, config: EngineConfig, volume: Volume) -> None:
    engine = serve(rig, config, volume, fault="read-flip=8")
    prompt = words(1210, TOKENS)
    hit = put_away(rig, engine, prompt)
    answer, counts = rig.ask(engine, prompt)
    assert answer.tokens == hit.tokens
    assert counts.external < PAGES * PAGE_TOKENS
    assert tier.unreadable(rig.manager) == 1
    rig.quiet()


@pytest.mark.parametrize("end", ["in order", "by a kill"])
def test_the_pages_outlive_the_manager(rig: Rig, config: EngineConfig, volume: Volume, end: str) -> None:
    engine = serve(rig, config, volume)
    prompt = words(1300 + len(end), TOKENS)
    hit = put_away(rig, engine, prompt)
    if end == "by a kill":
        rig.kill_manager()
    engine = serve(rig, config, volume)
    answer, counts = rig.ask(engine, prompt, logprobs=0)
    assert (answer.tokens, answer.logprobs) == (hit.tokens, hit.logprobs)
    assert counts.external == PAGES * PAGE_TOKENS
    assert tier.read(rig.manager) == TOKENS // PAGE_TOKENS
    rig.quiet()


def test_others_are_served_while_a_prefix_is_read_and_a_kill_of_the_manager_ends_the_wait(
    rig: Rig, config: EngineConfig, volume: Volume
) -> None:
    engine = serve(rig, config, volume, fault=STALLING)
    prompt, other = words(1400, TOKENS), words(1401, 300)
    hit = put_away(rig, engine, prompt)
    other_hit = rig.store(engine, other)
    rig.reset_device(engine)
    volume.stall()
    stops = figure(engine, "prefetch_stopped_total")
    waiting = rig.start(engine, prompt)
    eventually(lambda: rig.stats()["operations_preparing"] == 1, "its prefix is read")
    answer, counts = rig.ask(engine, other)
    assert (answer.tokens, counts.external) == (other_hit.tokens, 2 * PAGE_TOKENS), "another one is restored meanwhile"
    assert not waiting.done()
    rig.kill_manager()
    before = counted(engine)
    assert waiting.result().tokens == hit.tokens
    assert counted(engine).since(before).external == 0
    assert figure(engine, "prefetch_stopped_total") == stops
    volume.resume()
    engine = serve(rig, config, volume)
    again, counts = rig.ask(engine, prompt)
    assert (again.tokens, counts.external) == (hit.tokens, PAGES * PAGE_TOKENS)
    rig.quiet()


def test_a_slow_disk_is_waited_for_so_long_and_what_came_is_used(
    rig: Rig, config: EngineConfig, volume: Volume
) -> None:
    engine = serve(rig, config, volume, fault=SLOW)
    prompt = words(1500, TOKENS)
    hit = put_away(rig, engine, prompt)
    stops, waits = figure(engine, "prefetch_stopped_total"), len(staged(engine))
    answer, counts = rig.ask(engine, prompt)
    assert answer.tokens == hit.tokens
    assert 0 < counts.external < PAGES * PAGE_TOKENS
    (wait,) = staged(engine)[waits:]
    assert (wait["pages"], wait["stopped"]) == (counts.external // PAGE_TOKENS, True)
    eventually(lambda: figure(engine, "prefetch_stopped_total") == stops + 1, "the stop is counted")
    rig.quiet()
