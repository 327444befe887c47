"""The Manager dies, stands still or has no room under a real engine: every answer stays right and hits come back."""

from __future__ import annotations

from harness.base import Load, words
from harness.gate import PUBLISH, RESTORE
from harness.manager import eventually
from harness.sglang import SglangEngine
from harness.sglang_rig import PAGE_TOKENS, SLICE_BYTES, SglangRig, restorable

KILLS = 4


def test_a_begun_restore_outlives_its_manager(rig: SglangRig) -> None:
    engine = rig.ready()
    prompt, other = words(200, 1000), words(201, 400)
    answers = [rig.store(engine, tokens).tokens for tokens in (prompt, other)]
    engine.flush()
    rig.gate.hold(RESTORE, 2)
    running = rig.start(engine, prompt)
    rig.gate.wait_held(RESTORE)
    rig.kill_manager()
    rig.gate.open()
    answer = running.result()
    assert (answer.tokens, answer.external_tokens) == (answers[0], restorable(1000)), "what was begun was used"
    without = engine.generate(other)
    assert (without.tokens, without.external_tokens) == (answers[1], 0), "what was not begun is computed"
    rig.serve()
    rig.connected(engine)
    rig.quiet()


def test_pages_on_the_device_are_published_again_when_hit(rig: SglangRig) -> None:
    engine = rig.ready()
    prompt = words(210, 600)
    cold = rig.store(engine, prompt)
    rig.kill_manager()
    rig.serve()
    rig.connected(engine)
    stored = rig.inserted()
    hit = engine.generate(prompt)
    assert hit.device_tokens == restorable(600)
    rig.wait_inserted(stored + restorable(600) // PAGE_TOKENS)
    engine.flush()
    again = engine.generate(prompt)
    assert again.external_tokens == restorable(600)
    assert cold.tokens == hit.tokens == again.tokens
    rig.quiet()


def test_a_manager_that_dies_in_mid_publish_locks_no_page(rig: SglangRig) -> None:
    engine = rig.ready()
    rig.gate.hold(PUBLISH, 1)
    engine.generate(words(220, 600), 2)
    rig.gate.wait_held(PUBLISH)
    rig.kill_manager()
    rig.gate.open()
    engine.flush()
    eventually(lambda: engine.load().used_tokens == 0, "no page is locked")
    rig.serve()
    rig.connected(engine)
    rig.quiet()


def test_a_stopped_manager_costs_hits_and_nothing_else(rig: SglangRig) -> None:
    engine = rig.ready()
    prompt = words(230, 600)
    cold = rig.store(engine, prompt)
    engine.flush()
    rig.manager.pause()
    try:
        stopped = engine.generate(prompt)
        others = [engine.generate(words(seed, 100), 2) for seed in (231, 232)]
    finally:
        rig.manager.go_on()
    assert (stopped.tokens, stopped.external_tokens) == (cold.tokens, 0)
    assert all(len(other.tokens) == 2 for other in others)

    assert rig.wait_restored(engine, prompt).tokens == cold.tokens
    rig.connected(engine)
    rig.quiet()


def test_a_pool_that_is_full_ages_out(rig: SglangRig) -> None:
    engine = rig.ready()
    pages = 64
    rig.serve(pool=f"{pages * SLICE_BYTES // 1024}kib")
    rig.connected(engine)
    prompts = [words(seed, 480) for seed in range(240, 244)]
    cold = [engine.generate(prompt).tokens for prompt in prompts]
    eventually(lambda: rig.inserted() > pages, "the full pool takes new pages in place of old ones")
    assert sum(rig.stats()["page_evictions_total"].values()) > 0
    rig.quiet()
    engine.flush()
    again = [engine.generate(prompt) for prompt in reversed(prompts)]
    assert [answer.tokens for answer in again] == cold[::-1]
    assert sum(answer.external_tokens for answer in again) > 0
    rig.quiet()
    rig.serve()
    rig.connected(engine)


def test_kills_of_the_manager_under_load(rig: SglangRig) -> None:
    """What comes after the last kill equals the control: the same requests, a fresh Manager, an empty device."""
    engine = rig.begin()
    load = Load(lambda prompt: engine.generate(prompt, 4), [words(seed, 600) for seed in range(250, 260)])
    load.learn()
    load.run()
    try:
        for number in range(KILLS):
            answered = load.answered
            if number % 2:
                eventually(lambda: rig.loaded() > 0, "requests are restored")
            else:
                eventually(lambda: rig.inserted() > 0, "requests are published")
            rig.kill_manager()
            eventually(lambda seen=answered: load.answered > seen, "requests are answered without a Manager")  # type: ignore[misc]
            rig.serve()
    finally:
        load.stop()
    rig.connected(engine)
    assert load.wrong == []
    assert load.failures == []
    after = hits(rig, engine, 270)
    rig.serve()
    rig.connected(engine)
    assert after == hits(rig, engine, 270) == [restorable(500)] * 2
    rig.quiet()


def hits(rig: SglangRig, engine: SglangEngine, seed: int) -> list[int]:
    """Return how much is restored when two new prompts come a second time to an empty device."""
    engine.flush()
    prompts = [words(seed + number, 500) for number in range(2)]
    cold = [rig.store(engine, prompt).tokens for prompt in prompts]
    engine.flush()
    again = [engine.generate(prompt) for prompt in prompts]
    assert [answer.tokens for answer in again] == cold
    return [answer.external_tokens for answer in again]
