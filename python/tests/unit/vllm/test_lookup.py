"""What is promised to the engine: once asked, answered the same, bounded in time, and given back."""

from __future__ import annotations

import pytest
from python.tests.unit.vllm.conftest import PAGE, Rig, make_rig

from orbitkv.adapter.lookup import UNASKED_SECONDS
from orbitkv.client import State
from orbitkv.timeline import Timeline, parse


def test_found_pages_are_promised_and_asked_for_once(rig: Rig) -> None:
    rig.client.script = [(State.READY, 3)]
    assert [rig.match("a", 1000) for _ in range(3)] == [3 * PAGE] * 3
    assert len(rig.client.queries) == 1
    assert rig.client.queries[0].asked_pages == 7, "all full pages are asked for"


@pytest.mark.parametrize(
    ("tokens", "device", "found", "restored"),
    [(1, 0, 9, 0), (127, 0, 9, 0), (128, 0, 9, 0), (129, 0, 1, 1), (256, 0, 2, 1), (1000, 0, 7, 7), (1000, 256, 5, 5)],
)
def test_one_token_is_left_to_compute(rig: Rig, tokens: int, device: int, found: int, restored: int) -> None:
    rig.client.script = [(State.READY, found)]
    assert rig.match("a", tokens, device) == restored * PAGE
    assert len(rig.client.queries) == (1 if restored else 0), "what cannot be restored is not asked for"


def test_an_aligned_prompt_asks_for_its_last_page_but_begins_one_less(rig: Rig) -> None:
    rig.client.script = [(State.READY, 2)]
    assert rig.match("a", 256) == PAGE
    rig.admit("a", PAGE, [5, 6])
    assert rig.client.queries[0].asked_pages == 2
    assert rig.sent("begin") == [("begin", 10, 1)]


def test_pages_on_the_device_are_not_asked_for(rig: Rig) -> None:
    rig.client.script = [(State.READY, 1)]
    rig.match("a", 1000, 512)
    keys = rig.sent("query")[0][3]
    assert isinstance(keys, bytes)
    assert keys.startswith(b"a:4.")


def test_a_late_answer_is_not_yet_and_is_taken_in_the_next_pass(rig: Rig) -> None:
    assert rig.match("a", 1000) is None
    rig.client.queries[0].answer(State.READY, 2)
    assert rig.match("a", 1000) == 2 * PAGE
    assert len(rig.client.queries) == 1


def test_the_wait_for_an_answer_is_bounded_by_the_setting() -> None:
    rig = make_rig({"orbitkv.query_wait_us": 777})
    rig.match("a", 1000)
    rig.match("a", 1000)
    assert rig.client.queries[0].refreshed == [777, 777]


def test_three_unanswered_queries_open_the_breaker_for_a_second(rig: Rig) -> None:
    assert [rig.match(name, 1000) for name in "abc"] == [None, None, 0]
    assert rig.side.stats.take()["breaker_opened"] == 1
    assert [rig.match(name, 1000) for name in "abcd"] == [0, 0, 0, 0]
    assert len(rig.client.queries) == 3, "nothing is asked while the breaker is open"
    rig.clock.now += 1.0
    assert rig.match("e", 1000) == 0, "the probe is not answered either"
    rig.clock.now += 1.0
    rig.client.script = [(State.READY, 1)]
    assert rig.match("f", 1000) == PAGE
    assert rig.match("g", 1000) is None, "an answer closes it: one unanswered query is no row of three"


def test_one_request_alone_does_not_wait_for_ever(rig: Rig) -> None:
    assert [rig.match("a", 1000) for _ in range(4)] == [None, None, 0, 0]


@pytest.mark.parametrize("state", [State.WAITING, State.PREPARING])
@pytest.mark.parametrize("pages", [0, 3, 7])
def test_a_prefix_that_is_not_there_yet_is_waited_for_and_then_taken_as_far_as_it_is(
    rig: Rig, state: State, pages: int
) -> None:
    rig.client.script = [(state, 0)]
    assert rig.match("a", 1000) is None
    rig.client.queries[0].at_stop = (State.READY, pages)
    rig.clock.now += 0.9
    assert rig.match("a", 1000) is None
    assert rig.sent("stop") == []
    rig.clock.now += 0.2
    assert rig.match("a", 1000) == pages * PAGE
    assert rig.match("a", 1000) == pages * PAGE, "and it is the same answer in the next pass"
    assert rig.sent("stop") == [("stop", "a")]
    assert rig.sent("cancel") == []
    values = rig.side.stats.take()
    assert (values["prefetch_stopped"], values["prefetch_stopped_blocks"]) == (1, [pages])
    assert ("prefetch_staging_seconds" in values) == (state is State.PREPARING)
    if pages:
        rig.admit("a", pages * PAGE, list(range(1, pages + 1)))
        assert rig.sent("begin") == [("begin", 10, pages)]


