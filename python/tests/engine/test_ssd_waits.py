"""vLLM waits for the SSD while that is faster than computing, by what both did last, and not for longer."""

from __future__ import annotations

import dataclasses
import itertools
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from python.tests.engine.ssd_rig import PAGE_BYTES, figure, put_away, serve, staged

from harness import ssd as tier
from harness.base import words
from harness.engine import Engine, EngineConfig
from harness.manager import eventually
from harness.rig import PAGE_TOKENS, Counted, Rig, pages_below_last_token
from harness.ssd import STALLING, Volume

TOKENS = 4096
PAGES = pages_below_last_token(TOKENS)
HOPELESS = f"read-rate={PAGE_BYTES * 2}b"  # a second: 32 pages take 16 seconds, and computing them two or three
TRIES = 10
TRACE_S = 60.0
SEEDS = itertools.count(5000)


@pytest.fixture(scope="module")
def config(rig: Rig) -> EngineConfig:
    """Return an engine that poisons destinations and would wait for minutes, if that paid."""
    plain = rig.config()
    transfer = json.loads(plain.kv_transfer)
    transfer["kv_connector_extra_config"] |= {
        "orbitkv.fault_injection": "poison-destination",
        "orbitkv.load_wait_ms": 600_000,
    }
    return dataclasses.replace(plain, kv_transfer=json.dumps(transfer))


@pytest.fixture(scope="module", autouse=True)
def without_tier(rig: Rig) -> Iterator[None]:
    """Serve a Manager without the tier after this module."""
    yield
    rig.serve()


def measured(rig: Rig, config: EngineConfig, volume: Volume, fault: str = "") -> Engine:
    """Start a Manager on the folder and return the engine once it knows how fast it computes."""
    engine = serve(rig, config, volume, fault)

    def known() -> bool:
        engine.complete(words(next(SEEDS), TOKENS), max_tokens=4)
        return figure(engine, "prefill_tokens_per_second") > 0

    eventually(known, "the rate of prefill is measured")
    rig.reset_device(engine)
    return engine


def ask_stored(rig: Rig, engine: Engine) -> Counted:
    """Ask for a prompt whose pages lie on the SSD alone; return where its tokens came from."""
    prompt = words(next(SEEDS), TOKENS)
    hit = put_away(rig, engine, prompt)
    answer, counts = rig.ask(engine, prompt)
    assert answer.tokens == hit.tokens
    return counts


def wait_out(rig: Rig, engine: Engine) -> None:
    """Ask for stored prompts until a request waits for all its pages: a disk that others use may halt at any time."""
    for _ in range(TRIES):
        waits = len(staged(engine))
        counts = ask_stored(rig, engine)
        (wait,) = staged(engine)[waits:]
        if not wait["stopped"]:
            assert (wait["pages"], counts.external) == (TOKENS // PAGE_TOKENS, PAGES * PAGE_TOKENS)
            return
    pytest.fail(f"none of {TRIES} requests waited until its pages were there")


def test_a_disk_that_pays_is_waited_for(rig: Rig, config: EngineConfig, volume: Volume, orbitkv_binary: Path) -> None:
    engine = measured(rig, config, volume)
    wait_out(rig, engine)
    rig.quiet()
    request = str(staged(engine)[-1]["request_id"])
    command = [str(orbitkv_binary), "trace", str(engine.log), str(rig.manager.log), "--request", request]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=TRACE_S).stdout
    assert shown.startswith(f"request {request}\n")
    assert shown.count("\n  vllm-") == 1, "the processes of engine and Manager read one clock"
    stages = [line.split("|")[2].split()[0] for line in shown.splitlines() if line.count("|") >= 2]
    life = ("queued", "read_start", "host_ready", "staged", "first_use")
    assert [stage for stage in stages if stage in life] == list(life)
    assert "restore_submit" in stages
    assert "gpu_ready" in stages


def test_a_disk_that_is_too_slow_is_not_waited_for(rig: Rig, config: EngineConfig, volume: Volume) -> None:
    """The patience is ten minutes. What the first request began to read tells how slow the disk is."""
    engine = measured(rig, config, volume, HOPELESS)
    ask_stored(rig, engine)
    eventually(lambda: tier.read(rig.manager) > 0, "a page was read")
    waits, before = len(staged(engine)), figure(engine, "prefetch_outpaced_total")
    counts = ask_stored(rig, engine)
    assert counts.external < PAGES * PAGE_TOKENS
    (wait,) = staged(engine)[waits:]
    assert (wait["pages"], wait["stopped"], wait["outpaced"]) == (counts.external // PAGE_TOKENS, True, True)
    eventually(lambda: figure(engine, "prefetch_outpaced_total") == before + 1, "it is counted")
    rig.quiet()


def test_a_disk_that_hangs_costs_no_request_its_patience_and_is_used_when_it_answers(
    rig: Rig, config: EngineConfig, volume: Volume
) -> None:
    """Requests go on once the oldest read is older than computing takes, ten minutes before their patience ends."""
    engine = measured(rig, config, volume, STALLING)
    wait_out(rig, engine)
    prompts = [words(next(SEEDS), TOKENS) for _ in range(3)]
    hits = [put_away(rig, engine, prompt) for prompt in prompts]
    volume.stall()
    for prompt, hit in zip(prompts, hits, strict=True):
        waits = len(staged(engine))
        answer, counts = rig.ask(engine, prompt)
        assert (answer.tokens, counts.external) == (hit.tokens, 0)
        assert rig.stats()["reading_pages"] > 0, "what was begun is read to its end"
        assert all(wait["stopped"] for wait in staged(engine)[waits:]), "there is none once the disk is passed by"
    volume.resume()
    eventually(lambda: rig.stats()["reading_pages"] == 0, "the disk answers again")
    wait_out(rig, engine)
    rig.quiet()
