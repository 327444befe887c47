"""The Manager dies, stands still or has no room under a real engine: every answer stays right and hits come back."""

from __future__ import annotations

import time
from collections.abc import Callable

from harness.base import Load, words
from harness.engine import Engine
from harness.gate import PUBLISH, RESTORE
from harness.manager import eventually
from harness.rig import PAGE_TOKENS, Counted, Rig, counted, pages_below_last_token

KILLS = 20
PAGE_BYTES = 4 * PAGE_TOKENS * 2 * 2 * 64 * 4  # layers, tokens, K and V, heads, width, float32


def test_a_begun_restore_outlives_its_manager(rig: Rig) -> None:
    engine = rig.begin()
    prompt, other = words(200, 1500), words(201, 1500)
    answers = [rig.store(engine, tokens).tokens for tokens in (prompt, other)]
    rig.reset_device(engine)
    before = counted(engine)
    rig.gate.hold(RESTORE, 2)
    running = rig.start(engine, prompt)
    rig.gate.wait_held(RESTORE)
    rig.kill_manager()
    rig.gate.open()
    assert running.result().tokens == answers[0]
    restored = pages_below_last_token(1500) * PAGE_TOKENS
    assert counted(engine).since(before).external == restored, "what was begun was used"
    answer, counts = rig.ask(engine, other)
    assert (answer.tokens, counts.external) == (answers[1], 0), "what was not begun is computed"
    rig.serve()
    rig.connected(engine)
    rig.quiet()


def test_a_dead_manager_pins_no_block(rig: Rig) -> None:
    engine = rig.begin()
    rig.gate.hold(PUBLISH, 1)
    engine.complete(words(210, 1500))
    rig.gate.wait_held(PUBLISH)
    rig.kill_manager()
    rig.gate.open()
    rig.reset_device(engine)
    rig.serve()
    rig.connected(engine)
    rig.quiet()


def test_resident_blocks_are_published_again_when_hit(rig: Rig) -> None:
    engine = rig.begin()
    prompt = words(220, 1000)
    cold = rig.store(engine, prompt)
    rig.kill_manager()
    rig.serve()
    rig.connected(engine)
    hit, counts = rig.ask(engine, prompt)
    assert counts.device == pages_below_last_token(1000) * PAGE_TOKENS
    rig.wait_inserted(pages_below_last_token(1000))
    rig.reset_device(engine)
    again, counts = rig.ask(engine, prompt)
    assert counts.external == pages_below_last_token(1000) * PAGE_TOKENS
    assert cold.tokens == hit.tokens == again.tokens


def test_a_stopped_manager_costs_hits_and_nothing_else(rig: Rig) -> None:
    engine = rig.begin()
    prompt = words(230, 1000)
    cold = rig.store(engine, prompt)
    rig.reset_device(engine)
    rig.manager.pause()
    try:
        stopped, counts = rig.ask(engine, prompt)
        others = [engine.complete(words(seed, 400)) for seed in range(231, 237)]
    finally:
        rig.manager.go_on()
    assert (stopped.tokens, counts.external) == (cold.tokens, 0)
    assert all(len(other.tokens) == 8 for other in others)

    def hits() -> bool:
        rig.reset_device(engine)
        answer, counts = rig.ask(engine, prompt)
        assert answer.tokens == cold.tokens
        return counts.external > 0

    eventually(hits, "hits come back when the Manager goes on")
    rig.connected(engine)
    rig.quiet()


def test_a_pool_that_is_full_ages_out_and_a_pool_below_a_page_is_left_alone(rig: Rig) -> None:
    engine = rig.begin()
    prompts = [words(seed, 1000) for seed in range(240, 246)]
    cold = [rig.store(engine, prompt).tokens for prompt in prompts]

    rig.serve(pool=f"{16 * PAGE_BYTES // 1024}kib")
    rig.connected(engine)
    rig.reset_device(engine)
    assert [engine.complete(prompt).tokens for prompt in prompts] == cold
    eventually(lambda: rig.inserted() >= 16, "the full pool takes new pages in place of old ones")
    assert sum(rig.stats()["page_evictions_total"].values()) > 0
    rig.quiet()
    rig.reset_device(engine)
    before = counted(engine)
    assert [engine.complete(prompt).tokens for prompt in reversed(prompts)] == cold[::-1]
    assert counted(engine).since(before).external > 0
    rig.quiet()

    rig.serve(pool=f"{PAGE_BYTES // 2048}kib")
    rig.reset_device(engine)
    before = counted(engine)
    assert [engine.complete(prompt).tokens for prompt in prompts] == cold
    assert counted(engine).since(before).external == 0
    assert rig.inserted() == 0
    rig.quiet()


def test_twenty_kills_of_the_manager_under_load(rig: Rig, record_property: Callable[[str, object], None]) -> None:
    """What comes after the last kill equals the control: the same requests, a fresh Manager, an empty device."""
    engine = rig.begin()
    load = Load(engine.complete, [words(seed, 900) for seed in range(250, 262)])
    load.learn()
    load.run()
    try:
        for number in range(KILLS):
            answered = load.answered
            if number % 2:
                external = counted(engine).external
                eventually(lambda seen=external: counted(engine).external > seen, "requests are restored")  # type: ignore[misc]
            else:
                eventually(lambda: rig.inserted() > 0, "requests are published")
            rig.kill_manager()
            eventually(lambda seen=answered: load.answered > seen, "requests are answered without a Manager")  # type: ignore[misc]
            rig.serve()
    finally:
        load.stop()
    begun = time.monotonic()
    rig.connected(engine)
    record_property("seconds until the engine published again", round(time.monotonic() - begun, 2))
    assert load.wrong == []
    assert load.failures == []
    after = hit_rate(rig, engine, 270)
    rig.serve()
    rig.connected(engine)
    control = hit_rate(rig, engine, 270)
    assert after == control
    assert control.external == 3 * pages_below_last_token(1000) * PAGE_TOKENS
    rig.quiet()


def hit_rate(rig: Rig, engine: Engine, seed: int) -> Counted:
    """Return what the engine counts when three new prompts come a second time to an empty device."""
    rig.reset_device(engine)
    prompts = [words(seed + number, 1000) for number in range(3)]
    cold = [rig.store(engine, prompt).tokens for prompt in prompts]
    rig.reset_device(engine)
    before = counted(engine)
    assert [engine.complete(prompt).tokens for prompt in prompts] == cold
    return counted(engine).since(before)
