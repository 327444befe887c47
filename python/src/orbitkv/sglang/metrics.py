"""SGLang's metrics `sglang:orbitkv_*`: one rank's statistics, each second, through the engine's own way to Prometheus.

SGLang's processes write their values into files of one folder, and its HTTP server adds them up. So each rank has
metrics of its own, told apart by the labels that SGLang's scheduler metrics have.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Mapping
from typing import Any

from orbitkv.adapter.stats import COUNTERS, GAUGES, HELP, HISTOGRAMS, Stats, Values, buckets_of

PREFIX = "sglang:orbitkv_"
INTERVAL_SECONDS = 1.0  # between two looks at the statistics


class EngineMetrics:
    """The metrics of one rank's process. `labels` are the engine's; the registry is Prometheus' own unless given."""

    def __init__(self, labels: Mapping[str, Any], registry: Any = None) -> None:
        made = families(tuple(labels), registry)
        self._metrics = {name: family.labels(**labels) for name, family in made.items()}

    def publish(self, values: Values) -> None:
        """Add one interval, as `Stats.take` gives it."""
        for name, value in values.items():
            metric = self._metrics[name]
            if isinstance(value, list):
                for each in value:
                    metric.observe(each)
            elif name in GAUGES:
                metric.set(value)
            else:
                metric.inc(value)

    def follow(self, stats: Stats) -> None:
        """Publish what is collected, each second until the process ends: copies end when no pass runs, too."""

        def run() -> None:
            while True:
                time.sleep(INTERVAL_SECONDS)
                self.publish(stats.take())

        threading.Thread(target=run, name="orbitkv-metrics", daemon=True).start()


@functools.cache
def families(labels: tuple[str, ...], registry: Any) -> dict[str, Any]:
    """Return the metrics by name, registered once a process. The import waits until the engine has set its folder."""
    from prometheus_client import REGISTRY, Counter, Gauge, Histogram

    common: dict[str, Any] = {"labelnames": labels, "registry": registry or REGISTRY}
    made: dict[str, Any] = {}
    for name in COUNTERS:
        made[name] = Counter(PREFIX + name, HELP[name], **common)
    for name in GAUGES:
        made[name] = Gauge(PREFIX + name, HELP[name], multiprocess_mode="mostrecent", **common)
    for name in HISTOGRAMS:
        made[name] = Histogram(PREFIX + name, HELP[name], buckets=buckets_of(name), **common)
    return made
