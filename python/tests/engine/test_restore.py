"""The real engine gets a prefix back from OrbitKV: equal output, real bytes, and a control that must fail.

The engine's destinations are filled with poison before every restore, so equal output means that the restore wrote
them. Output is compared with that of a device hit, which computes the same tokens in the same pieces.
"""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from demo.damage import invert_arenas

from harness import http
from harness.engine import Completion, Engine, EngineConfig
from harness.manager import ManagerProcess, eventually
from harness.pool import EnginePool
from orbitkv.timeline import parse

BLOCK = 128
POOL = "512mib"
TOKENS = 16
SETTLE_SECONDS = 5.0  # a publish that is this late is waited for again with another prompt


@dataclass
class Rig:
    """An engine and its Manager."""

    engine: Engine
    manager: ManagerProcess

    def external_hits(self) -> int:
        """Return the prompt tokens that the engine took from its connector."""
        return int(self.engine.counter("vllm:external_prefix_cache_hits_total"))

    def device_hits(self) -> int:
        """Return the prompt tokens that the engine found on its device."""
        return int(self.engine.counter("vllm:prefix_cache_hits_total"))

    def stored(self) -> int:
        """Return the pages that were stored since the Manager started."""
        return int(self.manager.metric("orbitkv_cache_block_insertions_total"))

    def complete_and_store(self, prompt: list[int], pages: int, tokens: int = TOKENS) -> Completion:
        """Complete a prompt that is new to the Manager and return when its pages are stored."""
        before = self.stored()
        done = self.engine.complete(prompt, max_tokens=tokens)
        # A page that an earlier request filled last may still arrive, so the count may pass the sum.
        eventually(lambda: self.stored() >= before + pages, f"{pages} pages are stored")
        return done

    def forget_on_device(self, *, external: bool = False) -> None:
        """Empty the engine's own prefix cache, and with `external` name the connector in it."""

        def reset() -> bool:
            path = f"/reset_prefix_cache?reset_external={'true' if external else 'false'}"
            return bool(http.post(self.engine.port, path, {}).json()["success"])

        eventually(reset, "the engine's prefix cache is reset")

    def timeline(self) -> list[dict[str, object]]:
        """Return every record that the engine has written."""
        lines = self.engine.log.read_text(errors="replace").splitlines()
        return [record for line in lines if (record := parse(line)) is not None]


def engine_config(manager: ManagerProcess, **extra: object) -> EngineConfig:
    """Return an engine with OrbitKV; queries may take long, since a test machine is slow."""
    keys: dict[str, object] = {
        "orbitkv.socket": manager.socket,
        "orbitkv.query_wait_us": 2_000_000,
        "orbitkv.timeout_ms": 60_000,
    }
    transfer = {
        "kv_connector": "OrbitKVConnector",
        "kv_connector_module_path": "orbitkv.vllm",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {**keys, **{f"orbitkv.{name}": value for name, value in extra.items()}},
    }
    return EngineConfig(
        kv_transfer=json.dumps(transfer),
        arguments=("--prefix-caching-hash-algo", "sha256_cbor"),
        environment=(("ORBITKV_TRACE_TRANSFERS", "1"), ("VLLM_SERVER_DEV_MODE", "1")),
    )


def prompt_of(seed: object, tokens: int) -> list[int]:
    """Return token ids that nobody else's seed gives."""
    words = random.Random(f"restore {seed}")
    return [words.randrange(3, 4096) for _ in range(tokens)]


@pytest.fixture(scope="module")
def manager(orbitkv_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ManagerProcess]:
    """Return the Manager of this module."""
    process = ManagerProcess(orbitkv_binary, tmp_path_factory.mktemp("manager"), POOL).start()
    yield process
    process.stop()


