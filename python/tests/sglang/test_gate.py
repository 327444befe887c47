"""Requests whose prefix must be waited for are passed over: nobody waits for them, and nobody is lost over them.

A replica without an engine holds the Manager's budget, so that the answer is "not yet" for as long as a test likes.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from harness import oracle
from harness.base import words
from harness.manager import eventually
from harness.replica import Replica, Shape
from harness.sglang import Generation, SglangConfig, SglangEngine
from harness.sglang_rig import HOPEFUL, PAGE_TOKENS, SLICE_BYTES, SglangRig, restorable
from orbitkv.client import State

BUDGET_BYTES = 16 << 20
HOARD = Shape(layers=4, layer_bytes=1 << 16, blocks=60, model="hoard")  # it leaves 16 of the engine's pages
LONG = 600  # tokens of a prompt that does not fit in there
ANSWER = 256  # tokens of an answer that outlasts everything that a test does meanwhile
URGENT = 100  # a priority far above the others'


@pytest.fixture(scope="module", autouse=True)
def budget(rig: SglangRig) -> Iterator[None]:
    """Serve a Manager with a budget that one replica can hold, and one with the usual budget afterwards."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("ORBITKV_QUERY_BUDGET", str(BUDGET_BYTES))
        rig.serve()
        yield
    rig.serve()


@pytest.fixture(scope="module")
def patient(rig: SglangRig) -> SglangConfig:
    """Return an engine with a cache-aware policy, whose requests wait for their prefix without an end."""
    return configured(rig, {"ORBITKV_LOAD_WAIT_MS": "600000"}, arguments=(*HOPEFUL, "--schedule-policy", "lpm"))


@pytest.fixture(scope="module")
def urgent(rig: SglangRig) -> SglangConfig:
    """Return an engine that runs two requests, takes them back for urgent ones, and waits a second for a prefix.

    It waits long for what the Manager says at all, so that "not yet" is the only answer that keeps a request waiting.
    """
    arguments = (*HOPEFUL, "--enable-priority-scheduling", "--default-priority-value", "0")
    wait = {"ORBITKV_LOAD_WAIT_MS": "1000", "ORBITKV_QUERY_WAIT_US": "10000000"}
    return configured(rig, wait, arguments=arguments, running_requests=2)


def configured(rig: SglangRig, environment: dict[str, str], **changes: object) -> SglangConfig:
    """Return a configuration of the rig with changes of its environment, too."""
    plain = rig.config(**changes)  # type: ignore[arg-type]
    return dataclasses.replace(plain, environment=tuple((dict(plain.environment) | environment).items()))


@contextlib.contextmanager
def hoarding(rig: SglangRig) -> Iterator[None]:
    """Hold the Manager's budget: a long prompt's query waits until this ends."""
    with Replica(rig.socket, "hoard", HOARD) as replica:
        keys = oracle.prefix(1, HOARD.blocks)
        replica.publish(keys)
        query = replica.scheduler.query(replica.namespace, keys, instance="hoard", wait_us=None)
        assert (query.state, query.lease is not None) == (State.READY, True)
        lease = query.lease
        assert lease is not None
        assert lease.pages == HOARD.blocks
        lease.begin(lease.pages)
        try:
            yield
        finally:
            told = lease.pages * HOARD.slice_bytes
            replica.ranks[0].client.restored(lease.id, 0, True, told, [(0, lease.pages)])
            lease.ended()


def results(running: list[Future[Generation]]) -> list[Generation]:
    """Return all answers; AssertionError when one does not come."""
    eventually(lambda: all(each.done() for each in running), "every request is answered")
    return [each.result() for each in running]


def test_a_cache_aware_policy_asks_for_a_prompt_of_whole_pages_once(rig: SglangRig, patient: SglangConfig) -> None:
    """The policy matches the whole prompt and the admission one token less, which is a page less."""
    engine = rig.ready(patient)
    for number, tokens in enumerate((PAGE_TOKENS, 2 * PAGE_TOKENS, 20 * PAGE_TOKENS)):
        prompt = words(920 + number, tokens)
        cold = rig.store(engine, prompt)
        engine.flush()
        found = rig.stats()["page_hits_total"]
        answer = engine.generate(prompt)
        assert (answer.device_tokens, answer.external_tokens) == (0, restorable(tokens))
        assert answer.tokens == cold.tokens
        assert rig.stats()["page_hits_total"] - found == tokens // PAGE_TOKENS, "one question is answered"
        rig.quiet()


