"""When vLLM's steps end, seen from its scheduler, and how fast they compute prompts.

A step has ended once the request that it computed most for has confirmed its tokens. The scheduler is asked for the
next step right after that, for that request goes on, so the time of the next plan is the step's end. A step whose
request is gone by then says nothing: the engine may have been idle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orbitkv.adapter.prefill import STEP_TOKENS_MIN, Prefill

STEPS_MAX = 16  # that may be in flight; past it the oldest is forgotten


@dataclass(frozen=True)
class Step:
    """A step that was planned: until `request` has confirmed `target` tokens it has not ended."""

    begun: float
    tokens: int  # that it computes, zero when they say nothing
    request: str
    target: int


class Steps:
    """Follows them. For the scheduler's thread."""

    def __init__(self, prefill: Prefill) -> None:
        self._prefill = prefill
        self._flying: deque[Step] = deque(maxlen=STEPS_MAX)

    def planned(self, scheduled: Mapping[str, int], requests: Mapping[str, Any], *, restores: bool, now: float) -> None:
        """Take the plan of a step, as vLLM's scheduler makes it: tokens by request, of which `requests` are known."""
        self._end(requests, now)
        tokens = sum(scheduled.values())
        alone = tokens >= STEP_TOKENS_MIN and not restores
        names = (name for name in scheduled if name in requests)
        name = max(names, key=lambda each: scheduled[each], default=None) if alone else next(names, None)
        if name is not None:
            target = requests[name].num_computed_tokens + scheduled[name]
            self._flying.append(Step(now, tokens if alone else 0, name, target))

    def _end(self, requests: Mapping[str, Any], now: float) -> None:
        """End every step up to the last one whose request has confirmed its tokens, or is gone."""
        over = 0
        for number, step in enumerate(self._flying, 1):
            request = requests.get(step.request)
            if request is None or request.num_computed_tokens - request.num_in_flight_tokens >= step.target:
                over = number
        for left in range(over, 0, -1):
            step = self._flying.popleft()
            # Of several that ended since the last plan, only the last one's end is known.
            known = left == 1 and step.request in requests
            self._prefill.ended(step.begun, step.tokens if known else 0, now)
