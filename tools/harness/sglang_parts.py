"""What SGLang hands to a cache factory, made of its own objects without an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from harness import sglang_modules  # noqa: F401

# isort: split
import torch
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool, ReqToTokenPool
from sglang.srt.mem_cache.registry import TreeCacheBuildContext
from sglang.srt.runtime_context import get_context

PAGE, TOKENS, LAYERS, HEADS, HEAD = 16, 256, 3, 2, 8
PAGES = TOKENS // PAGE + 1

Context = Callable[..., TreeCacheBuildContext]


def mha(kind: type = MHATokenToKVPool, **changes: Any) -> Any:
    """Return a small pool with keys and values apart."""
    shape: dict[str, Any] = {"size": TOKENS, "page_size": PAGE, "dtype": torch.bfloat16, "head_num": HEADS}
    shape |= {"head_dim": HEAD, "layer_num": LAYERS, "device": "cpu", "enable_memory_saver": False}
    return kind(**(shape | changes))


def mla() -> MLATokenToKVPool:
    """Return a small pool of latent vectors."""
    return MLATokenToKVPool(
        size=TOKENS,
        page_size=PAGE,
        dtype=torch.bfloat16,
        kv_lora_rank=32,
        qk_rope_head_dim=8,
        layer_num=LAYERS,
        device="cpu",
        enable_memory_saver=False,
    )


@contextmanager
def contexts(model: Path) -> Iterator[Context]:
    """Give a function that makes what SGLang hands to a factory; `flags` are arguments of the server."""
    installed: list[Any] = []

    def make(
        pool: Any = None, flags: dict[str, Any] | None = None, params: dict[str, Any] | None = None, **changes: Any
    ) -> TreeCacheBuildContext:
        while installed:
            installed.pop().restore()
        given: dict[str, Any] = {"page_size": PAGE, "device": "cpu", "attention_backend": "torch_native"}
        given |= {"enable_unified_cache_external_linker": True, "radix_cache_backend": "orbitkv"}
        override = get_context().override_server_args(**(given | (flags or {})))
        installed.append(override)
        server_args = override.install()
        pool = mha() if pool is None else pool
        common: dict[str, Any] = {
            "disable": False,
            "req_to_token_pool": ReqToTokenPool(4, 64, "cpu", enable_memory_saver=False),
            "token_to_kv_pool_allocator": PagedTokenToKVPoolAllocator(
                TOKENS, PAGE, torch.bfloat16, "cpu", pool, need_sort=False
            ),
            "page_size": PAGE,
        }
        values: dict[str, Any] = {
            "server_args": server_args,
            "params": CacheInitParams(**(common | (params or {}))),
            "is_hybrid_swa": False,
            "is_hybrid_ssm": False,
            "enable_hierarchical_cache": False,
            "disable_radix_cache": False,
            "effective_chunked_prefill_size": 64,
            "tp_worker": tp_worker(),
            "model_config": model_config(model),
            "tp_size": 1,
            "tp_rank": 0,
            "tp_group": None,
        }
        return TreeCacheBuildContext(**(values | changes))

    try:
        yield make
    finally:
        while installed:
            installed.pop().restore()


def tp_worker(prefill: str = "torch_native") -> SimpleNamespace:
    """Return as much of a worker as the adapter looks at."""
    worker = SimpleNamespace(
        model_runner=SimpleNamespace(
            prefill_attention_backend_str=prefill,
            decode_attention_backend_str="torch_native",
            forward_stream=torch.cpu.Stream(),
        ),
        ps=SimpleNamespace(moe_ep_rank=0, dp_rank=None),
        counter=None,
    )
    worker.register_hicache_layer_transfer_counter = lambda counter: setattr(worker, "counter", counter)
    return worker


def model_config(folder: Path, **changes: Any) -> SimpleNamespace:
    """Return as much of a model's configuration as the adapter looks at."""
    rope = changes.pop("rope", 10000)
    values: dict[str, Any] = {"model_path": str(folder), "revision": None, "dtype": torch.bfloat16}
    values |= {"quantization": None, "is_multimodal": False}
    values |= {"hf_config": SimpleNamespace(to_dict=lambda: {"rope_theta": rope})}
    return SimpleNamespace(**(values | changes))
