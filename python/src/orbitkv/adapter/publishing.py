"""What publishing is bounded by in either engine, and how granted pages become batches of copies."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from orbitkv.adapter.plans import Blocks, PublishPlan
from orbitkv.client import Reserve

RESERVE_PAGES_MAX = 1024  # pages of one reserve, which the Manager places under one hold; the rest waits a step
RESERVES_MAX = 16  # unanswered reserves; at the bound no more is asked for
COPY_PAGES = 32  # pages of one batch of copies: they become visible together
PRESSED_SECONDS = 0.1  # how long an unanswered reserve keeps its sources from an engine that runs out of pages


def publish_plans(reserve: Reserve, sources: Blocks, parts: int, tickets: Iterator[int]) -> list[PublishPlan]:
    """Return the granted pages of a reserve as batches. `sources[i]` is the block of key i.

    ProtocolError when the answer does not say where every granted page lies.
    """
    granted = reserve.granted()
    locations = [reserve.locations(part) for part in range(parts)]
    plans = []
    for first in range(0, len(granted), COPY_PAGES):
        chosen = granted[first : first + COPY_PAGES]
        places = tuple(np.ascontiguousarray(each[first : first + len(chosen)]) for each in locations)
        ordinals = np.arange(first, first + len(chosen), dtype=np.uint32)
        plans.append(PublishPlan(next(tickets), reserve.reservation, ordinals, sources[chosen], places))
    return plans
