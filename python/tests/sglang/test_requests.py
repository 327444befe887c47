"""Requests that end in awkward places: aborted while they wait or while their bytes land, and flushes in between."""

from __future__ import annotations

from harness.base import words
from harness.gate import PUBLISH, RESTORE
from harness.manager import eventually
from harness.sglang_rig import DEVICE_TOKENS, PAGE_TOKENS, SLICE_BYTES, SglangRig, restorable


def test_a_request_that_is_aborted_while_it_waits_gives_its_lease_back(rig: SglangRig) -> None:
    """Its prefix is promised in every pass, but the device has no room for it beside the one that runs."""
    engine = rig.ready()
    tokens = DEVICE_TOKENS * 3 // 4
    prompt = words(300, tokens)
    cold = rig.store(engine, prompt)
    engine.flush()
    long = rig.start(engine, words(301, tokens), 400, rid="long")
    eventually(lambda: engine.load().running == 1, "the long request runs")
    waiting = rig.start(engine, prompt, rid="waiting")
    eventually(lambda: rig.stats()["leases"] > 0, "the waiting request has a lease")
    engine.abort("waiting")
    assert waiting.result().finish_reason == "abort"
    eventually(lambda: rig.stats()["leases"] == 0, "its lease is given back")
    assert engine.load().running == 1, "the long request runs still"
    engine.abort("long")
    assert long.result().finish_reason == "abort"
    engine.flush()
    again = engine.generate(prompt)
    assert (again.tokens, again.external_tokens) == (cold.tokens, restorable(tokens))
    rig.quiet()


def test_a_request_that_is_aborted_without_an_answer_holds_nobody_up(rig: SglangRig) -> None:
    engine = rig.ready()
    prompt = words(310, 400)
    cold = rig.store(engine, prompt)
    engine.flush()
    rig.manager.pause()
    try:
        held = rig.start(engine, prompt, rid="held")
        eventually(lambda: engine.load().waiting == 1 or held.done(), "the request waits for an answer")
        engine.abort("held")
        assert held.result().finish_reason in ("abort", "length")
        other = engine.generate(words(311, 100), 2)
    finally:
        rig.manager.go_on()
    assert len(other.tokens) == 2
    assert rig.wait_restored(engine, prompt).tokens == cold.tokens
    rig.quiet()


def test_a_request_that_is_aborted_in_mid_restore_leaves_whole_pages_behind(rig: SglangRig) -> None:
    """Its pages are in the engine's tree already, so the next one may hit them on the device: they must have landed."""
    engine = rig.ready()
    prompt = words(320, 1000)
    rig.store(engine, prompt)
    hit = engine.generate(prompt)
    engine.flush()
    loaded = rig.loaded()
    rig.gate.hold(RESTORE, 2)
    client = rig.start(engine, prompt, 40, rid="cut")
    rig.gate.wait_held(RESTORE)
    engine.abort("cut")
    assert rig.stats()["leases"] == 1, "no lease ends while its copy runs"
    rig.gate.open()
    assert client.result().finish_reason in ("abort", "length")
    again = engine.generate(prompt)
    assert (again.device_tokens, again.external_tokens) == (restorable(1000), 0)
    assert again.logprobs == hit.logprobs
    rig.wait_loaded(loaded + restorable(1000) // PAGE_TOKENS * SLICE_BYTES)
    engine.flush()
    rig.quiet()


def test_a_flush_in_mid_restore_spoils_nothing(rig: SglangRig) -> None:
    engine = rig.ready()
    prompt = words(330, 1000)
    cold = rig.store(engine, prompt)
    engine.flush()
    rig.gate.hold(RESTORE, 2)
    running = rig.start(engine, prompt)
    rig.gate.wait_held(RESTORE)
    flushing = rig.flushing(engine)
    rig.gate.open()
    assert running.result().tokens == cold.tokens
    flushing.result()
    engine.flush()
    again = engine.generate(prompt)
    assert (again.tokens, again.external_tokens) == (cold.tokens, restorable(1000))
    rig.quiet()


def test_a_flush_in_mid_publish_waits_for_the_copies_that_read(rig: SglangRig) -> None:
    """I2: the pages are used again right after the flush, and what was being saved must not be theirs."""
    engine = rig.ready()
    prompt, before = words(340, 1000), rig.inserted()
    rig.gate.hold(PUBLISH, 2)
    cold = engine.generate(prompt)
    rig.gate.wait_held(PUBLISH)
    assert rig.stats()["writing_bytes"] > 0
    flushing = rig.flushing(engine)
    rig.gate.open(PUBLISH)
    assert flushing.result(), "an engine that only saves is idle"
    engine.generate(words(341, DEVICE_TOKENS - 200), 2)  # it takes nearly every page of the device
    rig.wait_inserted(before + 1000 // PAGE_TOKENS)
    rig.quiet()
    engine.flush()
    again = engine.generate(prompt)
    assert (again.tokens, again.external_tokens) == (cold.tokens, restorable(1000))
    rig.quiet()


def test_requests_end_while_a_publish_is_held(rig: SglangRig) -> None:
    engine = rig.ready()
    before = rig.inserted()
    rig.gate.hold(PUBLISH, 2)
    first = engine.generate(words(350, 500))
    rig.gate.wait_held(PUBLISH)
    others = [engine.generate(words(seed, 300)) for seed in (351, 352)]
    assert [len(answer.tokens) for answer in (first, *others)] == [8] * 3
    assert rig.gate.holding(PUBLISH), "the copy is still held"
    assert rig.inserted() == before
    rig.gate.open()
    rig.wait_inserted(before + 500 // PAGE_TOKENS + 2 * (300 // PAGE_TOKENS))
    rig.quiet()


def test_a_restore_does_not_wait_for_a_held_publish(rig: SglangRig) -> None:
    engine = rig.ready()
    prompt = words(360, 600)
    cold = rig.store(engine, prompt)
    engine.flush()
    rig.gate.hold(PUBLISH, 1)
    engine.generate(words(361, 300), 2)
    rig.gate.wait_held(PUBLISH)
    answer = engine.generate(prompt)
    assert (answer.tokens, answer.external_tokens) == (cold.tokens, restorable(600))
    assert rig.gate.holding(PUBLISH)
    rig.gate.open()
    rig.quiet()
