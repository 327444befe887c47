"""One real vLLM OpenAI server as a process group: started, asked over HTTP, stopped, and nothing of it left.

Whoever starts an engine owns its end. The server is a session of its own, so that every process it starts can be found
and ended by that session's id; a sentinel beside it does so when the starter is killed.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import http
from harness.checkpoint import Checkpoint, ensure
from harness.sentinel import kill_session, session_members

START_LIMIT_S = 900.0  # Generous: a slow machine is no failure, only a dead process or this limit is.
STOP_LIMIT_S = 30.0  # From SIGTERM to SIGKILL.
END_LIMIT_S = 20.0  # For the kernel and init to bury what was killed.
POLL_S = 0.25
LOG_TAIL_BYTES = 6000
SERVED_NAME = "tiny"


class EngineFailure(Exception):
    """The engine did not start, died or did not end; the text carries the tail of its log."""


@dataclass(frozen=True)
class EngineConfig:
    """Everything that tells one engine process from another; equal values may share one process.

    `kv_transfer` is the JSON text of --kv-transfer-config, or empty for an engine without a connector.
    """

    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    block_size: int = 128
    device_blocks: int = 70
    max_model_len: int = 8192
    kv_transfer: str = ""
    arguments: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()

    def command(self, port: int) -> list[str]:
        """Return the server's command line, run by the interpreter that runs this."""
        line = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(port)]
        line += ["--model", str(ensure(self.checkpoint)), "--served-model-name", SERVED_NAME, "--enforce-eager"]
        line += ["--max-model-len", str(self.max_model_len), "--block-size", str(self.block_size)]
        line += ["--num-gpu-blocks-override", str(self.device_blocks), "--enable-prompt-tokens-details"]
        if self.kv_transfer:
            line += ["--kv-transfer-config", self.kv_transfer]
        return [*line, *self.arguments]


def base_environment() -> dict[str, str]:
    """Return this process's environment with what every engine on a machine without a GPU or network needs."""
    source = Path(__file__).resolve().parents[2] / "python" / "src"
    path = os.pathsep.join(p for p in (str(source), os.environ.get("PYTHONPATH", "")) if p)
    return {
        **os.environ,
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }


@dataclass(frozen=True)
class Completion:
    """What one request gave: tokens, how many of its prompt came from a cache, and when tokens arrived (s)."""

    tokens: tuple[int, ...]
    text: str
    prompt_tokens: int
    cached_tokens: int
    first_token_s: float
    total_s: float
    finish_reason: str


@dataclass
class Engine:
    """A running server. Use `start`, or the `engines` fixture in tests; `stop` may be called twice."""

    config: EngineConfig
    process: subprocess.Popen[bytes]
    sentinel: subprocess.Popen[bytes]
    port: int
    log: Path
    ended: bool = field(default=False)

    @classmethod
    def start(cls, config: EngineConfig, log: Path, limit_s: float = START_LIMIT_S) -> Engine:
        """Start the server and return when it answers /health; on failure nothing is left running."""
        port = free_port()
        log.parent.mkdir(parents=True, exist_ok=True)
        environment = {**base_environment(), **dict(config.environment)}
        command = config.command(port)
        with log.open("wb") as out:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment, start_new_session=True
            )
        sentinel = _sentinel(process.pid)
        engine = cls(config, process, sentinel, port, log)
        try:
            engine.wait_ready(limit_s)
        except BaseException:
            engine.kill()
            raise
        return engine

    def wait_ready(self, limit_s: float) -> None:
        """Return once /health answers 200; raise when the process died or the limit passed."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise EngineFailure(self.report(f"the engine ended with {self.process.returncode} while starting"))
            if self.healthy():
                return
            time.sleep(POLL_S)
        raise EngineFailure(self.report(f"the engine was not ready after {limit_s:.0f} s"))

    def healthy(self) -> bool:
        """Return whether /health answers 200 now."""
        try:
            return http.get(self.port, "/health").status == 200
        except OSError:
            return False

    def complete(self, prompt: list[int], max_tokens: int = 8, **options: Any) -> Completion:
        """Stream one greedy completion of token ids. `options` are further fields of the request."""
        body = {
            "model": SERVED_NAME,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            **options,
        }
        begun = time.monotonic()
        return _collect(http.stream(self.port, "/v1/completions", body), begun)

    def counters(self) -> Mapping[str, float]:
        """Return every sample of /metrics, keyed by name with its labels as the engine prints them."""
        return http.samples(http.get(self.port, "/metrics").text())

    def counter(self, name: str) -> float:
        """Return the sum over all label sets of one metric; an absent metric is an error, never 0."""
        found = [value for key, value in self.counters().items() if key.partition("{")[0] == name]
        if not found:
            raise EngineFailure(f"the engine has no metric {name}")
        return sum(found)

    def processes(self) -> list[int]:
        """Return the ids of every live process of the server's session."""
        return session_members(self.process.pid)

    def stop(self) -> None:
        """End the server with SIGTERM, with SIGKILL after STOP_LIMIT_S, and check that nothing of it is left."""
        if self.ended:
            return
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(STOP_LIMIT_S)
            self._await_end(STOP_LIMIT_S)
        except (subprocess.TimeoutExpired, EngineFailure):
            self.kill()
            raise EngineFailure(self.report(f"the engine did not end within {STOP_LIMIT_S:.0f} s of SIGTERM")) from None
        self._ended()

    def kill(self) -> None:
        """End every process of the server with SIGKILL and wait until they are gone."""
        kill_session(self.process.pid)
        self.process.wait(END_LIMIT_S)
        self._await_end(END_LIMIT_S)
        self._ended()

    def _ended(self) -> None:
        """Tell the sentinel that nothing is left to end, and wait for it."""
        if not self.ended:
            self.sentinel.communicate(b"e", END_LIMIT_S)
        self.ended = True

    def _await_end(self, limit_s: float) -> None:
        end = time.monotonic() + limit_s
        while left := self.processes():
            if time.monotonic() > end:
                raise EngineFailure(self.report(f"processes of the engine are left: {left}"))
            time.sleep(POLL_S)

    def report(self, what: str) -> str:
        """Return the message with the end of the server's log."""
        tail = self.log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
        return f"{what}; the end of {self.log}:\n{tail}"


def _collect(events: Iterator[dict[str, Any]], begun: float) -> Completion:
    """Fold the stream of a completion into one value; an error event raises."""
    tokens: list[int] = []
    text, reason, first_s = "", "", 0.0
    usage: dict[str, Any] = {}
    for event in events:
        if "error" in event:
            raise EngineFailure(f"the engine answered a completion with an error: {event['error']}")
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            if choice.get("token_ids") and not tokens:
                first_s = time.monotonic() - begun
            tokens += choice.get("token_ids") or []
            text += choice["text"]
            reason = choice.get("finish_reason") or reason
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    total_s = time.monotonic() - begun
    return Completion(tuple(tokens), text, usage.get("prompt_tokens", 0), cached, first_s, total_s, reason)


def _sentinel(session: int) -> subprocess.Popen[bytes]:
    """Start the process that ends the session when this one is killed."""
    command = [sys.executable, "-m", "harness.sentinel", str(session)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    return subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, start_new_session=True)


def free_port() -> int:
    """Return a loopback port that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
