"""SGLang gets back from the SSD what left the pool: equal output, bounded waits, and misses where the disk fails.

The engine's destinations are filled with poison before every restore, so equal output means that the restore wrote
them. Each answer says how many of its tokens were restored; what was read is counted by the Manager.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
from python.tests.sglang.ssd_rig import put_away, serve, staged

from harness import ssd as tier
from harness.base import words
from harness.manager import eventually
from harness.sglang import SglangConfig
from harness.sglang_rig import PAGE_TOKENS, SLICE_BYTES, SglangRig, restorable
from harness.ssd import STALLING, Volume

PATIENCE_S = 6
TOKENS = 1000
PAGES = TOKENS // PAGE_TOKENS
SLOW = f"read-rate={SLICE_BYTES * 6}b"  # a second: of 62 pages about half come while a request is patient


@pytest.fixture(scope="module")
def config(rig: SglangRig) -> SglangConfig:
    """Return an engine that waits some seconds for a prefix, whatever computing it takes, and sleeps when idle."""
    plain = rig.config(arguments=(*rig.config().arguments, "--sleep-on-idle"))
    environment = dict(plain.environment) | {
        "ORBITKV_LOAD_WAIT_MS": str(PATIENCE_S * 1000),
        "ORBITKV_LOAD_WAIT_POLICY": "always",
    }
    return dataclasses.replace(plain, environment=tuple(environment.items()))


@pytest.fixture(scope="module", autouse=True)
def without_tier(rig: SglangRig) -> Iterator[None]:
    """Serve a Manager without the tier after this module."""
    yield
    rig.serve()


@pytest.mark.parametrize("tokens", [17, 3000])
def test_what_left_the_pool_is_restored_from_the_ssd(
    rig: SglangRig, config: SglangConfig, volume: Volume, tokens: int
) -> None:
    """The engine has nothing else to do: it must notice by itself that the pages are there."""
    engine = serve(rig, config, volume)
    prompt = words(1000 + tokens, tokens)
    hit = put_away(rig, engine, prompt)
    waits, read, loaded = len(staged(engine)), tier.read(rig.manager), rig.loaded()
    restored = engine.generate(prompt)
    assert (restored.device_tokens, restored.external_tokens) == (0, restorable(tokens))
    assert (restored.tokens, restored.logprobs) == (hit.tokens, hit.logprobs), "not a bit may differ"
    assert tier.read(rig.manager) - read == restorable(tokens) // PAGE_TOKENS
    rig.wait_loaded(loaded + restorable(tokens) // PAGE_TOKENS * SLICE_BYTES)
    (wait,) = staged(engine)[waits:]
    assert (wait["pages"], wait["stopped"]) == (restorable(tokens) // PAGE_TOKENS, False)
    rig.quiet()


def test_what_was_pushed_out_of_a_small_pool_is_restored(rig: SglangRig, config: SglangConfig, volume: Volume) -> None:
    pages = 9 * PAGES // 2  # what is being written may be a quarter of the pool
    engine = serve(rig, config, volume, pool=f"{pages * SLICE_BYTES // 1024}kib")
    prompts = [words(1100 + number, TOKENS) for number in range(7)]
    cold = []
    for prompt in prompts:
        tier.wait_stored(rig.manager, 0)
        stored = tier.stored(rig.manager)
        cold.append(rig.store(engine, prompt))
        tier.wait_stored(rig.manager, stored + PAGES)
        engine.flush()
    assert sum(rig.stats()["page_evictions_total"].values()) > 0
    for prompt, once in zip(prompts, cold, strict=True):
        answer = engine.generate(prompt)
        assert (answer.tokens, answer.external_tokens) == (once.tokens, restorable(TOKENS))
    assert tier.read(rig.manager) >= 3 * PAGES
    rig.quiet()


def test_spoilt_bytes_are_computed_again(rig: SglangRig, config: SglangConfig, volume: Volume) -> None:
    engine = serve(rig, config, volume)
    prompt = words(1200, TOKENS)
    hit = put_away(rig, engine, prompt)
    assert volume.spoil() > 0
    answer = engine.generate(prompt)
    assert (answer.tokens, answer.device_tokens, answer.external_tokens) == (hit.tokens, 0, 0)
    assert tier.read(rig.manager) == 0
    assert rig.manager.metrics("orbitkv_ssd_prefetch_failures_total")['reason="digest"'] > 0
    rig.quiet()


def test_a_page_that_is_read_wrongly_ends_the_prefix_before_it(
    rig: SglangRig, config: SglangConfig, volume: Volume
) -> None:
    engine = serve(rig, config, volume, fault="read-flip=40")
    prompt = words(1210, TOKENS)
    hit = put_away(rig, engine, prompt)
    answer = engine.generate(prompt)
    assert answer.tokens == hit.tokens
    assert answer.external_tokens < restorable(TOKENS)
    assert tier.unreadable(rig.manager) == 1
    rig.quiet()


@pytest.mark.parametrize("end", ["in order", "by a kill"])
def test_the_pages_outlive_the_manager(rig: SglangRig, config: SglangConfig, volume: Volume, end: str) -> None:
    engine = serve(rig, config, volume)
    prompt = words(1300 + len(end), TOKENS)
    hit = put_away(rig, engine, prompt)
    if end == "by a kill":
        rig.kill_manager()
    engine = serve(rig, config, volume)
    answer = engine.generate(prompt)
    assert (answer.tokens, answer.logprobs) == (hit.tokens, hit.logprobs)
    assert (answer.device_tokens, answer.external_tokens) == (0, restorable(TOKENS))
    assert tier.read(rig.manager) == PAGES
    rig.quiet()


def test_others_are_served_while_a_prefix_is_read_and_a_kill_of_the_manager_ends_the_wait(
    rig: SglangRig, config: SglangConfig, volume: Volume
) -> None:
    engine = serve(rig, config, volume, fault=STALLING)
    prompt, other = words(1400, TOKENS), words(1401, 300)
    hit = put_away(rig, engine, prompt)
    other_hit = rig.store(engine, other)
    engine.flush()
    volume.stall()
    waits = len(staged(engine))
    waiting = rig.start(engine, prompt)
    eventually(lambda: rig.stats()["operations_preparing"] == 1, "its prefix is read")
    answer = engine.generate(other)
    assert answer.tokens == other_hit.tokens
    assert (answer.device_tokens, answer.external_tokens) == (0, restorable(300)), "it is restored meanwhile"
    assert not waiting.done()
    assert engine.load().waiting == 1
    rig.kill_manager()
    cut = waiting.result()
    assert (cut.tokens, cut.external_tokens) == (hit.tokens, 0)
    assert staged(engine)[waits:] == [], "nothing came of its wait"
    volume.resume()
    engine = serve(rig, config, volume)
    again = engine.generate(prompt)
    assert (again.tokens, again.external_tokens) == (hit.tokens, restorable(TOKENS))
    rig.quiet()


def test_a_slow_disk_is_waited_for_so_long_and_what_came_is_used(
    rig: SglangRig, config: SglangConfig, volume: Volume
) -> None:
    engine = serve(rig, config, volume, fault=SLOW)
    prompt = words(1500, TOKENS)
    hit = put_away(rig, engine, prompt)
    waits = len(staged(engine))
    answer = engine.generate(prompt)
    assert answer.tokens == hit.tokens
    assert 0 < answer.external_tokens < restorable(TOKENS)
    (wait,) = staged(engine)[waits:]
    assert (wait["pages"], wait["stopped"]) == (answer.external_tokens // PAGE_TOKENS, True)
    rig.quiet()
