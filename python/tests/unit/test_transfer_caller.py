"""What the caller of a restore hands over itself: the first steps, where no older group is still to be handed over."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from harness.device import LIMIT_S
from harness.device_rig import Rig, Stop
from harness.manager import eventually
from orbitkv.errors import TransferError
from orbitkv.transfer import Restore, Transfer
from orbitkv.transfer._mover import Group

ALL = 1024  # operations: more than any restore here has


def threads_of(rig: Rig) -> list[str]:
    """Note the thread of every step that is handed over."""
    seen: list[str] = []

    def before(call: str, _: Group, __: int) -> None:
        if call == "step":
            seen.append(threading.current_thread().name)

    rig.mover.before = before
    return seen


def test_a_short_restore_is_handed_over_when_the_call_returns() -> None:
    with Rig(held=True, first_operations=ALL) as rig:
        threads = threads_of(rig)
        plan = rig.plan([3, 9], [1, 5])
        (restore,) = rig.restore(plan)
        assert threads == [threading.current_thread().name] * rig.steps
        assert rig.driver.entries(rig.load) == ["wait", *["copy", "record"] * rig.steps]
        assert all(restore.layer_ready(layer) for layer in range(len(plan.layout.layers)))
        rig.driver.go()
        assert restore.wait_all(LIMIT_S)
        assert (rig.held_slices(plan) == rig.stored(plan)).all()
        assert restore.times is not None
        assert restore.times.thread == threading.current_thread().name


@pytest.mark.parametrize("bound", [1, 3])
def test_the_rest_of_a_long_restore_is_the_submitting_threads(bound: int) -> None:
    with Rig(first_operations=bound) as rig:
        threads = threads_of(rig)
        plan = rig.plan([3], [1])
        (restore,) = rig.restore(plan)
        assert restore.wait_all(LIMIT_S)
        mine = threading.current_thread().name
        assert threads == [mine] * bound + ["orbitkv-restore"] * (rig.steps - bound)
        assert (rig.held_slices(plan) == rig.stored(plan)).all()
        assert restore.times is not None
        assert restore.times.thread == f"{mine} and orbitkv-restore"


def test_a_group_behind_one_that_is_being_handed_over_waits_for_its_turn() -> None:
    """The older group's rest is held on the submitting thread: the caller of the newer one must not pass it."""
    stop = Stop()
    with Rig(held=True, first_operations=1) as rig:

        def before(call: str, group: Group, step: int) -> None:
            if (call, step) == ("step", 1) and group.blocks[0] == 3:
                stop.here()

        rig.mover.before = before
        older, newer = rig.plan([3], [1]), rig.plan([4], [2])
        (first,) = rig.restore(older)
        assert stop.reached.wait(LIMIT_S)
        (second,) = rig.restore(newer)
        assert rig.driver.entries(rig.load) == ["wait", "copy", "record"]
        stop.go.set()
        rig.handed(2)
        assert rig.driver.entries(rig.load) == ["wait", *["copy", "record"] * rig.steps] * 2
        rig.driver.go()
        assert first.wait_all(LIMIT_S)
        assert second.wait_all(LIMIT_S)


def test_two_callers_do_not_hand_over_at_once() -> None:
    """While one thread of the engine is in the middle of its group, another's goes to the submitting thread."""
    stop = Stop()
    with Rig(held=True, first_operations=ALL) as rig:

        def before(call: str, group: Group, step: int) -> None:
            if (call, step) == ("step", 1) and group.blocks[0] == 3:
                stop.here()

        rig.mover.before = before
        caller = threading.Thread(target=lambda: rig.restore(rig.plan([3], [1])))
        caller.start()
        assert stop.reached.wait(LIMIT_S)
        (second,) = rig.restore(rig.plan([4], [2]))
        assert rig.driver.entries(rig.load) == ["wait", "copy", "record"]
        stop.go.set()
        caller.join(LIMIT_S)
        rig.handed(2)
        rig.driver.go()
        assert second.wait_all(LIMIT_S)


@pytest.mark.parametrize("step", [0, 2])
def test_a_call_that_fails_in_the_callers_thread_fails_the_group(step: int) -> None:
    with Rig(first_operations=ALL) as rig:

        def before(call: str, _: Group, at: int) -> None:
            if (call, at) == ("step", step):
                rig.driver.fail("copy_batch")

        rig.mover.before = before
        (restore,) = rig.restore(rig.plan([3], [1]))
        assert not restore.join(LIMIT_S)
        assert not restore.wait_all(LIMIT_S)
        eventually(lambda: rig.mover.released == 1, "the group's end")
        rig.mover.before = lambda *_: None
        plan = rig.plan([4], [2])
        (after,) = rig.restore(plan)
        assert after.wait_all(LIMIT_S)
        assert (rig.held_slices(plan) == rig.stored(plan)).all()


def test_the_watcher_hands_nothing_over() -> None:
    """An adapter may submit the next restore when one has ended; a mover waits there for what only the watcher ends."""
    with Rig(first_operations=ALL) as rig:
        threads = threads_of(rig)
        next_one: list[Restore] = []

        def ended(_: Transfer) -> None:
            next_one.extend(rig.backend.restore([rig.plan([4], [2])], on_done=rig.note))

        (first,) = rig.backend.restore([rig.plan([3], [1])], on_done=ended)
        assert first.wait_all(LIMIT_S)
        eventually(lambda: len(rig.ended) == 1, "the second restore's end")
        mine = threading.current_thread().name
        assert threads == [mine] * rig.steps + ["orbitkv-restore"] * rig.steps
        assert next_one[0].ok


def test_an_interrupted_caller_leaves_its_group_to_the_submitting_thread() -> None:
    with Rig(first_operations=ALL) as rig:
        left = [2]

        def before(call: str, _: Group, __: int) -> None:
            if call == "step" and threading.current_thread() is threading.main_thread():
                left[0] -= 1
                if left[0] == 0:
                    raise KeyboardInterrupt

        rig.mover.before = before
        plan = rig.plan(np.arange(4), np.arange(4))
        with pytest.raises(KeyboardInterrupt):
            rig.restore(plan)
        eventually(lambda: len(rig.ended) == 1, "the restore's end")
        assert rig.ended[0].ok
        assert (rig.held_slices(plan) == rig.stored(plan)).all()


def test_closing_waits_for_what_a_caller_hands_over() -> None:
    stop = Stop()
    with Rig(first_operations=ALL) as rig:

        def before(call: str, _: Group, step: int) -> None:
            if (call, step) == ("step", 1):
                stop.here()

        rig.mover.before = before
        plan = rig.plan([3], [1])
        caller = threading.Thread(target=lambda: rig.restore(plan))
        caller.start()
        assert stop.reached.wait(LIMIT_S)
        closing = threading.Thread(target=rig.backend.close)
        closing.start()
        eventually(lambda: rig.backend._common.closing, "the closing")
        stop.go.set()
        for thread in (caller, closing):
            thread.join(LIMIT_S)
        assert rig.ended[0].ok
        assert (rig.held_slices(plan) == rig.stored(plan)).all()
        with pytest.raises(TransferError, match="closed"):
            rig.restore(plan)


def test_whoever_hears_of_an_end_may_close_the_backend() -> None:
    with Rig(first_operations=ALL) as rig:
        closed = threading.Event()

        def ended(_: object) -> None:
            rig.backend.close()
            closed.set()

        rig.backend.restore([rig.plan([3], [1])], on_done=ended)
        assert closed.wait(LIMIT_S)
