"""What keeps prefixes apart in the real engine: salts, extra keys, the logprob limit and page boundaries."""

from __future__ import annotations

from typing import Any

import pytest

from harness.base import words
from harness.sglang_rig import PAGE_TOKENS, SglangRig, restorable


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
    rig.quiet()
