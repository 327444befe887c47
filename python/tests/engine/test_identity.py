"""What tells one engine's bytes from another's: facts read from vLLM's own configuration, salts, refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import oracle
from harness.base import words
from harness.checkpoint import Checkpoint, ensure
from harness.engine import Engine, base_environment
from harness.manager import ManagerProcess
from harness.pool import LOGS
from harness.replica import Replica, Shape
from harness.rig import PAGE_TOKENS, Rig, pages_below_last_token
from harness.server import EngineFailure

TOOLS = Path(__file__).resolve().parents[3] / "tools"
PAGES = 8
# Each differs from the plain configuration in one respect that changes bytes or keys.
DIFFERENT: dict[str, dict[str, Any]] = {
    "dtype": {"arguments": {"dtype": "float32"}},
    "cache dtype": {"arguments": {"kv_cache_dtype": "fp8"}},
    "block size": {"arguments": {"block_size": 64}},
    "tensor parallel": {"arguments": {"tensor_parallel_size": 2}},
    "pipeline parallel": {"arguments": {"pipeline_parallel_size": 2}},
    "hash algorithm": {"arguments": {"prefix_caching_hash_algo": "sha256"}},
    "model configuration": {"arguments": {"hf_overrides": {"rope_theta": 5e5}}},
    "layout": {"layout": "LHBNC"},
    "release": {"release": "0.29.1"},
    "weights": {"model": Checkpoint(seed=1)},
}
SAME: dict[str, dict[str, Any]] = {
    "plain": {},
    "length": {"arguments": {"max_model_len": 2048}},
    "batch": {"arguments": {"max_num_batched_tokens": 1024}},
    "memory": {"arguments": {"num_gpu_blocks_override": 50}},
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "failure policy": ({"policy": "fail"}, '"kv_load_failure_policy": "recompute"'),
    "xxhash": ({"arguments": {"prefix_caching_hash_algo": "xxhash"}}, "--prefix-caching-hash-algo sha256_cbor"),
    "xxhash_cbor": (
        {"arguments": {"prefix_caching_hash_algo": "xxhash_cbor"}},
        "--prefix-caching-hash-algo sha256_cbor",
    ),
}


@pytest.fixture(scope="module")
def described() -> dict[str, dict[str, Any]]:
    """Return what the connector says of every configuration; one process of vLLM reads them all."""
    entries = {**DIFFERENT, **SAME, **{name: entry for name, (entry, _) in REFUSED.items()}}
    plain = {"block_size": PAGE_TOKENS, "dtype": "bfloat16", "prefix_caching_hash_algo": "sha256_cbor"}
    questions = []
    for entry in entries.values():
        arguments = {"model": str(ensure(entry.get("model", Checkpoint()))), **plain, **entry.get("arguments", {})}
        questions.append({**{k: v for k, v in entry.items() if k != "model"}, "arguments": arguments})
    environment = base_environment()
    environment["PYTHONPATH"] += f":{TOOLS}"
    command = [sys.executable, "-m", "harness.facts", json.dumps(questions)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(zip(entries, json.loads(done.stdout.splitlines()[-1]), strict=True))


@pytest.fixture(scope="module")
def store(
    orbitkv_binary: Path, tmp_path_factory: pytest.TempPathFactory, described: dict[str, dict[str, Any]]
) -> Iterator[ManagerProcess]:
    """Return a Manager that holds PAGES pages of the plain configuration."""
    manager = ManagerProcess(orbitkv_binary, tmp_path_factory.mktemp("identity"), "64mib").start()
    try:
        with Replica(manager.socket, "plain", shape_of(described["plain"])) as replica:
            assert replica.publish(oracle.prefix(1, PAGES)) == PAGES
            assert replica.restore(oracle.prefix(1, PAGES), expect=PAGES) == PAGES
        yield manager
    finally:
        manager.stop()


def shape_of(answer: dict[str, Any]) -> Shape:
    """Return a replica's shape with an engine's facts; the bytes of a page are always the same."""
    return Shape(blocks=PAGES, facts=tuple(answer["facts"].items()))


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_difference_hides_every_page(store: ManagerProcess, described: dict[str, dict[str, Any]], name: str) -> None:
    assert described[name]["facts"] != described["plain"]["facts"]
    with Replica(store.socket, name, shape_of(described[name])) as replica:
        assert replica.restore(oracle.prefix(1, PAGES)) == 0


@pytest.mark.parametrize("name", SAME)
def test_what_changes_no_byte_hides_nothing(
    store: ManagerProcess, described: dict[str, dict[str, Any]], name: str
) -> None:
    with Replica(store.socket, f"{name} again", shape_of(described[name])) as replica:
        assert replica.restore(oracle.prefix(1, PAGES), expect=PAGES) == PAGES


@pytest.mark.parametrize("name", REFUSED)
def test_a_configuration_that_could_be_wrong_is_refused(described: dict[str, dict[str, Any]], name: str) -> None:
    assert REFUSED[name][1] in described[name]["refused"], "the remedy is named"


def test_adapters_are_left_alone(described: dict[str, dict[str, Any]]) -> None:
    """An adapter is in the engine's hashes by its name only, so its pages can neither be published nor restored."""
    assert described["plain"]["left_alone"] == {"plain": False, "salted": False, "adapter": True}


def test_salts_do_not_meet(rig: Rig) -> None:
    engine = rig.begin()
    prompt = words(600, 1000)
    restorable = pages_below_last_token(1000) * PAGE_TOKENS
    found = {}
    for turn in ("first", "second"):
        for salt in ("one", "two", None):
            stored = rig.inserted()
            options: dict[str, Any] = {} if salt is None else {"cache_salt": salt}
            answer, counts = rig.ask(engine, prompt, **options)
            found[turn, salt] = (counts.device, counts.external)
            assert answer.prompt_tokens == 1000
            if turn == "first":
                rig.wait_inserted(stored + pages_below_last_token(1000))
        rig.reset_device(engine)
    assert [found["first", salt] for salt in ("one", "two", None)] == [(0, 0)] * 3
    assert [found["second", salt] for salt in ("one", "two", None)] == [(0, restorable)] * 3
    rig.quiet()


def test_the_failure_policy_that_is_vllms_default_stops_the_start(rig: Rig) -> None:
    shared = rig.config()
    transfer = {**json.loads(shared.kv_transfer), "kv_load_failure_policy": "fail"}
    log = LOGS / "engine-policy.log"
    with pytest.raises(EngineFailure, match="while starting"):
        Engine.start(rig.config(kv_transfer=json.dumps(transfer)), log)
    assert 'add "kv_load_failure_policy": "recompute" to --kv-transfer-config' in log.read_text(errors="replace")
