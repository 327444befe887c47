"""The engine's metrics `vllm:orbitkv_*`: from the sides' statistics, through vLLM, to Prometheus."""

from __future__ import annotations

from typing import Any

from prometheus_client import Counter, Gauge, Histogram
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from orbitkv.adapter.stats import COUNTERS, GAUGES, HELP, HISTOGRAMS, buckets_of, merge

PREFIX = "vllm:orbitkv_"


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
            self._metrics[name] = metric_types[Histogram](
                name=PREFIX + name, documentation=HELP[name], buckets=buckets_of(name), labelnames=labelnames
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