def ready(engine: Engine, manager: ManagerProcess) -> Rig:
    """Return the rig once the engine publishes: until then its ranks are still attaching."""
    rig = Rig(engine, manager)
    numbers = itertools.count()

    def publishes() -> bool:
        before, end = rig.stored(), time.monotonic() + SETTLE_SECONDS
        engine.complete(prompt_of(f"ready {next(numbers)} {before}", BLOCK + 1), max_tokens=2)
        while rig.stored() == before and time.monotonic() < end:
            time.sleep(0.05)
        return rig.stored() > before

    eventually(publishes, "the engine publishes")
    return rig


@pytest.fixture
def rig(engines: EnginePool, manager: ManagerProcess) -> Rig:
    """Return an engine whose restore destinations are poisoned first."""
    return ready(engines.get(engine_config(manager, fault_injection="poison-destination")), manager)


@pytest.mark.parametrize("tokens", [1, 127, 128, 129, 1000, 4096])
def test_restored_output_equals_that_of_a_device_hit(rig: Rig, tokens: int) -> None:
    prompt = prompt_of(tokens, tokens)
    rig.complete_and_store(prompt, (tokens + TOKENS - 1) // BLOCK)
    hit = rig.engine.complete(prompt, max_tokens=TOKENS)
    rig.forget_on_device()
    before, bytes_before = rig.external_hits(), rig.manager.metric("orbitkv_load_bytes_total")
    restored = rig.engine.complete(prompt, max_tokens=TOKENS)
    pages = (tokens - 1) // BLOCK
    assert rig.external_hits() - before == pages * BLOCK
    assert restored.cached_tokens == hit.cached_tokens == pages * BLOCK
    assert restored.tokens == hit.tokens
    eventually(
        lambda: rig.manager.metric("orbitkv_load_bytes_total") - bytes_before == pages * page_bytes(rig),
        "every restored byte is reported",
    )


def page_bytes(rig: Rig) -> int:
    """Return the bytes of one page: K and V of every layer, head and token in bfloat16."""
    model = rig.engine.config.checkpoint
    return 2 * model.layers * model.kv_heads * model.head_dim * BLOCK * 2


def test_a_shared_prefix_is_restored_for_both(rig: Rig) -> None:
    shared = prompt_of(50, 1024)
    first, second = shared + prompt_of(51, 300), shared + prompt_of(52, 300)
    rig.complete_and_store(first, 10)
    rig.complete_and_store(second, 2)
    hits = [rig.engine.complete(prompt, max_tokens=TOKENS).tokens for prompt in (first, second)]
    rig.forget_on_device()
    before = rig.external_hits()
    assert rig.engine.complete(first, max_tokens=TOKENS).tokens == hits[0]
    assert rig.external_hits() - before == 1280, "the first takes its whole prefix"
    assert rig.engine.complete(second, max_tokens=TOKENS).tokens == hits[1]
    assert rig.external_hits() - before == 1280 + 256, "the second finds the shared part on the device"


def test_two_requests_of_one_prefix_at_once_restore_it_once(rig: Rig) -> None:
    prompt = prompt_of(60, 2000)
    rig.complete_and_store(prompt, 15)
    hit = rig.engine.complete(prompt, max_tokens=TOKENS)
    rig.forget_on_device()
    before, device = rig.external_hits(), rig.device_hits()
    body = {"model": "tiny", "prompt": [prompt, prompt], "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    body["return_token_ids"] = True
    answer = http.post(rig.engine.port, "/v1/completions", body).json()
    assert [tuple(choice["token_ids"]) for choice in answer["choices"]] == [hit.tokens] * 2
    assert rig.external_hits() - before == 15 * BLOCK
    assert rig.device_hits() - device == 15 * BLOCK


def test_blocks_filled_by_decoding_are_stored_and_restored(rig: Rig) -> None:
    prompt = prompt_of(70, 100)
    spoken = rig.complete_and_store(prompt, 2, tokens=200)
    longer = prompt + list(spoken.tokens)
    hit = rig.engine.complete(longer, max_tokens=TOKENS)
    assert hit.cached_tokens == 256
    rig.forget_on_device()
    before = rig.external_hits()
    restored = rig.engine.complete(longer, max_tokens=TOKENS)
    assert rig.external_hits() - before == 256
    assert restored.tokens == hit.tokens


def test_the_first_layer_is_used_before_the_last_is_ready(rig: Rig) -> None:
    prompt = prompt_of(80, 4000)
    rig.complete_and_store(prompt, 31)
    rig.forget_on_device()
    seen = len(rig.timeline())
    rig.engine.complete(prompt, max_tokens=2)
    # The thread that copied records the end, beside the engine's.
    eventually(lambda: "gpu_ready" in [record["stage"] for record in rig.timeline()[seen:]], "the restore has ended")
    records = rig.timeline()[seen:]
    stages = [(record["stage"], record.get("layer")) for record in records]
    layers = range(rig.engine.config.checkpoint.layers)
    assert stages.index(("queued", None)) < stages.index(("restore_submit", None))
    for layer in layers:
        assert stages.index(("layer_ready", layer)) < stages.index(("layer_used", layer))
    assert stages.index(("layer_ready", layers[-1])) < stages.index(("gpu_ready", None))
    ended = records[stages.index(("gpu_ready", None))]
    assert ended["success"]
    assert ended["pieces"] == 31 * len(layers)
    assert ("first_use", None) in stages


def test_corrupted_bytes_change_the_output(rig: Rig) -> None:
    """The control: if it failed, equal output above would prove nothing."""
    prompt = prompt_of(90, 4096)
    rig.complete_and_store(prompt, 32)
    hit = rig.engine.complete(prompt, max_tokens=TOKENS)
    rig.forget_on_device()
    assert invert_arenas(rig.manager.pid) > 0
    before = rig.external_hits()
    spoiled = rig.engine.complete(prompt, max_tokens=TOKENS)
    assert invert_arenas(rig.manager.pid) > 0
    assert rig.external_hits() - before == 31 * BLOCK, "spoiled bytes were restored"
    assert spoiled.tokens != hit.tokens
    rig.forget_on_device()
    assert rig.engine.complete(prompt, max_tokens=TOKENS).tokens == hit.tokens


def test_a_plain_reset_keeps_the_managers_pages_and_one_that_names_the_connector_does_not(rig: Rig) -> None:
    prompt = prompt_of(100, 1000)
    rig.complete_and_store(prompt, 7)
    rig.forget_on_device()
    before = rig.external_hits()
    rig.engine.complete(prompt, max_tokens=2)
    assert rig.external_hits() - before == 7 * BLOCK
    rig.forget_on_device(external=True)
    rig.engine.complete(prompt, max_tokens=2)
    assert rig.external_hits() - before == 7 * BLOCK, "nothing of the old epoch is found"
    ready(rig.engine, rig.manager)
    fresh = prompt_of(101, 1000)
    rig.complete_and_store(fresh, 7)
    rig.forget_on_device()
    rig.engine.complete(fresh, max_tokens=2)
    assert rig.external_hits() - before == 14 * BLOCK, "the new epoch has hits of its own"


def test_a_forgotten_layer_wait_gives_wrong_tokens(engines: EnginePool, manager: ManagerProcess) -> None:
    """What the hooks are for: with a slow copy and one wait left out, the forward uses bytes that are not there."""
    config = engine_config(manager, fault_injection="skip-layer-wait=1", host_copy_delay_us=300_000)
    rig = ready(engines.get(config), manager)
    prompt = prompt_of(110, 4096)
    rig.complete_and_store(prompt, 32)
    hit = rig.engine.complete(prompt, max_tokens=TOKENS)
    rig.forget_on_device()
    before, seen = rig.external_hits(), len(rig.timeline())
    wrong = rig.engine.complete(prompt, max_tokens=TOKENS)
    assert rig.external_hits() - before == 31 * BLOCK
    assert wrong.tokens != hit.tokens
    stages = [(record["stage"], record.get("layer")) for record in rig.timeline()[seen:]]
    last = rig.engine.config.checkpoint.layers - 1
    assert stages.index(("layer_used", 0)) < stages.index(("layer_ready", last)), "the forward overlaps with the copy"
