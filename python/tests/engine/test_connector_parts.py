"""What the connector asks of vLLM's own classes, in vLLM's environment but without an engine."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import vllm
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from vllm.config import CUDAGraphMode
from vllm.distributed.kv_transfer import kv_transfer_state
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, supports_hma
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector
from vllm.forward_context import ForwardContext
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec

from orbitkv.adapter.stats import COUNTERS, GAUGES, HISTOGRAMS
from orbitkv.errors import ConfigurationError
from orbitkv.transfer import DIGEST_BYTES, is_verified
from orbitkv.vllm import OrbitKVConnector, connector, engine
from orbitkv.vllm.metrics import OrbitKVPromMetrics, OrbitKVStats
from orbitkv.vllm.plans import StepPlan, WorkerHello
from orbitkv.vllm.recovery import Restoring
from orbitkv.vllm.tensors import engine_layers, forward_order
from orbitkv.vllm.worker import EngineLayers

BLOCKS, HEADS, TOKENS, HEAD_BYTES = 6, 2, 32, 128


def full_attention(**changes: Any) -> FullAttentionSpec:
    return FullAttentionSpec(block_size=32, num_kv_heads=2, head_size=64, dtype=torch.bfloat16, **changes)


def caches(*specs: Any) -> SimpleNamespace:
    groups = [SimpleNamespace(kv_cache_spec=spec, layer_names=[f"l{i}"]) for i, spec in enumerate(specs)]
    return SimpleNamespace(kv_cache_groups=groups, num_blocks=BLOCKS, kv_cache_layout="LBNHC")


def config(**changes: Any) -> SimpleNamespace:
    """Return what the adapter reads of vLLM's configuration."""
    values: dict[str, Any] = {
        "policy": "recompute",
        "role": "kv_both",
        "hash": "sha256_cbor",
        "dcp": 1,
        "nodes": 1,
        "dtype": "bfloat16",
        "block": 32,
        "tp": 1,
        "speculative": None,
        "model": "",
        "rope": 10000,
        **changes,
    }
    hf = SimpleNamespace(to_dict=lambda: {"rope_theta": values["rope"], "_name_or_path": "anything"})
    return SimpleNamespace(
        kv_transfer_config=SimpleNamespace(
            kv_load_failure_policy=values["policy"], kv_role=values["role"], engine_id="e", kv_connector_extra_config={}
        ),
        cache_config=SimpleNamespace(
            prefix_caching_hash_algo=values["hash"],
            block_size=values["block"],
            cache_dtype="auto",
            kv_cache_layout="LBNHC",
        ),
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=values["dcp"],
            prefill_context_parallel_size=1,
            nnodes=values["nodes"],
            world_size=values["tp"],
            tensor_parallel_size=values["tp"],
            pipeline_parallel_size=1,
        ),
        model_config=SimpleNamespace(
            model=values["model"], dtype=values["dtype"], quantization=None, hf_config=hf, revision=None
        ),
        load_config=SimpleNamespace(load_format="auto"),
        speculative_config=values["speculative"],
        compilation_config=SimpleNamespace(static_forward_context={}),
    )


def test_the_class_is_what_vllm_expects() -> None:
    assert issubclass(OrbitKVConnector, KVConnectorBase_V1)
    assert supports_hma(OrbitKVConnector)
    assert not OrbitKVConnector.__abstractmethods__
    assert OrbitKVConnector.requires_piecewise_for_cudagraph({}) is False


