"""Two ranks that hear each of the Manager's replies late, at moments of their own, and hardly wait for one.

They answer differently in many passes then, or not at all; what they do must not differ.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from harness.base import words
from harness.manager import eventually
from harness.proxy import DelayProxy
from harness.sglang import Generation, SglangEngine
from harness.sglang_rig import PAGE_TOKENS, SLICE_BYTES, SglangRig, restorable

SEED = 20
DELAY_S = 0.004  # the most that a reply is late
WAIT_US = 3000  # what a rank waits for in one pass
TOKENS = 8


@pytest.fixture(scope="module")
def delayed(rig: SglangRig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SglangEngine]:
    """Return an engine of two ranks that reaches the Manager through a proxy; each connection has its own delays."""
    rig.gate.open()
    rig.serve()
    path = tmp_path_factory.mktemp("proxy") / "late.sock"
    proxy = DelayProxy(path, rig.socket, SEED, DELAY_S)
    plain = rig.config(ranks=2)
    changed = {"ORBITKV_SOCKET": proxy.path, "ORBITKV_QUERY_WAIT_US": str(WAIT_US)}
    environment = tuple((dict(plain.environment) | changed).items())
    engine = rig.engine(dataclasses.replace(plain, environment=environment))
    rig.connected(engine)
    engine.flush()
    yield engine
    engine.stop()
    proxy.close()


def test_late_replies_change_no_answer_and_no_byte(rig: SglangRig, delayed: SglangEngine) -> None:
    prompts = [words(880 + number, tokens) for number, tokens in enumerate((17, 300, 1000))]
    for prompt in prompts:
        rig.store(delayed, prompt, TOKENS)
        hit = delayed.generate(prompt, TOKENS)
        assert hit.device_tokens == restorable(len(prompt))
        loaded = rig.loaded()
        answers: list[Generation] = []

        def restored(prompt: list[int] = prompt, answers: list[Generation] = answers) -> bool:
            delayed.flush()
            answers.append(delayed.generate(prompt, TOKENS))
            return answers[-1].external_tokens == restorable(len(prompt))

        eventually(restored, "both ranks have an answer in time")
        assert answers[-1].device_tokens == 0
        assert {answer.tokens for answer in answers} == {hit.tokens}
        rig.wait_loaded(loaded + pages(answers) * SLICE_BYTES)
    rig.quiet()


def test_late_replies_under_requests_at_once(rig: SglangRig, delayed: SglangEngine) -> None:
    prompts = [words(890 + number, 400) for number in range(6)]
    right = [rig.store(delayed, prompt, TOKENS).tokens for prompt in prompts]
    loaded = rig.loaded()
    answers: list[Generation] = []

    def restored() -> bool:
        delayed.flush()
        running = [rig.start(delayed, prompt, TOKENS) for prompt in prompts]
        answers.extend(each.result() for each in running)
        return any(answer.external_tokens for answer in answers[-len(prompts) :])

    eventually(restored, "some of them are restored")
    for at in range(0, len(answers), len(prompts)):
        assert [answer.tokens for answer in answers[at : at + len(prompts)]] == right
    rig.wait_loaded(loaded + pages(answers) * SLICE_BYTES)
    rig.quiet()


def pages(answers: list[Generation]) -> int:
    """Return how many pages were restored for these answers."""
    return sum(answer.external_tokens for answer in answers) // PAGE_TOKENS
