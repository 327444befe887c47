"""A real vLLM and a real Manager on one socket, for tests of what happens between them.

The engine computes in float32: its tokens then do not depend on how prompts are cut and batched, so that every answer
has one right value, cold or restored. What is counted is read from the engine's and the Manager's own counters.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import os
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import http as web
from harness.base import QUERY_WAIT_US, ManagerRig
from harness.engine import SERVED_NAME, Completion, Engine, EngineConfig
from harness.gate import FOLDER
from harness.manager import eventually
from harness.pool import EnginePool

TOOLS = Path(__file__).resolve().parents[1]
SOURCE = TOOLS.parent / "python" / "src"
PAGE_TOKENS = 128
DEVICE_PAGES = 69  # block 0 of the 70 is the engine's null block


@dataclass(frozen=True)
class Counted:
    """Prompt tokens by where they came from, and how many the engine asked OrbitKV for, since the engine's start."""

    device: int
    external: int
    asked: int

    def since(self, before: Counted) -> Counted:
        """Return what was added after an earlier reading."""
        return Counted(self.device - before.device, self.external - before.external, self.asked - before.asked)


def pages_below_last_token(tokens: int) -> int:
    """Return how many pages of a prompt can be restored: its last token is always computed."""
    return (tokens - 1) // PAGE_TOKENS


class Rig(ManagerRig):
    """One engine of vLLM, at most one Manager, and a gate in the engine's copying threads."""

    def __init__(self, binary: Path, folder: Path, engines: EnginePool) -> None:
        super().__init__(binary, folder)
        self._engines = engines

    def config(self, **changes: Any) -> EngineConfig:
        """Return the configuration of the shared engine, or one that differs in some fields."""
        connector = {
            "kv_connector": "OrbitKVConnector",
            "kv_connector_module_path": "harness.gated",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"orbitkv.socket": self.socket, "orbitkv.query_wait_us": QUERY_WAIT_US},
        }
        environment = (
            ("PYTHONPATH", os.pathsep.join((str(SOURCE), str(TOOLS)))),
            ("VLLM_SERVER_DEV_MODE", "1"),  # serves /reset_prefix_cache
            ("ORBITKV_TRACE_TRANSFERS", "1"),
            (FOLDER, str(self.gate.folder)),
        )
        plain = EngineConfig(
            block_size=PAGE_TOKENS,
            device_blocks=DEVICE_PAGES + 1,
            kv_transfer=json.dumps(connector),
            arguments=("--dtype", "float32", "--prefix-caching-hash-algo", "sha256_cbor"),
            environment=environment,
        )
        return dataclasses.replace(plain, **changes)

    def engine(self, config: EngineConfig | None = None) -> Engine:
        """Return a healthy engine of the configuration; whether it is connected is the caller's to see."""
        return self._engines.get(config or self.config())

    def begin(self, config: EngineConfig | None = None) -> Engine:
        """Return an engine that is connected to a fresh Manager, with nothing cached anywhere."""
        self.gate.open()
        self.serve()
        engine = self.engine(config)
        self.connected(engine)
        self.reset_device(engine)
        return engine

    def connected(self, engine: Engine) -> None:
        """Return once the engine publishes to the Manager."""
        self.wait_publishes(lambda prompt: engine.complete(prompt, max_tokens=2), PAGE_TOKENS + 1)

    def store(self, engine: Engine, prompt: list[int], max_tokens: int = 8) -> Completion:
        """Complete a prompt that was never published and return when its full pages are."""
        before = self.inserted()
        answer = engine.complete(prompt, max_tokens)
        self.wait_inserted(before + len(prompt) // PAGE_TOKENS)
        return answer

    def reset_device(self, engine: Engine) -> None:
        """Empty the engine's own prefix cache; it succeeds once nobody holds a block."""
        eventually(lambda: reset(engine), "the engine's own cache is emptied: nobody holds a block")

    def ask(self, engine: Engine, prompt: list[int], max_tokens: int = 8, **options: Any) -> tuple[Completion, Counted]:
        """Complete a prompt while no other request runs; return the answer and what the engine counted for it."""
        before = counted(engine)
        answer = engine.complete(prompt, max_tokens, **options)
        return answer, counted(engine).since(before)

    def start(self, engine: Engine, prompt: list[int], max_tokens: int = 8) -> Future[Completion]:
        """Send a request from a thread of its own."""
        return self._threads.submit(engine.complete, prompt, max_tokens)


def reset(engine: Engine, external: bool = False) -> bool:
    """Ask the engine to empty its prefix cache, OrbitKV's part of it too if `external`; return whether it did."""
    path = "/reset_prefix_cache" + ("?reset_external=true" if external else "")
    return bool(web.post(engine.port, path, {}).json()["success"])


def counted(engine: Engine) -> Counted:
    """Return the engine's own counters of cached prompt tokens."""
    names = ("prefix_cache_hits", "external_prefix_cache_hits", "external_prefix_cache_queries")
    device, external, asked = (int(engine.counter(f"vllm:{name}_total")) for name in names)
    return Counted(device, external, asked)


def named(engine: Engine, name: str) -> list[int]:
    """Return the engine's processes whose title holds a name."""
    found = []
    for pid in engine.processes():
        with contextlib.suppress(OSError):
            if name.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


class Client:
    """A request whose client can go away."""

    def __init__(self, engine: Engine, prompt: list[int], max_tokens: int = 8) -> None:
        body = {"model": SERVED_NAME, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "stream": True}
        self._connection = http.client.HTTPConnection("127.0.0.1", engine.port)
        self._connection.request(
            "POST", "/v1/completions", json.dumps({**body, "ignore_eos": True}), {"Content-Type": "application/json"}
        )

    def leave(self) -> None:
        """Close the connection without reading the answer."""
        self._connection.close()
