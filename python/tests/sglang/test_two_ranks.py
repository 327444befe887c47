"""Two tensor-parallel ranks over gloo, each with its own slice of every page: all that they have to agree on.

The last tests change the engine's weights, and with them the epoch that it is in for the rest of its life.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.base import words
from harness.checkpoint import Checkpoint
from harness.gate import RESTORE
from harness.server import EngineFailure
from harness.sglang import SglangConfig
from harness.sglang_rig import PAGE_TOKENS, SLICE_BYTES, SglangRig, restorable

TOKENS = 8


@pytest.fixture(scope="module")
def two_ranks(rig: SglangRig) -> SglangConfig:
    """Return the shared engine's configuration with two ranks, each bound to one core."""
    return rig.config(ranks=2)


def test_two_ranks_that_start_before_the_manager_find_it(rig: SglangRig, two_ranks: SglangConfig) -> None:
    rig.gate.open()
    rig.kill_manager()
    engine = rig.engine(two_ranks)
    prompt = words(840, 300)
    without = engine.generate(prompt)
    assert without.external_tokens == 0
    rig.serve()
    rig.connected(engine)
    engine.flush()
    rig.store(engine, prompt)
    engine.flush()
    again = engine.generate(prompt)
    assert (again.tokens, again.external_tokens) == (without.tokens, restorable(300))
    rig.quiet()


def test_two_ranks_restore_what_two_ranks_published(rig: SglangRig, two_ranks: SglangConfig) -> None:
    engine = rig.ready(two_ranks)
    for number, tokens in enumerate((16, 17, 1000)):
        prompt = words(800 + number, tokens)
        cold = rig.store(engine, prompt, TOKENS)
        hit = engine.generate(prompt, TOKENS)
        engine.flush()
        loaded = rig.loaded()
        restored = engine.generate(prompt, TOKENS)
        assert (restored.device_tokens, restored.external_tokens) == (0, restorable(tokens))
        assert restored.tokens == hit.tokens == cold.tokens
        rig.quiet()
        rig.wait_loaded(loaded + restorable(tokens) // PAGE_TOKENS * SLICE_BYTES)
    ranks = rig.manager.status()["cache"]["instances"][0]["ranks"]
    assert len({rank["pid"] for rank in ranks}) == 2
    assert [rank["slice_bytes"] for rank in ranks] == [SLICE_BYTES // 2] * 2, "each has half of the heads"


def test_requests_at_once_are_answered_alike_by_both_ranks(rig: SglangRig, two_ranks: SglangConfig) -> None:
    engine = rig.ready(two_ranks)
    shared = [words(810 + number, 800) for number in range(4)]
    prompts = [shared[number % 4] + words(820 + number, 40) for number in range(16)]
    first = [answer.result() for answer in [rig.start(engine, prompt, 4) for prompt in prompts]]
    rig.quiet()
    engine.flush()
    second = [answer.result() for answer in [rig.start(engine, prompt, 4) for prompt in prompts]]
    assert [answer.tokens for answer in second] == [answer.tokens for answer in first]
    assert sum(answer.external_tokens for answer in second) >= 4 * restorable(800)
    rig.quiet()


def test_a_manager_that_comes_back_is_proved_by_both_ranks(rig: SglangRig, two_ranks: SglangConfig) -> None:
    engine = rig.ready(two_ranks)
    prompt = words(830, 1000)
    cold = rig.store(engine, prompt)
    engine.flush()
    rig.gate.hold(RESTORE, 2)
    answer = rig.start(engine, prompt)
    rig.gate.wait_held(RESTORE, processes=2)
    rig.kill_manager()
    rig.gate.open()
    assert answer.result().tokens == cold.tokens, "both ranks used what they had begun"
    rig.serve()
    rig.connected(engine)
    engine.flush()
    assert rig.store(engine, prompt).tokens == cold.tokens
    engine.flush()
    again = engine.generate(prompt)
    assert (again.tokens, again.external_tokens) == (cold.tokens, restorable(1000))
    rig.quiet()


def test_other_weights_hit_no_page_of_the_old_ones(rig: SglangRig, two_ranks: SglangConfig) -> None:
    engine = rig.ready(two_ranks)
    prompt = words(850, 600)
    first = rig.store(engine, prompt)
    epochs = {rig.manager.status()["cache"]["instances"][0]["epoch"]}
    loaded = rig.loaded()
    for weights in (Checkpoint(seed=1), Checkpoint()):
        engine.update_weights(weights)
        rig.connected(engine)
        engine.flush()
        answer = rig.store(engine, prompt)
        assert answer.cached_tokens == 0
        epochs.add(rig.manager.status()["cache"]["instances"][0]["epoch"])
        hit = engine.generate(prompt)
        engine.flush()
        again = engine.generate(prompt)
        assert again.external_tokens == restorable(600), "the new epoch has hits of its own"
        assert again.logprobs == hit.logprobs
        assert (again.tokens == first.tokens) == (weights == Checkpoint())
    assert len(epochs) == 3, "every change is an epoch of its own"
    assert rig.loaded() > loaded
    rig.quiet()


def test_weights_that_were_not_taken_leave_the_old_ones_with_hits_after_a_flush(
    rig: SglangRig, two_ranks: SglangConfig, tmp_path: Path
) -> None:
    engine = rig.ready(two_ranks)
    prompt = words(860, 300)
    first = rig.store(engine, prompt)
    with pytest.raises(EngineFailure, match="did not take the weights"):
        engine.update_weights(tmp_path / "absent")
    answer = engine.generate(prompt)
    assert (answer.tokens, answer.external_tokens) == (first.tokens, 0)
    engine.flush()
    rig.connected(engine)
    fresh = words(861, 300)
    cold = rig.store(engine, fresh)
    engine.flush()
    again = engine.generate(fresh)
    assert (again.tokens, again.external_tokens) == (cold.tokens, restorable(300))
    rig.quiet()
