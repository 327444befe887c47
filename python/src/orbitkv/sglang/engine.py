"""Every question that is put to SGLang's configuration: is it supported, where is this rank, what are its facts.

`ctx` is what SGLang hands to a radix-cache factory (`TreeCacheBuildContext`); the rest is its published configuration.
Facts are strings; two engines whose facts are all equal write equal bytes for equal tokens.
"""

from __future__ import annotations

import logging
import secrets
from typing import Any

import sglang
import torch
from sglang.srt.environ import envs
from sglang.srt.mem_cache.utils import get_hash_str
from sglang.srt.model_executor.cuda_graph_config import Backend, Phase, check_cuda_graph_backend
from sglang.srt.runtime_context import (
    get_device,
    get_disagg,
    get_memory,
    get_model,
    get_observability,
    get_parallel,
    get_serving,
    get_spec,
)

from orbitkv._numa import node_of_process
from orbitkv.adapter.attachment import RankPlace
from orbitkv.adapter.facts import config_digest, digest_of
from orbitkv.adapter.logs import LOGGER
from orbitkv.adapter.settings import Settings
from orbitkv.errors import ConfigurationError
from orbitkv.identity import cache_scope, digest_text, refuse_unread_weights
from orbitkv.sglang.rank import EngineTensors
from orbitkv.sglang.tensors import engine_tensors, is_replicated, refuse_pool

# Formats whose weights do not come from the files that the model's path names.
UNREAD_FORMATS = ("remote_instance", "private")

ELSEWHERE = "start without --radix-cache-backend orbitkv"

log = logging.getLogger(LOGGER)


def left_alone() -> str:
    """Return why this engine gets no external hits although it may run, or an empty string."""
    mode = get_disagg().disaggregation_mode
    return f"its disaggregation mode is {mode!r}, whose queues are left alone" if mode != "null" else ""


def check_configuration(ctx: Any) -> None:
    """Refuse, with the remedy, flags that contradict the backend. ConfigurationError."""
    memory = get_memory()
    if not memory.enable_unified_cache_external_linker:
        raise ConfigurationError(
            "--enable-unified-cache-external-linker is missing, and without it SGLang starts no restore: "
            "add it beside --radix-cache-backend orbitkv"
        )
    if ctx.enable_hierarchical_cache:
        raise ConfigurationError(
            "the hierarchical cache would keep a second copy in host memory: remove --enable-hierarchical-cache"
        )
    if ctx.disable_radix_cache or ctx.params.disable:
        raise ConfigurationError(
            "the radix cache is off, and it is what OrbitKV extends: remove --disable-radix-cache, "
            "or choose another --model-impl for a multimodal model"
        )
    if ctx.params.page_size == 1:
        raise ConfigurationError(
            "the page size is 1 token, so that every token would be a page of its own: start with --page-size 64"
        )
    if get_disagg().disaggregation_decode_retraction_backup == "host_pool":
        raise ConfigurationError(
            "retracted requests go to SGLang's own host pool, which excludes an external cache: "
            "remove --disaggregation-decode-retraction-backup host_pool"
        )
    if get_disagg().enable_pdmux:
        raise ConfigurationError(
            "the forwards of --enable-pdmux run side by side and do not say which restore they wait for: "
            "remove --enable-pdmux"
        )
    core = envs.SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND.get()
    if core != "python":
        raise ConfigurationError(
            f"the tree core is {core!r}, whose nodes cannot be asked what is stored: "
            "unset SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND"
        )
    if memory.enable_hisparse or memory.enable_unified_memory or memory.enable_page_major_kv_layout:
        raise ConfigurationError(
            "KV pools that share or reorder their memory are not supported: "
            "remove --enable-hisparse, --enable-unified-memory and --enable-page-major-kv-layout"
        )


