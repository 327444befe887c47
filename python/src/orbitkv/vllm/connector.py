"""`OrbitKVConnector`, the class that vLLM makes: once in its scheduler's process and once in each worker.

It translates vLLM's objects into the adapter's own and keeps no state but the requests of the scheduler side.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import vllm
from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)

from orbitkv.adapter.link import Link
from orbitkv.adapter.logs import LOGGER, show_below
from orbitkv.adapter.session import Epoch, SchedulerSession
from orbitkv.adapter.settings import read_settings
from orbitkv.adapter.stats import Stats
from orbitkv.timeline import Timeline
from orbitkv.vllm import engine, recovery
from orbitkv.vllm.metrics import OrbitKVPromMetrics, OrbitKVStats
from orbitkv.vllm.plans import Progress, StepPlan, StepReport, WorkerHello
from orbitkv.vllm.recovery import Restoring
from orbitkv.vllm.scheduler import SchedulerSide
from orbitkv.vllm.tensors import engine_layers
from orbitkv.vllm.worker import WorkerSide

log = logging.getLogger(LOGGER)
show_below("vllm")


class OrbitKVMetadata(KVConnectorMetadata):
    """One step's plan, from the scheduler side to every worker."""

    def __init__(self, plan: StepPlan) -> None:
        self.plan = plan


class OrbitKVWorkerMetadata(KVConnectorWorkerMetadata):
    """One step's report of one worker, or the sum of several."""

    def __init__(self, report: StepReport) -> None:
        self.report = report

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        """Return the sum with another worker's."""
        return OrbitKVWorkerMetadata(self.report.merge(other.report))


class OrbitKVHandshake(KVConnectorHandshakeMetadata):
    """What one worker tells the scheduler side before the first step."""

    def __init__(self, hello: WorkerHello) -> None:
        self.hello = hello