def test_a_save_is_never_a_delivery() -> None:
    assert object.__new__(OrbitKVConnector).requires_kv_delivery is False


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"policy": "fail"}, '"kv_load_failure_policy": "recompute"'),
        ({"hash": "xxhash"}, "sha256_cbor"),
        ({"hash": "xxhash_cbor"}, "sha256_cbor"),
        ({"role": "kv_producer"}, '"kv_role": "kv_both"'),
    ],
)
def test_what_could_fail_a_request_stops_the_start_with_the_remedy(changes: dict[str, Any], remedy: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        engine.check_configuration(config(**changes))
    assert remedy in str(refused.value)


def test_a_good_configuration_passes() -> None:
    engine.check_configuration(config())
    assert engine.unsupported(config(), caches(full_attention())) == ""
    assert engine.unsupported(config(), caches(mla())) == ""


def mla() -> MLAAttentionSpec:
    return MLAAttentionSpec(block_size=32, num_kv_heads=1, head_size=576, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("changes", "specs", "says"),
    [
        ({}, (full_attention(), full_attention()), "2 cache groups"),
        (
            {},
            (SlidingWindowSpec(block_size=32, num_kv_heads=2, head_size=64, dtype=torch.bfloat16, sliding_window=64),),
            "SlidingWindowSpec",
        ),
        ({}, (), "0 cache groups"),
        ({"dcp": 2}, (full_attention(),), "context parallelism"),
        ({"nodes": 2}, (full_attention(),), "several hosts"),
    ],
)
def test_what_is_not_supported_gets_no_hits_and_a_reason(
    changes: dict[str, Any], specs: tuple[Any, ...], says: str
) -> None:
    assert says in engine.unsupported(config(**changes), caches(*specs))


def request(**changes: Any) -> SimpleNamespace:
    values: dict[str, Any] = {
        "request_id": "r",
        "lora_request": None,
        "prompt_embeds": None,
        "skip_reading_prefix_cache": False,
        "resumable": False,
        "num_tokens": 100,
        "num_computed_tokens": 64,
        "num_in_flight_tokens": 32,
        "block_hashes": [b"k" * 32],
        **changes,
    }
    return SimpleNamespace(**values)


@pytest.mark.parametrize(
    "changes",
    [{"lora_request": object()}, {"prompt_embeds": object()}, {"skip_reading_prefix_cache": True}, {"resumable": True}],
)
def test_requests_whose_keys_do_not_name_their_bytes_are_left_alone(changes: dict[str, Any]) -> None:
    assert not connector.left_alone(request())
    assert connector.left_alone(request(**changes))


class Group:
    """One of vLLM's groups of ranks, seen from one of them."""

    def __init__(self, size: int, rank: int) -> None:
        self.world_size, self.rank_in_group = size, rank

    def broadcast_object(self, _mine: str, src: int) -> str:
        """Return what rank `src` of the group sent."""
        return f"name of {src}"


@pytest.mark.parametrize(
    ("spec", "device", "tensor", "pipeline", "rank", "storage", "slice_rank", "numa"),
    [
        (full_attention(), "cpu", (1, 0), (1, 0), 0, True, 0, 3),
        (full_attention(), "cpu", (2, 1), (1, 0), 1, True, 1, 3),
        (full_attention(), "cuda", (2, 1), (2, 1), 3, True, 3, -1),
        (mla(), "cpu", (1, 0), (1, 0), 0, True, 0, 3),
        (mla(), "cpu", (2, 0), (1, 0), 0, True, 0, 3),
        (mla(), "cpu", (2, 1), (1, 0), 1, False, 0, 3),
        (mla(), "cuda", (2, 0), (2, 1), 2, True, 2, -1),
        (mla(), "cuda", (2, 1), (2, 1), 3, False, 2, -1),
    ],
)
def test_replicated_content_is_stored_by_the_first_rank_of_each_stage(
    monkeypatch: pytest.MonkeyPatch,
    spec: Any,
    device: str,
    tensor: tuple[int, int],
    pipeline: tuple[int, int],
    rank: int,
    storage: bool,
    slice_rank: int,
    numa: int,
) -> None:
    monkeypatch.setattr(engine, "get_tp_group", lambda: Group(*tensor))
    monkeypatch.setattr(engine, "get_pp_group", lambda: Group(*pipeline))
    monkeypatch.setattr(engine, "node_of_process", lambda: 3)
    settings = config()
    settings.device_config = SimpleNamespace(device_type=device)
    settings.parallel_config.data_parallel_index = 1
    settings.parallel_config.data_parallel_size = 2
    place = engine.place_of_rank(settings, caches(spec))
    assert (place.rank, place.world) == (rank, tensor[0] * pipeline[0])
    assert (place.storage, place.slice_rank, place.numa) == (storage, slice_rank, numa)
    assert place.instance == "name of 0_dp1", "the first rank names the instance for all"


V1, V2 = "gpu_model_runner", "gpu.model_runner"


def context(runner: str, mode: CUDAGraphMode, forward: bool = True, batches: int = 1) -> SimpleNamespace:
    """Return the context in which a runner of vLLM calls `start_load_kv` before a forward in that mode.

    The second runner replays a full graph outside of any context, and makes one without metadata for the call.
    """
    if not forward or (runner == V2 and mode is CUDAGraphMode.FULL):
        return SimpleNamespace(attn_metadata=None, cudagraph_runtime_mode=CUDAGraphMode.NONE)
    metadata: Any = {"l0": object()}
    return SimpleNamespace(
        attn_metadata=metadata if batches == 1 else [metadata] * batches, cudagraph_runtime_mode=mode
    )


@pytest.mark.parametrize("runner", [V1, V2])
@pytest.mark.parametrize(
    ("mode", "runs"), [(CUDAGraphMode.NONE, True), (CUDAGraphMode.PIECEWISE, True), (CUDAGraphMode.FULL, False)]
)
def test_hooks_run_unless_a_full_graph_is_replayed(runner: str, mode: CUDAGraphMode, runs: bool) -> None:
    assert engine.runs_hooks(context(runner, mode)) is runs
    assert engine.runs_hooks(context(runner, mode, batches=2)) is runs
    assert not engine.runs_hooks(context(runner, mode, forward=False)), "a step without a forward has none"


def test_a_context_of_vllm_has_what_the_hooks_are_told_by() -> None:
    fields = {field.name for field in dataclasses.fields(ForwardContext)}
    assert {"attn_metadata", "cudagraph_runtime_mode"} <= fields


class IndexerCache:
    """A cached layer that is no attention, like the indexer of a sparse one."""


def with_modules(kind: str, **changes: Any) -> tuple[SimpleNamespace, EngineLayers]:
    """Return a configuration whose cached layers are modules of a kind, except for the last, which is an attention."""
    from vllm.model_executor.layers import attention

    layers = engine_layers(tensors(), BLOCKS)
    modules: dict[str, object] = {name: object.__new__(getattr(attention, kind, IndexerCache)) for name in layers.index}
    modules[list(modules)[-1]] = object.__new__(attention.Attention)
    settings = config(**changes)
    settings.compilation_config = SimpleNamespace(static_forward_context=modules)
    return settings, layers


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, while vLLM's layers are imported
@pytest.mark.parametrize(
    ("kind", "each"),
    [("Attention", True), ("MLAAttention", True), ("ChunkedLocalAttention", True), ("an indexer", False)],
)
def test_a_layer_whose_cache_no_hook_names_is_not_waited_for_by_layer(kind: str, each: bool) -> None:
    assert engine.waits_by_layer(*with_modules(kind)) is each


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("method", "each"),
    [("eagle3", False), ("mtp", False), ("draft_model", False), ("new", False), ("ngram", True), ("suffix", True)],
)
def test_a_drafter_with_cached_layers_is_told_by_its_method(method: str, each: bool) -> None:
    speculative = SimpleNamespace(method=method)
    assert engine.waits_by_layer(*with_modules("Attention", speculative=speculative)) is each


