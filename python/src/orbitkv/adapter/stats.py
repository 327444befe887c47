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
    "messages_refused",
    "leases_forgotten",
    "reports_forgotten",
    "observations_dropped",
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

OBSERVATIONS_MAX = 4096  # of one histogram in one interval; later ones only count as observations_dropped

Values: TypeAlias = dict[str, "float | list[float]"]


class Stats:
    """Collects until it is taken. Thread-safe: copying threads count too."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: Values = {}

    def count(self, name: str, by: float = 1) -> None:
        """Add to a counter."""
        with self._lock:
            add(self._values, name, by)

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
                add(self._values, "observations_dropped", 1)

    def take(self) -> Values:
        """Return what was collected since the last call."""
        with self._lock:
            values, self._values = self._values, {}
            return values


def add(values: Values, name: str, by: float) -> None:
    """Add to a counter of an interval."""
    value = values.get(name, 0.0)
    assert not isinstance(value, list)
    values[name] = value + by


def merge(left: Values, right: Values) -> Values:
    """Return the sum of two intervals: counters add, observations join, the later gauge wins."""
    merged: Values = {name: list(value) if isinstance(value, list) else value for name, value in left.items()}
    for name, value in right.items():
        if isinstance(value, list):
            before = merged.setdefault(name, [])
            assert isinstance(before, list)
            room = OBSERVATIONS_MAX - len(before)
            before.extend(value[:room])
            if len(value) > room:
                add(merged, "observations_dropped", len(value) - room)
        elif name in GAUGES:
            merged[name] = value
        else:
            add(merged, name, value)
    return merged
