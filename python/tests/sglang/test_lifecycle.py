"""The real SGLang starts, hits its own prefix cache, flushes it, takes other weights and ends without a trace."""

from __future__ import annotations

import contextlib
import random
import secrets
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.checkpoint import Checkpoint
from harness.manager import eventually
from harness.pool import LOGS
from harness.sentinel import session_members
from harness.server import EngineFailure
from harness.sglang import Load, SglangConfig, SglangEngine, SglangPool

PLAIN = SglangConfig(dtype="float32")
PAGE = PLAIN.page_size


def prompt_of(seed: int, tokens: int) -> list[int]:
    """Return token ids that nobody else's seed gives."""
    words = random.Random(f"plain {seed}")
    return [words.randrange(3, PLAIN.checkpoint.vocabulary) for _ in range(tokens)]


@pytest.fixture
def engine(engines: SglangPool) -> SglangEngine:
    """Return the engine of this module, with nothing cached."""
    engine = engines.get(PLAIN)
    engine.flush()
    return engine


def test_gives_the_tokens_it_is_asked_for(engine: SglangEngine) -> None:
    answer = engine.generate(prompt_of(1, 200), max_tokens=8)
    assert (len(answer.tokens), len(answer.logprobs), answer.prompt_tokens) == (8, 8, 200)
    assert answer.finish_reason == "length"
    assert engine.counter("sglang:num_requests_total") >= 1


@pytest.mark.parametrize("tokens", [PAGE, PAGE + 1, 1000, 4096])
def test_a_repeat_hits_the_device_and_a_flush_forgets(engine: SglangEngine, tokens: int) -> None:
    prompt = prompt_of(tokens, tokens)
    cold, hit = engine.generate(prompt), engine.generate(prompt)
    engine.flush()
    again = engine.generate(prompt)
    whole_pages = (tokens - 1) // PAGE * PAGE
    assert [answer.cached_tokens for answer in (cold, hit, again)] == [0, whole_pages, 0]
    assert (hit.device_tokens, hit.external_tokens) == (whole_pages, 0)
    assert cold.tokens == hit.tokens == again.tokens


def test_pressure_pushes_a_prefix_out(engine: SglangEngine) -> None:
    prompt = prompt_of(2, 4096)
    cold = engine.generate(prompt)
    for seed in (20, 21):  # Together more tokens than the device holds.
        engine.generate(prompt_of(seed, 6000))
    lost = engine.generate(prompt)
    assert (cold.cached_tokens, lost.cached_tokens) == (0, 0)
    assert cold.tokens == lost.tokens


def test_kv_content_decides_the_output(engine: SglangEngine) -> None:
    prompt = prompt_of(4, 2000)
    changed = [*prompt[:1000], prompt[1000] ^ 1, *prompt[1001:]]
    # One token of many moves the probabilities, not always the likeliest token.
    assert engine.generate(prompt).logprobs != engine.generate(changed).logprobs


def test_other_weights_give_other_tokens(engine: SglangEngine) -> None:
    prompt = prompt_of(5, 500)
    first = engine.generate(prompt)
    engine.update_weights(Checkpoint(seed=1))
    other = engine.generate(prompt)
    engine.update_weights(PLAIN.checkpoint)
    assert other.tokens != first.tokens
    assert engine.generate(prompt).tokens == first.tokens


def test_absent_weights_are_refused_and_the_old_ones_stay(engine: SglangEngine, tmp_path: Path) -> None:
    prompt = prompt_of(7, 500)
    first = engine.generate(prompt)
    with pytest.raises(EngineFailure, match=r"did not take the weights in .*absent"):
        engine.update_weights(tmp_path / "absent")
    assert engine.generate(prompt).tokens == first.tokens


def test_a_request_is_aborted_and_the_engine_is_idle_then(engine: SglangEngine) -> None:
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(engine.generate, prompt_of(6, 300), max_tokens=4000, rid="long")
        eventually(lambda: engine.load().running == 1, "the request runs")
        assert not engine.try_flush(), "a flush is refused while a request runs"
        engine.abort("long")
        answer = running.result(120)
    assert answer.finish_reason == "abort"
    assert len(answer.tokens) < 4000
    engine.flush()
    assert engine.load() == Load(0, 0, 0)


def test_an_engine_that_does_not_select_the_backend_is_not_touched(engine: SglangEngine) -> None:
    """The plugin is found by it as by those of the other modules, and says and wraps nothing."""
    text = engine.log.read_text(errors="replace")
    assert "Tree cache initialized: source=default" in text
    assert "OrbitKV" not in text
    assert "hook(s) to" not in text, "SGLang names what is wrapped"


def test_stop_leaves_no_process(engines: SglangPool, engine: SglangEngine) -> None:
    session = engine.process.pid
    assert len(session_members(session)) >= 2, "the server and its scheduler"
    engines.close()
    assert session_members(session) == []
    assert engine.process.returncode == 0


def test_failure_to_start_names_the_log_and_leaves_no_process() -> None:
    mark = f"refused-{secrets.token_hex(8)}"
    refused = SglangConfig(arguments=("--no-such-option",), environment=(("TEST_MARK", mark),))
    with pytest.raises(EngineFailure, match="while starting") as caught:
        SglangEngine.start(refused, LOGS / "sglang-refused.log")
    assert "no-such-option" in str(caught.value)
    assert "sglang-refused.log" in str(caught.value)
    assert marked(mark) == []


def marked(mark: str) -> list[int]:
    """Return the processes of the machine that inherited a variable of that value."""
    found = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # It has ended meanwhile, or is not a process, or not this user's.
            if mark.encode() in (process / "environ").read_bytes():
                found.append(int(process.name))
    return found
