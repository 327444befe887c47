"""Engines that start after another one: what the first published is theirs too, and faults on purpose are noticed.

The controls: bytes that are spoiled after they arrived, and a layer that is used before it arrived, must change the
output, or equal output elsewhere would prove nothing. The order of the tests is that of their engines.
"""

from __future__ import annotations

import pytest

from harness.base import words
from harness.sglang import Generation
from harness.sglang_rig import LAYERS, PAGE_TOKENS, SLICE_BYTES, SglangRig, restorable, stages

PROMPTS = [words(700 + number, tokens) for number, tokens in enumerate((1000, 2000, 3000))]
TOKENS = 8
DELAY_US = 50_000  # of each layer of a copy: far longer than a layer of the forward takes


@pytest.fixture(scope="module")
def hits(rig: SglangRig) -> list[Generation]:
    """Return what the first process answers to the prompts that it published, from its own device."""
    engine, found = rig.begin(), []
    for prompt in PROMPTS:
        rig.store(engine, prompt, TOKENS)
        found.append(engine.generate(prompt, TOKENS))
        assert found[-1].device_tokens == restorable(len(prompt))
    rig.quiet()
    return found


def test_another_process_restores_it_without_overlap_from_slow_copies(rig: SglangRig, hits: list[Generation]) -> None:
    """It differs in everything that changes no byte: its steps do not overlap, its chunks and its pool are others."""
    engine = rig.ready(rig.config(fault="", delay_us=DELAY_US, overlap=False, chunked_prefill=256, device_tokens=8192))
    for prompt, hit in zip(PROMPTS, hits, strict=True):
        loaded, seen = rig.loaded(), len(stages(engine))
        answer = engine.generate(prompt, TOKENS)
        assert (answer.device_tokens, answer.external_tokens) == (0, restorable(len(prompt)))
        assert answer.tokens == hit.tokens
        rig.wait_loaded(loaded + restorable(len(prompt)) // PAGE_TOKENS * SLICE_BYTES)
        found = stages(engine)[seen:]
        assert found.index(("layer_used", 0)) < found.index(("layer_ready", 2 * LAYERS - 1)), "it overlaps the copy"
    fresh = words(710, 300)
    cold = rig.store(engine, fresh)
    engine.flush()
    again = engine.generate(fresh)
    assert (again.tokens, again.external_tokens) == (cold.tokens, restorable(300)), "chunked or not, overlapped or not"
    rig.quiet()


def test_a_forgotten_layer_wait_changes_the_output(rig: SglangRig, hits: list[Generation]) -> None:
    """With the same slow copies, one wait is left out: the forward uses bytes that are not there."""
    engine = rig.ready(rig.config(fault="skip-layer-wait=1", delay_us=DELAY_US))
    wrong = []
    for prompt, hit in zip(PROMPTS, hits, strict=True):
        answer = engine.generate(prompt, TOKENS)
        assert answer.external_tokens == restorable(len(prompt))
        wrong.append(answer.logprobs != hit.logprobs and answer.tokens != hit.tokens)
    assert any(wrong)
    rig.quiet()


def test_spoiled_bytes_change_the_output(rig: SglangRig, hits: list[Generation]) -> None:
    engine = rig.ready(rig.config(fault="corrupt-restore"))
    for prompt, hit in zip(PROMPTS, hits, strict=True):
        loaded = rig.loaded()
        spoiled = engine.generate(prompt, TOKENS)
        assert spoiled.external_tokens == restorable(len(prompt)), "spoiled bytes were restored"
        assert spoiled.tokens != hit.tokens
        rig.wait_loaded(loaded + restorable(len(prompt)) // PAGE_TOKENS * SLICE_BYTES)
    rig.quiet()
    rig.serve()  # What the spoiled engine computed is published by nobody else's name.
