"""vLLM's steps, seen from its scheduler: when they end, alone and with the next one planned ahead."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from orbitkv.adapter.prefill import STEP_TOKENS_MIN, STEPS_MIN, Prefill
from orbitkv.vllm.steps import STEPS_MAX, Steps

TOKENS = 4 * STEP_TOKENS_MIN
SECONDS = 0.25
STEPS = 8


class Engine:
    """A scheduler whose steps each take their own time, `ahead` of them planned before one has ended."""

    def __init__(self, ahead: int) -> None:
        self.prefill = Prefill(16)
        self.steps = Steps(self.prefill)
        self.requests: dict[str, Any] = {}
        self.now = 0.0
        self._ahead = ahead
        self._flying: list[tuple[dict[str, int], float]] = []  # with the time at which the device is done

    def add(self, name: str) -> None:
        """Take a request."""
        self.requests[name] = SimpleNamespace(num_computed_tokens=0, num_in_flight_tokens=0)

    def step(self, scheduled: dict[str, int], seconds: float, *, restores: bool = False) -> None:
        """Plan a step that takes so long, and wait until no more than `ahead` are on their way."""
        self.steps.planned(scheduled, self.requests, restores=restores, now=self.now)
        for name, tokens in scheduled.items():
            self.requests[name].num_computed_tokens += tokens
            self.requests[name].num_in_flight_tokens += tokens
        begins = max(self.now, self._flying[-1][1] if self._flying else 0.0)
        self._flying.append((scheduled, begins + seconds))
        while len(self._flying) > self._ahead:
            done, end = self._flying.pop(0)
            self.now = max(self.now, end)
            for name, tokens in done.items():
                self.requests[name].num_in_flight_tokens -= tokens


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_the_rate_of_chunks_of_one_prompt(ahead: int) -> None:
    engine = Engine(ahead)
    engine.add("a")
    for _ in range(STEPS):
        engine.step({"a": TOKENS}, SECONDS)
    assert engine.prefill.rate == pytest.approx(TOKENS / SECONDS)


@pytest.mark.parametrize("ahead", [0, 1])
def test_time_in_which_nothing_runs_is_not_counted(ahead: int) -> None:
    engine = Engine(ahead)
    for number in range(STEPS):
        engine.add(f"r{number}")
        engine.step({f"r{number}": TOKENS}, SECONDS)
        for _ in range(3):
            engine.step({f"r{number}": 1}, 0.01)
        engine.now += 60.0
    assert engine.prefill.rate == pytest.approx(TOKENS / SECONDS, rel=0.05)


def test_a_step_whose_request_is_gone_says_nothing() -> None:
    engine = Engine(0)
    for number in range(STEPS):
        engine.add(f"r{number}")
        engine.step({f"r{number}": TOKENS}, SECONDS)
        del engine.requests[f"r{number}"]
        engine.now += 60.0
    assert engine.prefill.rate == 0.0


def test_a_step_that_restores_says_nothing() -> None:
    engine = Engine(0)
    engine.add("a")
    for number in range(2 * STEPS_MIN):
        engine.step({"a": TOKENS}, SECONDS * (40 if number % 2 else 1), restores=number % 2 == 1)
    engine.step({"a": 1}, 0.01)
    assert engine.prefill.rate == pytest.approx(TOKENS / SECONDS)


def test_others_that_decode_beside_a_prompt_do_not_stand_for_it() -> None:
    engine = Engine(1)
    engine.add("first")
    engine.add("prompt")
    for _ in range(STEPS):
        engine.step({"first": 1, "prompt": TOKENS}, SECONDS)
    assert engine.prefill.rate == pytest.approx((TOKENS + 1) / SECONDS)


def test_requests_that_never_confirm_leave_nothing_behind() -> None:
    """A request that is preempted begins anew; others of which nothing is known come in between."""
    engine = Engine(0)
    engine.add("stuck")
    for number in range(10 * STEPS_MAX):
        engine.steps.planned({"stuck": TOKENS, "unknown": 5}, engine.requests, restores=False, now=float(number))
        engine.steps.planned({"unknown": TOKENS}, engine.requests, restores=False, now=float(number))
    assert len(engine.steps._flying) == STEPS_MAX
    assert engine.prefill.rate == 0.0