@pytest.mark.parametrize(
    ("mode", "by_layer", "hooks"),
    [
        (CUDAGraphMode.PIECEWISE, True, True),
        (CUDAGraphMode.FULL, True, False),
        (CUDAGraphMode.PIECEWISE, False, False),
    ],
)
def test_a_step_hears_whether_its_hooks_run(mode: CUDAGraphMode, by_layer: bool, hooks: bool) -> None:
    heard: list[tuple[Any, bool]] = []
    plan = object()
    made = object.__new__(OrbitKVConnector)
    made.__dict__["_connector_metadata"] = SimpleNamespace(plan=plan)
    made._by_layer = by_layer
    made._worker = SimpleNamespace(start=lambda plan, hooks: heard.append((plan, hooks)))  # type: ignore[assignment]
    made.start_load_kv(context(V1, mode))
    assert heard == [(plan, hooks)]


class Planned:
    """A scheduler side that plans one restore, and a worker's side that hears of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.plan = StepPlan()
        self.heard: list[tuple[Any, bool]] = []
        self.monkeypatch = monkeypatch
        self.connector = object.__new__(OrbitKVConnector)
        self.connector._requests = {}
        self.connector._instance = "this"
        self.connector._restoring = Restoring(2)
        self.connector._scheduler = SimpleNamespace(  # type: ignore[assignment]
            publisher=SimpleNamespace(due={}),
            build_plan=lambda *_: self.plan,
            steps=SimpleNamespace(planned=lambda *_, **__: None),
            clock=lambda: 0.0,
        )

    def worker(self, kind: type = OrbitKVConnector, instance: str = "this", world: int = 1) -> Any:
        """Return a connector of a worker."""
        made: Any = object.__new__(kind)
        made._hello = WorkerHello(instance, 0, world, b"")
        made._worker = SimpleNamespace(begin_restores=lambda plan, rewritten: self.heard.append((plan, rewritten)))
        return made

    def step(self, agent: Any, **output: Any) -> None:
        """Plan a step while this is what the process has as its worker's connector."""
        self.monkeypatch.setattr(kv_transfer_state, "_KV_CONNECTOR_AGENT", agent)
        fields: dict[str, Any] = {"new_block_ids_to_zero": None, "kv_cache_block_copies": None, **output}
        step = SimpleNamespace(num_scheduled_tokens={}, preempted_req_ids=None, kv_connector_block_state=None, **fields)
        assert self.connector.build_connector_meta(step).plan is self.plan


