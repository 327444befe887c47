"""Every question that is put to vLLM's configuration: is it supported, where is this rank, what are its facts.

Release differences are met here too. Facts are strings; two engines whose facts are all equal write equal bytes for
equal tokens.
"""

from __future__ import annotations

import logging
import os
import platform
import secrets
from collections.abc import Mapping
from typing import Any

import vllm
from vllm.config import CUDAGraphMode
from vllm.distributed.parallel_state import get_pp_group, get_tp_group
from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec, UniformTypeKVCacheSpecs

from orbitkv._numa import NO_NODE, node_of_process
from orbitkv.adapter.attachment import RankPlace
from orbitkv.adapter.facts import config_digest, digest_of
from orbitkv.adapter.logs import LOGGER
from orbitkv.errors import ConfigurationError
from orbitkv.identity import cache_scope, digest_text, refuse_unread_weights
from orbitkv.transfer import DIGEST_FORMAT, is_verified
from orbitkv.vllm.scheduler import Geometry
from orbitkv.vllm.worker import EngineLayers

TESTED_RELEASES = ("0.29.0",)
REPLICATED_SPECS = (MLAAttentionSpec,)
FULL_SPECS = (FullAttentionSpec, MLAAttentionSpec)
# Load formats that read the files of the model's path (vllm/model_executor/model_loader/__init__.py), or none at all.
READ_FORMATS = (
    "auto",
    "hf",
    "dummy",
    "fastsafetensors",
    "instanttensor",
    "mistral",
    "npcache",
    "pt",
    "runai_streamer",
    "runai_streamer_sharded",
    "safetensors",
    "sharded_state",
)
DRAFTS_WITHOUT_KV = ("ngram", "ngram_gpu", "medusa", "mlp_speculator", "suffix")  # methods whose drafts cache nothing

log = logging.getLogger(LOGGER)


def check_configuration(config: Any) -> None:
    """Refuse, with the remedy, what could give wrong output or failed requests. ConfigurationError."""
    if vllm.__version__ not in TESTED_RELEASES:
        log.warning("vLLM %s was not tested with OrbitKV; tested: %s", vllm.__version__, ", ".join(TESTED_RELEASES))
    policy = config.kv_transfer_config.kv_load_failure_policy
    if policy != "recompute":
        raise ConfigurationError(
            f"kv_load_failure_policy is {policy!r}, so a failed restore would fail its request: "
            'add "kv_load_failure_policy": "recompute" to --kv-transfer-config'
        )
    role = config.kv_transfer_config.kv_role
    if role != "kv_both":
        raise ConfigurationError(
            f"kv_role is {role!r}, and OrbitKV both stores and restores: "
            'set "kv_role": "kv_both" in --kv-transfer-config'
        )
    algorithm = config.cache_config.prefix_caching_hash_algo
    if str(algorithm).startswith("xxhash"):
        raise ConfigurationError(
            f"the prefix hash {algorithm} is seeded at random in each process, so its keys name nothing outside of it: "
            "start with --prefix-caching-hash-algo sha256_cbor"
        )


def unsupported(config: Any, caches: Any) -> str:
    """Return why this engine gets no external hits, or an empty string when it does."""
    parallel = config.parallel_config
    groups = caches.kv_cache_groups
    if len(groups) != 1:
        return f"the model has {len(groups)} cache groups, and one group of full attention is supported"
    kinds = {type(spec) for spec in specs_of(groups[0].kv_cache_spec)}
    if not kinds <= set(FULL_SPECS):
        return f"its cache holds {', '.join(sorted(kind.__name__ for kind in kinds))}, and full attention is supported"
    if parallel.decode_context_parallel_size > 1 or parallel.prefill_context_parallel_size > 1:
        return "context parallelism spreads one block over several ranks, which is not supported"
    if getattr(parallel, "nnodes", 1) > 1:
        return "its ranks run on several hosts, and one Cache Manager serves one host"
    return ""


def specs_of(spec: Any) -> list[Any]:
    """Return the spec of each layer of a group, or the one that all share."""
    return list(spec.kv_cache_specs.values()) if isinstance(spec, UniformTypeKVCacheSpecs) else [spec]


def geometry_of(config: Any) -> Geometry:
    """Return what the scheduler side must know."""
    speculative = config.speculative_config
    # Such a drafter's own KV of the last full page depends on a hidden state that comes with the next token.
    volatile = 1 if speculative is not None and speculative.use_eagle() else 0
    return Geometry(config.cache_config.block_size, config.parallel_config.world_size, volatile)


def waits_by_layer(config: Any, layers: EngineLayers) -> bool:
    """Return whether each cached layer has a hook that comes before everything that reads the layer.

    The indexer of a sparse attention has a cache of its own and no hook. A drafter's forward is apart from the target's
    and may replay a graph of its own, after the step's end under one of vLLM's two runners and before it under the
    other.
    """
    speculative = config.speculative_config
    if speculative is not None and speculative.method not in DRAFTS_WITHOUT_KV:
        return False
    # A worker has imported its layers long ago; a scheduler's process, which asks nothing here, never does.
    from vllm.model_executor.layers.attention import Attention, MLAAttention

    modules: Mapping[str, Any] = config.compilation_config.static_forward_context
    return all(isinstance(modules.get(name), Attention | MLAAttention) for name in layers.index)


