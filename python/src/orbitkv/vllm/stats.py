"""Counters and observations of one interval, on either side, before they become the engine's metrics."""

from __future__ import annotations

import threading
from typing import TypeAlias

COUNTERS = (
    "load_success",
    "load_failure",
    "load_bytes",
    "save_success",
    "save_failure",
    "save_skipped",
    "save_bytes",
    "query_unanswered",
    "breaker_opened",
)
HISTOGRAMS = (
    "prefetch_duration_seconds",
    "prefetch_blocks",
    "load_duration_seconds",
    "load_blocks",
    "layer_wait_seconds",
    "save_duration_seconds",
    "save_blocks",
)
GAUGES = ("pending_prefetches", "pending_save_requests")

OBSERVATIONS_MAX = 4096  # of one histogram in one interval; later ones only count as dropped

Values: TypeAlias = dict[str, "float | list[float]"]


class Stats:
    """Collects until it is taken. Thread-safe: copying threads count too."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: Values = {}
        self.dropped = 0  # observations past OBSERVATIONS_MAX

    def count(self, name: str, by: float = 1) -> None:
        """Add to a counter."""
        with self._lock:
            value = self._values.get(name, 0.0)
            assert not isinstance(value, list)
            self._values[name] = value + by

    def gauge(self, name: str, value: float) -> None:
        """Set a gauge."""
        with self._lock:
            self._values[name] = float(value)

    def observe(self, name: str, value: float) -> None:
        """Add an observation to a histogram."""
        with self._lock:
            values = self._values.setdefault(name, [])
            assert isinstance(values, list)
            if len(values) < OBSERVATIONS_MAX:
                values.append(float(value))
            else:
                self.dropped += 1

    def take(self) -> Values:
        """Return what was collected since the last call."""
        with self._lock:
            values, self._values = self._values, {}
            return values


def merge(left: Values, right: Values) -> Values:
    """Return the sum of two intervals: counters add, observations join, the later gauge wins."""
    merged: Values = {name: list(value) if isinstance(value, list) else value for name, value in left.items()}
    for name, value in right.items():
        if isinstance(value, list):
            before = merged.setdefault(name, [])
            assert isinstance(before, list)
            before.extend(value[: OBSERVATIONS_MAX - len(before)])
        elif name in GAUGES:
            merged[name] = value
        else:
            earlier = merged.get(name, 0.0)
            assert not isinstance(earlier, list)
            merged[name] = earlier + value
    return merged
