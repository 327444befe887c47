"""One rank in the order of its passes: what it may promise, what it restores, and when it must not."""

from __future__ import annotations

import threading
from typing import cast

import numpy as np
import pytest
from python.tests.unit.sglang.offload_rig import pages_of
from python.tests.unit.sglang.rank_rig import LIFE_1, LIFE_2, RankRig, hashes

from harness.fakes import FakeClient
from orbitkv.adapter.prefill import STEPS_MIN
from orbitkv.client import Grant, State
from orbitkv.errors import ConfigurationError, EngineFault
from orbitkv.sglang import waits
from orbitkv.sglang.rank import WINDOW_REQUESTS, WINDOW_SHARE, places_of

WAIT_SECONDS = 60.0


@pytest.fixture
def rig() -> RankRig:
    """Return a rank in its first pass, in which the ranks agree; it publishes from the next one on."""
    rig = RankRig()
    assert rig.begin()
    return rig


# What may be promised.


def test_nothing_is_promised_before_the_ranks_agree() -> None:
    rig = RankRig()
    rig.client.script = [(State.READY, 4)]
    assert rig.lookup("a") == 0, "no pass has begun"
    assert not rig.begin(others=False)
    assert rig.lookup("a") == 0
    assert rig.client.queries == []
    assert rig.begin()
    assert rig.lookup("a") == 4


def test_a_pass_without_agreement_gives_back_what_was_leased(rig: RankRig) -> None:
    lease = rig.found("a")
    rig.begin(others=False)
    assert rig.lookup("a") == 0
    assert not lease.alive
    assert rig.sent("release") == [("release", lease.id)]


@pytest.mark.parametrize("lost", ["scheduler", "worker", "unproven", "epoch", "another life"])
def test_a_rank_that_cannot_restore_names_no_life_and_promises_nothing(rig: RankRig, lost: str) -> None:
    if lost == "scheduler":
        rig.client.alive = False
    elif lost == "worker":
        rig.attachment.alive = False
    elif lost == "unproven":
        rig.attachment.proven = False
    elif lost == "epoch":
        rig.side.epoch.move(7)
    else:
        rig.attachment.incarnation = LIFE_2
    assert rig.lookup("a") == 0
    assert rig.side.life() == b""
    assert rig.client.queries == []


def test_a_life_is_new_once(rig: RankRig) -> None:
    assert not rig.begin(), "the first pass told of it"
    rig.restart()
    assert rig.side.life() == b""
    assert not rig.begin()
    rig.open()
    assert not rig.begin(others=False), "another rank is not there yet"
    assert rig.begin()
    assert not rig.begin()
    assert rig.side.life() == LIFE_2


def test_a_life_that_is_lost_between_the_vote_and_the_agreement_is_new_all_the_same() -> None:
    """Else this rank would keep its pages marked as stored while the others publish theirs again."""
    rig = RankRig()
    rig.side.begin_pass()
    assert rig.side.life() == LIFE_1
    rig.client.alive = False
    assert rig.side.agree(True)
    assert rig.lookup("a") == 0


def test_numbers_advance_alike_whether_or_not_a_question_is_put(rig: RankRig) -> None:
    rig.client.script = [(State.READY, 4), (State.READY, 4)]
    rig.lookup("a")
    rig.begin(others=False)
    rig.lookup("a")
    rig.begin()
    rig.lookup("a")
    assert [query.operation for query in rig.client.queries] == [1, 3]
    rig.begin()
    rig.side.offload(hashes("s", 2), pages_of(1, 2))
    rig.begin()
    assert [reserve.operation for reserve in rig.client.reserves] == [4]


def test_the_window_follows_the_budget_of_the_instance(rig: RankRig) -> None:
    for number in range(WINDOW_REQUESTS):
        assert rig.found(f"r{number}", 1).holds == 1
    assert rig.lookup("one more", 1) is None
    rig.side.forget("r0")
    rig.client.script = [(State.READY, 1)]
    assert rig.lookup("one more", 1) == 1
    rig = RankRig()
    rig.client.budget_bytes = 8 * WINDOW_SHARE * 4096
    rig.side._scheduler._session = None
    rig.open()
    rig.begin()
    rig.found("large", 5)
    assert rig.lookup("too large beside it", 4) is None
    rig.client.script = [(State.READY, 3)]
    assert rig.lookup("fits", 3) == 3


