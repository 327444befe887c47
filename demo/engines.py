"""What the demo needs from an engine: started with OrbitKV, asked over HTTP, and its own account of cached tokens.

Another engine is another class with the same methods and one entry in ENGINES.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from harness.checkpoint import Checkpoint
from harness.engine import Completion, Engine, EngineConfig
from harness.server import Server
from harness.sglang import SglangConfig, SglangEngine

BLOCK_TOKENS = 128
DEVICE_BLOCKS = 70  # Small, so that two long prompts push a third one out.
QUERY_WAIT_US = 500_000  # Long, so that a busy small machine shows hits too; the default suits a machine that serves.


@dataclass(frozen=True)
class Cached:
    """Prompt tokens that the engine says it did not compute, since it started, by where they came from."""

    device: int
    external: int

    def since(self, before: Cached) -> Cached:
        """Return what was added after an earlier reading."""
        return Cached(self.device - before.device, self.external - before.external)


class DemoEngine(Protocol):
    """One running engine."""

    name: str

    def complete(self, prompt: list[int], max_tokens: int) -> Completion:
        """Stream one greedy completion."""

    def cached(self) -> Cached:
        """Return the engine's own counters of cached prompt tokens."""

    def stop(self) -> None:
        """End the engine and everything that it started."""


class VllmEngine:
    """The OpenAI server of vLLM's CPU build, with OrbitKV as its KV connector."""

    name = "vLLM"

    def __init__(self, socket: str | None, log: Path) -> None:
        """Start the server; `socket` is the Manager's, None starts the engine alone."""
        self._engine = Engine.start(
            EngineConfig(
                checkpoint=Checkpoint(),
                block_size=BLOCK_TOKENS,
                device_blocks=DEVICE_BLOCKS,
                kv_transfer="" if socket is None else json.dumps(kv_transfer(socket)),
                arguments=("--prefix-caching-hash-algo", "sha256_cbor"),
            ),
            log,
        )

    def complete(self, prompt: list[int], max_tokens: int) -> Completion:
        """Stream one greedy completion."""
        return self._engine.complete(prompt, max_tokens)

    def cached(self) -> Cached:
        """Return prefix_cache_hits and external_prefix_cache_hits; the second is absent without a connector."""
        device, external = "vllm:prefix_cache_hits_total", "vllm:external_prefix_cache_hits_total"
        return Cached(total(self._engine, device), total(self._engine, external))

    def stop(self) -> None:
        """End the server."""
        self._engine.stop()


def kv_transfer(socket: str) -> dict[str, object]:
    """Return the value of --kv-transfer-config; apart from the last key it is what README.md tells users."""
    return {
        "kv_connector": "OrbitKVConnector",
        "kv_connector_module_path": "orbitkv.vllm",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"orbitkv.socket": socket, "orbitkv.query_wait_us": QUERY_WAIT_US},
    }


class SglangServer:
    """The server of SGLang on a CPU, with OrbitKV behind its radix cache."""

    name = "SGLang"

    def __init__(self, socket: str | None, log: Path) -> None:
        """Start the server; `socket` is the Manager's, None starts the engine alone."""
        self._engine = SglangEngine.start(
            SglangConfig(
                checkpoint=Checkpoint(),
                page_size=BLOCK_TOKENS,
                device_tokens=DEVICE_BLOCKS * BLOCK_TOKENS,
                orbitkv=socket is not None,
                environment=() if socket is None else orbitkv_environment(socket),
            ),
            log,
        )

    def complete(self, prompt: list[int], max_tokens: int) -> Completion:
        """Stream one greedy completion."""
        return self._engine.generate(prompt, max_tokens)

    def cached(self) -> Cached:
        """Return cached_tokens_total by its source; what came from outside of the device is the source `host`."""
        name = "sglang:cached_tokens_total"
        return Cached(*(total(self._engine, name, f'cache_source="{source}"') for source in ("device", "host")))

    def stop(self) -> None:
        """End the server."""
        self._engine.stop()


def orbitkv_environment(socket: str) -> tuple[tuple[str, str], ...]:
    """Return what tells the engine's processes of the Manager; README.md tells users of the first."""
    return (("ORBITKV_SOCKET", socket), ("ORBITKV_QUERY_WAIT_US", str(QUERY_WAIT_US)))


def total(engine: Server[Any], name: str, label: str = "") -> int:
    """Return a counter's sum over its label sets, or over those that hold a label; 0 before it was first counted."""
    samples = engine.counters().items()
    return int(sum(value for key, value in samples if key.partition("{")[0] == name and label in key))


ENGINES: dict[str, type[VllmEngine] | type[SglangServer]] = {"vllm": VllmEngine, "sglang": SglangServer}