def check_settings(settings: Settings) -> None:
    """Refuse settings of OrbitKV that SGLang cannot honour. ConfigurationError."""
    if settings.verify:
        raise ConfigurationError(
            f"orbitkv.verify is {settings.verify!r}, but SGLang has restored pages in its tree before they could be "
            "checked and cannot take them out again: remove orbitkv.verify, and ORBITKV_VERIFY from the environment"
        )


def layers_ask() -> bool:
    """Return whether a forward asks for each layer's KV before it reads it.

    It does in eager forwards, and in graphs that break or are cut at each attention; a prefill that is one graph as a
    whole replays without a word. Decode graphs are such graphs too, but the prefill before them asked.
    """
    return not check_cuda_graph_backend(Phase.PREFILL, Backend.FULL)


def prepare_hash() -> None:
    """Compile SGLang's page hash, or find it compiled. ConfigurationError when it cannot be.

    SGLang compiles it in the scheduler's first look-up, which would hold up every request, or end the engine.
    """
    try:
        get_hash_str([0], page_size=1)
    except (RuntimeError, ImportError, OSError) as fault:
        raise ConfigurationError(
            f"SGLang's page hash cannot be compiled ({fault}: {fault.__cause__}): install g++, ninja and the headers "
            "of OpenSSL (libssl-dev), and see that TORCH_EXTENSIONS_DIR, or ~/.cache/torch_extensions, can be written"
        ) from fault


def refuse_unsupported(ctx: Any) -> None:
    """Refuse a model or a spread over ranks whose pages are more than one slice a rank. ConfigurationError."""
    if ctx.is_hybrid_swa:
        raise ConfigurationError(f"the model has sliding-window layers, and full attention is supported: {ELSEWHERE}")
    if ctx.is_hybrid_ssm:
        raise ConfigurationError(
            f"the model keeps recurrent state (Mamba, linear attention) beside its KV, which is not stored: {ELSEWHERE}"
        )
    if ctx.is_dsa:
        raise ConfigurationError(f"the model's sparse attention (DSA) keeps an index beside its KV: {ELSEWHERE}")
    if ctx.params.mtp_draft_device_pools:
        raise ConfigurationError(
            "a draft model's KV lies in pools of its own, which are not stored: remove --speculative-algorithm"
        )
    for reason, value in spreads():
        if value:
            raise ConfigurationError(f"{reason}, which is not supported: use --tp-size and --dp-size alone")
    if get_parallel().nnodes > 1:
        raise ConfigurationError("its ranks run on several hosts, and one Cache Manager serves one host")
    refuse_pool(pool_of(ctx))


def spreads() -> tuple[tuple[str, bool], ...]:
    """Return each way to spread a model over ranks that is not supported, and whether it is in use."""
    parallel = get_parallel()
    return (
        ("pipeline parallelism (--pp-size) spreads the layers over ranks", parallel.pp_size > 1),
        (
            "data-parallel attention (--enable-dp-attention) gives ranks caches of their own",
            parallel.enable_dp_attention,
        ),
        ("context parallelism (--attn-cp-size) spreads one page over ranks", parallel.attn_cp_size > 1),
        ("context parallelism (--enable-prefill-cp) spreads one page over ranks", parallel.enable_prefill_cp),
        ("decode context parallelism (--dcp-size) spreads one page over ranks", parallel.dcp_size > 1),
    )


def pool_of(ctx: Any) -> Any:
    """Return the engine's KV pool."""
    return ctx.params.token_to_kv_pool_allocator.get_kvcache()


def tensors_of(ctx: Any) -> EngineTensors:
    """Return the engine's KV pool by pages. ConfigurationError names a layer that cannot be copied by page."""
    return engine_tensors(pool_of(ctx), ctx.tp_worker.model_runner.forward_stream, layers_ask=layers_ask())