class OrbitKVConnector(KVConnectorBase_V1, SupportsHMA):
    """vLLM's KV connector backed by the host's Cache Manager; see README.md for how to turn it on.

    It does not ask for piecewise graphs (`requires_piecewise_for_cudagraph` stays False), which would slow every decode
    step down: a forward that replays a full graph is seen in `start_load_kv`.
    """

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        engine.check_configuration(vllm_config)
        self._settings = read_settings(vllm_config.kv_transfer_config.kv_connector_extra_config)
        self._timeline = Timeline(f"vllm-{vllm.__version__}")
        self._epoch = Epoch()
        self._pool: Any = None
        self._requests: dict[str, Any] = {}
        self._restoring = Restoring(vllm_config.max_concurrent_batches + 1)
        self._scheduler: SchedulerSide | None = None
        self._worker: WorkerSide | None = None
        self._hello: WorkerHello | None = None
        self._instance = ""  # the scheduler side's, as its workers named it
        self._unsupported = engine.unsupported(vllm_config, kv_cache_config)
        if self._unsupported and role is KVConnectorRole.SCHEDULER:
            log.warning("OrbitKV gives this engine no external hits: %s", self._unsupported)
        if role is KVConnectorRole.SCHEDULER:
            recovery.install()
        if role is KVConnectorRole.WORKER and not self._unsupported:
            self._place = engine.place_of_rank(vllm_config, kv_cache_config)

    @property
    def requires_kv_delivery(self) -> bool:
        """Return False: a save that is dropped is a later miss, nothing else."""
        return False

    # The worker's side, in the order of a step.

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Read the layout, attach to the Cache Manager and prove both by a golden round trip."""
        if self._unsupported:
            return
        if self._worker is not None:
            self._worker.close()
        layers = engine_layers(kv_caches, self._kv_cache_config.num_blocks, verify=bool(self._settings.verify))
        facts = engine.namespace_facts(self._vllm_config, self._kv_cache_config, layers)
        self._by_layer = engine.waits_by_layer(self._vllm_config, layers)
        place = self._place if layers.site is None else replace(self._place, numa=layers.site.numa)
        self._worker = WorkerSide(self._settings, place, layers, facts, self._timeline)
        self._worker.begin()
        self._hello = WorkerHello(place.instance, place.rank, place.world, self._worker.proven)

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        """Return the instance's name and what this worker proved."""
        return OrbitKVHandshake(self._hello) if self._hello is not None else None

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Submit the step's restores; a step whose forward runs no layer hooks comes after them as a whole."""
        if self._worker is not None:
            self._worker.start(self._plan(), hooks=self._by_layer and engine.runs_hooks(forward_context))

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Hold the forward until the layer's restored bytes are in place."""
        if self._worker is not None:
            self._worker.wait_layer(layer_name)

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Do nothing: only blocks of earlier, confirmed steps are published."""

    def wait_for_save(self) -> None:
        """Do nothing: sources are held by reference, so no step waits for a publish."""

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:  # noqa: ARG002
        """Close the step; no request is ever finished asynchronously."""
        if self._worker is not None:
            self._worker.end_step(self._plan())
        return None, None

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Return the blocks that the engine must recompute."""
        return self._worker.load_errors() if self._worker is not None else set()

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        """Return what the scheduler side's references are no longer needed for."""
        report = self._worker.report() if self._worker is not None else None
        return OrbitKVWorkerMetadata(report) if report else None

    def get_kv_connector_stats(self) -> OrbitKVStats | None:
        """Return this side's statistics since the last call."""
        side = self._scheduler or self._worker
        values = side.stats.take() if side is not None else {}
        return OrbitKVStats(data=values) if values else None

    def shutdown(self) -> None:
        """Let copies end, give everything back and close the channel."""
        for side in (self._scheduler, self._worker):
            if side is not None:
                side.close()
        self._scheduler = self._worker = None

    # The scheduler's side, in the order of a pass.

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: dict[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        """Learn the instance from its workers and start the session with the Cache Manager."""
        hellos = [each.hello for each in metadata.values()]
        geometry = engine.geometry_of(self._vllm_config)
        instance = self._instance = hellos[0].instance
        stats = Stats()
        link: Link[SchedulerSession] = Link(
            "scheduler",
            lambda previous: SchedulerSession.connect(
                self._settings, instance, self._epoch, link.wake, previous, stats.count
            ),
        )
        self._scheduler = SchedulerSide(self._settings, geometry, self._epoch, link, self._timeline, stats=stats)
        self._scheduler.bind_pool(self._pool)
        proven = {hello.proven for hello in hellos}
        if len(proven) == 1 and len(hellos) == geometry.world:
            self._scheduler.golden.proven = proven.pop()
        link.start()

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        """Take the block pool, which comes before the workers' hellos."""
        self._pool = gpu_block_pool

    def on_new_request(self, request: Any) -> None:
        """Note a queued request."""
        if self._scheduler is not None and not left_alone(request):
            self._requests[request.request_id] = request
            self._scheduler.queued(request.request_id)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Return how many tokens this step restores; always in the step itself, never between steps."""
        if self._scheduler is None or request.request_id not in self._requests:
            return 0, False
        return self._scheduler.matched_tokens(progress_of(request), num_computed_tokens), False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Begin the restore of an admitted request and follow its blocks."""
        if self._scheduler is None or request.request_id not in self._requests:
            return
        ids = blocks.get_block_ids()[0]
        if num_external_tokens:
            self._restoring.add(request, ids)
        self._scheduler.allocated(request.request_id, num_external_tokens, ids)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        """Return the step's plan. A worker in this process begins its restores before the step is prepared."""
        if self._scheduler is None:
            return OrbitKVMetadata(StepPlan())
        requests, due = self._requests, self._scheduler.publisher.due
        running = [
            progress_of(requests[name])
            for name in scheduler_output.num_scheduled_tokens
            if name in due and requests[name].num_computed_tokens >= due[name]
        ]
        blocks = {name: ids[0] for name, ids in block_lists(scheduler_output) if name in requests}
        plan = self._scheduler.build_plan(running, blocks, scheduler_output.preempted_req_ids or ())
        self._scheduler.steps.planned(
            scheduler_output.num_scheduled_tokens, requests, restores=bool(plan.restores), now=self._scheduler.clock()
        )
        self._restoring.plan()
        worker = self._worker_here()
        if worker is not None:
            worker.begin_restores(plan, rewritten=writes_blocks_first(scheduler_output))
        return OrbitKVMetadata(plan)

    def update_connector_output(self, connector_output: Any) -> None:
        """Take the workers' reports of a step."""
        if self._scheduler is None:
            return
        if invalid := connector_output.invalid_block_ids:
            failed = self._restoring.failed(self._pool, invalid)
            self._scheduler.failed(name for name in failed if name in self._requests)
        if (meta := connector_output.kv_connector_worker_meta) is not None:
            self._scheduler.take_report(meta.report)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:  # noqa: ARG002
        """Let go of a request; its blocks are never kept back."""
        if self._scheduler is not None and self._requests.pop(request.request_id, None) is not None:
            self._scheduler.finished(progress_of(request))
        return False, None

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Let go of a request, as vLLM asks it of connectors that know several cache groups."""
        return self.request_finished(request, block_ids[0] if block_ids else [])

    def has_pending_push_work(self) -> bool:
        """Return whether steps are needed although no request runs."""
        return self._scheduler is not None and self._scheduler.pending

    def reset_cache(self) -> bool | None:
        """Start a new epoch: a reset that names the connector, and every pause or sleep of vLLM that clears caches."""
        return self._scheduler.reset() if self._scheduler is not None else True

    # Class-wide.

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> OrbitKVStats:
        """Return statistics that were carried between processes."""
        return OrbitKVStats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: dict[int, list[object]]
    ) -> OrbitKVPromMetrics:
        """Return the Prometheus metrics of an API process."""
        return OrbitKVPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def _worker_here(self) -> WorkerSide | None:
        """Return the worker's side when this instance has one worker, in this process."""
        worker = get_kv_transfer_group() if has_kv_transfer_group() else None
        if not isinstance(worker, OrbitKVConnector) or worker._hello is None:
            return None
        alone = worker._hello.world == 1 and worker._hello.instance == self._instance
        return worker._worker if alone else None

    def _plan(self) -> StepPlan:
        plan: StepPlan = self._get_connector_metadata().plan
        return plan


def left_alone(request: Any) -> bool:
    """Return whether a request neither restores nor publishes.

    Its keys would not name its bytes (an adapter is in them by name only, a streaming session rewrites its tokens), or
    it asked not to read any prefix cache.
    """
    return bool(
        request.lora_request is not None
        or request.prompt_embeds is not None
        or request.skip_reading_prefix_cache
        or request.resumable
    )


def writes_blocks_first(scheduler_output: Any) -> bool:
    """Return whether a step writes blocks before its forward: it blanks new ones, or copies shared ones."""
    return bool(scheduler_output.new_block_ids_to_zero or scheduler_output.kv_cache_block_copies)


def progress_of(request: Any) -> Progress:
    """Return what the adapter needs of vLLM's request."""
    computed = request.num_computed_tokens
    return Progress(
        request.request_id,
        request.num_tokens,
        computed,
        max(0, computed - request.num_in_flight_tokens),
        request.block_hashes,
    )


def block_lists(scheduler_output: Any) -> Iterable[tuple[str, tuple[list[int], ...]]]:
    """Return the complete block lists of the requests that were given blocks in this pass; releases name them apart."""
    state = scheduler_output.kv_connector_block_state
    if state is None:
        return ()
    if hasattr(state, "block_ids"):
        items: Iterable[tuple[str, tuple[list[int], ...]]] = state.block_ids.items()
        return items
    return ((name, state.get_block_ids(name)) for name in state.req_ids)
