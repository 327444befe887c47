"""Counters and observations of one interval, on either side, before they become the engine's metrics.

What they are not: `load_*` counts restores whose bytes arrived, by rank, and its duration runs from submission to the
last byte, waiting in the copy queue included; `save_*` says that bytes are in host memory, not that they are durable;
`prefetch_*` is the time from a query to its usable answer. The engine's bytes do not move in it, but the Manager may
read pages from a slower tier; a request's wait for them is `prefetch_staging_seconds`.
"""

from __future__ import annotations

import threading
from typing import TypeAlias

COUNTERS = (
    "load_success",
    "load_failure",
    "load_bytes",
    "load_unwaited",
    "load_early",
    "save_success",
    "save_failure",
    "save_skipped",
    "save_bytes",
    "query_unanswered",
    "query_deferred",
    "prefetch_stopped",
    "prefetch_outpaced",
    "breaker_opened",
    "messages_refused",
    "leases_forgotten",
    "arenas_refused",
    "reports_forgotten",
    "observations_dropped",
)
HISTOGRAMS = (
    "prefetch_duration_seconds",
    "prefetch_blocks",
    "prefetch_staging_seconds",
    "prefetch_stopped_blocks",
    "load_duration_seconds",
    "load_blocks",
    "layer_wait_seconds",
    "restore_build_seconds",
    "restore_submit_seconds",
    "restore_first_layer_seconds",
    "restore_last_layer_seconds",
    "restore_resume_seconds",
    "restore_copies",
    "restore_pieces",
    "save_duration_seconds",
    "save_blocks",
)
GAUGES = ("pending_prefetches", "pending_save_requests", "prefill_tokens_per_second")

SECONDS_BUCKETS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
BLOCKS_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
PIECES_BUCKETS = (16, 64, 256, 1024, 4096, 16384, 65536, 262144)  # blocks times layers

HELP = {
    "load_success": "Restores whose every byte arrived, counted by each rank.",
    "load_failure": "Restores that failed or could not be begun; the engine recomputed their tokens.",
    "load_bytes": "Bytes that restores copied into engine blocks, over all ranks.",
    "load_unwaited": "Restores whose every layer a forward did not wait for; the engine recomputed their tokens.",
    "load_early": "Restores that began when their step was planned, before the engine prepared it.",
    "save_success": "Pages that ranks copied out, counted by each rank.",
    "save_failure": "Pages whose publish failed or was given up.",
    "save_skipped": "Pages that were not published because of a bound or an absent Manager, each time they came.",
    "save_bytes": "Bytes that publishes copied out of engine blocks, over all ranks.",
    "query_unanswered": "Waits for a query's answer that passed without one.",
    "query_deferred": "Questions that were not put, since the window of leases was full.",
    "prefetch_stopped": "Queries that were told to take what was there, since their request would not wait any longer.",
    "prefetch_outpaced": "Queries among these whose rest the engine computes sooner than the slower tier brings it.",
    "breaker_opened": "Seconds without queries and hits that unanswered waits began.",
    "messages_refused": "Messages to the Cache Manager that found the channel's queue full.",
    "leases_forgotten": "Begun restores past the bound of those named after a lost connection.",
    "arenas_refused": "Arenas that a rank could not map or register; it gets no hits from their pages.",
    "reports_forgotten": "Reports past the bound of those told again after a lost connection.",
    "observations_dropped": "Observations that the histograms lack, since one interval had too many.",
    "prefetch_duration_seconds": "Seconds from a query to its usable answer.",
    "prefetch_blocks": "Pages found by a query.",
    "prefetch_staging_seconds": "Seconds that a request waited for pages on their way from a slower tier.",
    "prefetch_stopped_blocks": "Pages that were there when a query was told to take them.",
    "load_duration_seconds": "Seconds from a restore's submission to its last byte.",
    "load_blocks": "Pages of a restore.",
    "layer_wait_seconds": "Seconds that the forward waited for one layer's bytes.",
    "restore_build_seconds": "Seconds that the copies of a step's restores were planned, counted by each restore.",
    "restore_submit_seconds": "Seconds that the copies of a step's restores were handed over, counted by each restore.",
    "restore_first_layer_seconds": "Seconds from a restore's submission to the last byte of its first layer.",
    "restore_last_layer_seconds": "Seconds from a restore's submission to the last byte of its last layer.",
    "restore_resume_seconds": "Seconds from a restore's submission until the forward had passed its last layer.",
    "restore_copies": "Copies that a step's restores were made of, counted by each restore.",
    "restore_pieces": "Blocks of single layers that a step's restores moved, counted by each restore.",
    "save_duration_seconds": "Seconds from the submission of a publish to its last byte.",
    "save_blocks": "Pages of one publish.",
    "pending_prefetches": "Queries whose answer cannot be used yet.",
    "prefill_tokens_per_second": "Tokens of prompts that the engine computes a second; absent until enough was seen.",
    "pending_save_requests": "Publish batches between their reserve and the return of their blocks.",
}

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


def buckets_of(name: str) -> tuple[float, ...]:
    """Return the buckets of a histogram."""
    if name.endswith("_seconds"):
        return SECONDS_BUCKETS
    return PIECES_BUCKETS if name.endswith(("_copies", "_pieces")) else BLOCKS_BUCKETS


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