def test_requests_whose_restore_failed_are_told_to_the_scheduler_side() -> None:
    told: list[str] = []
    made: Any = object.__new__(OrbitKVConnector)
    made._scheduler = SimpleNamespace(failed=told.extend, allocated=lambda *_: None)
    made._restoring, made._pool = Restoring(2), SimpleNamespace(get_cached_block=lambda *_: None)
    requests = {name: SimpleNamespace(request_id=name, block_hashes=[b"h"] * 3) for name in ("a", "b", "ended")}
    made._requests = dict(requests)
    for name, blocks in (("a", [1, 2, 3]), ("b", [4, 5, 6]), ("ended", [7, 8, 9])):
        made.update_state_after_alloc(requests[name], SimpleNamespace(get_block_ids=lambda ids=blocks: (ids,)), 32)
    made._restoring.plan()
    del made._requests["ended"]
    made.update_connector_output(SimpleNamespace(invalid_block_ids={2, 8}, kv_connector_worker_meta=None))
    assert told == ["a"], "b's restore came, and nobody asks for the ended one again"


@pytest.mark.parametrize(
    ("output", "rewritten"),
    [
        ({}, False),
        ({"new_block_ids_to_zero": [3]}, True),
        ({"kv_cache_block_copies": [(1, 2)]}, True),
    ],
)
def test_a_worker_in_this_process_hears_of_the_plan_itself(
    monkeypatch: pytest.MonkeyPatch, output: dict[str, Any], rewritten: bool
) -> None:
    planned = Planned(monkeypatch)
    planned.step(planned.worker(), **output)
    assert [(plan is planned.plan, first) for plan, first in planned.heard] == [(True, rewritten)]


