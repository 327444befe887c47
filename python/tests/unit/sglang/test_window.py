"""Look-ups of an engine that asks for every waiting request in every pass: window, patience, waits and bounds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import pytest

from harness.fakes import Clock, FakeClient, FakeLease, FakeQuery, keys_of
from orbitkv.adapter import lookup as lookup_module
from orbitkv.adapter.breaker import OPEN_SECONDS, UNANSWERED_MAX, Breaker
from orbitkv.adapter.lookup import LEASE_SECONDS, Ask, Lookups, Window
from orbitkv.adapter.prefill import STEP_TOKENS_MIN, STEPS_MIN, Prefill
from orbitkv.adapter.session import Epoch, SchedulerSession
from orbitkv.adapter.settings import read_settings
from orbitkv.adapter.stats import Stats
from orbitkv.client import CacheManagerClient, Estimate, State
from orbitkv.timeline import Timeline

PAGE_TOKENS = 100
WAIT_US = 1000
PATIENCE_S = 1.0


@dataclass
class WindowRig:
    """Look-ups over a client whose waits without an answer turn the clock."""

    clock: Clock = field(default_factory=Clock)
    client: FakeClient = field(default_factory=FakeClient)
    stats: Stats = field(default_factory=Stats)
    prefill: Prefill = field(default_factory=lambda: Prefill(PAGE_TOKENS))
    pass_ends: float = 0.0

    def __post_init__(self) -> None:
        keys = {"orbitkv.query_wait_us": WAIT_US, "orbitkv.load_wait_ms": int(PATIENCE_S * 1e3)}
        self.session = SchedulerSession(cast(CacheManagerClient, self.client), "engine-1", Epoch(), lambda: None, 0)
        assert self.session.advance()
        self.lookups = Lookups(
            read_settings(keys, {}),
            Breaker(),
            self.stats,
            Timeline("test", False),
            self.prefill,
            self.clock,
            self._left,
        )
        self.lookups.patient_from_start = False
        self.lookups.window = Window(3, 100)
        self.client.clock = self.clock
        self.begin()

    def begin(self, seconds: float = 0.01) -> None:
        """End a pass and begin the next one, so many seconds later."""
        self.lookups.end_pass()
        self.clock.now += seconds
        self.pass_ends = self.clock.now + WAIT_US / 1e6

    def ask(self, request: str, pages: int = 4, revision: str = "") -> int | None:
        """Ask for a request's pages."""
        keys = keys_of(request + revision, pages)
        names = [key.hex() for key in keys]
        return self.lookups.answer(self.session, Ask(request, 0, pages, lambda: b"".join(keys), names))

    def found(self, request: str, pages: int = 4) -> FakeLease:
        """Let a request's pages be found."""
        self.client.script = [(State.READY, pages)]
        assert self.ask(request, pages) == pages
        lease = self.client.queries[-1].lease
        assert lease is not None
        return lease

    def fill(self) -> None:
        """Let a, b and c take every place of the window anew."""
        for request in "abc":
            self.lookups.finish(request)
            self.found(request)

    def sizes(self) -> tuple[int, int, int]:
        """Return how much is kept: look-ups, waiting times, places of the window."""
        return len(self.lookups), len(self.lookups._patience), len(self.lookups._inside)

    def _left(self) -> int:
        return max(0, round((self.pass_ends - self.clock.now) * 1e6))


@pytest.fixture
def rig() -> WindowRig:
    """Return look-ups with a window of three requests and a hundred pages."""
    return WindowRig()


# The window.


def test_a_question_that_finds_the_window_full_is_not_put(rig: WindowRig) -> None:
    for name in "abc":
        rig.found(name)
    assert rig.ask("d") is None
    assert [query.request for query in rig.client.queries] == ["a", "b", "c"]
    rig.begin()
    assert rig.stats.take()["query_deferred"] == 1