def test_a_request_beyond_the_window_waits_as_long_as_its_patience_lasts(rig: RankRig) -> None:
    for number in range(WINDOW_REQUESTS):
        rig.found(f"r{number}", 1)
    assert rig.lookup("late") is None
    rig.side.keep_waiting("late")
    rig.clock.now += rig.side.settings.load_wait_seconds / 2
    assert rig.lookup("late") is None
    rig.clock.now += rig.side.settings.load_wait_seconds / 2
    assert rig.lookup("late") == 0
    assert [query.request for query in rig.client.queries] == [f"r{number}" for number in range(WINDOW_REQUESTS)]
    rig.begin()
    assert rig.side.stats.take()["query_deferred"] == 3


def test_a_question_has_at_most_as_many_keys_as_the_manager_takes(rig: RankRig) -> None:
    rig.client.limits = rig.client.limits._replace(operation_keys_max=3)
    rig.client.script = [(State.READY, 3)]
    assert rig.lookup("a", 5) == 3
    assert rig.client.queries[0].asked_pages == 3


def test_a_request_whose_restore_runs_has_no_answer_yet(rig: RankRig) -> None:
    rig.found("a")
    rig.load("a")
    rig.side.start_loads()
    rig.begin()
    assert rig.lookup("a") is None
    rig.held.arrive_all()
    rig.begin()
    assert [rig.side.loads.pop() for _ in range(rig.side.loads.completed())] == [["a"]]
    rig.client.script = [(State.READY, 4)]
    assert rig.lookup("a") == 4


# A prefix that is read first.


def test_others_go_first_while_a_prefix_is_read_and_it_is_restored_when_it_is_there(rig: RankRig) -> None:
    rig.client.script = [(State.PREPARING, 0)]
    assert rig.lookup("slow") is None
    rig.side.keep_waiting("slow")
    rig.found("quick", 2)
    rig.load("quick", 2)
    assert rig.side.start_loads() == 0
    rig.held.arrive_all()
    rig.begin()
    assert [rig.side.loads.pop() for _ in range(rig.side.loads.completed())] == [["quick"]]
    assert rig.lookup("slow") is None
    rig.side.keep_waiting("slow")
    rig.client.queries[0].answer(State.READY, 4)
    rig.begin()
    assert rig.lookup("slow") == 4
    rig.load("slow", 4, first=10)
    assert rig.side.start_loads() == 1
    assert rig.held.groups == [["quick"], ["slow"]]
    assert rig.sent("stop", "cancel") == []


def test_what_came_before_the_patience_ended_is_restored(rig: RankRig) -> None:
    rig.client.script = [(State.PREPARING, 0)]
    assert rig.lookup("a") is None
    rig.side.keep_waiting("a")
    rig.client.queries[0].at_stop = (State.READY, 3)
    for answer in (None, 3):
        rig.clock.now += rig.side.settings.load_wait_seconds / 2
        rig.begin()
        assert rig.lookup("a") == answer
    rig.load("a", 3)
    assert rig.side.start_loads() == 0
    assert [sent[0] for sent in rig.sent("stop", "begin", "cancel")] == ["stop", "begin"]


# How fast prompts are computed.


def test_the_rate_of_prefill_is_that_of_batches_that_restored_nothing(rig: RankRig) -> None:
    """Every second batch restores, and so waits; its launch follows its restores, and the one before ends later."""
    side, clock = rig.side, rig.clock
    for number in range(2 * STEPS_MIN):
        before = clock.now
        clock.now += 0.001
        if number % 2 == 0:
            rig.found(f"r{number}")
            rig.load(f"r{number}")
            side.start_loads()
            side.computed(before, 1)
        launched = clock.now
        clock.now += 0.5 if number % 2 else 10.0
        side.computed(launched, 1000)
    assert side.prefill.rate == pytest.approx(2000)
    rig.begin()
    assert side.stats.take()["prefill_tokens_per_second"] == pytest.approx(2000)


# Promise and revoke.


def test_a_revoke_that_crosses_a_promise_loses(rig: RankRig) -> None:
    lease = rig.found("a")
    assert not lease.revoke()
    rig.load("a")
    assert not lease.revoke()
    rig.side.start_loads()
    assert not lease.revoke()
    assert rig.sent("begin") == [("begin", lease.id, 4)]


