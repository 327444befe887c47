"""The scheduler side of the golden round trip: when blocks are lent, what the answers mean, when to step."""

from __future__ import annotations

from python.tests.unit.vllm.conftest import PAGE, Rig, make_rig

from harness.fakes import FakeClient
from orbitkv.adapter.golden import GoldenResult
from orbitkv.client import State
from orbitkv.vllm.plans import StepReport


def test_golden_blocks_are_lent_after_a_reconnection_and_given_back(rig: Rig) -> None:
    rig.side.golden.proven = b""
    plan = rig.side.build_plan([], {}, [])
    assert plan.golden is not None
    assert rig.pool.held() == {plan.golden.source, plan.golden.target}
    assert rig.side.pending
    assert rig.side.build_plan([], {}, []).golden is None, "one loan at a time"
    rig.side.take_report(StepReport(golden={plan.golden.loan: (1, GoldenResult.PASSED)}))
    assert rig.pool.held() == set()
    rig.client.script = [(State.READY, 2)]
    assert rig.match("a", 1000) == 2 * PAGE


def test_a_golden_mismatch_leaves_the_instance_without_hits(rig: Rig) -> None:
    rig.side.golden.proven = b""
    plan = rig.side.build_plan([], {}, [])
    assert plan.golden is not None
    rig.side.take_report(StepReport(golden={plan.golden.loan: (1, GoldenResult.MISMATCH)}))
    rig.clock.now += 100.0
    assert rig.side.build_plan([], {}, []).golden is None
    assert rig.match("a", 1000) == 0


def test_one_rank_with_other_bytes_is_enough() -> None:
    rig = make_rig(world=2)
    rig.side.golden.proven = b""
    plan = rig.side.build_plan([], {}, [])
    assert plan.golden is not None
    for result in (GoldenResult.MISMATCH, GoldenResult.PASSED):
        rig.side.take_report(StepReport(golden={plan.golden.loan: (1, result)}))
    assert rig.pool.held() == set()
    assert rig.match("a", 1000) == 0


def test_a_golden_check_that_could_not_run_is_tried_again_after_a_second(rig: Rig) -> None:
    rig.side.golden.proven = b""
    plan = rig.side.build_plan([], {}, [])
    assert plan.golden is not None
    rig.side.take_report(StepReport(golden={plan.golden.loan: (1, GoldenResult.NOT_RUN)}))
    assert rig.side.build_plan([], {}, []).golden is None
    rig.clock.now += 1.0
    assert rig.side.build_plan([], {}, []).golden is not None


def test_a_golden_check_that_cannot_be_lent_yet_keeps_the_engine_stepping_for_the_call_deadline(rig: Rig) -> None:
    """An idle engine takes no steps: without them the next request would find an unproven Manager and compute."""
    rig.side.golden.proven = b""
    taken = rig.pool.get_new_blocks(rig.pool.get_num_free_blocks() - 1)
    assert rig.side.pending
    assert rig.side.build_plan([], {}, []).golden is None, "one block is not enough"
    rig.clock.now += rig.side.settings.call_seconds - 0.001
    assert rig.side.pending
    rig.clock.now += 0.001
    assert not rig.side.pending
    rig.pool.free_blocks(taken)
    plan = rig.side.build_plan([], {}, [])
    assert plan.golden is not None
    assert rig.side.pending, "a loan has the deadline of its own"
    rig.side.take_report(StepReport(golden={plan.golden.loan: (1, GoldenResult.PASSED)}))
    assert not rig.side.pending


def test_a_golden_check_that_could_not_run_keeps_the_engine_stepping_until_it_is_tried_again(rig: Rig) -> None:
    rig.side.golden.proven = b""
    for _ in range(100):
        if not rig.side.pending:
            break
        if (golden := rig.side.build_plan([], {}, []).golden) is not None:
            rig.side.take_report(StepReport(golden={golden.loan: (1, GoldenResult.NOT_RUN)}))
        rig.clock.now += 0.5
    assert rig.clock.now == 1000.0 + rig.side.settings.call_seconds, "tries without end are no reason to step"


def test_a_session_whose_ranks_are_still_attaching_keeps_the_engine_stepping_for_the_call_deadline(rig: Rig) -> None:
    rig.client.alive = False
    assert not rig.side.pending, "an absent Manager is no reason to step"
    rig.client = FakeClient(b"life-2".ljust(16))
    rig.clients.append(rig.client)
    rig.client.ranks_missing = 1
    rig.link.open_once()
    assert rig.side.pending
    rig.clock.now += rig.side.settings.call_seconds
    assert not rig.side.pending
