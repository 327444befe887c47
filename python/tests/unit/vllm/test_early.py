"""Restores that begin when their step is planned: on the fake device, which does its work in any allowed order."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from python.tests.unit.vllm.test_worker import BLOCK_BYTES as HOST_BLOCK_BYTES
from python.tests.unit.vllm.test_worker import Rig as HostRig
from python.tests.unit.vllm.test_worker_device import LAYERS, NEXT_OWNER, PAGES, SEEDS, Reads, Rig

from harness.device import LOWEST
from orbitkv.vllm.plans import StepPlan


@pytest.fixture
def rigs() -> Iterator[Any]:
    """Return what makes rigs whose first restore has shown where forwards are launched; the fixture closes them."""
    made: list[Rig] = []

    def make(*arguments: Any, **options: Any) -> Rig:
        made.append(Rig(*arguments, **options))
        rig = made[-1]
        rig.manager.fill(PAGES)
        plan = rig.plan(restores=[rig.restore([7], 3, 1)])
        rig.side.begin_restores(plan, rewritten=False)
        assert rig.side._begun is None, "nobody knows yet where forwards are launched"
        rig.side.start(plan, hooks=True)
        rig.forward([7])
        rig.side.end_step(plan)
        rig.finish()
        rig.until_told(1)
        rig.attachment.told.clear()
        rig.side.stats.take()
        rig.read.clear()
        return rig

    yield make
    for rig in made:
        rig.close()


def begins(rig: Rig, plan: StepPlan, *, rewritten: bool = False) -> bool:
    """Plan a step and return whether its restores began."""
    rig.side.begin_restores(plan, rewritten=rewritten)
    early = rig.side.stats.take().get("load_early", 0)
    assert early in (0, len(plan.restores))
    return bool(early)


def launch(rig: Rig, plan: StepPlan, blocks: list[int], *, hooks: bool = True) -> None:
    """Start a step, let its forward read blocks, and end it."""
    rig.side.start(plan, hooks=hooks)
    (rig.forward if hooks else rig.replay)(blocks)
    rig.side.end_step(plan)


@pytest.mark.parametrize("hooks", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_restore_begins_before_its_step_starts_and_once(rigs: Any, seed: int, hooks: bool) -> None:
    rig = rigs(seed)
    plan = rig.plan(restores=[rig.restore([6, 3], 0, 8), rig.restore([5], 2, 9)])
    assert begins(rig, plan)
    rig.until_told(2)  # The bytes are there, and the step has not started.
    launch(rig, plan, [6, 3, 5], hooks=hooks)
    rig.finish()
    assert rig.arrived([6, 3, 5])
    assert rig.until_told(2) == [("restored", 8, True, 2), ("restored", 9, True, 1)]
    assert rig.side.load_errors() == set()


@pytest.mark.parametrize("hooks", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_an_early_restore_is_between_the_steps_around_it(rigs: Any, seed: int, hooks: bool) -> None:
    """The forward before it, which may still run, reads its destination; the next owner's overwrites it."""
    rig = rigs(seed)
    rig.tensors.scramble()
    before = {(layer, 3): rig.tensors.read(layer, 3) for layer in range(LAYERS)}
    rig.driver.hold()
    rig.driver.first = (*rig.driver.streams(rig.driver.priorities()[1]), rig.engine.current)
    earlier: Reads = {}
    rig.replay([3], earlier)
    plan = rig.plan(restores=[rig.restore([3])])
    assert begins(rig, plan)
    launch(rig, plan, [3], hooks=hooks)
    rig.overwrite([3])
    rig.finish()
    assert all(np.array_equal(earlier[place], before[place]) for place in before)
    assert rig.arrived([3])
    assert all((rig.tensors.read(layer, 3) == NEXT_OWNER).all() for layer in range(LAYERS))