def test_after_the_pass_a_revoke_wins_and_the_request_is_asked_anew(rig: RankRig) -> None:
    lease = rig.found("a")
    rig.side.start_loads()
    assert lease.revoke()
    rig.begin()
    assert rig.found("a") is not lease


def test_what_an_admitted_request_did_not_use_is_given_back(rig: RankRig) -> None:
    lease = rig.found("a")
    rig.side.admitted("a")
    assert rig.sent("release") == [("release", lease.id)]
    assert len(rig.side.lookups) == 0


# Promise and exchange.


def test_a_session_is_exchanged_only_after_the_promises_of_the_pass(rig: RankRig) -> None:
    first = rig.client
    lease = rig.found("a")
    rig.client.alive = False
    replaced = rig.client = FakeClient(LIFE_1)
    link = threading.Thread(target=rig.side._scheduler.open_once, daemon=True)
    link.start()
    while rig.side._guard._exchanges == 0:
        threading.Event().wait(0.001)
    assert rig.lookup("b") == 0, "the channel is closed"
    rig.load("a")
    assert first.sent[-1][0] != "begin"
    assert rig.side.start_loads() == 0
    link.join(WAIT_SECONDS)
    assert not link.is_alive()
    assert lease.begun
    assert rig.side._scheduler.session is not None
    assert rig.side._scheduler.session.client is cast(object, replaced)
    rig.held.arrive_all()
    assert rig.attachment.told == [("restored", lease.id, True, [(0, 4)])]