def place_of_rank(ctx: Any, tensors: EngineTensors) -> RankPlace:
    """Return this rank's place. All ranks call it together, at start: the first one names the instance for all."""
    replicated = is_replicated(pool_of(ctx))
    return RankPlace(
        instance=f"sglang-{agreed_number(ctx.params.tp_cache_group, ctx.tp_size):016x}",
        rank=ctx.tp_rank,
        world=ctx.tp_size,
        storage=not replicated or ctx.tp_rank == 0,
        slice_rank=0 if replicated else ctx.tp_rank,
        # The KV of a CPU engine lies where its threads touch it first.
        numa=node_of_process() if tensors.site is None else tensors.site.numa,
    )


def agreed_number(group: Any, world: int) -> int:
    """Return 63 random bits, never zero, that the first rank of the engine's CPU group draws for all of them."""
    drawn = torch.tensor([secrets.randbits(63) or 1], dtype=torch.int64)
    if world > 1:
        torch.distributed.broadcast(drawn, src=torch.distributed.get_global_rank(group, 0), group=group)
    return int(drawn.item())


def namespace_facts(ctx: Any, tensors: EngineTensors) -> dict[str, str]:
    """Return the facts of this engine's KV bytes. Reads the weight files unless their digests are known."""
    model, chosen, pool = ctx.model_config, get_model(), pool_of(ctx)
    if str(chosen.load_format) in UNREAD_FORMATS:
        refuse_unread_weights(str(chosen.load_format))
    target = digest_of(model.model_path, model.revision)
    log.info("%s", target.describe())
    runner = ctx.tp_worker.model_runner
    facts = {
        "engine": f"sglang {sglang.__version__}",
        "weights": target.hex,
        "model_config": config_digest(model.hf_config),
        "model_impl": str(chosen.model_impl),
        "load_format": str(chosen.load_format),
        "dtype": str(model.dtype),
        "quantization": str(model.quantization),
        "cache_dtype": str(pool.dtype),
        "cache_scales": scales_digest(chosen.quantization_param_path),
        "layout": getattr(pool, "kv_cache_layout", "latent"),
        "attention": f"{runner.prefill_attention_backend_str}/{runner.decode_attention_backend_str}",
        "block_tokens": str(ctx.params.page_size),
        "layers": digest_text(f"{layer.name} {layer.block_bytes}" for layer in tensors.layout.layers),
        "tensor_parallel": str(ctx.tp_size),
        # Bigram keys name a page by its tokens and the one that follows.
        "hash": "sglang-sha256/bigram" if ctx.params.is_eagle else "sglang-sha256",
        "scope": cache_scope(),
    }
    if str(chosen.load_format) == "dummy":
        facts["seed"] = str(get_device().random_seed)
    return facts | speculation_facts()


def speculation_facts() -> dict[str, str]:
    """Return the facts of speculative decoding, none without it."""
    spec = get_spec()
    if spec.speculative_algorithm is None:
        return {}
    draft = spec.speculative_draft_model_path
    return {
        "speculation": str(spec.speculative_algorithm),
        "draft_weights": digest_of(draft, spec.speculative_draft_model_revision).hex if draft else "",
    }


def scales_digest(path: str | None) -> str:
    """Return a digest of the file of KV scales, empty without one. ConfigurationError when it cannot be read."""
    if not path:
        return ""
    try:
        with open(path, encoding="utf-8") as file:
            return digest_text([file.read()])
    except (OSError, UnicodeDecodeError) as fault:
        raise ConfigurationError(f"--quantization-param-path {path} cannot be read: {fault}") from fault


def metric_labels(ctx: Any) -> dict[str, Any] | None:
    """Return the labels of this rank's metrics, as SGLang's scheduler has them, or None when metrics are off."""
    observed = get_observability()
    if not observed.enable_metrics:
        return None
    ranks = ctx.tp_worker.ps
    labels: dict[str, Any] = {
        "model_name": get_serving().served_model_name,
        "engine_type": "unified",
        "tp_rank": ctx.tp_rank,
        "pp_rank": ctx.params.pp_rank,
        "moe_ep_rank": ranks.moe_ep_rank,
    }
    if ranks.dp_rank is not None:
        labels["dp_rank"] = ranks.dp_rank
    return labels | (observed.extra_metric_labels or {})