def test_two_steps_in_flight_are_in_their_order(rigs: Any) -> None:
    """The second restore goes to a block that the first brought back: its request was preempted in between."""
    rig = rigs()
    rig.hold()
    first, second = rig.plan(restores=[rig.restore([6], 0, 8)]), rig.plan(restores=[rig.restore([6], 1, 9)])
    assert begins(rig, first)
    launch(rig, first, [6])
    reads, rig.read = rig.read, {}
    assert begins(rig, second)
    launch(rig, second, [6])
    rig.finish()
    assert rig.arrived([6], 1)
    rig.read = reads
    assert rig.arrived([6], 0)


def ordinary(rig: Rig, plan: StepPlan, blocks: list[int], first: int = 0) -> None:
    """See that a step whose restores did not begin early is right."""
    assert rig.side._begun is None
    launch(rig, plan, blocks)
    rig.finish()
    assert rig.arrived(blocks, first)
    assert rig.side.load_errors() == set()


def test_blocks_that_the_engine_writes_before_its_forward_wait_for_it(rigs: Any) -> None:
    rig = rigs()
    plan = rig.plan(restores=[rig.restore([6])])
    assert not begins(rig, plan, rewritten=True)
    rig.overwrite([6])
    ordinary(rig, plan, [6])


def test_another_stream_goes_the_ordinary_way(rigs: Any) -> None:
    rig = rigs()
    usual, rig.engine.current = rig.engine.current, rig.driver.create_stream(LOWEST - 1)
    plan = rig.plan(restores=[rig.restore([6])])
    assert not begins(rig, plan)
    rig.engine.current = usual
    ordinary(rig, plan, [6])


@pytest.mark.parametrize("part", ["hook", "step without restores"])
def test_a_part_of_a_step_on_another_stream_goes_the_ordinary_way_until_the_next(rigs: Any, part: str) -> None:
    rig = rigs()
    usual, other = rig.engine.current, rig.driver.create_stream(LOWEST - 1)
    plan = rig.plan(restores=[rig.restore([6], 0, 8)] if part == "hook" else [])
    if part == "hook":
        rig.side.start(plan, hooks=True)
    rig.engine.current = other
    if part == "hook":
        rig.forward([6])
    else:
        rig.side.start(plan, hooks=False)
    rig.side.end_step(plan)
    rig.engine.current = usual
    following = rig.plan(restores=[rig.restore([5], 1, 9)])
    assert not begins(rig, following)
    ordinary(rig, following, [5], 1)
    assert begins(rig, rig.plan(restores=[rig.restore([4], 2, 10)]))


def test_another_thread_goes_the_ordinary_way(rigs: Any) -> None:
    rig = rigs()
    plan = rig.plan(restores=[rig.restore([6])])
    found: list[bool] = []

    def schedule() -> None:
        rig.driver.bind()
        found.append(begins(rig, plan))

    thread = threading.Thread(target=schedule)
    thread.start()
    thread.join()
    assert found == [False]
    ordinary(rig, plan, [6])


def test_a_step_that_is_not_closed_keeps_the_next_one_back(rigs: Any) -> None:
    rig = rigs()
    first, second = rig.plan(restores=[rig.restore([6], 0, 8)]), rig.plan(restores=[rig.restore([5], 1, 9)])
    rig.side.start(first, hooks=True)
    rig.forward([6])
    assert not begins(rig, second)
    rig.side.end_step(first)
    ordinary(rig, second, [5], 1)


def test_a_step_that_starts_on_another_stream_than_it_began_on_is_recomputed(rigs: Any) -> None:
    """What that stream did before is not covered by the fence."""
    rig = rigs()
    plan = rig.plan(restores=[rig.restore([6, 3])])
    assert begins(rig, plan)
    rig.engine.current = rig.driver.create_stream(LOWEST - 1)
    launch(rig, plan, [6, 3])
    assert rig.side.load_errors() == {3, 6}
    rig.finish()


