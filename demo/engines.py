"""What the demo needs from an engine: started with OrbitKV, asked over HTTP, and its own account of cached tokens.

Another engine is another class with the same methods and one entry in ENGINES.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from harness.checkpoint import Checkpoint
from harness.engine import Completion, Engine, EngineConfig

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
        samples = self._engine.counters()

        def total(name: str) -> int:
            return int(sum(value for key, value in samples.items() if key.partition("{")[0] == name))

        return Cached(total("vllm:prefix_cache_hits_total"), total("vllm:external_prefix_cache_hits_total"))

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


ENGINES = {"vllm": VllmEngine}
