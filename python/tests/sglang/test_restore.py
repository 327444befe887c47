"""The real engine gets a prefix back from OrbitKV: equal output, real bytes, and nothing used before it is there.

The engine's destinations are filled with poison before every restore, so equal output means that the restore wrote
them. Output is compared with that of a device hit, which computes the same tokens in the same pieces. The controls,
engines with a fault on purpose, are in test_second_process.py.
"""

from __future__ import annotations

import pytest

from harness.base import words
from harness.gate import RESTORE
from harness.manager import eventually
from harness.sglang import SglangEngine
from harness.sglang_rig import CHUNK_TOKENS, LAYERS, PAGE_TOKENS, SLICE_BYTES, SglangRig, restorable, stages

TOKENS = 8


@pytest.mark.parametrize("tokens", [1, 16, 17, 100, CHUNK_TOKENS, 1000, 3000])
def test_restored_output_equals_that_of_a_device_hit(rig: SglangRig, tokens: int) -> None:
    engine = rig.ready()
    prompt = words(tokens, tokens)
    cold = rig.store(engine, prompt, TOKENS)
    loaded = rig.loaded()
    hit = engine.generate(prompt, TOKENS)
    assert (hit.device_tokens, hit.external_tokens) == (restorable(tokens), 0)
    engine.flush()
    restored = engine.generate(prompt, TOKENS)
    assert (restored.device_tokens, restored.external_tokens) == (0, restorable(tokens))
    assert restored.tokens == hit.tokens == cold.tokens
    assert restored.logprobs == hit.logprobs, "it is the same computation, so not a bit may differ"
    rig.wait_loaded(loaded + restorable(tokens) // PAGE_TOKENS * SLICE_BYTES)
    again = engine.generate(prompt, TOKENS)
    assert (again.device_tokens, again.external_tokens) == (restorable(tokens), 0), "what was restored is the engine's"
    assert again.logprobs == hit.logprobs
    rig.quiet()


def test_a_device_hit_is_not_taken_for_a_restore(rig: SglangRig) -> None:
    """What a flush that came too early leaves behind: the engine's own pages, and not one byte that was loaded."""
    engine = rig.ready()
    prompt = words(20, 1000)
    rig.store(engine, prompt)
    loaded = rig.loaded()
    running = rig.start(engine, words(21, 100), 40)
    eventually(lambda: engine.load().running == 1, "a request runs")
    assert not engine.try_flush(), "a flush is refused while a request runs"
    hit = engine.generate(prompt)
    assert (hit.device_tokens, hit.external_tokens) == (restorable(1000), 0)
    assert len(running.result().tokens) == 40
    assert rig.loaded() == loaded
    engine.flush()
    assert engine.generate(prompt).external_tokens == restorable(1000)
    rig.wait_loaded(loaded + restorable(1000) // PAGE_TOKENS * SLICE_BYTES)


def test_a_shared_prefix_is_restored_for_both(rig: SglangRig) -> None:
    engine = rig.ready()
    shared = words(30, 640)
    prompts = [shared + words(31, 200), shared + words(32, 200)]
    rig.store(engine, prompts[0])
    before = rig.inserted()
    engine.generate(prompts[1])
    rig.wait_inserted(before + 200 // PAGE_TOKENS)
    hits = [engine.generate(prompt).tokens for prompt in prompts]
    engine.flush()
    first = engine.generate(prompts[0])
    second = engine.generate(prompts[1])
    assert [first.tokens, second.tokens] == hits
    assert (first.device_tokens, first.external_tokens) == (0, restorable(840)), "the first takes its whole prefix"
    assert second.device_tokens == 640, "the second finds the shared part on the device"
    assert second.external_tokens == restorable(840) - 640
    rig.quiet()


def test_requests_of_one_prefix_at_once_restore_it_once(rig: SglangRig) -> None:
    engine = rig.ready()
    prompt = words(40, 1000)
    rig.store(engine, prompt)
    hit = engine.generate(prompt)
    engine.flush()
    loaded = rig.loaded()
    running = [rig.start(engine, prompt) for _ in range(4)]
    answers = [each.result() for each in running]
    assert [answer.tokens for answer in answers] == [hit.tokens] * 4
    assert all(answer.cached_tokens == restorable(1000) for answer in answers)
    rig.quiet()
    assert rig.loaded() - loaded == restorable(1000) // PAGE_TOKENS * SLICE_BYTES
    engine.flush()
    rig.quiet()


def test_pages_filled_by_decoding_are_stored_and_restored(rig: SglangRig) -> None:
    engine = rig.ready()
    prompt, before = words(50, 100), rig.inserted()
    spoken = engine.generate(prompt, 40)
    decoded = (100 + 40 - 1) // PAGE_TOKENS  # the last token has no KV yet
    rig.wait_inserted(before + decoded)
    longer = [*prompt, *spoken.tokens]
    hit = engine.generate(longer)
    assert hit.device_tokens == decoded * PAGE_TOKENS
    engine.flush()
    restored = engine.generate(longer)
    assert restored.external_tokens == decoded * PAGE_TOKENS
    assert restored.logprobs == hit.logprobs
    rig.quiet()


def test_a_long_tail_behind_a_restored_prefix_is_computed_in_chunks(rig: SglangRig) -> None:
    engine = rig.ready()
    prefix, tail = words(55, 600), words(56, 3 * CHUNK_TOKENS)
    rig.store(engine, prefix)
    cold = engine.generate([*prefix, *tail], TOKENS, extra_key="computed from the first token")
    engine.flush()
    chunks = prefills(engine)
    answer = engine.generate([*prefix, *tail], TOKENS)
    assert (answer.device_tokens, answer.external_tokens) == (0, restorable(600))
    assert prefills(engine) - chunks > 3
    assert answer.tokens == cold.tokens
    rig.quiet()


def prefills(engine: SglangEngine) -> int:
    """Return how many prefill steps the engine has begun."""
    return engine.log.read_text(errors="replace").count("Prefill batch")


def test_layers_are_used_before_the_last_one_is_ready(rig: SglangRig) -> None:
    engine = rig.ready()
    prompt = words(60, 2000)
    cold = rig.store(engine, prompt)
    engine.flush()
    seen = len(stages(engine))
    rig.gate.hold(RESTORE, 2 * LAYERS - 1)  # the values of the last layer
    running = rig.start(engine, prompt)
    rig.gate.wait_held(RESTORE)
    eventually(lambda: ("layer_used", LAYERS - 2) in stages(engine)[seen:], "all layers but the last are used")
    halfway = stages(engine)[seen:]
    assert ("layer_used", 0) in halfway
    assert ("layer_used", LAYERS - 1) not in halfway
    assert not running.done()
    rig.gate.open()
    answer = running.result()
    assert (answer.tokens, answer.external_tokens) == (cold.tokens, restorable(2000))
    eventually(lambda: ("gpu_ready", None) in stages(engine)[seen:], "the restore has ended")
    found = stages(engine)[seen:]
    assert found.index(("restore_submit", None)) < found.index(("first_use", None))
    for layer in range(LAYERS):
        # Keys and values of a layer are two layers of the copy.
        assert found.index(("layer_ready", 2 * layer + 1)) < found.index(("layer_used", layer))
    assert found.index(("layer_ready", 2 * LAYERS - 1)) < found.index(("gpu_ready", None))
    rig.quiet()