@pytest.mark.parametrize("by", ["plan", "start"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_restore_whose_step_never_comes_is_over_before_the_next_one(rigs: Any, seed: int, by: str) -> None:
    """Its blocks may be anybody's by then. The hooks that an earlier step missed are not its own."""
    rig = rigs(seed)
    missed = rig.plan(restores=[rig.restore([5], 2, 8)])
    rig.side.start(missed, hooks=True)
    rig.side.end_step(missed)
    assert rig.side.load_errors() == {5}
    rig.hold()
    assert begins(rig, rig.plan(restores=[rig.restore([6, 3])]))
    following = rig.plan()
    if by == "plan":
        rig.side.begin_restores(following, rewritten=False)
    else:
        rig.side.start(following, hooks=False)
    rig.overwrite([6, 3])
    rig.side.end_step(following)
    rig.finish()
    assert rig.until_told(2) == [("restored", 8, True, 1), ("restored", 9, True, 2)]
    assert rig.side.load_errors() == set(), "they are in place"
    for layer in range(LAYERS):
        for block in (6, 3):
            assert (rig.tensors.read(layer, block) == NEXT_OWNER).all()


@pytest.mark.parametrize("call", ["copy_batch", "record"])
def test_a_restore_that_failed_and_whose_step_never_comes_is_a_load_error_of_the_next(rigs: Any, call: str) -> None:
    rig = rigs()
    rig.driver.fail(call)
    assert begins(rig, rig.plan(restores=[rig.restore([6, 3], 0, 8)])) is (call == "copy_batch")
    following = rig.plan(restores=[rig.restore([5], 2, 9)])
    assert begins(rig, following)
    launch(rig, following, [5])
    assert rig.side.load_errors() == {3, 6}
    rig.finish()
    assert rig.arrived([5], 2)


@pytest.mark.parametrize("gone", [False, True])
def test_what_cannot_be_submitted_early_is_a_load_error_of_its_own_step(rigs: Any, gone: bool) -> None:
    """And of no other one: the engine looks for the blocks among the requests of the step that names them."""
    rig = rigs()
    plan = rig.plan(restores=[rig.restore([6, 3])])
    if gone:
        plan.incarnation = b"another life"
    else:
        rig.driver.fail("record")
    assert not begins(rig, plan)
    assert rig.side.load_errors() == set()
    launch(rig, plan, [6, 3])
    assert rig.side.load_errors() == {3, 6}
    assert rig.attachment.told == ([] if gone else [("restored", 9, False, 2)])
    rig.finish()


@pytest.mark.parametrize("hooks", [True, False])
@pytest.mark.parametrize(("fault", "differs"), [("corrupt-restore", True), ("poison-destination", False)])
def test_injected_faults_do_what_they_say(rigs: Any, fault: str, differs: bool, hooks: bool) -> None:
    rig = rigs(extra={"orbitkv.fault_injection": fault})
    if differs:
        rig.pages.stream, rig.pages.prompt = rig.engine.current, True  # as the engine's thread would
    plan = rig.plan(restores=[rig.restore([6])])
    assert begins(rig, plan)
    launch(rig, plan, [6], hooks=hooks)
    rig.finish()
    assert rig.arrived([6]) is not differs


def test_a_hook_that_did_not_run_is_a_load_error(rigs: Any) -> None:
    rig = rigs()
    plan = rig.plan(restores=[rig.restore([6])])
    assert begins(rig, plan)
    rig.side.start(plan, hooks=True)
    rig.forward([6], skip=1)
    rig.side.end_step(plan)
    assert rig.side.load_errors() == {6}
    rig.finish()


def test_host_memory_is_restored_early_by_the_thread_alone() -> None:
    rig = HostRig()
    rig.side.begin()
    rig.manager.fill(2)
    for number, early in enumerate((False, True)):
        plan = rig.plan(restores=[rig.restore([5, 4], lease=number)])
        rig.side.begin_restores(plan, rewritten=False)
        assert (rig.side._begun is not None) is early
        rig.side.start(plan, hooks=True)
        for layer in range(LAYERS):
            rig.side.wait_layer(f"l{layer}")
            assert np.array_equal(rig.tensors.read(layer, 5), rig.manager.layer(0, layer, HOST_BLOCK_BYTES))
        rig.side.end_step(plan)
        assert rig.side.load_errors() == set()
        rig.tensors.memory[:] = 0
    assert rig.side.stats.take()["load_early"] == 1
    assert [told[1] for told in rig.attachment.told] == [0, 1]
    rig.close()