@pytest.mark.parametrize("leaves", ["taken", "finished", "dropped", "nothing found", "expired"])
def test_a_place_is_free_again(rig: WindowRig, leaves: str) -> None:
    rig.found("a")
    rig.found("b")
    if leaves == "nothing found":
        rig.client.script = [(State.READY, 0)]
        assert rig.ask("c") == 0
    else:
        rig.found("c")
        if leaves == "taken":
            assert rig.lookups.take("c") is not None
        elif leaves == "finished":
            rig.lookups.finish("c")
        elif leaves == "dropped":
            rig.lookups.drop("c")
        else:
            rig.begin(LEASE_SECONDS)
            rig.begin()
    rig.found("d")


def test_pages_count_as_well_as_requests(rig: WindowRig) -> None:
    rig.found("a", 60)
    assert rig.ask("b", 41) is None
    rig.found("c", 40)
    rig.lookups.finish("a")
    rig.lookups.finish("c")
    rig.found("larger than the window", 1000)
    assert rig.ask("b", 1) is None, "the first one always fits, and nothing beside it"


def test_a_lease_takes_the_pages_that_it_holds_and_not_those_that_were_asked_for(rig: WindowRig) -> None:
    rig.client.script = [(State.READY, 2)]
    assert rig.ask("a", 99) == 2
    rig.found("b", 98)


@pytest.mark.parametrize("state", [State.UNANSWERED, State.WAITING, State.PREPARING])
def test_what_awaits_an_answer_takes_what_it_asks_for(rig: WindowRig, state: State) -> None:
    rig.client.script = [(state, 0)]
    assert rig.ask("a", 60) is None
    assert rig.ask("b", 41) is None
    assert [query.request for query in rig.client.queries] == ["a"]


def test_requests_whose_pages_are_read_fill_the_window_and_free_it_when_they_are_stopped(rig: WindowRig) -> None:
    rig.client.script = [(State.PREPARING, 0)] * 3
    for name in "abc":
        assert rig.ask(name, 30) is None
        rig.lookups.reached(name)
    assert rig.ask("d", 1) is None
    assert len(rig.client.queries) == 3
    for query, pages in zip(rig.client.queries, (10, 0, 30), strict=True):
        query.at_stop = (State.READY, pages)
    rig.begin(PATIENCE_S)
    assert [rig.ask(name, 30) for name in "abc"] == [10, 0, 30]
    rig.found("d", 60)
    assert rig.ask("e", 1) is None, "three hold leases: of 10, 30 and 60 pages"


def test_many_requests_without_a_hit_take_no_place_and_are_asked_once_a_second(rig: WindowRig) -> None:
    rig.client.script = [(State.READY, 0)] * 50
    assert [rig.ask(f"r{number}") for number in range(50)] == [0] * 50
    rig.begin(LEASE_SECONDS / 2)
    assert [rig.ask(f"r{number}") for number in range(50)] == [0] * 50
    assert len(rig.client.queries) == 50
    rig.begin(LEASE_SECONDS / 2)
    rig.begin()
    rig.client.script = [(State.READY, 4)]
    assert rig.ask("r0") == 4, "what was published meanwhile is found"


def test_without_a_window_there_is_no_bound_but_the_tables(rig: WindowRig) -> None:
    rig.lookups.window = None
    for number in range(50):
        rig.found(f"r{number}", 100)


# The same answer, and its end.


def test_an_answer_stays_the_same_until_the_pages_change(rig: WindowRig) -> None:
    """I5."""
    lease = rig.found("a")
    assert rig.ask("a") == 4
    rig.begin()
    assert rig.ask("a") == 4
    assert len(rig.client.queries) == 1
    rig.client.script = [(State.READY, 1)]
    assert rig.ask("a", revision="other tokens") == 1
    assert not lease.alive


def test_a_question_for_the_first_of_the_pages_is_the_same_one(rig: WindowRig) -> None:
    """SGLang's cache-aware policies ask for a whole prompt, its admission for all but the last token of it."""
    rig.found("a", 4)
    for _ in range(5):
        assert rig.ask("a", 4) == 4
        assert rig.ask("a", 3) == 3
        rig.begin()
    assert len(rig.client.queries) == 1
    assert rig.ask("a", 5) is None, "more pages are another question"
    assert len(rig.client.queries) == 2


