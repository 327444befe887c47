"""A restore that failed: its requests are preempted and compute everything anew, and nobody hits what came of it (I10).

vLLM 0.29.0 recovers a load that failed within its step by moving the request's count of computed tokens back
(`vllm/v1/core/sched/scheduler.py`, `_handle_invalid_blocks`), and the answer is wrong then:

- with asynchronous scheduling the next step is planned before the failure is known. Its token was computed from the
  failed bytes and is delivered all the same, and both steps' placeholders count as tokens from then on;
- the newer model runner keeps each request's position on the device and only ever moves it forward.

A preemption sets both right: what is in flight is dropped, and the runner gets the request as a new one (`install`).

Blocks are device hits from the moment at which they are allocated. Those whose bytes failed, and all that were computed
from them, leave the prefix cache (`Restoring.failed`), also when their request ended or was preempted in the meantime.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler

from orbitkv.errors import ConfigurationError
from orbitkv.vllm.pool import PrefixCache

# What the preemption takes part in, by its name in the releases that were tested.
PARTS = ("_handle_invalid_blocks", "_preempt_request")

Handler = Callable[[Any, set[int], dict[str, int]], set[str]]


def install(scheduler: type = Scheduler) -> None:
    """Make failed restores preempt their requests, in every scheduler of this process. ConfigurationError.

    Nothing changes when it is called again.
    """
    missing = [part for part in PARTS if not callable(getattr(scheduler, part, None))]
    if missing:
        raise ConfigurationError(
            f"this release of vLLM has no Scheduler.{' and no Scheduler.'.join(missing)}, so a request whose restore "
            "fails could be answered wrongly: use a release that README.md names"
        )
    handler: Handler = scheduler._handle_invalid_blocks  # type: ignore[attr-defined]
    if not getattr(handler, "preempts", False):
        scheduler._handle_invalid_blocks = preempting(handler)  # type: ignore[attr-defined]


def preempting(handler: Handler) -> Handler:
    """Return vLLM's own handler with a preemption of each running request that it names."""

    def handle(scheduler: Any, invalid: set[int], scheduled: dict[str, int]) -> set[str]:
        failed = handler(scheduler, invalid, scheduled)
        if scheduler.recompute_kv_load_failures:
            preempt(scheduler, failed, invalid)
        return failed

    handle.preempts = True  # type: ignore[attr-defined]
    return handle


def preempt(scheduler: Any, failed: set[str], invalid: set[int]) -> None:
    """Preempt the running requests `failed`: they have blocks of `invalid`, or were given them as a device hit."""
    requests = [request for request in scheduler.running if request.request_id in failed]
    for request in requests:
        (blocks,) = scheduler.kv_cache_manager.get_block_ids(request.request_id)
        first = next(index for index, block in enumerate(blocks) if block in invalid)
        scheduler.kv_cache_manager.evict_blocks(set(blocks[first:]))
    scheduler.running = [request for request in scheduler.running if request.request_id not in failed]
    # A request that is resumed at once is a new one to the runner, although the last step had it.
    scheduler.prev_step_scheduled_req_ids.difference_update(failed)
    now = time.monotonic()
    for request in reversed(requests):  # each goes to the head of the queue
        scheduler._preempt_request(request, now)
    # Their tokens are on the way, and so is that of one that was preempted while its restore ran.
    for request in scheduler.requests.values():
        if request.num_stale_output_tokens > 0:
            request.drop_stale_output = True


@dataclass(frozen=True)
class Restored:
    """A request of which a step restores a part, and the blocks that it has in that step, one a page from the first."""

    request: Any
    blocks: Sequence[int]


@dataclass
class Restoring:
    """The restores of the steps whose output may still come: at most `steps` of them."""

    steps: int
    _planned: deque[list[Restored]] = field(init=False)
    _step: list[Restored] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._planned = deque(maxlen=self.steps)

    def add(self, request: Any, blocks: Sequence[int]) -> None:
        """Note a restore of the step that is being planned."""
        self._step.append(Restored(request, blocks))

    def plan(self) -> None:
        """Close the step that is being planned."""
        if self._step:
            self._planned.append(self._step)
            self._step = []

    def failed(self, pool: PrefixCache, invalid: set[int]) -> list[str]:
        """Evict what came of restores into blocks of `invalid` from the prefix cache; return their requests."""
        requests = []
        for restored in (each for step in self._planned for each in step):
            first = next((index for index, block in enumerate(restored.blocks) if block in invalid), None)
            if first is not None:
                evict(pool, restored.request.block_hashes[first:])
                requests.append(restored.request.request_id)
        return requests


def evict(pool: PrefixCache, hashes: Sequence[bytes]) -> None:
    """Evict every block with one of these hashes. I5: nobody is promised as a device hit what was never there."""
    for name in hashes:
        while (blocks := pool.get_cached_block(name, [0])) is not None:
            pool.evict_blocks({blocks[0].block_id})