def runs_hooks(forward_context: Any) -> bool:
    """Return whether the forward that comes next calls `wait_for_layer_load` for every layer.

    A full graph is replayed without Python. One runner says so by the context's mode; the other replays it outside of
    any context, so that the one of this call has no attention metadata, like that of a step without a forward.
    """
    return bool(forward_context.attn_metadata) and forward_context.cudagraph_runtime_mode is not CUDAGraphMode.FULL


def place_of_rank(config: Any, caches: Any) -> RankPlace:
    """Return this worker's place. All ranks call it together: the first one names the instance for all."""
    tensor, pipeline = get_tp_group(), get_pp_group()
    name = f"{config.kv_transfer_config.engine_id}-{secrets.token_hex(4)}"
    name = tensor.broadcast_object(name, src=0)
    if pipeline.world_size > 1:
        name = pipeline.broadcast_object(name, src=0)
    rank = pipeline.rank_in_group * tensor.world_size + tensor.rank_in_group
    replicated = all(isinstance(spec, REPLICATED_SPECS) for spec in specs_of(caches.kv_cache_groups[0].kv_cache_spec))
    first = rank - tensor.rank_in_group
    return RankPlace(
        instance=with_replica(name, config.parallel_config),
        rank=rank,
        world=tensor.world_size * pipeline.world_size,
        storage=not replicated or rank == first,
        slice_rank=first if replicated else rank,
        # The KV of a CPU engine lies where its threads touch it first. Where a device's lies, its tensors tell.
        numa=node_of_process() if config.device_config.device_type == "cpu" else NO_NODE,
    )


def with_replica(name: str, parallel: Any) -> str:
    """Return the instance's name with its data-parallel rank; vLLM adds it to the engine's id in its own servers."""
    index = parallel.data_parallel_index
    suffix = f"_dp{index}"
    return name if parallel.data_parallel_size <= 1 or suffix in name else name + suffix


def namespace_facts(config: Any, caches: Any, layers: EngineLayers) -> dict[str, str]:
    """Return the facts of this engine's KV bytes. Reads the weight files unless their digests are known."""
    model, cache, parallel = config.model_config, config.cache_config, config.parallel_config
    if str(config.load_config.load_format) not in READ_FORMATS:
        refuse_unread_weights(str(config.load_config.load_format))
    target = digest_of(model.model, model.revision)
    log.info("%s", target.describe())
    facts = {
        "engine": f"vllm {vllm.__version__}",
        "weights": target.hex,
        "model_config": config_digest(model.hf_config),
        "load_format": str(config.load_config.load_format),
        "dtype": str(model.dtype),
        "quantization": str(model.quantization),
        "cache_dtype": ",".join((str(cache.cache_dtype), *getattr(cache, "kv_cache_dtype_skip_layers", ()))),
        "layout": str(caches.kv_cache_layout or cache.kv_cache_layout),
        "attention": attention_backends(config, layers),
        "block_tokens": str(cache.block_size),
        "layers": digest_text(layer.name for layer in layers.layout.layers)
        if parallel.pipeline_parallel_size == 1
        else "split",
        "tensor_parallel": str(parallel.tensor_parallel_size),
        "pipeline_parallel": "/".join(
            (str(parallel.pipeline_parallel_size), os.environ.get("VLLM_PP_LAYER_PARTITION", ""))
        ),
        "hash": hash_schema(str(cache.prefix_caching_hash_algo)),
        "scope": cache_scope(),
    }
    if is_verified(layers.layout):
        facts["digest"] = DIGEST_FORMAT
    if str(config.load_config.load_format) == "dummy":
        facts["seed"] = str(model.seed)
    speculative = config.speculative_config
    if speculative is not None:
        facts["speculation"] = str(speculative.method)
        draft = speculative.draft_model_config
        facts["draft_weights"] = digest_of(draft.model, draft.revision).hex if draft else ""
    return facts


def attention_backends(config: Any, layers: EngineLayers) -> str:
    """Return the names of the attention backends of the cached layers, each once."""
    modules: Mapping[str, Any] = config.compilation_config.static_forward_context
    found = {modules[name].get_attn_backend().get_name() for name in layers.index if name in modules}
    return ",".join(sorted(found))


def hash_schema(algorithm: str) -> str:
    """Return everything that decides a block's hash beside its content.

    `sha256` hashes pickled objects, so it holds for one Python release; the seed is vLLM's own unless it was given.
    """
    release = platform.python_version() if algorithm == "sha256" else ""
    return "/".join((algorithm, release, os.environ.get("PYTHONHASHSEED", "default")))
