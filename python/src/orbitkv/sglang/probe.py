"""The names of SGLang that the adapter uses. One that a release lacks is refused by name, before anything is built.

A release is judged by what it has, not by its number alone: the number only decides whether a warning is due.
"""

from __future__ import annotations

import logging
import pkgutil
from collections.abc import Iterable

from orbitkv.adapter.logs import LOGGER
from orbitkv.errors import ConfigurationError

TESTED_RELEASES = ("0.5.20",)

TREE = "sglang.srt.mem_cache.unified_radix_cache:UnifiedRadixCache"
LINKER = "sglang.srt.mem_cache.unified_cache.unified_cache_linker"
WRAPPER = f"{LINKER}:UnifiedCacheLinkerWrapper"
UPDATER = "sglang.srt.managers.scheduler_components.weight_updater:SchedulerWeightUpdaterManager"
CONTEXT = "sglang.srt.runtime_context"

SYMBOLS = (
    f"{TREE}.init_cache_linker",
    f"{TREE}.check_hicache_events",
    f"{TREE}.ready_to_load_host_cache",
    f"{TREE}._all_reduce_attn_groups",
    f"{WRAPPER}.match",
    f"{WRAPPER}.load_back",
    f"{WRAPPER}.offload_nodes",
    f"{WRAPPER}.drain_loads",
    f"{WRAPPER}.take_completed_offloads",
    f"{WRAPPER}.commit_completed_offloads",
    f"{WRAPPER}.release_request",
    f"{WRAPPER}.reset",
    f"{WRAPPER}._sync_restorable_prefix",
    f"{LINKER}:UnifiedCacheLinker",
    "sglang.srt.mem_cache.unified_cache.unified_tree_core:UnifiedTreeCore.node_by_id",
    "sglang.srt.mem_cache.unified_cache.components:ComponentType.FULL",
    "sglang.srt.mem_cache.registry:default_radix_cache_factory",
    "sglang.srt.mem_cache.memory_pool:MHATokenToKVPool.register_layer_transfer_counter",
    "sglang.srt.mem_cache.memory_pool:MLATokenToKVPool.register_layer_transfer_counter",
    "sglang.srt.managers.tp_worker:TpModelWorker.register_hicache_layer_transfer_counter",
    "sglang.srt.managers.schedule_policy:PrefillAdder.add_one_req",
    "sglang.srt.managers.schedule_policy:AddReqResult.CONTINUE",
    "sglang.srt.managers.schedule_batch:MM_PAD_SHIFT_VALUE",
    "sglang.srt.mem_cache.utils:get_hash_str",
    f"{UPDATER}.update_weights_from_disk",
    f"{UPDATER}.update_weights_from_distributed",
    f"{UPDATER}.update_weights_from_tensor",
    f"{UPDATER}.update_weights_from_ipc",
    f"{UPDATER}.check_weights",
    "sglang.srt.plugins.hook_registry:HookRegistry.apply_hooks",
    "sglang.srt.plugins.hook_registry:HookType.AROUND",
    "sglang.srt.environ:envs.SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND",
    *(
        f"{CONTEXT}:get_{group}"
        for group in ("context", "disagg", "lora", "memory", "model", "observability", "parallel")
    ),
    *(f"{CONTEXT}:get_{group}" for group in ("device", "serving", "spec")),
    "sglang.srt.model_executor.cuda_graph_config:Backend.FULL",
    "sglang.srt.model_executor.cuda_graph_config:Phase.PREFILL",
    "sglang.srt.model_executor.cuda_graph_config:check_cuda_graph_backend",
)

# What SGLang asks of a linker. A release that asks for more has loads or saves that would never end.
LINKER_METHODS = frozenset(
    {
        "cancel_queued_load",
        "close",
        "load",
        "lookup",
        "num_completed_loads",
        "num_completed_offloads",
        "offload",
        "pop_completed_load",
        "pop_completed_offload",
        "reset",
        "start_layer_wise_loading",
    }
)

log = logging.getLogger(LOGGER)


def check_symbols() -> None:
    """Refuse a release that lacks a name or asks a linker for more; warn of one that was not tested."""
    import sglang

    release = str(sglang.__version__)
    tested = ", ".join(TESTED_RELEASES)
    if lacking := missing(SYMBOLS):
        raise ConfigurationError(
            f"SGLang {release} lacks {', '.join(lacking)}, which OrbitKV needs: install one of the releases {tested}"
        )
    asked = pkgutil.resolve_name(f"{LINKER}:UnifiedCacheLinker").__abstractmethods__
    if asked != LINKER_METHODS:
        raise ConfigurationError(
            f"SGLang {release} asks a cache linker for other methods ({', '.join(sorted(asked ^ LINKER_METHODS))}): "
            f"install one of the releases {tested}"
        )
    if release not in TESTED_RELEASES:
        log.warning("SGLang %s was not tested with OrbitKV; tested: %s", release, tested)


def missing(symbols: Iterable[str]) -> list[str]:
    """Return those of `module:attribute` that cannot be resolved."""
    return [symbol for symbol in symbols if not resolves(symbol)]


def resolves(symbol: str) -> bool:
    """Return whether a name can be imported."""
    try:
        pkgutil.resolve_name(symbol)
    except (ImportError, AttributeError):
        return False
    return True
