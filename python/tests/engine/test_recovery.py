"""A restore that fails under vLLM's own scheduler, with steps in flight as a GPU has them: no token of it is delivered.

The scheduler is vLLM's asynchronous one; the steps' results are played, so that each says from which bytes it came.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm import SamplingParams
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from harness.checkpoint import SHAPES, ensure
from orbitkv.errors import ConfigurationError
from orbitkv.vllm import recovery
from orbitkv.vllm.recovery import Restoring, install

PAGE, BLOCKS = 16, 64
GOOD, GARBAGE = 7, 666  # tokens that are computed from right and from wrong bytes


class Promising(KVConnectorBase_V1):  # type: ignore[misc]
    """A connector that promises `pages` of each request once, and recovers as OrbitKV's does."""

    pages = 2
    restoring = Restoring(3)
    failed: set[str]
    pool: Any

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        if request.request_id in self.failed:
            return 0, False
        return max(0, self.pages * PAGE - num_computed_tokens), False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if num_external_tokens:
            self.restoring.add(request, blocks.get_block_ids()[0])

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:  # noqa: ARG002
        self.restoring.plan()
        return KVConnectorMetadata()

    def update_connector_output(self, connector_output: Any) -> None:
        self.failed.update(self.restoring.failed(self.pool, connector_output.invalid_block_ids))

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        self.pool = gpu_block_pool
        self.failed, self.restoring = set(), Restoring(3)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None: ...
    def wait_for_layer_load(self, layer_name: str) -> None: ...
    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None: ...
    def wait_for_save(self) -> None: ...


class Played:
    """The engine of a scheduler: requests are added, steps planned, and their results given in the planned order."""

    def __init__(self) -> None:
        config = EngineArgs(
            model=str(ensure(SHAPES["tiny"])),
            skip_tokenizer_init=True,
            block_size=PAGE,
            max_model_len=512,
            max_num_batched_tokens=512,
            num_gpu_blocks_override=BLOCKS,
            enable_prefix_caching=True,
            prefix_caching_hash_algo="sha256_cbor",
            kv_transfer_config={
                "kv_connector": "Promising",
                "kv_connector_module_path": __name__,
                "kv_role": "kv_both",
                "kv_load_failure_policy": "recompute",
            },
        ).create_engine_config()
        config.scheduler_config.async_scheduling = True
        config.cache_config.num_gpu_blocks = BLOCKS
        spec = FullAttentionSpec(block_size=PAGE, num_kv_heads=1, head_size=8, dtype=torch.float32)
        caches = KVCacheConfig(
            num_blocks=BLOCKS,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        )
        self.scheduler = AsyncScheduler(
            config, caches, StructuredOutputManager(config), block_size=PAGE, log_stats=False
        )
        hasher = get_hash_fn_by_name("sha256_cbor")
        init_none_hash(hasher)
        self.hasher = get_request_block_hasher(PAGE, hasher)

    def add(self, name: str, tokens: int, first: int = 0) -> Request:
        """Queue a request whose prompt is `first`, `first` + 1 and so on."""
        request = Request(
            name,
            list(range(first, first + tokens)),
            SamplingParams(max_tokens=4, ignore_eos=True),
            None,
            block_hasher=self.hasher,
        )
        self.scheduler.add_request(request)
        return request

    def step(self) -> SchedulerOutput:
        return self.scheduler.schedule()

    def result(self, step: SchedulerOutput, token: int, invalid: set[int] | None = None) -> None:
        """Give the step's result: one token for each request that computes its last one."""
        names = list(step.num_scheduled_tokens)
        self.scheduler.update_from_output(
            step,
            ModelRunnerOutput(
                names,
                {name: index for index, name in enumerate(names)},
                [[token] for _ in names],
                kv_connector_output=KVConnectorOutput(invalid_block_ids=invalid or set()),
            ),
        )

    def blocks(self, name: str) -> list[int]:
        (found,) = self.scheduler.kv_cache_manager.get_block_ids(name)
        return list(found)

    def run(self, request: Request) -> list[int]:
        """Play right steps until the request ends; return its tokens."""
        for _ in range(20):
            if request.is_finished():
                return list(request.output_token_ids)
            self.result(self.step(), GOOD)
        raise AssertionError(f"{request.request_id} does not end: {request.status}")