def test_a_stop_that_is_not_answered_in_time_gives_the_query_up(rig: Rig) -> None:
    """The Manager stopped after it had said that it reads."""
    rig.client.clock = rig.clock
    rig.client.script = [(State.PREPARING, 0)] * 4
    assert [rig.match(name, 1000) for name in "abcd"] == [None] * 4
    rig.clock.now += 1.1
    before = rig.clock.now
    assert [rig.match(name, 1000) for name in "abcd"] == [0] * 4
    assert rig.clock.now - before < 4 * rig.side.settings.query_wait_seconds, "the fourth finds an open breaker"
    assert rig.sent("cancel") == [("cancel", name) for name in "abcd"]
    assert rig.sent("stop") == [("stop", name) for name in "abc"]
    values = rig.side.stats.take()
    assert (values["query_unanswered"], values["breaker_opened"], values["prefetch_stopped"]) == (3, 1, 3)


def test_a_request_waits_for_the_slower_tier_once_in_its_life(rig: Rig) -> None:
    rig.client.script = [(State.PREPARING, 0), (State.PREPARING, 0)]
    assert rig.match("a", 1000) is None
    rig.client.queries[0].at_stop = (State.READY, 2)
    rig.clock.now += 1.1
    assert rig.match("a", 1000) == 2 * PAGE
    rig.clock.now += 1.1
    rig.side.build_plan([], {}, [])
    assert rig.sent("release") == [("release", 10)]
    assert rig.match("a", 1000) == 0, "the second query is stopped at once, and gives what is in memory by now"
    assert rig.sent("stop") == [("stop", "a")] * 2


def test_a_prefix_is_read_on_while_the_engine_is_busy_with_others(rig: Rig) -> None:
    """Others' prompts take all of each step, so that the waiting request is not looked at."""
    rig.client.script = [(State.PREPARING, 0), (State.PREPARING, 0)]
    assert rig.match("a", 1000) is None
    for _ in range(4):
        rig.clock.now += 2.0
        rig.side.build_plan([], {}, [])
    rig.client.queries[0].answer(State.READY, 7)
    assert rig.match("a", 1000) == 7 * PAGE
    assert rig.sent("cancel") == rig.sent("stop") == []
    assert rig.match("b", 1000) is None
    rig.clock.now += UNASKED_SECONDS
    rig.side.build_plan([], {}, [])
    assert rig.sent("cancel") == [("cancel", "b")], "nobody asks for it any more"


def test_others_go_first_while_a_prefix_is_read_and_it_is_restored_when_it_is_there(rig: Rig) -> None:
    rig.client.script = [(State.PREPARING, 0), (State.READY, 2)]
    assert rig.match("a", 1000) is None
    assert rig.match("b", 300) == 2 * PAGE
    rig.admit("b", 2 * PAGE, [1, 2])
    rig.step("b", 300, 256, blocks=[1, 2, 3])
    assert [restore.request for restore in rig.plan.restores] == ["b"]
    rig.side.finished(rig.progress("b", 300, 300))
    assert rig.match("a", 1000) is None
    rig.client.queries[0].answer(State.READY, 7)
    assert rig.match("a", 1000) == 7 * PAGE
    assert rig.sent("stop") == rig.sent("cancel") == []
    values = rig.side.stats.take()
    assert "prefetch_stopped" not in values
    assert len(values["prefetch_staging_seconds"]) == 1  # type: ignore[arg-type]


def test_a_page_that_cannot_be_read_ends_the_wait_at_what_is_before_it(rig: Rig) -> None:
    rig.client.script = [(State.PREPARING, 0)]
    assert rig.match("a", 1000) is None
    rig.client.queries[0].answer(State.READY, 1)
    assert rig.match("a", 1000) == PAGE


def test_news_are_fetched_in_the_pass_that_sees_the_notice() -> None:
    """An idle engine steps each millisecond while a request waits, and a request should not wait for two steps."""
    rig = make_rig({"orbitkv.query_wait_us": 777})
    rig.client.script = [(State.PREPARING, 0)]
    assert rig.match("a", 1000) is None
    assert rig.match("a", 1000) is None
    rig.client.queries[0].answer(State.PREPARING)
    assert rig.match("a", 1000) is None
    assert rig.match("a", 1000) is None
    assert rig.client.queries[0].refreshed == [777, 0, 777, 0]


