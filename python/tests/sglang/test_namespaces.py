"""What keeps prefixes apart in the real engine: weights that change, salts, extra keys, and the logprob limit."""

from __future__ import annotations

from typing import Any

import pytest

from harness.base import words
from harness.checkpoint import Checkpoint
from harness.manager import eventually
from harness.server import EngineFailure
from harness.sglang_rig import PAGE_TOKENS, SglangRig, restorable


def test_other_weights_hit_no_page_of_the_old_ones(rig: SglangRig) -> None:
    engine = rig.begin()
    prompt = words(600, 600)
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
    rig: SglangRig, tmp_path_factory: pytest.TempPathFactory
) -> None:
    engine = rig.ready()
    prompt = words(610, 300)
    first = rig.store(engine, prompt)
    with pytest.raises(EngineFailure, match="did not take the weights"):
        engine.update_weights(tmp_path_factory.mktemp("weights") / "absent")
    answer = engine.generate(prompt)
    assert (answer.tokens, answer.external_tokens) == (first.tokens, 0)
    engine.flush()
    rig.connected(engine)
    fresh = words(611, 300)
    cold = rig.store(engine, fresh)
    engine.flush()
    again = engine.generate(fresh)
    assert (again.tokens, again.external_tokens) == (cold.tokens, restorable(300))
    rig.quiet()


@pytest.mark.parametrize("field", ["cache_salt", "extra_key"])
def test_salts_and_extra_keys_do_not_meet(rig: SglangRig, field: str) -> None:
    engine = rig.ready()
    prompt = words(620 + len(field), 300)
    options: list[dict[str, Any]] = [{field: "one"}, {field: "two"}, {}]
    cold = [rig.store(engine, prompt, 4, **each) for each in options]
    assert [answer.cached_tokens for answer in cold] == [0] * 3
    engine.flush()
    again = [engine.generate(prompt, 4, **each) for each in options]
    assert [(answer.device_tokens, answer.external_tokens) for answer in again] == [(0, restorable(300))] * 3
    assert [answer.tokens for answer in again] == [answer.tokens for answer in cold]
    rig.quiet()


def test_prompt_logprobs_limit_what_is_restored(rig: SglangRig) -> None:
    engine = rig.ready()
    prompt = words(640, 400)
    rig.store(engine, prompt, 4)
    cold = engine.generate(prompt, 4)
    for start in (0, PAGE_TOKENS, 205, 399):
        engine.flush()
        answer = engine.generate(prompt, 4, logprob_start_len=start)
        assert answer.external_tokens == start // PAGE_TOKENS * PAGE_TOKENS
        assert answer.tokens == cold.tokens
    rig.quiet()


def test_pages_are_restored_whole(rig: SglangRig) -> None:
    engine = rig.ready()
    prompt = words(650, 100)
    rig.store(engine, prompt, 4)
    found = {}
    for tokens in (PAGE_TOKENS, PAGE_TOKENS + 1, 2 * PAGE_TOKENS, 2 * PAGE_TOKENS + 1, 99):
        engine.flush()
        found[tokens] = engine.generate(prompt[:tokens], 2).external_tokens
    assert found == {16: 0, 17: 16, 32: 16, 33: 32, 99: 96}
    eventually(lambda: not rig.unsettled(), "nothing is held")
