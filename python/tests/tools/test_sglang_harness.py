"""What the harness tells SGLang and how it reads its answers, without an engine."""

from __future__ import annotations

import os
from typing import Any

import pytest

from harness.server import EngineFailure
from harness.sglang import ORBITKV, SglangConfig, _collect, rank_environment


def event(tokens: list[int], **facts: Any) -> dict[str, Any]:
    """Return one event of a stream, which holds everything so far."""
    plain = {
        "prompt_tokens": 40,
        "cached_tokens": 0,
        "cached_tokens_details": None,
        "finish_reason": None,
        "output_token_logprobs": [[-0.5 * token, token, None] for token in tokens],
    }
    return {"output_ids": tokens, "meta_info": {**plain, **facts}}


def test_options_become_flags() -> None:
    plain = SglangConfig().command(1)
    assert "--disable-overlap-schedule" not in plain
    assert not set(ORBITKV) & set(plain)
    options = SglangConfig(
        page_size=64, device_tokens=2048, chunked_prefill=512, overlap=False, ranks=2, orbitkv=True, arguments=("--x",)
    )
    line = options.command(1)
    for flag, value in (("page-size", 64), ("max-total-tokens", 2048), ("chunked-prefill-size", 512), ("tp-size", 2)):
        assert line[line.index(f"--{flag}") + 1] == str(value)
    assert {"--disable-overlap-schedule", "--disable-custom-all-reduce", "--x", *ORBITKV} <= set(line)


def test_ranks_are_bound_to_cores_of_this_process() -> None:
    assert rank_environment(1) == {}
    bound = rank_environment(2)["SGLANG_CPU_OMP_THREADS_BIND"].split("|")
    assert len(bound) == 2
    assert {int(core) for core in bound} <= os.sched_getaffinity(0)


def test_an_answer_is_its_last_event() -> None:
    cached = {"cached_tokens": 32, "cached_tokens_details": {"device": 16, "host": 16}}
    answer = _collect(iter([event([]), event([4]), event([4, 2], finish_reason={"type": "length"}, **cached)]), 0.0)
    assert answer.tokens == (4, 2)
    assert answer.logprobs == (-2.0, -1.0)
    assert (answer.cached_tokens, answer.device_tokens, answer.external_tokens) == (32, 16, 16)
    assert answer.finish_reason == "length"
    assert answer.first_token_s > 0


@pytest.mark.parametrize(("events", "text"), [([], "with nothing"), ([event([1]), {"error": "no room"}], "no room")])
def test_an_answer_that_is_none_raises(events: list[dict[str, Any]], text: str) -> None:
    with pytest.raises(EngineFailure, match=text):
        _collect(iter(events), 0.0)
