"""`OrbitKVLinker`: SGLang's objects in, the rank's plain data out.

Its own state is what the last look-up said, and what was offered since the pass began: slot numbers lie on the device
and come to the host behind what the schedule stream has, so the rank takes offers in the next pass, without waiting.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from sglang.srt.mem_cache.hicache_storage import PoolTransfer
from sglang.srt.mem_cache.unified_cache.unified_cache_linker import UnifiedCacheLinker

from orbitkv._faults import FAULTS
from orbitkv.adapter.logs import LOGGER
from orbitkv.adapter.plans import Blocks
from orbitkv.errors import EngineFault
from orbitkv.sglang.rank import RankSide

log = logging.getLogger(LOGGER)


class OrbitKVLinker(UnifiedCacheLinker):
    """One rank's linker. Every method runs on the engine's scheduler thread."""

    def __init__(self, side: RankSide, page_size: int) -> None:
        self.side = side
        self.layer_done_counter = side.loads
        self.answered = True
        self._page_size = page_size
        self._offered: list[tuple[Sequence[str], Callable[[], Any]]] = []  # keys, and what gives their slots

    def begin_pass(self) -> bytes:
        """Begin a pass of the scheduler; return the Manager's life that this rank could use, empty for none."""
        offered, self._offered = self._offered, []
        for keys, slots in offered:
            self.side.offload(keys, pages_of(slots(), self._page_size, keys))
        self.side.begin_pass()
        return self.side.life()

    def lookup(self, rid: str, transfers: list[PoolTransfer]) -> list[int]:
        """Return every number of leading pages that this rank can restore; `answered` says whether it knows."""
        keys = transfers[0].keys
        try:
            found = self.side.lookup(rid, keys) if keys else 0
        except FAULTS:  # I10: a rank that raised alone would leave the others in the engine's reduction for good.
            log.exception("a look-up of request %s failed; it is recomputed", rid)
            self.side.forget(rid)
            found = 0
        self.answered = found is not None
        return list(range(1, (found or 0) + 1))

    def load(self, rid: str, transfers: list[PoolTransfer]) -> bool:
        """Queue the restore of promised pages."""
        transfer, keys = transfers[0], transfers[0].keys or ()
        slots = on_the_way(transfer.device_indices)()
        self.side.queue_load(rid, keys, pages_of(slots, self._page_size, keys))
        return True

    def start_layer_wise_loading(self) -> int:
        """Begin every queued restore and return the batch's consumer index, -1 without any."""
        return self.side.start_loads()

    def cancel_queued_load(self, rid: str) -> bool:
        """Let go of a request that waits. A queued restore is not cancelled: the tree has its pages already."""
        self.side.forget(rid)
        return False

    def num_completed_loads(self) -> int:
        """Return how many batches have arrived."""
        return self.side.loads.completed()

    def pop_completed_load(self) -> list[str]:
        """Acknowledge the oldest of them."""
        return self.side.loads.pop()

    def offload(self, transfers: list[PoolTransfer]) -> bool:
        """Take pages to publish; always, since ranks that differed here would not agree on the order any more."""
        transfer = transfers[0]
        self._offered.append((transfer.keys or (), on_the_way(transfer.device_indices)))
        return True

    def num_completed_offloads(self) -> int:
        """Return how many publishes from the oldest on have ended."""
        return self.side.offloads.completed

    def pop_completed_offload(self) -> bool:
        """Return how the oldest of them ended."""
        return self.side.offloads.pop()

    def reset(self) -> None:
        """Let copies end and forget what the engine's tree forgets."""
        self._offered.clear()
        self.side.reset()

    def close(self) -> None:
        """Let copies end and leave the Cache Manager."""
        self.side.close()


def on_the_way(slots: Any) -> Callable[[], Any]:
    """Begin to copy slot numbers to the host; return what waits for them and gives them, int64 in a row."""
    if slots.device.type == "cpu":
        taken = slots.numpy().astype(np.int64)
        return lambda: taken
    host = torch.empty(slots.shape, dtype=slots.dtype, pin_memory=True)
    host.copy_(slots, non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record()

    def wait() -> Any:
        arrived.synchronize()
        return host.numpy().astype(np.int64, copy=False)

    return wait


def pages_of(slots: Blocks, page_size: int, keys: Sequence[str]) -> Blocks:
    """Return the page of each run of `page_size` slots. EngineFault when a run is no whole page of its own."""
    if len(slots) != len(keys) * page_size:
        raise EngineFault(f"SGLang gave {len(slots)} token slots for {len(keys)} pages of {page_size}")
    rows = slots.reshape(-1, page_size)
    if (rows[:, 0] % page_size).any() or (rows != rows[:, :1] + np.arange(page_size)).any():
        raise EngineFault(f"SGLang gave token slots that are no whole pages of {page_size}")
    return np.ascontiguousarray(rows[:, 0] // page_size)