def test_prompts_of_whole_pages_at_once(rig: SglangRig, patient: SglangConfig) -> None:
    engine = rig.ready(patient)
    prompts = [words(930 + number, 20 * PAGE_TOKENS) for number in range(8)]
    cold = [rig.store(engine, prompt, 4).tokens for prompt in prompts]
    engine.flush()
    answers = results([rig.start(engine, prompt, 4) for prompt in prompts])
    assert [answer.tokens for answer in answers] == cold
    assert [answer.external_tokens for answer in answers] == [restorable(20 * PAGE_TOKENS)] * len(prompts)
    rig.quiet()


def test_a_request_that_waits_is_passed_over(rig: SglangRig, patient: SglangConfig) -> None:
    engine = rig.ready(patient)
    prompt, short, held = words(940, LONG), words(941, PAGE_TOKENS - 1), words(942, LONG)
    cold, alone = rig.store(engine, prompt), engine.generate(short)
    engine.flush()
    hit = engine.generate(held)
    loaded = rig.loaded()
    with hoarding(rig):
        waiting = rig.start(engine, prompt)
        eventually(lambda: rig.stats()["operations_waiting"] == 1, "its query has no budget")
        eventually(lambda: engine.load().waiting == 1, "it waits")
        assert engine.generate(short).tokens == alone.tokens, "what needs no look-up is answered"
        again = engine.generate(held)
        assert (again.tokens, again.device_tokens) == (hit.tokens, restorable(LONG)), "what is on the device is, too"
        assert not waiting.done()
        assert engine.load().waiting == 1
    (answer,) = results([waiting])
    assert (answer.tokens, answer.external_tokens) == (cold.tokens, restorable(LONG))
    rig.wait_loaded(loaded + HOARD.blocks * HOARD.slice_bytes + restorable(LONG) // PAGE_TOKENS * SLICE_BYTES)
    rig.quiet()


def test_a_manager_that_stands_still_is_not_waited_for(rig: SglangRig, patient: SglangConfig) -> None:
    """However patient a request is: only a Manager that answers is waited for."""
    engine = rig.ready(patient)
    prompt = words(943, LONG)
    cold = rig.store(engine, prompt)
    engine.flush()
    rig.manager.pause()
    try:
        (answer,) = results([rig.start(engine, prompt)])
    finally:
        rig.manager.go_on()
    assert (answer.tokens, answer.external_tokens) == (cold.tokens, 0)
    rig.wait_restored(engine, prompt)
    rig.quiet()


def test_a_prefix_is_waited_for_as_long_as_is_configured(rig: SglangRig, urgent: SglangConfig) -> None:
    engine = rig.ready(urgent)
    prompt = words(950, LONG)
    cold = rig.store(engine, prompt)
    engine.flush()
    with hoarding(rig):
        (answer,) = results([rig.start(engine, prompt)])
        assert (answer.tokens, answer.external_tokens) == (cold.tokens, 0)
    rig.quiet()


def test_who_is_taken_back_for_an_urgent_request_comes_back(rig: SglangRig, urgent: SglangConfig) -> None:
    """SGLang takes one back before it asks for the urgent one's prefix: that one is admitted then, restored or not."""
    engine = rig.ready(urgent)
    prompts, prompt, inserted = [words(960 + number, 40) for number in range(2)], words(962, LONG), rig.inserted()
    right = [each.tokens for each in results([rig.start(engine, each, ANSWER) for each in prompts])]
    rig.wait_inserted(inserted + 2 * ((40 + ANSWER - 1) // PAGE_TOKENS))
    cold = rig.store(engine, prompt)
    for budget, restored in ((contextlib.nullcontext(), restorable(LONG)), (hoarding(rig), 0)):
        engine.flush()
        with budget:
            running = [rig.start(engine, each, ANSWER) for each in prompts]
            eventually(lambda: engine.load().running == 2, "both run")
            (answer,) = results([rig.start(engine, prompt, priority=URGENT)])
            assert not any(each.done() for each in running), "it came before them"
            assert (answer.tokens, answer.external_tokens) == (cold.tokens, restored)
            assert [each.tokens for each in results(running)] == right
        eventually(lambda: idle(engine), "nothing is left")
        rig.quiet()


def idle(engine: SglangEngine) -> bool:
    """Return whether the engine has no request."""
    load = engine.load()
    return (load.running, load.waiting) == (0, 0)
