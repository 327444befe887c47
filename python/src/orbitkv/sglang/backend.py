"""The factory: builds SGLang's radix cache with OrbitKV behind it, in each rank's process whose backend this is."""

from __future__ import annotations

import logging
import os
import pkgutil
from collections.abc import Callable
from typing import Any

import sglang
from sglang.srt.mem_cache.registry import default_radix_cache_factory
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from sglang.srt.runtime_context import get_context, get_lora

from orbitkv.adapter.logs import LOGGER
from orbitkv.adapter.settings import CONFIG_FILE, Settings, read_file, read_settings
from orbitkv.errors import ConfigurationError
from orbitkv.sglang import engine
from orbitkv.sglang.cache import OrbitKVRadixCache, admit, change_weights, check_weights, end_batch
from orbitkv.sglang.linker import OrbitKVLinker
from orbitkv.sglang.metrics import EngineMetrics
from orbitkv.sglang.rank import RankSide
from orbitkv.timeline import Timeline

ADDER = "sglang.srt.managers.schedule_policy.PrefillAdder"
SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
UPDATER = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"

# What is wrapped of SGLang: admission, to pass a request over whose answer is not there yet, ends of batches, to learn
# how fast prompts are computed, and changes of weights.
HOOKS: dict[str, Callable[..., Any]] = {
    f"{ADDER}.add_one_req": admit,
    f"{SCHEDULER}.process_batch_result": end_batch,
    f"{UPDATER}.update_weights_from_disk": change_weights,
    f"{UPDATER}.update_weights_from_distributed": change_weights,
    f"{UPDATER}.update_weights_from_tensor": change_weights,
    f"{UPDATER}.update_weights_from_ipc": change_weights,
    f"{UPDATER}.check_weights": check_weights,
}

log = logging.getLogger(LOGGER)


def create_cache(ctx: Any) -> Any:
    """Return the radix cache of this process. ConfigurationError says why there can be none, and what to change."""
    settings = engine_settings()
    if reason := engine.left_alone():
        log.warning("OrbitKV gives this engine no external hits: %s", reason)
        return create_native(ctx)
    engine.check_configuration(ctx)
    engine.check_settings(settings)
    engine.refuse_unsupported(ctx)
    engine.prepare_hash()
    pool = engine.pool_of(ctx)
    tensors = engine.tensors_of(ctx)
    facts = engine.namespace_facts(ctx, tensors)
    apply_hooks(HOOKS)
    side = RankSide(
        settings, engine.place_of_rank(ctx, tensors), tensors, facts, Timeline(f"sglang-{sglang.__version__}")
    )
    side.begin()
    ctx.params.tree_components = (ComponentType.FULL,)
    cache = OrbitKVRadixCache(ctx.params)
    side.available = lambda: available_share(cache)
    linker = OrbitKVLinker(side, ctx.params.page_size)
    cache.init_cache_linker(linker)
    cache.linker.adapters = bool(get_lora().enable_lora)
    cache.linker.images = bool(ctx.model_config.is_multimodal)
    pool.register_layer_transfer_counter(linker.layer_done_counter)
    ctx.tp_worker.register_hicache_layer_transfer_counter(linker.layer_done_counter)
    if (labels := engine.metric_labels(ctx)) is not None:
        EngineMetrics(labels).follow(side.stats)
    return cache


def available_share(cache: Any) -> float:
    """Return the share of the pool's tokens that the engine could still allocate, by eviction too."""
    allocator = cache.token_to_kv_pool_allocator
    return float(allocator.available_size() + cache.evictable_size()) / float(allocator.size)


def engine_settings() -> Settings:
    """Return the settings of the file that ORBITKV_CONFIG names and of the environment. ConfigurationError names it."""
    values = read_file()
    try:
        return read_settings(values)
    except ConfigurationError as fault:
        if not values:
            raise
        raise ConfigurationError(f"{CONFIG_FILE} names {os.environ[CONFIG_FILE]}: {fault}") from fault


def create_native(ctx: Any) -> Any:
    """Return the cache that SGLang makes without OrbitKV."""
    # The flag that OrbitKV asks for would select another linker there.
    get_context().override("orbitkv", enable_unified_cache_external_linker=False)
    return default_radix_cache_factory(ctx)


def apply_hooks(hooks: dict[str, Callable[..., Any]]) -> None:
    """Wrap SGLang's functions, once a process. ConfigurationError when one of them cannot be wrapped any more."""
    for target, hook in hooks.items():
        before = pkgutil.resolve_name(target)
        if is_wrapped_by(before, hook):
            continue
        HookRegistry.register(target, hook, HookType.AROUND)
        HookRegistry.apply_hooks()
        if pkgutil.resolve_name(target) is before:
            raise ConfigurationError(
                f"SGLang's {target} is wrapped by another plugin already, and can be wrapped once: "
                "load this plugin alone with SGLANG_PLUGINS=orbitkv"
            )
        pkgutil.resolve_name(target).orbitkv_hook = hook


def is_wrapped_by(function: Any, hook: Callable[..., Any]) -> bool:
    """Return whether a hook was put around a function here before."""
    return getattr(function, "orbitkv_hook", None) is hook
