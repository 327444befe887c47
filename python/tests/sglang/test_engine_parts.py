"""What the adapter asks of SGLang's own objects, in SGLang's environment but without an engine."""

from __future__ import annotations

import logging
import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from harness import sglang_modules  # noqa: F401

# isort: split
import numpy as np
import pytest
import sglang
import torch
from prometheus_client import CollectorRegistry, multiprocess
from sglang.srt.mem_cache import registry
from sglang.srt.mem_cache.memory_pool import (
    MHATokenToKVPoolFP4,
    MLATokenToKVPool,
)
from sglang.srt.mem_cache.registry import TreeCacheBuildContext, create_tree_cache
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from sglang.srt.runtime_context import get_parallel

from harness.manager import ManagerProcess, eventually
from harness.sglang_parts import HEAD, HEADS, LAYERS, PAGE, PAGES, TOKENS, Context, mha, mla, model_config, tp_worker
from orbitkv.adapter.stats import COUNTERS, GAUGES, HISTOGRAMS
from orbitkv.errors import ConfigurationError
from orbitkv.sglang import backend, engine, plugin, probe
from orbitkv.sglang.cache import OrbitKVLinkerWrapper, OrbitKVRadixCache
from orbitkv.sglang.metrics import EngineMetrics
from orbitkv.sglang.tensors import engine_tensors, refuse_pool


@pytest.fixture(scope="module", autouse=True)
def unwrapped() -> Iterator[None]:
    """Put SGLang's functions back after the module, whatever was wrapped in it."""
    before = {target: pkgutil.resolve_name(target) for target in backend.HOOKS}
    yield
    HookRegistry.reset()
    for target, function in before.items():
        owner, _, name = target.rpartition(".")
        setattr(pkgutil.resolve_name(owner), name, function)


# The plugin.


def test_this_release_has_every_name() -> None:
    assert probe.missing(probe.SYMBOLS) == []
    probe.check_symbols()


def test_nothing_is_wrapped_before_the_backend_is_selected() -> None:
    before = {target: pkgutil.resolve_name(target) for target in backend.HOOKS}
    plugin.register()
    plugin.register()
    HookRegistry.apply_hooks()
    assert {target: pkgutil.resolve_name(target) for target in backend.HOOKS} == before
    assert registry.get_radix_cache_factory("orbitkv") is plugin.create


def test_another_selection_keeps_its_cache_and_wraps_nothing(context: Context) -> None:
    plugin.register()
    before = {target: pkgutil.resolve_name(target) for target in backend.HOOKS}
    other = context(flags={"radix_cache_backend": None, "enable_unified_cache_external_linker": False})
    assert type(create_tree_cache(other)) is UnifiedRadixCache
    assert {target: pkgutil.resolve_name(target) for target in backend.HOOKS} == before


# The backend.