def test_a_fresh_question_has_no_patience_of_its_own(rig: WindowRig) -> None:
    """Whoever changes its question in each pass is not kept waiting for ever."""
    rig.lookups.reached("a")
    rig.begin(PATIENCE_S + 1)
    rig.pass_ends = rig.clock.now
    assert rig.ask("a", 4, "another prompt") == 0


def test_a_lease_that_nobody_used_for_a_second_is_given_back(rig: WindowRig) -> None:
    lease = rig.found("a")
    rig.begin(LEASE_SECONDS / 2)
    assert rig.ask("a") == 4
    rig.begin(LEASE_SECONDS / 2)
    assert lease.alive
    rig.begin()
    assert not lease.alive
    assert rig.sizes() == (0, 0, 0)


# Patience.


def test_patience_begins_when_the_engine_passes_the_request_over(rig: WindowRig) -> None:
    rig.fill()
    assert rig.ask("d") is None
    rig.begin(10.0)
    rig.fill()
    assert rig.ask("d") is None, "it has not been kept waiting yet"
    rig.lookups.reached("d")
    rig.begin(PATIENCE_S / 2)
    rig.lookups.reached("d")
    rig.fill()
    assert rig.ask("d") is None
    rig.begin(PATIENCE_S / 2)
    rig.fill()
    assert rig.ask("d") == 0, "it is recomputed"


@pytest.mark.parametrize("state", [State.WAITING, State.PREPARING])
@pytest.mark.parametrize("pages", [0, 2])
def test_a_request_waits_for_its_pages_as_long_as_its_patience_lasts(rig: WindowRig, state: State, pages: int) -> None:
    rig.client.script = [(state, 0)]
    assert rig.ask("a") is None
    for _ in range(5):
        rig.begin(LEASE_SECONDS / 2)
        assert rig.ask("a") is None, "nobody has kept it waiting"
    assert len(rig.client.queries) == 1
    rig.lookups.reached("a")
    assert rig.ask("a") is None
    rig.begin(PATIENCE_S / 2)
    assert rig.ask("a") is None
    rig.client.queries[0].at_stop = (State.READY, pages)
    rig.begin(PATIENCE_S / 2)
    assert rig.ask("a") == pages
    assert ("stop", "a") in rig.client.sent
    assert ("cancel", "a") not in rig.client.sent
    assert rig.sizes()[2] == (1 if pages else 0), "its place is free when it got nothing"


def test_a_stop_is_answered_in_a_later_pass_when_the_wait_of_this_one_is_used_up(rig: WindowRig) -> None:
    rig.client.script = [(State.PREPARING, 0)]
    assert rig.ask("a") is None
    rig.lookups.reached("a")
    rig.begin(PATIENCE_S)
    assert rig.ask("it uses the pass's wait up") is None
    assert rig.ask("a") is None
    assert ("stop", "a") in rig.client.sent
    rig.client.queries[0].answer(State.READY, 3)
    rig.begin(0.0001)
    assert rig.ask("a") == 3
    assert rig.stats.take()["prefetch_stopped"] == 1


def test_a_stop_that_is_not_answered_within_the_wait_gives_the_query_up(rig: WindowRig) -> None:
    rig.client.script = [(State.PREPARING, 0)]
    assert rig.ask("a") is None
    rig.lookups.reached("a")
    rig.begin(PATIENCE_S)
    assert rig.ask("it uses the pass's wait up") is None
    assert rig.ask("a") is None
    rig.begin(0.4 * WAIT_US / 1e6)
    rig.pass_ends = rig.clock.now
    assert rig.ask("a") is None
    rig.begin(0.7 * WAIT_US / 1e6)
    rig.pass_ends = rig.clock.now
    assert rig.ask("a") == 0
    assert rig.client.sent[-1] == ("cancel", "a")
    assert [sent for sent in rig.client.sent if sent[0] == "stop"] == [("stop", "a")]
    assert rig.sizes()[2] == 1, "the place of the other one"


