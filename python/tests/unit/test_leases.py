"""The lease table: a begin and a revoke of one lease never both win."""

from __future__ import annotations

import random
import threading

import pytest

from orbitkv import _wire
from orbitkv._leases import ACTIVE_MAX, GONE_MAX, LeaseState, LeaseTable
from orbitkv._wire import ALL_RANKS
from orbitkv.errors import ChannelFull, LeaseLost


def nothing() -> None:
    return None


def test_begin_beats_a_later_revoke_and_loses_to_an_earlier_one() -> None:
    table = LeaseTable()
    answers: list[bool] = []
    table.add(1)
    table.begin(1, ALL_RANKS, 2, nothing)
    assert not table.revoke(1, answers.append)
    table.add(2)
    assert table.revoke(2, answers.append)
    with pytest.raises(LeaseLost):
        table.begin(2, ALL_RANKS, 2, nothing)
    assert answers == [False, True]
    assert table.state(1) is LeaseState.ACTIVE
    assert table.state(2) is None
    assert table.yielded == 1


def test_an_answer_that_a_revoke_overtook_is_no_promise() -> None:
    """The Manager has taken the lease back by the time that it reads a begin, and would close the session."""
    table = LeaseTable()
    assert table.revoke(1, lambda _: None)
    table.add(1)
    with pytest.raises(LeaseLost):
        table.begin(1, ALL_RANKS, 2, nothing)
    for lease in range(2, GONE_MAX + 2):
        table.revoke(lease, lambda _: None)
    assert len(table._gone) == GONE_MAX
    table.add(GONE_MAX + 1)
    assert table.state(GONE_MAX + 1) is None


def test_a_held_lease_is_in_use_until_its_pass_ends() -> None:
    table = LeaseTable()
    table.add(1)
    assert table.hold(1)
    assert not table.revoke(1, lambda _: None)
    table.unhold(1)
    assert table.revoke(1, lambda _: None)
    assert not table.hold(1)


def test_a_begin_that_cannot_be_sent_leaves_the_lease_ready() -> None:
    table = LeaseTable()
    table.add(1)

    def full() -> None:
        raise ChannelFull("full")

    with pytest.raises(ChannelFull):
        table.begin(1, ALL_RANKS, 2, full)
    assert table.state(1) is LeaseState.READY
    assert table.release(1, nothing)
    assert not table.release(1, nothing)


def test_release_does_not_end_an_active_lease() -> None:
    table = LeaseTable()
    table.add(1)
    table.begin(1, ALL_RANKS, 2, nothing)
    assert not table.release(1, nothing)
    assert table.in_use() == [1]
    table.forget(1)
    assert table.in_use() == []


def test_each_rank_may_begin_for_itself() -> None:
    table = LeaseTable()
    table.add(1)
    sent: list[int] = []
    table.begin(1, ALL_RANKS, 2, lambda: sent.append(0))
    table.begin(1, ALL_RANKS, 2, lambda: sent.append(1))
    assert sent == [0, 1]
    assert table.in_use() == [1]


def test_active_leases_are_bounded() -> None:
    told: list[int] = []
    table = LeaseTable(lambda: told.append(table.forgotten))
    for lease in range(1, ACTIVE_MAX + 3):
        table.add(lease)
        table.begin(lease, ALL_RANKS, 2, nothing)
    assert table.forgotten == 2
    assert told == [1, 2]
    assert len(table.in_use()) == ACTIVE_MAX
    assert table.in_use()[0] == 3


def test_what_was_begun_is_kept_until_the_lease_ends() -> None:
    table = LeaseTable()
    table.add(1)
    assert table.begun(1) == {}
    table.begin(1, 0, 3, nothing)
    table.begin(1, 1, 2, nothing)
    assert table.begun(1) == {0: 3, 1: 2}
    table.forget(1)
    assert table.begun(1) == {}


def test_every_active_lease_fits_into_one_resume() -> None:
    frame = _wire.encode(_wire.Resume(bytes(16), range(ACTIVE_MAX), range(128)), 1)
    assert len(frame) <= _wire.FRAME_BYTES_MAX


def test_a_resumed_lease_is_active() -> None:
    table = LeaseTable()
    table.adopt(9)
    assert not table.revoke(9, lambda _: None)
    assert table.in_use() == [9]


def test_begin_and_revoke_race_has_one_winner_and_frames_in_the_order_of_states() -> None:
    order = random.Random(7)
    table = LeaseTable()
    for lease in range(300):
        table.add(lease)
        frames: list[str] = []
        start = threading.Barrier(2)

        def begin(lease: int = lease, frames: list[str] = frames, start: threading.Barrier = start) -> None:
            start.wait()
            try:
                table.begin(lease, ALL_RANKS, 2, lambda: frames.append("begin"))
            except LeaseLost:
                frames.append("lost")

        def revoke(lease: int = lease, frames: list[str] = frames, start: threading.Barrier = start) -> None:
            start.wait()
            table.revoke(lease, lambda yielded: frames.append("yielded" if yielded else "in use"))

        threads = [threading.Thread(target=f) for f in order.sample([begin, revoke], 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert frames in (["begin", "in use"], ["yielded", "lost"])