def test_a_selected_backend_builds_the_cache(context: Context) -> None:
    plugin.register()
    made = context()
    cache = create_tree_cache(made)
    try:
        assert isinstance(cache, OrbitKVRadixCache)
        assert cache.tree_components == (ComponentType.FULL,)
        counter = cache.linker.layer_done_counter
        assert made.tp_worker.counter is counter
        assert engine.pool_of(made).layer_transfer_counter is counter
        side = cache.linker.cache_linker.side
        assert side.available() == 1.0
        assert made.params.token_to_kv_pool_allocator.alloc(TOKENS * 3 // 4) is not None
        assert side.available() == 0.25
        for target, hook in backend.HOOKS.items():
            assert backend.is_wrapped_by(pkgutil.resolve_name(target), hook)
        # A second cache in one process wraps nothing twice.
        once = {target: pkgutil.resolve_name(target) for target in backend.HOOKS}
        backend.apply_hooks(backend.HOOKS)
        assert {target: pkgutil.resolve_name(target) for target in backend.HOOKS} == once
    finally:
        cache.release_host_resources()


def test_a_rank_attaches_and_proves_its_pool_at_start(
    context: Context, orbitkv_binary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = ManagerProcess(orbitkv_binary, tmp_path / "manager").start()
    try:
        made = context()
        monkeypatch.setenv("ORBITKV_SOCKET", manager.socket)
        cache = backend.create_cache(made)
        side = cache.linker.cache_linker.side
        try:
            eventually(lambda: side.life() != b"", "the rank may use the Manager")
            assert not any(tensor.any() for tensor in engine.pool_of(made).k_buffer), "the pool is as it was"
        finally:
            cache.release_host_resources()
    finally:
        manager.stop()


class Wrapped:
    """What a test's own hooks go around."""

    def method(self) -> int:
        """Return a number."""
        return 1

    def other(self) -> int:
        """Return a number."""
        return 1


def test_a_hook_that_comes_late_takes_hold_once() -> None:
    target = f"{__name__}.Wrapped.method"

    def hook(original: Any, *args: Any) -> Any:
        return original(*args) + 1

    backend.apply_hooks({target: hook})
    backend.apply_hooks({target: hook})
    assert Wrapped().method() == 2


def test_a_function_that_another_plugin_wrapped_is_refused_by_name() -> None:
    target = f"{__name__}.Wrapped.other"
    HookRegistry.register(target, lambda result, *_: result, HookType.AFTER)
    HookRegistry.apply_hooks()
    with pytest.raises(ConfigurationError, match=r"Wrapped\.other is wrapped by another plugin.*SGLANG_PLUGINS"):
        backend.apply_hooks({target: lambda original, *args: original(*args)})


@pytest.mark.parametrize("mode", ["prefill", "decode"])
def test_a_disaggregated_engine_is_left_alone(context: Context, mode: str, caplog: pytest.LogCaptureFixture) -> None:
    plugin.register()
    with caplog.at_level(logging.WARNING):
        cache = create_tree_cache(context(flags={"disaggregation_mode": mode}))
    assert type(cache) is UnifiedRadixCache
    assert cache.linker is None
    assert f"disaggregation mode is {mode!r}" in caplog.text


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"flags": {"enable_unified_cache_external_linker": False}}, "add it beside --radix-cache-backend orbitkv"),
        ({"enable_hierarchical_cache": True}, "remove --enable-hierarchical-cache"),
        ({"disable_radix_cache": True}, "remove --disable-radix-cache"),
        ({"params": {"disable": True}}, "remove --disable-radix-cache"),
        ({"params": {"page_size": 1}}, "start with --page-size 64"),
        ({"flags": {"disaggregation_decode_retraction_backup": "host_pool"}}, "retraction-backup host_pool"),
        ({"flags": {"enable_hisparse": True}}, "remove --enable-hisparse"),
        ({"flags": {"enable_unified_memory": True}}, "remove --enable-hisparse"),
        ({"is_hybrid_swa": True}, "sliding-window"),
        ({"is_hybrid_ssm": True}, "recurrent state"),
        ({"is_dsa": True}, "sparse attention"),
        ({"params": {"mtp_draft_device_pools": (object(), object())}}, "remove --speculative-algorithm"),
        ({"flags": {"pp_size": 2}}, "pipeline parallelism (--pp-size)"),
        ({"flags": {"enable_dp_attention": True}}, "data-parallel attention"),
        ({"flags": {"attn_cp_size": 2}}, "context parallelism (--attn-cp-size)"),
        ({"flags": {"enable_prefill_cp": True}}, "context parallelism (--enable-prefill-cp)"),
        ({"flags": {"dcp_size": 2}}, "decode context parallelism"),
        ({"flags": {"nnodes": 2}}, "several hosts"),
        ({"pool": SimpleNamespace(size=TOKENS, page_size=PAGE)}, "SimpleNamespace"),
    ],
)
def test_what_cannot_work_is_refused_with_the_remedy(context: Context, changes: dict[str, Any], remedy: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        backend.create_cache(context(**changes))
    assert remedy in str(refused.value)


def test_another_tree_core_is_refused(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND", "rust")
    with pytest.raises(ConfigurationError, match="unset SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND"):
        engine.check_configuration(context())


def test_an_unknown_key_of_the_file_stops_the_start(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "orbitkv.json").write_text('{"orbitkv.sockett": "/x"}')
    monkeypatch.setenv("ORBITKV_CONFIG", str(tmp_path / "orbitkv.json"))
    with pytest.raises(ConfigurationError, match=r"orbitkv\.sockett"):
        backend.create_cache(context())


# The pool by pages.


@pytest.fixture(params=["nhd", "hnd", "latent"])
def pool(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param == "hnd":
        monkeypatch.setenv("SGLANG_USE_HND_KVCACHE", "1")
    return mla() if request.param == "latent" else mha()


def written(pool: Any, layer: int, page: int, seed: int) -> None:
    """Write a page of one layer by the engine's own way to do it."""
    slots = torch.arange(page * PAGE, (page + 1) * PAGE)
    made = torch.Generator().manual_seed(seed)
    if isinstance(pool, MLATokenToKVPool):
        pool.kv_buffer[layer][slots] = torch.randn(PAGE, 1, 40, generator=made).to(torch.bfloat16)
    else:
        rows = torch.randn(2, PAGE, HEADS, HEAD, generator=made).to(torch.bfloat16)
        pool.set_kv_buffer(SimpleNamespace(layer_id=layer), slots, rows[0], rows[1])


def test_a_page_of_the_layout_is_what_the_engine_wrote(pool: Any) -> None:
    tensors = engine_tensors(pool)
    assert tensors.layout.blocks == PAGES
    each = 1 if isinstance(pool, MLATokenToKVPool) else 2
    assert tensors.layout.steps == tuple((each * layer, each * (layer + 1)) for layer in range(LAYERS))
    assert tensors.site is None
    before = [layer.rows.copy() for layer in tensors.layout.layers]
    written(pool, 1, 4, 7)
    for index, layer in enumerate(tensors.layout.layers):
        changed = np.flatnonzero((layer.rows != before[index]).any(axis=1)).tolist()
        assert changed == ([4] if index // each == 1 else []), f"layer {layer.name}"
        assert np.array_equal(tensors.pages.read(index, 4), layer.rows[4])


def test_bytes_that_are_put_back_are_what_the_engine_reads(pool: Any) -> None:
    """Move a page by addresses, as a copy does, and compare what attention would get."""
    tensors = engine_tensors(pool)
    for layer in range(LAYERS):
        written(pool, layer, 2, layer)
    for part in tensors.layout.layers:
        part.rows[9] = part.rows[2]
    for layer in range(LAYERS):
        for values in pool.get_kv_buffer(layer):
            rows = values if values.shape[0] == PAGES else values.reshape(PAGES, PAGE, *values.shape[1:])
            assert rows[2].any()
            assert torch.equal(rows[9], rows[2])


def test_the_golden_access_writes_what_the_layout_shows(pool: Any) -> None:
    tensors = engine_tensors(pool)
    content = np.random.default_rng(3).integers(0, 256, tensors.layout.layers[1].block_bytes, dtype=np.uint8)
    tensors.pages.write(1, 5, content)
    assert np.array_equal(tensors.layout.layers[1].rows[5], content)
    assert np.array_equal(tensors.pages.read(1, 5), content)
    assert not tensors.pages.read(1, 4).any()
    assert not tensors.pages.read(0, 5).any()


def test_slots_behind_the_last_whole_page_are_no_page() -> None:
    assert engine_tensors(mha(size=TOKENS + PAGE // 2)).layout.blocks == PAGES


def test_a_page_that_is_no_run_of_bytes_is_refused() -> None:
    odd = mha()
    odd.k_buffer[1] = torch.zeros(HEADS, TOKENS + PAGE, HEAD).permute(1, 0, 2)
    with pytest.raises(ConfigurationError, match=r"layer 1\.k is not contiguous|layer 1\.k do not adjoin"):
        engine_tensors(odd)


def test_memory_that_no_backend_copies_is_refused() -> None:
    far = mha()
    far.v_buffer[2] = torch.empty(TOKENS + PAGE, HEADS, HEAD, device="meta")
    with pytest.raises(ConfigurationError, match=r"layer 2\.v lies on meta"):
        engine_tensors(far)


def test_pools_with_more_than_pages_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="MHATokenToKVPoolFP4"):
        refuse_pool(object.__new__(MHATokenToKVPoolFP4))
    scaled = mha()
    scaled.quant_method = SimpleNamespace(name="nvfp4")
    with pytest.raises(ConfigurationError, match="nvfp4"):
        refuse_pool(scaled)


# Place and facts.


def test_a_rank_knows_its_place(context: Context) -> None:
    first, second = (engine.place_of_rank(ctx, engine.tensors_of(ctx)) for ctx in (context(), context()))
    assert (first.rank, first.world, first.storage, first.slice_rank) == (0, 1, True, 0)
    assert first.instance != second.instance


# One rank of two, as a program: its number, then the number that the ranks agreed on.
RANK = """
import sys
import torch
from harness import sglang_modules
from orbitkv.sglang.engine import agreed_number
store = torch.distributed.FileStore(sys.argv[2], 2)
torch.distributed.init_process_group("gloo", store=store, world_size=2, rank=int(sys.argv[1]))
group = torch.distributed.new_group([0, 1], backend="gloo")
print(agreed_number(group, 2))
"""


def test_two_ranks_name_one_instance(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", RANK]
    ranks = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE, env=environment)
        for rank in range(2)
    ]
    said = [rank.communicate()[0].split() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert said[0][-1] == said[1][-1]
    assert int(said[0][-1]) > 0


@pytest.mark.parametrize(("latent", "rank"), [(False, 0), (False, 1), (True, 0), (True, 1)])
def test_content_that_every_rank_has_is_stored_by_one(
    context: Context, monkeypatch: pytest.MonkeyPatch, latent: bool, rank: int
) -> None:
    monkeypatch.setattr(engine, "agreed_number", lambda *_: 1)
    ctx = context(pool=mla() if latent else mha(), tp_size=2, tp_rank=rank)
    place = engine.place_of_rank(ctx, engine.tensors_of(ctx))
    assert (place.rank, place.world) == (rank, 2)
    assert place.storage is (not latent or rank == 0)
    assert place.slice_rank == (0 if latent else rank)


def facts_of(ctx: TreeCacheBuildContext) -> dict[str, str]:
    return engine.namespace_facts(ctx, engine_tensors(engine.pool_of(ctx)))


@pytest.mark.parametrize(
    "changes",
    [
        {"pool": "fewer layers"},
        {"pool": "float16"},
        {"pool": "latent"},
        {"tp_size": 2},
        {"tp_worker": tp_worker("triton")},
        {"params": {"page_size": 32}},
        {"params": {"is_eagle": True}},
        {"flags": {"load_format": "safetensors"}},
        {"flags": {"load_format": "dummy", "random_seed": 1}},
        {"flags": {"model_impl": "transformers"}},
        {"flags": {"speculative_algorithm": "NGRAM"}},
        {"model": {"dtype": torch.float16}},
        {"model": {"quantization": "awq"}},
        {"model": {"rope": 20000}},
    ],
    ids=str,
)
def test_one_differing_fact_is_another_namespace(context: Context, model: Path, changes: dict[str, Any]) -> None:
    pools = {"fewer layers": lambda: mha(layer_num=2), "float16": lambda: mha(dtype=torch.float16), "latent": mla}
    given = {**changes}
    if "pool" in given:
        given["pool"] = pools[given["pool"]]()
    if "model" in given:
        given["model_config"] = model_config(model, **given.pop("model"))
    before = facts_of(context())
    assert facts_of(context()) == before
    assert facts_of(context(**given)) != before


def test_seeds_tell_random_weights_apart(context: Context) -> None:
    one, two = ({"flags": {"load_format": "dummy", "random_seed": seed}} for seed in (1, 2))
    assert facts_of(context(**one)) != facts_of(context(**two))


@pytest.mark.parametrize("what", ["weights", "release", "scope", "layout", "scales"])
def test_one_differing_circumstance_is_another_namespace(
    context: Context, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    scales = tmp_path / "scales.json"
    scales.write_text("{}")
    flags = {"quantization_param_path": str(scales)}
    before = facts_of(context(flags=flags))
    if what == "weights":
        (model / "model.safetensors").write_bytes(b"w" * 99 + b"x")
    elif what == "release":
        monkeypatch.setattr(sglang, "__version__", "0.5.21")
    elif what == "scope":
        monkeypatch.setenv("ORBITKV_CACHE_SCOPE", "blue")
    elif what == "layout":
        monkeypatch.setenv("SGLANG_USE_HND_KVCACHE", "1")
    else:
        scales.write_text('{"0": 1.0}')
    assert facts_of(context(flags=flags)) != before


def test_weights_from_elsewhere_need_a_fingerprint(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    made = context(flags={"load_format": "remote_instance"})
    with pytest.raises(ConfigurationError, match="ORBITKV_MODEL_FINGERPRINT"):
        facts_of(made)
    monkeypatch.setenv("ORBITKV_MODEL_FINGERPRINT", "ab" * 32)
    assert facts_of(made)["weights"] == "ab" * 32


def test_missing_scales_are_named(context: Context) -> None:
    with pytest.raises(ConfigurationError, match=r"/nowhere\.json"):
        facts_of(context(flags={"quantization_param_path": "/nowhere.json"}))


# Metrics.


def test_labels_are_those_of_the_scheduler(context: Context) -> None:
    assert engine.metric_labels(context()) is None
    made = context(flags={"enable_metrics": True, "served_model_name": "m", "extra_metric_labels": {"zone": "a"}})
    made.tp_worker.ps.dp_rank = 3
    assert engine.metric_labels(made) == {
        "model_name": "m",
        "engine_type": "unified",
        "tp_rank": 0,
        "pp_rank": 0,
        "moe_ep_rank": 0,
        "dp_rank": 3,
        "zone": "a",
    }


def test_every_metric_is_there_before_its_first_event() -> None:
    kept = CollectorRegistry()
    metrics = EngineMetrics({"model_name": "m", "tp_rank": 1}, kept)
    EngineMetrics({"model_name": "m", "tp_rank": 2}, kept)  # The families are registered once.
    metrics.publish({"load_success": 2.0, "load_blocks": [3.0, 4.0], "pending_prefetches": 1.0})
    metrics.publish({"load_success": 1.0})
    samples = [sample for family in kept.collect() for sample in family.samples]
    found = {sample.name: sample.value for sample in samples if sample.labels["tp_rank"] == "1"}
    assert found["sglang:orbitkv_load_success_total"] == 3
    assert found["sglang:orbitkv_load_blocks_count"] == 2
    assert found["sglang:orbitkv_pending_prefetches"] == 1
    families = {family.name for family in kept.collect()}
    assert families == {f"sglang:orbitkv_{name}" for name in (*COUNTERS, *GAUGES, *HISTOGRAMS)}


# One rank's process as far as its metrics go: it counts once, says when its files are there, and ends with its input.
COUNTING = """
import sys
from orbitkv.adapter.stats import Stats
from orbitkv.sglang.metrics import EngineMetrics
stats = Stats()
stats.count("load_bytes", 10 + int(sys.argv[1]))
EngineMetrics({"model_name": "m", "tp_rank": sys.argv[1]}).follow(stats)
print("there", flush=True)
sys.stdin.read()
"""


def test_each_rank_has_a_row_in_the_engine_s_folder_of_metrics(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    command = [sys.executable, "-c", COUNTING]
    pipe = subprocess.PIPE
    ranks = [subprocess.Popen([*command, str(rank)], stdin=pipe, stdout=pipe, env=environment) for rank in range(2)]
    kept = CollectorRegistry()
    multiprocess.MultiProcessCollector(kept, str(tmp_path))

    def rows() -> dict[str, float]:
        samples = [sample for family in kept.collect() for sample in family.samples]
        named = [sample for sample in samples if sample.name == "sglang:orbitkv_load_bytes_total"]
        return {sample.labels["tp_rank"]: sample.value for sample in named}

    try:
        # A file that is just being made cannot be read: it has no size yet.
        assert [rank.stdout.readline() for rank in ranks if rank.stdout is not None] == [b"there\n"] * 2
        eventually(lambda: rows() == {"0": 10.0, "1": 11.0}, "both ranks have a row")
    finally:
        for rank in ranks:
            rank.communicate()
    assert [rank.returncode for rank in ranks] == [0, 0]


def test_the_engine_spreads_over_ranks_that_it_names(context: Context) -> None:
    context()
    assert get_parallel().nnodes == 1
    assert [value for _, value in engine.spreads()] == [False] * 5


def test_kv_of_overridden_embeddings_is_not_inserted_under_its_tokens() -> None:
    """Such a request is matched with nothing; the tree must not offer its KV to others, nor to the Manager."""
    wrapper = object.__new__(OrbitKVLinkerWrapper)
    wrapper.hit_markers, wrapper.held, wrapper.adapters = {}, set(), False
    request = SimpleNamespace(rid="a", positional_embed_overrides=[1.0], skip_radix_cache_insert=False)
    assert wrapper.match(None, request, "the device's own") == "the device's own"
    assert request.skip_radix_cache_insert
