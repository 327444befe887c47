"""One real vLLM OpenAI server: its command line, its environment, and completions over HTTP."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from harness import http
from harness.checkpoint import Checkpoint, ensure
from harness.server import EngineFailure, Server, search_path

SERVED_NAME = "tiny"


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

    def whole_environment(self) -> dict[str, str]:
        """Return the whole environment of the server."""
        return {**base_environment(), **dict(self.environment)}


def base_environment() -> dict[str, str]:
    """Return this process's environment with what every engine on a machine without a GPU or network needs."""
    return {
        **os.environ,
        "PYTHONPATH": search_path(),
        "PYTHONUNBUFFERED": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }


@dataclass(frozen=True)
class Completion:
    """What one request gave: tokens, how many of its prompt came from a cache, and when tokens arrived (s).

    `logprobs` are those of the tokens, where the request asked for them.
    """

    tokens: tuple[int, ...]
    text: str
    prompt_tokens: int
    cached_tokens: int
    first_token_s: float
    total_s: float
    finish_reason: str
    logprobs: tuple[float, ...]


@dataclass
class Engine(Server[EngineConfig]):
    """A running vLLM server. Use `start`, or the `engines` fixture in tests."""

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


def _collect(events: Iterator[dict[str, Any]], begun: float) -> Completion:
    """Fold the stream of a completion into one value; an error event raises."""
    tokens: list[int] = []
    logprobs: list[float] = []
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
            logprobs += (choice.get("logprobs") or {}).get("token_logprobs") or []
            text += choice["text"]
            reason = choice.get("finish_reason") or reason
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    total_s = time.monotonic() - begun
    prompt_tokens = usage.get("prompt_tokens", 0)
    return Completion(tuple(tokens), text, prompt_tokens, cached, first_s, total_s, reason, tuple(logprobs))
