"""Two tensor-parallel ranks, each with its own slice of every page: equal output, and the death of one of them."""

from __future__ import annotations

import os
import signal

import pytest

from harness.base import words
from harness.engine import EngineConfig
from harness.gate import PUBLISH, RESTORE
from harness.manager import eventually
from harness.rig import PAGE_TOKENS, Rig, named, pages_below_last_token

SLICE_BYTES = 4 * PAGE_TOKENS * 2 * 64 * 4  # layers, tokens, K and V, width of one of two heads, float32


@pytest.fixture(scope="module")
def two_ranks(rig: Rig) -> EngineConfig:
    """Return the shared engine's configuration with two ranks, each bound to one core."""
    shared = rig.config()
    return rig.config(
        arguments=(*shared.arguments, "--tensor-parallel-size", "2"),
        environment=(*shared.environment, ("VLLM_CPU_OMP_THREADS_BIND", "0|1")),
    )


def test_two_ranks_restore_what_two_ranks_published(rig: Rig, two_ranks: EngineConfig) -> None:
    engine = rig.begin(two_ranks)
    for number, tokens in enumerate((127, 129, 1000, 4096)):
        prompt = words(500 + number, tokens)
        pages = pages_below_last_token(tokens)
        rig.store(engine, prompt, 16)
        hit = engine.complete(prompt, 16)
        rig.reset_device(engine)
        loaded = rig.stats()["load_bytes_total"]
        restored, counts = rig.ask(engine, prompt, 16)
        assert (counts.device, counts.external) == (0, pages * PAGE_TOKENS)
        assert restored.tokens == hit.tokens
        rig.quiet()
        assert rig.stats()["load_bytes_total"] - loaded == 2 * pages * SLICE_BYTES
    ranks = rig.manager.status()["cache"]["instances"][0]["ranks"]
    assert len({rank["pid"] for rank in ranks}) == 2
    assert [rank["slice_bytes"] for rank in ranks] == [SLICE_BYTES] * 2


def test_a_manager_that_comes_back_is_proved_by_both_ranks(rig: Rig, two_ranks: EngineConfig) -> None:
    engine = rig.begin(two_ranks)
    prompt = words(510, 1000)
    cold = rig.store(engine, prompt)
    rig.reset_device(engine)
    rig.gate.hold(RESTORE, 2)
    answer = rig.start(engine, prompt)
    rig.gate.wait_held(RESTORE, processes=2)
    rig.kill_manager()
    rig.gate.open()
    assert answer.result().tokens == cold.tokens, "both ranks used what they had begun"
    rig.serve()
    rig.connected(engine)
    rig.reset_device(engine)
    assert rig.store(engine, prompt).tokens == cold.tokens
    rig.reset_device(engine)
    again, counts = rig.ask(engine, prompt)
    assert counts.external == pages_below_last_token(1000) * PAGE_TOKENS
    assert again.tokens == cold.tokens
    rig.quiet()


def test_one_rank_alone_is_killed_while_both_publish(rig: Rig, two_ranks: EngineConfig) -> None:
    engine = rig.begin(two_ranks)
    stored = rig.inserted()
    rig.gate.hold(PUBLISH, 2)
    engine.complete(words(520, 1000))
    rig.gate.wait_held(PUBLISH, processes=2)
    assert rig.stats()["reservations"] > 0
    killed, _ = named(engine, "Worker_TP")
    os.kill(killed, signal.SIGKILL)
    eventually(lambda: killed not in engine.processes(), "the rank is gone")
    rig.gate.open()
    rig.quiet()
    assert rig.inserted() == stored, "a page without one rank's slice is none"
    engine.kill()  # What is left of it is not OrbitKV's to end.