@pytest.mark.parametrize("ready", [True, False], ids=["ready", "stopped"])
def test_the_timeline_says_what_a_request_waited_for_the_slower_tier(
    rig: Rig, timeline_lines: list[str], ready: bool
) -> None:
    rig.side.lookups.timeline = Timeline("test", enabled=True)
    timeline_lines.clear()
    rig.client.script = [(State.PREPARING, 0)]
    assert rig.match("a", 1000) is None
    query = rig.client.queries[0]
    rig.clock.now += 0.5 if ready else 1.5
    if ready:
        query.answer(State.READY, 7)
    else:
        query.at_stop = (State.READY, 3)
    rig.match("a", 1000)
    (record,) = [record for line in timeline_lines if (record := parse(line)) is not None]
    assert (record["stage"], record["request_id"]) == ("staged", "a")
    told = (record["elapsed_us"], record["pages"], record["stopped"])
    assert told == ((500_000, 7, False) if ready else (1_500_000, 3, True))


@pytest.mark.parametrize("state", [State.BUSY, State.STALE, State.YIELDED])
def test_a_refusal_is_a_miss_at_once(rig: Rig, state: State) -> None:
    rig.client.script = [(state, 0)]
    assert rig.match("a", 1000) == 0


def test_a_lease_is_safe_until_the_plan_is_built_and_given_back_after_a_second(rig: Rig) -> None:
    rig.client.script = [(State.READY, 2)]
    rig.match("a", 1000)
    lease = rig.client.queries[0].lease
    assert lease is not None
    assert lease.holds == 1
    rig.side.build_plan([], {}, [])
    assert lease.holds == 0
    rig.clock.now += 0.9
    rig.match("a", 1000)
    rig.side.build_plan([], {}, [])
    assert lease.alive
    rig.clock.now += 0.2
    rig.side.build_plan([], {}, [])
    assert not lease.alive
    assert lease.holds == 0
    rig.client.script = [(State.READY, 1)]
    assert rig.match("a", 1000) == PAGE, "it is asked for anew"


def test_a_revoked_lease_is_asked_for_again(rig: Rig) -> None:
    rig.client.script = [(State.READY, 2), (State.READY, 1)]
    rig.match("a", 1000)
    rig.side.build_plan([], {}, [])
    lease = rig.client.queries[0].lease
    assert lease is not None
    lease.alive = False
    assert rig.match("a", 1000) == PAGE


@pytest.mark.parametrize(("tokens", "device"), [(1000, 128), (1300, 0)])
def test_another_device_prefix_or_more_tokens_is_another_question(rig: Rig, tokens: int, device: int) -> None:
    rig.client.script = [(State.READY, 2), (State.READY, 1)]
    rig.match("a", 1000)
    assert rig.match("a", tokens, device) == PAGE
    assert rig.sent("release") == [("release", 10)]


def test_an_aborted_request_gives_its_lease_back(rig: Rig) -> None:
    rig.client.script = [(State.READY, 2)]
    rig.match("a", 1000)
    rig.side.finished(rig.progress("a", 1000))
    assert rig.sent("release") == [("release", 10)]
    assert len(rig.side.lookups) == 0


def test_an_aborted_request_cancels_its_query(rig: Rig) -> None:
    rig.match("a", 1000)
    rig.side.finished(rig.progress("a", 1000))
    assert rig.sent("cancel") == [("cancel", "a")]


def test_a_closed_channel_is_a_miss_not_an_error(rig: Rig) -> None:
    rig.client.alive = False
    assert rig.match("a", 1000) == 0
    rig = make_rig()
    assert rig.match("a", 1000) is None
    rig.client.alive = False
    assert rig.match("a", 1000) == 0


def test_nothing_is_promised_before_every_rank_is_proven(rig: Rig) -> None:
    rig.side.golden.proven = b"another life"
    assert rig.match("a", 1000) == 0
    assert rig.client.queries == []


def test_volatile_pages_are_left_alone() -> None:
    rig = make_rig(volatile=1)
    rig.client.script = [(State.READY, 7)]
    assert rig.match("a", 1000) == 6 * PAGE


def test_an_answer_that_comes_while_nobody_asks_is_given_up_after_a_second(rig: Rig) -> None:
    """The engine may not reach a waiting request for a while, and its lease would pin pages for nobody."""
    assert rig.match("a", 1000) is None
    rig.clock.now += 0.9
    rig.side.build_plan([], {}, [])
    assert rig.sent("cancel") == []
    assert rig.match("a", 1000) is None
    rig.clock.now += 0.9
    rig.side.build_plan([], {}, [])
    assert rig.sent("cancel") == []
    rig.clock.now += 0.1
    rig.side.build_plan([], {}, [])
    assert rig.sent("cancel") == [("cancel", "a")]
    rig.client.script = [(State.READY, 2)]
    assert rig.match("a", 1000) == 2 * PAGE
