"""The engine's rate of prefill: none before enough was seen, robust, and right for steps that overlap."""

from __future__ import annotations

import numpy as np
import pytest

from orbitkv.adapter.prefill import STEP_TOKENS_MIN, STEPS_MAX, STEPS_MIN, Prefill

TOKENS = 4 * STEP_TOKENS_MIN


def test_there_is_no_figure_before_enough_was_seen() -> None:
    prefill = Prefill(16)
    for number in range(STEPS_MIN):
        assert (prefill.rate, prefill.seconds(100)) == (0.0, None)
        prefill.ended(number, TOKENS, number + 0.5)
    assert prefill.rate == pytest.approx(2 * TOKENS)
    assert prefill.seconds(100) == pytest.approx(100 * 16 / (2 * TOKENS))


def test_small_steps_and_those_that_say_nothing_are_no_evidence() -> None:
    prefill = Prefill(16)
    for number in range(10):
        prefill.ended(number, (0, STEP_TOKENS_MIN - 1)[number % 2], number + 0.5)
    prefill.ended(10.0, TOKENS, 10.0)
    assert prefill.rate == 0.0


def test_steps_that_were_held_up_or_seemed_to_take_no_time_do_not_move_it() -> None:
    prefill, order = Prefill(16), np.random.default_rng(3)
    now = 0.0
    for number in range(200):
        held = 5.0 if number % 4 == 0 else 0.0
        tokens = int(order.integers(2 * STEP_TOKENS_MIN, 8 * STEP_TOKENS_MIN))
        prefill.ended(now, tokens, now + tokens / (5000 if number % 5 else 100_000) + held)
        now += 10.0
    assert prefill.rate == pytest.approx(5000, rel=0.01)


def test_it_follows_a_change_within_the_steps_that_it_keeps() -> None:
    prefill = Prefill(16)
    for number in range(3 * STEPS_MAX):
        rate = 1000 if number < 2 * STEPS_MAX else 4000
        prefill.ended(10.0 * number, TOKENS, 10.0 * number + TOKENS / rate)
    assert prefill.rate == pytest.approx(4000)


def test_large_steps_weigh_more_than_small_ones() -> None:
    prefill = Prefill(16)
    for number in range(6):
        tokens, rate = (STEP_TOKENS_MIN, 1000) if number % 2 else (16 * STEP_TOKENS_MIN, 9000)
        prefill.ended(10.0 * number, tokens, 10.0 * number + tokens / rate)
    assert prefill.rate == pytest.approx(9000)


def test_steps_that_are_handed_over_ahead_are_timed_one_after_the_other() -> None:
    """Each is handed over while the one before runs: its time is from that one's end."""
    prefill = Prefill(16)
    for number in range(5):
        prefill.ended(0.1 * number, TOKENS, 1.0 * (number + 1))
    assert prefill.rate == pytest.approx(TOKENS)