@pytest.mark.parametrize("what", ["another process", "several connectors", "another instance", "several ranks"])
def test_a_worker_elsewhere_hears_of_the_plan_when_its_step_starts(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    planned = Planned(monkeypatch)
    agents = {
        "another process": None,
        "several connectors": planned.worker(MultiConnector),
        "another instance": planned.worker(instance="that"),
        "several ranks": planned.worker(world=2),
    }
    planned.step(agents[what])
    assert planned.heard == []


def test_what_the_step_of_vllm_writes_first_has_the_names_that_are_asked_for() -> None:
    fields = {field.name for field in dataclasses.fields(SchedulerOutput)}
    assert {"new_block_ids_to_zero", "kv_cache_block_copies"} <= fields


def test_tokens_in_flight_are_not_confirmed() -> None:
    progress = connector.progress_of(request())
    assert (progress.computed, progress.confirmed, progress.tokens) == (64, 32, 100)


def test_block_lists_are_read_from_either_release() -> None:
    old = SimpleNamespace(block_ids={"a": ([1, 2],)})
    new = SimpleNamespace(req_ids=["a"], get_block_ids=lambda _: ([1, 2],))
    for state in (old, new):
        lists = dict(connector.block_lists(SimpleNamespace(kv_connector_block_state=state)))
        assert lists == {"a": ([1, 2],)}
    assert dict(connector.block_lists(SimpleNamespace(kv_connector_block_state=None))) == {}


def tensors(ratio: int = 1, padding: int = 0, layers: int = 3) -> dict[str, torch.Tensor]:
    """Return layer views as vLLM makes them: block, head, token, content in one allocation, block by block."""
    block = HEADS * TOKENS * HEAD_BYTES + padding
    made = {}
    for layer in range(layers):
        raw = torch.zeros(BLOCKS * block, dtype=torch.uint8)
        shape = (BLOCKS * ratio, HEADS, TOKENS // ratio, HEAD_BYTES)
        strides = (block // ratio, HEAD_BYTES, HEADS * HEAD_BYTES, 1)
        made[f"model.layers.{layer}.self_attn.attn"] = raw.as_strided(shape, strides).view(torch.bfloat16)
    return made


@pytest.mark.parametrize(("ratio", "padding"), [(1, 0), (2, 0), (4, 0), (1, 256)])
def test_a_block_written_through_torch_lies_where_the_layout_says(ratio: int, padding: int) -> None:
    views = tensors(ratio, padding)
    layers = engine_layers(views, BLOCKS)
    size = HEADS * TOKENS * HEAD_BYTES
    assert [layer.block_bytes for layer in layers.layout.layers] == [size] * 3
    content = np.random.default_rng(3).integers(0, 256, size, dtype=np.uint8)
    layers.pages.write(1, 4, content)
    assert np.array_equal(layers.pages.read(1, 4), content)
    assert not layers.pages.read(1, 3).any()
    assert not layers.pages.read(0, 4).any()
    layer = layers.layout.layers[1]
    flat = views["model.layers.1.self_attn.attn"].untyped_storage()
    at = layer.address - flat.data_ptr() + 4 * layer.block_stride
    raw = np.frombuffer(bytes(flat)[at : at + size], np.uint8)
    assert raw.any()
    assert sorted(raw.tolist()) == sorted(content.tolist()), "the same bytes, in the engine's own order"


def test_layers_are_in_forward_order_and_a_shared_tensor_counts_once() -> None:
    views = tensors(layers=12)
    shuffled = {name: views[name] for name in sorted(views)}
    shuffled["model.layers.12.self_attn.attn"] = views["model.layers.3.self_attn.attn"]
    layers = engine_layers(shuffled, BLOCKS)
    names = [layer.name for layer in layers.layout.layers]
    assert names == [f"model.layers.{i}.self_attn.attn" for i in range(12)]
    assert layers.index["model.layers.12.self_attn.attn"] == layers.index["model.layers.3.self_attn.attn"] == 3
    assert forward_order("a.10.b") > forward_order("a.9.b")


def test_a_verified_page_carries_its_digest_behind_the_engines_layers() -> None:
    plain, verified = engine_layers(tensors(), BLOCKS), engine_layers(tensors(), BLOCKS, verify=True)
    last = verified.layout.layers[-1]
    assert is_verified(verified.layout)
    assert not is_verified(plain.layout)
    assert (last.block_bytes, last.offset) == (DIGEST_BYTES, plain.layout.slice_bytes)
    assert last.step == len(plain.layout.layers), "no layer of the forward reads it"
    assert verified.index == plain.index, "no hook has it"
    for layers in (plain, verified):
        assert layers.site is None, "host memory is no device"


def test_heads_outside_of_blocks_are_refused() -> None:
    raw = torch.zeros(HEADS, BLOCKS, TOKENS, HEAD_BYTES, dtype=torch.uint8)
    with pytest.raises(ConfigurationError, match="not contiguous"):
        engine_layers({"l0": raw.permute(1, 0, 2, 3)}, BLOCKS)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"w" * 100)
    return folder


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "float16"},
        {"block": 64},
        {"tp": 2},
        {"hash": "sha256"},
        {"rope": 20000},
        {"speculative": SimpleNamespace(method="ngram", draft_model_config=None, use_eagle=lambda: False)},
    ],
)
def test_one_differing_fact_is_another_namespace(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    layers = engine_layers(tensors(), BLOCKS)

    def facts(**values: Any) -> dict[str, str]:
        return engine.namespace_facts(config(model=str(model), **values), caches(full_attention()), layers)

    assert facts() == facts()
    assert facts(**changes) != facts()


def test_weights_from_elsewhere_need_a_fingerprint(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = engine_layers(tensors(), BLOCKS)
    chosen = config(model=str(model))
    chosen.load_config.load_format = "tensorizer"
    with pytest.raises(ConfigurationError, match="ORBITKV_MODEL_FINGERPRINT"):
        engine.namespace_facts(chosen, caches(full_attention()), layers)
    monkeypatch.setenv("ORBITKV_MODEL_FINGERPRINT", "ab" * 32)
    assert engine.namespace_facts(chosen, caches(full_attention()), layers)["weights"] == "ab" * 32


@pytest.mark.parametrize("what", ["weights", "release", "scope", "seed", "layers", "digest"])
def test_one_differing_circumstance_is_another_namespace(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def facts(layers: int = 3, verify: bool = False) -> dict[str, str]:
        known = engine_layers(tensors(layers=layers), BLOCKS, verify=verify)
        return engine.namespace_facts(config(model=str(model)), caches(full_attention()), known)

    before = facts()
    if what == "weights":
        (model / "model.safetensors").write_bytes(b"w" * 99 + b"x")
    elif what == "release":
        monkeypatch.setattr(vllm, "__version__", "0.29.1")
    elif what == "scope":
        monkeypatch.setenv("ORBITKV_CACHE_SCOPE", "blue")
    elif what == "seed":
        monkeypatch.setenv("PYTHONHASHSEED", "7")
    assert facts(2 if what == "layers" else 3, verify=what == "digest") != before


def test_every_metric_is_there_before_its_first_event() -> None:
    registry = CollectorRegistry()

    def into(kind: Any) -> Any:
        return lambda **options: kind(registry=registry, **options)

    kinds = {Counter: into(Counter), Gauge: into(Gauge), Histogram: into(Histogram)}
    transfer = SimpleNamespace(kv_transfer_config=None)
    metrics = OrbitKVPromMetrics(transfer, kinds, ["engine"], {0: ["0"]})
    metrics.observe({"load_success": 2.0, "load_blocks": [3.0, 4.0], "pending_prefetches": 1.0})
    found = {sample.name: sample.value for family in registry.collect() for sample in family.samples}
    assert found["vllm:orbitkv_load_success_total"] == 2
    assert found["vllm:orbitkv_load_blocks_count"] == 2
    assert found["vllm:orbitkv_pending_prefetches"] == 1
    families = {family.name for family in registry.collect()}
    assert families == {f"vllm:orbitkv_{name}" for name in (*COUNTERS, *GAUGES, *HISTOGRAMS)}


def test_statistics_add_up_between_ranks_and_read_well_in_the_log() -> None:
    both = OrbitKVStats(data={"load_blocks": [1.0]}).aggregate(
        OrbitKVStats(data={"load_blocks": [3.0], "load_bytes": 5.0})
    )
    assert both.reduce() == {"load_blocks count": 2, "load_blocks mean": 2.0, "load_bytes": 5.0}
    both.reset()
    assert both.is_empty()
