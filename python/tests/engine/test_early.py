"""The real engine with its worker in the scheduler's process: restores begin when their step is planned.

Destinations are filled with poison first, so equal output means that a restore wrote them and nothing of the engine's
did afterwards. In float32 each prompt has one right answer, however it is cut, batched or restored.
"""

from __future__ import annotations

import json
import random

import pytest

from harness.engine import Engine
from harness.manager import eventually
from harness.rig import PAGE_TOKENS, Rig, pages_below_last_token


@pytest.fixture
def engine(rig: Rig) -> Engine:
    """Return a connected engine of one process, with nothing cached anywhere."""
    plain = rig.config()
    transfer = json.loads(plain.kv_transfer)
    transfer["kv_connector_extra_config"]["orbitkv.fault_injection"] = "poison-destination"
    # The engine's core gives its worker a process of its own on a CPU unless it is told that there are none.
    config = rig.config(
        kv_transfer=json.dumps(transfer),
        arguments=(*plain.arguments, "--distributed-executor-backend", "uni"),
        environment=(*plain.environment, ("VLLM_ENABLE_V1_MULTIPROCESSING", "0")),
    )
    return rig.begin(config)


def prompt_of(seed: object, tokens: int) -> list[int]:
    """Return token ids that nobody else's seed gives."""
    words = random.Random(f"early {seed}")
    return [words.randrange(3, 4096) for _ in range(tokens)]


def begun(engine: Engine) -> tuple[int, int]:
    """Return how many restores arrived, and how many began early. A counter is absent before its first count."""
    found = {name.partition("{")[0]: int(value) for name, value in engine.counters().items()}
    return found.get("vllm:orbitkv_load_success_total", 0), found.get("vllm:orbitkv_load_early_total", 0)


def wait_begun(engine: Engine, success: int, early: int) -> None:
    """Return once so many restores are counted, and no other number of them as early."""
    eventually(lambda: begun(engine)[0] >= success, f"{success} restores are counted")
    eventually(lambda: begun(engine) == (success, early), f"{early} of {success} restores began early")


def test_restores_that_began_early_give_the_output_of_a_computed_prompt(rig: Rig, engine: Engine) -> None:
    """The first one of an engine goes the ordinary way, since nothing tells yet where forwards are launched."""
    prompts = [prompt_of(tokens, tokens) for tokens in (129, 1000, 4096, 257)]
    cold = [rig.store(engine, prompt) for prompt in prompts]
    rig.reset_device(engine)
    for number, (prompt, before) in enumerate(zip(prompts, cold, strict=True)):
        restored, came = rig.ask(engine, prompt)
        assert came.external == pages_below_last_token(len(prompt)) * PAGE_TOKENS
        assert restored.tokens == before.tokens
        wait_begun(engine, number + 1, number)


def test_a_restore_begins_beside_a_request_that_decodes(rig: Rig, engine: Engine) -> None:
    shared = prompt_of("shared", 1024)
    prompts = [shared + prompt_of(f"tail {number}", 400) for number in range(3)]
    cold = [rig.store(engine, prompts[0]).tokens]
    cold += [engine.complete(prompt).tokens for prompt in prompts[1:]]
    long = prompt_of("long", 200)
    spoken = engine.complete(long, 300).tokens
    rig.reset_device(engine)
    success, early = begun(engine)
    running = rig.start(engine, long, 300)
    answers = [rig.start(engine, prompt) for prompt in prompts]
    assert [answer.result().tokens for answer in answers] == cold
    assert running.result().tokens == spoken
    eventually(lambda: begun(engine)[0] > success, "restores are counted")
    arrived, began = begun(engine)
    assert began - early >= arrived - success - 1, "at most the first restore of an engine goes the ordinary way"