@pytest.fixture
def engine() -> Iterator[Played]:
    """Return an engine with the recovery, which every scheduler of the process has from then on."""
    before = Scheduler._handle_invalid_blocks
    install()
    yield Played()
    Scheduler._handle_invalid_blocks = before


def test_token_of_a_step_in_flight_is_dropped(engine: Played) -> None:
    request = engine.add("a", 3 * PAGE)
    failing = engine.step()
    bad = engine.blocks("a")[:1]
    behind = engine.step()  # the asynchronous scheduler plans it before the failure is known
    assert (failing.num_scheduled_tokens, behind.num_scheduled_tokens) == ({"a": PAGE}, {"a": 1})
    engine.result(failing, GARBAGE, set(bad))
    assert request.status is RequestStatus.PREEMPTED
    assert request.num_output_placeholders == 0
    again = engine.step()
    engine.result(behind, GARBAGE)
    # As a new request, whole: the runner forgets the tokens and positions that it had.
    assert again.num_scheduled_tokens == {"a": 3 * PAGE}
    assert again.scheduled_cached_reqs.resumed_req_ids == {"a"}
    assert again.scheduled_cached_reqs.all_token_ids == {"a": list(range(3 * PAGE))}
    engine.result(again, GOOD)
    assert engine.run(request) == [GOOD] * 4


def test_what_was_computed_from_failed_bytes_is_no_device_hit(engine: Played) -> None:
    request = engine.add("a", 4 * PAGE)
    failing = engine.step()
    second = engine.blocks("a")[1]
    engine.result(failing, GARBAGE, {second})
    hits = engine.scheduler.kv_cache_manager.get_computed_blocks(engine.add("b", 4 * PAGE))
    assert hits[1] == PAGE, "the first page is right, no page behind it is"
    assert engine.run(request) == [GOOD] * 4


def test_neighbour_that_hit_the_failed_blocks_computes_anew(engine: Played) -> None:
    first = engine.add("a", 3 * PAGE)
    failing = engine.step()
    second = engine.add("b", 4 * PAGE + 5)
    behind = engine.step()
    assert behind.num_scheduled_tokens["b"] == PAGE + 5, "it hits what the step in flight computes"
    last = engine.blocks("b")[3]
    engine.result(failing, GARBAGE, {engine.blocks("a")[0]})
    assert engine.scheduler.kv_cache_manager.block_pool.blocks[last].block_hash is None, "no hit for anybody else"
    engine.result(behind, GARBAGE)
    assert engine.run(first) == [GOOD] * 4
    assert engine.run(second) == [GOOD] * 4


def test_request_that_ended_meanwhile_leaves_no_device_hits(engine: Played) -> None:
    engine.add("a", 4 * PAGE)
    failing = engine.step()
    bad = engine.blocks("a")[0]
    engine.scheduler.finish_requests("a", RequestStatus.FINISHED_ABORTED)
    engine.result(failing, GARBAGE, {bad})
    assert engine.scheduler.kv_cache_manager.get_computed_blocks(engine.add("b", 4 * PAGE))[1] == 0


def test_request_that_was_preempted_meanwhile_delivers_no_token(engine: Played) -> None:
    request = engine.add("a", 3 * PAGE)
    failing = engine.step()
    bad = engine.blocks("a")[0]
    engine.scheduler.running.remove(request)
    engine.scheduler._preempt_request(request, 0.0)
    engine.result(failing, GARBAGE, {bad})
    assert list(request.output_token_ids) == []
    assert engine.run(request) == [GOOD] * 4


def test_queue_keeps_its_order(engine: Played) -> None:
    engine.add("a", 3 * PAGE)
    engine.add("b", 3 * PAGE, first=100)
    failing = engine.step()
    engine.result(failing, GARBAGE, {engine.blocks("a")[0], engine.blocks("b")[1]})
    assert list(engine.step().num_scheduled_tokens) == ["a", "b"]


def test_release_without_the_parts_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"has no Scheduler\._preempt_request"):
        install(type("Other", (), {"_handle_invalid_blocks": lambda: None}))


def test_second_installation_changes_nothing(engine: Played) -> None:
    handler = Scheduler._handle_invalid_blocks
    install()
    assert Scheduler._handle_invalid_blocks is handler


def test_other_policy_is_left_to_the_engine() -> None:
    handle = recovery.preempting(lambda *_: {"a"})
    assert handle(SimpleNamespace(recompute_kv_load_failures=False), {1}, {}) == {"a"}
