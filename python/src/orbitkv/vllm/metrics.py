"""The engine's metrics `vllm:orbitkv_*`: from the sides' statistics, through vLLM, to Prometheus.

What they are not: `load_*` counts restores whose bytes arrived, by rank, and its duration runs from submission to the
last byte, waiting in the copy queue included; `save_*` says that bytes are in host memory, not that they are durable;
`prefetch_*` is the time from a query to its usable answer, and no bytes move in it.
"""

from __future__ import annotations

from typing import Any

from prometheus_client import Counter, Gauge, Histogram
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from orbitkv.adapter.stats import COUNTERS, GAUGES, HISTOGRAMS, merge

PREFIX = "vllm:orbitkv_"
SECONDS_BUCKETS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
BLOCKS_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)

HELP = {
    "load_success": "Restores whose every byte arrived, counted by each rank.",
    "load_failure": "Restores that failed or could not be begun; the engine recomputed their tokens.",
    "load_bytes": "Bytes that restores copied into engine blocks, over all ranks.",
    "save_success": "Pages that ranks copied out, counted by each rank.",
    "save_failure": "Pages whose publish failed or was given up.",
    "save_skipped": "Pages that were not published because a bound was reached or no Manager was there.",
    "save_bytes": "Bytes that publishes copied out of engine blocks, over all ranks.",
    "query_unanswered": "Waits for a query's answer that passed without one.",
    "breaker_opened": "Seconds without queries and hits that unanswered waits began.",
    "messages_refused": "Messages to the Cache Manager that found the channel's queue full.",
    "leases_forgotten": "Begun restores past the bound of those named after a lost connection.",
    "reports_forgotten": "Reports past the bound of those told again after a lost connection.",
    "observations_dropped": "Observations that the histograms lack, since one interval had too many.",
    "prefetch_duration_seconds": "Seconds from a query to its usable answer.",
    "prefetch_blocks": "Pages found by a query.",
    "load_duration_seconds": "Seconds from a restore's submission to its last byte.",
    "load_blocks": "Pages of a restore.",
    "layer_wait_seconds": "Seconds that the forward waited for one layer's bytes.",
    "save_duration_seconds": "Seconds from the submission of a publish to its last byte.",
    "save_blocks": "Pages of one publish.",
    "pending_prefetches": "Queries whose answer cannot be used yet.",
    "pending_save_requests": "Publish batches between their reserve and the return of their blocks.",
}


class OrbitKVStats(KVConnectorStats):
    """One interval's statistics as vLLM carries them."""

    def reset(self) -> None:
        """Forget everything."""
        self.data: dict[str, Any] = {}

    def is_empty(self) -> bool:
        """Return whether nothing was collected."""
        return not self.data

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """Return the sum with another rank or side."""
        return OrbitKVStats(data=merge(self.data, other.data))

    def reduce(self) -> dict[str, int | float]:
        """Return a few figures for the log: sums of counters, count and mean of histograms, gauges as they are."""
        figures: dict[str, int | float] = {}
        for name, value in sorted(self.data.items()):
            if not isinstance(value, list):
                figures[name] = round(value, 3)
            elif value:
                figures[f"{name} count"] = len(value)
                figures[f"{name} mean"] = round(sum(value) / len(value), 6)
        return figures


class OrbitKVPromMetrics(KVConnectorPromMetrics):
    """The Prometheus metrics of one API process."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._metrics: dict[str, Any] = {}
        for name in COUNTERS:
            self._metrics[name] = metric_types[Counter](
                name=PREFIX + name, documentation=HELP[name], labelnames=labelnames
            )
        for name in GAUGES:
            self._metrics[name] = metric_types[Gauge](
                name=PREFIX + name, documentation=HELP[name], labelnames=labelnames
            )
        for name in HISTOGRAMS:
            buckets = SECONDS_BUCKETS if name.endswith("_seconds") else BLOCKS_BUCKETS
            self._metrics[name] = metric_types[Histogram](
                name=PREFIX + name, documentation=HELP[name], buckets=buckets, labelnames=labelnames
            )

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Add one interval of one engine."""
        labels = self.per_engine_labelvalues[engine_idx]
        for name, value in transfer_stats_data.items():
            metric = self._metrics[name].labels(*labels)
            if isinstance(value, list):
                for each in value:
                    metric.observe(each)
            elif name in GAUGES:
                metric.set(value)
            else:
                metric.inc(value)