def test_a_session_that_a_link_exchanged_just_before_is_not_promised_through(
    rig: RankRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Manager has taken back what the earlier one leased."""
    earlier, enter = rig.client, rig.side._guard.enter

    def exchanged() -> bool:
        rig.client = FakeClient(LIFE_1)
        rig.client.script = [(State.READY, 4)]
        rig.side._scheduler._session = None
        rig.open()
        return enter()

    lease = rig.found("a")
    rig.begin()
    monkeypatch.setattr(rig.side._guard, "enter", exchanged)
    assert lease.alive
    assert rig.lookup("a") == 4
    assert [query.request for query in rig.client.queries] == ["a"]
    assert len(earlier.queries) == 1


def test_nothing_is_promised_while_a_link_exchanges(rig: RankRig) -> None:
    with rig.side._guard.exchange():
        assert rig.lookup("a") is None
    rig.client.script = [(State.READY, 4)]
    assert rig.lookup("a") == 4


def test_promised_bytes_land_after_the_managers_end(rig: RankRig) -> None:
    rig.found("a")
    held, told = rig.held, rig.attachment.told
    rig.client.alive = rig.attachment.alive = False
    rig.load("a")
    assert rig.side.start_loads() == 0
    held.arrive_all()
    assert [message[:1] for message in told] == [("restored",)]
    rig.begin()
    assert rig.side.loads.completed() == 1


# Loads.


def test_a_load_names_its_places_among_the_promised_pages(rig: RankRig) -> None:
    lease = rig.found("a", 6)
    rig.side.queue_load("a", [hashes("a", 6)[at] for at in (2, 3, 5)], pages_of(1, 3))
    rig.side.start_loads()
    assert rig.sent("begin") == [("begin", lease.id, 6)]
    assert rig.attachment.told == [("restored", lease.id, False, [(0, 2), (4, 1)])]


@pytest.mark.parametrize("what", ["unknown", "not promised", "other keys", "no keys"])
def test_a_load_that_was_not_promised_ends_the_engine(rig: RankRig, what: str) -> None:
    keys = hashes("a", 4)
    if what == "not promised":
        assert rig.lookup("a") is None
    elif what != "unknown":
        rig.found("a", 3)
        keys = {"other keys": hashes("b", 3), "no keys": []}[what]
    with pytest.raises(EngineFault, match="request a"):
        rig.side.queue_load("a", keys, pages_of(1, len(keys)))


@pytest.mark.parametrize(
    ("keys", "places"),
    [
        ("abc", [0, 1, 2]),
        ("ab", [0, 1]),
        ("bd", [1, 3]),
        ("d", [3]),
        ("db", None),
        ("aa", None),
        ("x", None),
        ("ax", None),
        ("abcde", None),
    ],
)
def test_places_of_keys(keys: str, places: list[int] | None) -> None:
    found = places_of(keys, "abcd")
    assert (found is None) == (places is None)
    assert places is None or np.array_equal(cast(object, found), places)  # type: ignore[arg-type]


# Reset, change of weights, end.


def test_a_reset_waits_for_both_directions_and_forgets(rig: RankRig) -> None:
    rig.found("a")
    rig.load("a")
    rig.side.start_loads()
    rig.begin()
    rig.side.offload(hashes("s", 2), pages_of(10, 2))
    rig.begin()
    rig.client.reserves[0].answer([Grant.GRANTED] * 2)
    rig.begin()
    waiting = rig.found("b")
    reset = threading.Thread(target=rig.side.reset, daemon=True)
    reset.start()
    rig.held.end()
    assert reset.is_alive(), "a restore runs"
    rig.held.arrive()
    reset.join(WAIT_SECONDS)
    assert not reset.is_alive()
    assert not waiting.alive
    assert (rig.side.loads.completed(), rig.side.offloads.completed, len(rig.side.lookups)) == (0, 0, 0)
    with rig.side._guard.exchange():
        pass  # The pass ended with the reset, so a link does not wait.


def test_from_a_change_of_weights_to_the_flush_the_rank_rests(rig: RankRig) -> None:
    lease = rig.found("a")
    rig.side.offload(hashes("old", 2), pages_of(1, 2))
    rig.side.rest(99)
    assert not lease.alive, "it was of the old weights"
    rig.open()
    assert rig.sent("epoch") == [("epoch", "engine-1", 99)]
    for _ in range(2):
        assert rig.side.life() == b""
        assert not rig.begin()
        assert rig.lookup("a") == 0
        rig.side.offload(hashes("mixed", 2), pages_of(1, 2))
    assert [rig.side.offloads.pop() for _ in range(rig.side.offloads.completed)] == [False] * 3
    assert rig.client.reserves == []
    rig.side.reset()
    assert rig.side.life() == LIFE_1
    assert not rig.begin(), "the Manager lives on, and its pages of before are out of reach by their epoch"
    assert rig.found("a").holds == 1


def test_a_change_of_weights_waits_for_no_copy_and_the_flush_does(rig: RankRig) -> None:
    rig.found("a")
    rig.load("a")
    rig.side.start_loads()
    rig.side.rest(99)
    rig.held.arrive_all()
    rig.side.reset()
    assert rig.side.loads.completed() == 0


def test_the_end_gives_everything_back(rig: RankRig) -> None:
    lease = rig.found("a")
    rig.side.close()
    assert not lease.alive
    assert rig.sent("detach") == [("detach", "engine-1")]
    assert rig.held.closed


def test_tensors_that_bring_back_other_bytes_stop_the_start() -> None:
    rig = RankRig()
    rig.tensors.shift = 8
    with pytest.raises(ConfigurationError, match="golden"):
        rig.side.begin()


# Faults of the device.


def test_a_device_that_faulted_ends_the_engine_in_the_next_pass(rig: RankRig) -> None:
    rig.held.fault = EngineFault("the device is gone")
    with pytest.raises(EngineFault, match="the device is gone"):
        rig.side.begin_pass()


def test_a_fault_shows_also_when_the_copy_belongs_to_an_earlier_life(rig: RankRig) -> None:
    rig.found("a")
    rig.load("a")
    rig.side.start_loads()
    held = rig.held
    rig.restart()
    rig.open()
    held.fault = EngineFault("the device is gone")
    with pytest.raises(EngineFault, match="the device is gone"):
        rig.side.begin_pass()
    held.arrive_all()
    rig.side.begin_pass()


@pytest.mark.parametrize("direction", ["restore", "publish"])
def test_a_reset_does_not_wait_for_copies_that_cannot_end(
    rig: RankRig, direction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waits, "CHECK_SECONDS", 0.001)
    if direction == "restore":
        rig.found("a")
        rig.load("a")
        rig.side.start_loads()
    else:
        rig.begin()
        rig.side.offload(hashes("s", 2), pages_of(10, 2))
        rig.begin()
        rig.client.reserves[-1].answer([Grant.GRANTED] * 2)
        rig.begin()
        assert rig.held.jobs
    rig.held.fault = EngineFault("the device is gone")
    with pytest.raises(EngineFault, match="the device is gone"):
        rig.side.reset()
