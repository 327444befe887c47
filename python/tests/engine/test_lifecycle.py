"""The real engine starts, streams, hits its own prefix cache and ends without a trace."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from harness.engine import Engine, EngineConfig
from harness.pool import LOGS, EnginePool
from harness.sentinel import session_members
from harness.server import EngineFailure

PLAIN = EngineConfig()


def prompt_of(seed: int, tokens: int) -> list[int]:
    """Return token ids that nobody else's seed gives."""
    words = random.Random(seed)
    return [words.randrange(3, PLAIN.checkpoint.vocabulary) for _ in range(tokens)]


def test_streams_the_tokens_it_names(engines: EnginePool) -> None:
    answer = engines.get(PLAIN).complete(prompt_of(1, 200), max_tokens=8)
    assert len(answer.tokens) == 8
    assert answer.prompt_tokens == 200
    assert answer.finish_reason == "length"
    assert answer.text.split() == [f"w{token}" for token in answer.tokens if token > 2]


def test_prefix_is_hit_on_the_device_and_lost_under_pressure(engines: EnginePool) -> None:
    engine = engines.get(PLAIN)
    prompt = prompt_of(2, 4096)
    cold = engine.complete(prompt)
    hit = engine.complete(prompt)
    for seed in (30, 31):  # Together more blocks than the device pool holds.
        engine.complete(prompt_of(seed, 8000))
    lost = engine.complete(prompt)
    assert (cold.cached_tokens, hit.cached_tokens, lost.cached_tokens) == (0, 3968, 0)
    assert cold.tokens == lost.tokens


def test_kv_content_decides_the_output(engines: EnginePool) -> None:
    engine = engines.get(PLAIN)
    prompt = prompt_of(4, 2000)
    changed = [*prompt[:1000], prompt[1000] ^ 1, *prompt[1001:]]
    assert engine.complete(prompt, max_tokens=16).tokens != engine.complete(changed, max_tokens=16).tokens


def test_counters_are_read_from_the_engine(engines: EnginePool) -> None:
    engine = engines.get(PLAIN)
    before = engine.counter("vllm:prompt_tokens_total")
    engine.complete(prompt_of(5, 300))
    assert engine.counter("vllm:prompt_tokens_total") == before + 300


def test_stop_leaves_no_process(engines: EnginePool) -> None:
    engine = engines.get(PLAIN)
    session = engine.process.pid
    assert len(session_members(session)) >= 2, "the API server and its engine core"
    engines.close()
    assert session_members(session) == []
    assert engine.ended
    assert engine.process.returncode in (0, -signal.SIGTERM)


def test_failure_to_start_names_the_log_and_leaves_no_process() -> None:
    before = set(every_process())
    with pytest.raises(EngineFailure, match="while starting") as caught:
        Engine.start(EngineConfig(arguments=("--no-such-option",)), LOGS / "engine-refused.log")
    assert "no-such-option" in str(caught.value)
    assert "engine-refused.log" in str(caught.value)
    assert not [pid for pid in set(every_process()) - before if session_members(pid)]


def every_process() -> list[int]:
    """Return the ids of all processes of the machine."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