def test_the_unanswered_stops_of_a_pass_wait_together_at_most_so_long(rig: WindowRig) -> None:
    rig.lookups.window = None
    rig.client.script = [(State.PREPARING, 0)] * 50
    for number in range(50):
        assert rig.ask(f"r{number}") is None
        rig.lookups.reached(f"r{number}")
    rig.begin(PATIENCE_S)
    for _ in range(3):
        before = rig.clock.now
        for number in range(50):
            rig.ask(f"r{number}")
        assert rig.clock.now - before <= (WAIT_US + 2) / 1e6
        rig.begin(WAIT_US / 1e6)
    assert [rig.ask(f"r{number}") for number in range(50)] == [0] * 50


@pytest.mark.parametrize("state", [State.WAITING, State.PREPARING])
def test_a_request_spends_its_patience_once_and_not_while_a_lease_lies_ready(rig: WindowRig, state: State) -> None:
    rig.client.script = [(state, 0), (state, 0)]
    assert rig.ask("a") is None
    rig.lookups.reached("a")
    rig.begin(PATIENCE_S / 2)
    rig.client.queries[0].answer(State.READY, 4)
    assert rig.ask("a") == 4
    rig.begin(10 * PATIENCE_S)
    rig.begin()
    assert rig.ask("a") is None, "its lease went while the engine had no room; the time was no wait for its pages"
    rig.lookups.reached("a")
    rig.begin(PATIENCE_S / 4)
    assert rig.ask("a") is None
    rig.client.queries[1].at_stop = (State.READY, 2)
    rig.begin(PATIENCE_S / 4)
    assert rig.ask("a") == 2, "the two waits are one patience"
    assert rig.sizes() == (1, 1, 1)
    rig.lookups.finish("a")
    assert rig.sizes() == (0, 0, 0)


# What waiting is worth.


def pace(rig: WindowRig, tokens_per_second: float) -> None:
    """Let the engine have computed prompts at that rate."""
    for number in range(STEPS_MIN):
        rig.prefill.ended(number, STEP_TOKENS_MIN, number + STEP_TOKENS_MIN / tokens_per_second)


def read(rig: WindowRig, seconds: float, missing: int = 4, request: str = "a") -> FakeQuery:
    """Ask for pages that are being read and will be there in so many seconds; the engine keeps the request waiting."""
    rig.client.script = [(State.PREPARING, 0)]
    assert rig.ask(request) is None
    query: FakeQuery = rig.client.queries[-1]
    query.estimate = Estimate(seconds, missing)
    query.at_stop = (State.READY, 1)
    rig.begin()
    assert rig.ask(request) is None, "nobody has kept it waiting"
    rig.lookups.reached(request)
    return query


@pytest.mark.parametrize(("seconds", "computed"), [(0.3, False), (0.41, False), (0.43, True), (30.0, True)])
def test_a_request_does_not_wait_for_what_the_engine_computes_sooner(
    rig: WindowRig, seconds: float, computed: bool
) -> None:
    """Four pages of a hundred tokens, at a thousand a second, are 0.4 seconds; a pass takes 10 ms of the wait."""
    pace(rig, 1000.0)
    read(rig, seconds)
    rig.begin()
    assert rig.ask("a") == (1 if computed else None)
    values = rig.stats.take()
    assert (values.get("prefetch_stopped"), values.get("prefetch_outpaced")) == ((1, 1) if computed else (None, None))


@pytest.mark.parametrize("unknown", ["rate", "estimate", "policy"])
def test_without_both_figures_or_with_the_other_policy_the_patience_alone_ends_a_wait(
    rig: WindowRig, unknown: str
) -> None:
    if unknown != "rate":
        pace(rig, 1000.0)
    if unknown == "policy":
        rig.lookups.settings = dataclasses.replace(rig.lookups.settings, load_wait_policy="always")
    read(rig, 0.0 if unknown == "estimate" else 30.0)
    rig.begin(PATIENCE_S - 0.01)
    assert rig.ask("a") is None
    rig.begin()
    assert rig.ask("a") == 1
    assert "prefetch_outpaced" not in rig.stats.take()


def test_a_wait_ends_once_its_rest_does_not_pay_any_more(rig: WindowRig) -> None:
    pace(rig, 1000.0)
    query = read(rig, 0.2)
    rig.begin()
    assert rig.ask("a") is None
    query.estimate = Estimate(0.25, 2)
    rig.begin()
    assert rig.ask("a") == 1, "two pages are computed in 0.2 seconds"
    assert rig.stats.take()["prefetch_outpaced"] == 1


