"""More work than the device has pages for: requests are taken back, prefixes pushed out, and every answer is right."""

from __future__ import annotations

from harness.base import words
from harness.manager import eventually
from harness.sglang import SglangEngine
from harness.sglang_rig import DEVICE_TOKENS, PAGE_TOKENS, SglangRig, restorable

RUNNING = 8  # requests that run at once
PREFIXES, REQUESTS = 8, 64
SHARED = 560  # tokens of a prefix: all of them together are more than the device holds


def test_requests_that_are_taken_back_resume_with_the_right_tokens(rig: SglangRig) -> None:
    engine = rig.ready()
    # They fit one after another by what the engine reckons with, but not with the pages that their answers take.
    tokens, answer_tokens = DEVICE_TOKENS // RUNNING - 3 * PAGE_TOKENS, 5 * PAGE_TOKENS
    prompts = [words(400 + number, tokens) for number in range(RUNNING)]
    alone = [rig.store(engine, prompt, answer_tokens).tokens for prompt in prompts]
    engine.flush()
    before = taken_back(engine)
    running = [rig.start(engine, prompt, answer_tokens) for prompt in prompts[:-1]]
    eventually(lambda: engine.load().running == RUNNING - 1, "all of them but one run")
    running.append(rig.start(engine, prompts[-1], answer_tokens))
    answers = [answer.result() for answer in running]
    assert [answer.tokens for answer in answers] == alone
    assert taken_back(engine) > before
    engine.flush()
    again = engine.generate([*prompts[0], *alone[0]], 2)
    assert again.external_tokens >= restorable(tokens), "what was published meanwhile is there"
    rig.quiet()


def test_requests_with_shared_prefixes_in_a_pool_that_is_too_small(rig: SglangRig) -> None:
    engine = rig.ready()
    shared = [words(500 + number, SHARED) for number in range(PREFIXES)]
    prompts = [shared[number % PREFIXES] + words(520 + number, 40) for number in range(REQUESTS)]
    cold = [engine.generate(prompt, 4).tokens for prompt in prompts[:PREFIXES]]
    running = [rig.start(engine, prompt, 4) for prompt in prompts]
    first = [answer.result() for answer in running]
    assert [answer.tokens for answer in first[:PREFIXES]] == cold
    rig.quiet()
    engine.flush()
    running = [rig.start(engine, prompt, 4) for prompt in reversed(prompts)]
    second = [answer.result() for answer in running][::-1]
    assert [answer.tokens for answer in second] == [answer.tokens for answer in first]
    assert sum(answer.external_tokens for answer in second) >= PREFIXES * restorable(SHARED)
    engine.flush()
    rig.quiet()
    rig.serve()  # It knows none of them: the right answers are computed without it.
    rig.connected(engine)
    for number in range(PREFIXES, REQUESTS, PREFIXES + 1):
        engine.flush()
        assert engine.generate(prompts[number], 4).tokens == second[number].tokens
    rig.quiet()


def taken_back(engine: SglangEngine) -> int:
    """Return how often the engine has taken decoding requests back; its metric is not there before the first time."""
    return engine.log.read_text(errors="replace").count("Retract requests")