@pytest.mark.parametrize(("seconds", "worth"), [(0.1, 0.25), (0.39, 0.4)])
def test_an_estimate_that_was_wrong_costs_at_most_about_twice_itself_and_never_more_than_computing(
    rig: WindowRig, seconds: float, worth: float
) -> None:
    pace(rig, 1000.0)
    query = read(rig, seconds + 0.02)
    waited, answer = 0.0, None
    while answer is None:
        query.estimate = Estimate(seconds, 4)  # Each answer says so again.
        rig.begin(0.01)
        waited += 0.01
        answer = rig.ask("a")
    assert waited == pytest.approx(worth, abs=0.021), "and two passes, which take 10 ms each"
    assert "prefetch_outpaced" not in rig.stats.take()


@pytest.mark.parametrize(("pages", "worth"), [(10, 0.5 + 2 * 0.075 + 0.05), (39, 2.0)])
def test_pages_that_come_prove_that_more_will_and_computing_bounds_all_of_it(
    rig: WindowRig, pages: int, worth: float
) -> None:
    """Each 50 ms a page comes, until so many have, and each answer says that it takes 2.5 ms a page."""
    rig.lookups.settings = dataclasses.replace(rig.lookups.settings, load_wait_ms=60_000)
    pace(rig, 2000.0)
    query, passes, answer = read(rig, 0.1, missing=40), 0, None
    while answer is None:
        missing = 40 - min(pages, passes // 5)
        query.estimate = Estimate(0.0025 * missing, missing)
        rig.begin(0.01)
        passes += 1
        answer = rig.ask("a")
    assert passes / 100 == pytest.approx(worth, abs=0.021)


def test_time_that_passed_since_the_estimate_counts(rig: WindowRig) -> None:
    """A pass may take long, and the last answer is as old as it."""
    pace(rig, 1000.0)
    read(rig, 0.5)
    rig.begin(0.11)
    assert rig.ask("a") is None, "it is there in 0.39 seconds"


def test_a_request_that_is_not_kept_waiting_any_more_may_be_read_for_whatever_that_takes(rig: WindowRig) -> None:
    """Its lease went while the engine had no room for it; that it has none still costs nobody a wait."""
    pace(rig, 1000.0)
    read(rig, 0.1).answer(State.READY, 4)
    assert rig.ask("a") == 4
    rig.begin(LEASE_SECONDS)
    rig.begin()
    read(rig, 30.0)
    rig.begin()
    assert rig.ask("a") == 1, "it is kept waiting now"
    assert rig.stats.take()["prefetch_outpaced"] == 1


def test_a_worth_that_was_spent_is_not_given_again(rig: WindowRig) -> None:
    pace(rig, 1000.0)
    query = read(rig, 0.1)
    rig.begin()
    assert rig.ask("a") is None
    rig.begin(0.2)
    query.answer(State.READY, 4)
    assert rig.ask("a") == 4
    rig.begin(LEASE_SECONDS)
    rig.begin()
    read(rig, 0.1)
    rig.begin(0.02)
    assert rig.ask("a") is None
    rig.begin(0.02)
    assert rig.ask("a") == 1, "0.24 seconds were worth it, in all"


# Waits and the breaker.


@pytest.mark.parametrize("requests", [1, 3, 200])
def test_the_unanswered_questions_of_a_pass_wait_together_at_most_so_long(requests: int) -> None:
    rig = WindowRig()
    rig.lookups.window = None
    for number in range(20):
        before = rig.clock.now
        for name in range(requests):
            rig.ask(f"r{name}")
        assert rig.clock.now - before <= (WAIT_US + 2) / 1e6, f"pass {number}"
        rig.begin()
    assert rig.lookups.breaker.opened == 1


def test_three_waits_without_an_answer_open_the_breaker_for_a_second(rig: WindowRig) -> None:
    for number in range(UNANSWERED_MAX - 1):
        assert rig.ask("a") is None, number
        rig.begin()
    assert rig.ask("a") == 0
    asked = len(rig.client.queries)
    assert [rig.ask(name) for name in "abcdef"] == [0] * 6
    assert len(rig.client.queries) == asked == 1
    assert rig.stats.take()["breaker_opened"] == 1
    rig.begin(OPEN_SECONDS)
    rig.found("a")
    assert rig.sizes() == (1, 0, 1)


def test_a_request_that_waits_for_room_does_not_hide_that_nobody_answers(rig: WindowRig) -> None:
    """The Manager was stopped after it had said "no room yet" to one request."""
    rig.client.script = [(State.WAITING, 0)]
    assert rig.ask("a") is None
    answers = []
    for _ in range(UNANSWERED_MAX):
        rig.begin()
        assert rig.ask("a") is None
        answers.append(rig.ask("b"))
    assert answers == [None, None, 0]
    assert rig.lookups.breaker.opened == 1


def test_one_question_that_is_never_answered_is_given_up_although_others_are(rig: WindowRig) -> None:
    assert rig.ask("a") is None
    rig.lookups.reached("a")
    answers = []
    for number in range(3):
        rig.begin(PATIENCE_S / 3)
        rig.found(f"r{number}")
        rig.lookups.finish(f"r{number}")
        answers.append(rig.ask("a"))
    assert rig.lookups.breaker.opened == 0
    assert answers == [None, None, 0]
    assert ("cancel", "a") in rig.client.sent


def test_a_session_that_breaks_answers_with_nothing_and_keeps_nothing(rig: WindowRig) -> None:
    rig.found("a")
    rig.client.script = [(State.WAITING, 0)]
    assert rig.ask("b") is None
    rig.client.alive = False
    assert [rig.ask(name) for name in "bc"] == [0, 0]
    rig.lookups.drop_all()
    assert rig.sizes() == (0, 0, 0)


# Bounds.


def test_the_table_is_bounded(rig: WindowRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup_module, "LOOKUPS_MAX", 10)
    rig.client.script = [(State.READY, 0)] * 10
    assert [rig.ask(f"r{number}") for number in range(10)] == [0] * 10
    assert rig.ask("one more") is None
    assert len(rig.lookups) == 10
    rig.begin(LEASE_SECONDS)
    rig.begin()
    rig.found("one more")


def test_ten_thousand_requests_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """They come, are asked for, kept waiting, and end in every way or are simply not asked for again."""
    monkeypatch.setattr(lookup_module, "WAITS_MAX", 100)
    rig, order = WindowRig(), np.random.default_rng(7)
    admit_with_pages: Callable[[str], object] = rig.lookups.take
    vanish: Callable[[str], object] = str
    ends = [admit_with_pages, rig.lookups.finish, vanish]
    answers = [(State.READY, 4), (State.READY, 0), (State.WAITING, 0), (State.STALE, 0), (State.BUSY, 0)]
    answers.append((State.PREPARING, 0))
    waiting: list[str] = []
    for number in range(10_000):
        waiting.append(f"r{number}")
        if len(waiting) < 32:
            continue
        for name in waiting:
            rig.client.script = [answers[order.integers(len(answers))]]
            if rig.ask(name) is None and order.random() < 0.5:
                rig.lookups.reached(name)
        for name in [name for name in waiting if order.random() < 0.9]:
            ends[order.integers(len(ends))](name)
            waiting.remove(name)
        rig.begin(order.random() * 0.1)
        table, since, inside = rig.sizes()
        assert since <= table + 100
        assert inside <= 3
        rig.client.queries.clear()
        rig.client.sent.clear()
    rig.begin(LEASE_SECONDS)
    rig.begin(LEASE_SECONDS)
    assert rig.sizes()[0] == rig.sizes()[2] == 0
    assert rig.sizes()[1] <= 100


def test_a_query_that_nobody_asks_for_again_is_cancelled(rig: WindowRig) -> None:
    rig.client.script = [(State.WAITING, 0)]
    assert rig.ask("a") is None
    query: FakeQuery = rig.client.queries[0]
    query.answer(State.READY, 4)
    rig.begin(LEASE_SECONDS)
    rig.begin()
    assert rig.client.sent[-1] == ("cancel", "a")
    assert rig.sizes() == (0, 0, 0)
