"""Reserves of either engine: every way in which one ends, what bounds them, and that a batch is told of just once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import cast

import numpy as np
import pytest

from harness.fakes import PAGE_BYTES, Clock, FakeClient, FakeReserve, keys_of
from orbitkv.adapter.plans import Blocks, Locations, PublishPlan
from orbitkv.adapter.publishing import COPY_PAGES, PRESSED_SECONDS, RESERVES_MAX, OpenReserve, ReserveTable
from orbitkv.adapter.session import Epoch, SchedulerSession
from orbitkv.adapter.stats import Stats
from orbitkv.client import CacheManagerClient, Grant, Status
from orbitkv.errors import ProtocolError

DEADLINE_SECONDS = 5.0
SEEDS = 50
STEPS = 200

Answers = list[tuple[OpenReserve[str], list[PublishPlan]]]


class TableRig:
    """A table of reserves whose batches are names, over fake clients. `unpublished` are the names that came back."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.stats = Stats()
        self.epoch = Epoch()
        self.unpublished: list[str] = []
        self.table: ReserveTable[str] = ReserveTable(DEADLINE_SECONDS, self.stats, self.unpublished.append, self.clock)
        self.lost: list[SchedulerSession] = []
        self.connect()

    def connect(self) -> None:
        """Begin a session."""
        self.client = FakeClient()
        client = cast(CacheManagerClient, self.client)
        self.session = SchedulerSession(client, "engine-1", self.epoch, lambda: self.lost.append(self.session))
        assert self.session.advance()

    def ask(self, name: str, pages: int = 1, first: int = 0) -> bool:
        """Ask for pages first, first + 1, ... under keys that `name` gives."""
        sources: Blocks = np.arange(first, first + pages, dtype=np.int64)
        keys = b"".join(keys_of(name, pages))
        return self.table.ask(self.session, self.session.namespace, keys, sources, name)

    def asked(self, name: str, pages: int = 1, first: int = 0) -> FakeReserve:
        """Ask, and return what was sent."""
        assert self.ask(name, pages, first)
        return self.client.reserves[-1]

    def fill(self) -> list[str]:
        """Ask for single pages as long as one may, and return their names."""
        names: list[str] = []
        while self.table.may_ask(self.session):
            names.append(f"fill{len(names)}")
            self.asked(names[-1])
        return names

    def review(self, *, pressed: bool = False) -> Answers:
        """Take answers in the current session."""
        return self.table.review(self.session, pressed=pressed)

    def counted(self, name: str) -> float:
        """Return a counter since the last look."""
        value = self.stats.take().get(name, 0.0)
        assert isinstance(value, float | int)
        return value

    def abandoned(self) -> list[tuple[object, ...]]:
        """Return the late grants that were abandoned: reservation and pages."""
        return [message[1:] for message in self.client.sent if message[0] == "abandoned"]


@pytest.fixture
def rig() -> TableRig:
    """Return an empty table with a session."""
    return TableRig()


def granted(pages: int) -> list[Grant]:
    """Return the answer that grants every page."""
    return [Grant.GRANTED] * pages


def test_granted_pages_become_batches_in_the_order_of_their_keys(rig: TableRig) -> None:
    pages = COPY_PAGES + 4
    reserve = rig.asked("a", pages, first=100)
    grants = granted(pages)
    grants[1], grants[3] = Grant.PRESENT, Grant.NO_ROOM
    reserve.answer(grants)
    ((opened, plans),) = rig.review()
    sources = [100, 102, *range(104, 100 + pages)]
    assert opened.batch == "a"
    assert [plan.blocks.tolist() for plan in plans] == [sources[:COPY_PAGES], sources[COPY_PAGES:]]
    assert np.concatenate([plan.ordinals for plan in plans]).tolist() == list(range(pages - 2))
    assert [plan.locations[0][0] for plan in plans] == [0, COPY_PAGES * PAGE_BYTES]
    assert {plan.reservation for plan in plans} == {reserve.reservation}
    assert len({plan.ticket for plan in plans}) == 2
    assert rig.unpublished == []


def test_a_reserve_is_for_the_epoch_and_under_the_number_that_the_engine_says(rig: TableRig) -> None:
    namespace = rig.session.namespace
    keys = b"".join(keys_of("a", 2))
    assert rig.table.ask(rig.session, namespace, keys, np.arange(2, dtype=np.int64), "a", operation=17)
    assert rig.client.reserves[0].operation == 17
    assert rig.client.sent[-1] == ("reserve", "engine-1", 2, 0), "nothing waits for the answer"


def test_a_reservation_is_named_until_its_last_copy_ended(rig: TableRig) -> None:
    """A later session claims what is written into; without it the Manager would give the extents to others."""
    reserve = rig.asked("a", COPY_PAGES + 1)
    reserve.answer(granted(COPY_PAGES + 1))
    ((opened, _),) = rig.review()
    assert rig.session.reservations == {reserve.reservation}
    assert (rig.table.open, rig.table.copies) == (1, 2)
    assert not rig.table.ended(opened)
    assert rig.session.reservations == {reserve.reservation}
    assert rig.table.copying == (opened,)
    assert rig.table.ended(opened)
    assert rig.session.reservations == set()
    assert (rig.table.open, rig.table.copies) == (0, 0)


def test_an_answer_that_grants_nothing_ends_its_reserve(rig: TableRig) -> None:
    rig.asked("a", 2).answer([Grant.PRESENT, Grant.BEING_WRITTEN])
    ((opened, plans),) = rig.review()
    assert (opened.batch, plans) == ("a", [])
    assert opened.reserve.grants.tolist() == [Grant.PRESENT, Grant.BEING_WRITTEN]
    assert rig.session.reservations == set()
    assert rig.table.open == 0
    assert rig.unpublished == []


@pytest.mark.parametrize(
    ("status", "alive", "counter"),
    [
        (Status.BUSY, True, "save_skipped"),
        (Status.STALE, True, "save_skipped"),
        (Status.CONFLICT, False, "save_failure"),
    ],
)
def test_a_refused_reserve_is_unpublished(rig: TableRig, status: Status, alive: bool, counter: str) -> None:
    rig.asked("a", 3).refuse(status)
    assert rig.review() == []
    assert rig.unpublished == ["a"]
    assert rig.session.alive is alive
    assert rig.counted(counter) == 3
    assert rig.table.open == 0


def test_what_cannot_be_sent_is_unpublished(rig: TableRig) -> None:
    rig.client.alive = False
    assert not rig.ask("a", 3)
    assert rig.unpublished == ["a"]
    assert rig.lost == [rig.session]
    assert rig.counted("save_failure") == 3
    assert rig.table.open == 0


def test_an_answer_without_sense_ends_the_session_and_not_the_engine(
    rig: TableRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I10. Fails when the fault leaves `review`, or when the reservation stays named although nothing is copied."""

    def locations(_reserve: FakeReserve, _part: int = 0) -> Locations:
        raise ProtocolError("broken by the test")

    monkeypatch.setattr(FakeReserve, "locations", locations)
    rig.asked("a", 2).answer(granted(2))
    assert rig.review() == []
    assert rig.unpublished == ["a"]
    assert rig.lost == [rig.session]
    assert rig.session.reservations == set()
    assert rig.counted("save_failure") == 2


def test_an_overdue_reserve_is_given_up_and_its_late_grant_abandoned(rig: TableRig) -> None:
    reserve = rig.asked("a", 2)
    rig.clock.now += DEADLINE_SECONDS - 0.1
    assert rig.review() == []
    assert rig.unpublished == []
    rig.clock.now += 0.1
    assert rig.review() == []
    assert rig.unpublished == ["a"]
    assert rig.counted("save_failure") == 2
    reserve.answer(granted(2))
    assert rig.abandoned() == [(reserve.reservation, 2)]
    assert rig.review() == []


def test_an_answer_counts_although_its_deadline_passed(rig: TableRig) -> None:
    reserve = rig.asked("a")
    rig.clock.now += 10 * DEADLINE_SECONDS
    reserve.answer(granted(1))
    assert [opened.batch for opened, _ in rig.review()] == ["a"]


def test_an_engine_that_runs_out_of_pages_has_less_patience(rig: TableRig) -> None:
    rig.asked("a")
    rig.clock.now += PRESSED_SECONDS
    rig.review()
    assert rig.unpublished == []
    rig.review(pressed=True)
    assert rig.unpublished == ["a"]


def test_unanswered_reserves_are_bounded(rig: TableRig) -> None:
    assert len(rig.fill()) == RESERVES_MAX
    rig.client.reserves[3].answer([Grant.PRESENT])
    rig.review()
    assert len(rig.fill()) == 1


def test_reservations_of_the_session_are_bounded(rig: TableRig) -> None:
    """Those of copies and of answers to come, since the Manager's table is for queries too."""
    rig.client.limits = rig.client.limits._replace(session_operations_max=8)
    names = rig.fill()
    assert len(names) == rig.session.reservations_max == 4
    for reserve in rig.client.reserves:
        reserve.answer(granted(1))
    answers = rig.review()
    assert rig.table.unanswered == ()
    assert rig.fill() == []
    rig.table.ended(answers[0][0])
    assert len(rig.fill()) == 1


def test_a_lost_session_is_asked_nothing(rig: TableRig) -> None:
    rig.session.fail(ProtocolError("broken by the test"))
    assert not rig.table.may_ask(rig.session)


def test_a_silent_manager_is_probed_with_one_reserve(rig: TableRig) -> None:
    names = rig.fill()
    rig.clock.now += DEADLINE_SECONDS
    rig.review()
    assert rig.unpublished == names
    assert rig.table.silent
    assert rig.table.unheard
    rig.review()
    assert rig.table.silent, "time alone is no answer"
    assert not rig.table.unheard, "nothing was given up in this review"
    assert len(rig.fill()) == 1
    rig.client.reserves[-1].answer([Grant.PRESENT])
    rig.review()
    assert not rig.table.silent
    assert len(rig.fill()) == RESERVES_MAX


@pytest.mark.parametrize("late", [0, 1])
def test_one_late_answer_among_others_makes_no_silence(rig: TableRig, late: int) -> None:
    """Fails when the last reserve that is looked at decides."""
    reserves = [rig.asked("a"), rig.asked("b")]
    reserves[1 - late].answer([Grant.PRESENT])
    rig.clock.now += DEADLINE_SECONDS
    rig.review()
    assert rig.unpublished == ["ab"[late]]
    assert not rig.table.silent
    assert not rig.table.unheard


@pytest.mark.parametrize("why", ["none", "another session", "another epoch"])
def test_what_another_session_or_epoch_was_asked_for_is_given_up(rig: TableRig, why: str) -> None:
    """Pages of an old epoch hold the KV of other weights."""
    client, reserve = rig.client, rig.asked("a", 2)
    reserve.answer(granted(2))
    if why == "another session":
        rig.connect()
    if why == "another epoch":
        rig.epoch.move(77)
        assert rig.session.advance()
    assert rig.table.review(None if why == "none" else rig.session, pressed=False) == []
    assert rig.unpublished == ["a"]
    assert rig.counted("save_failure") == 2
    assert ("abandoned", reserve.reservation, 2) in client.sent
    assert not rig.table.silent, "that says nothing about the Manager"


def test_a_grant_that_a_take_over_did_not_name_is_not_copied(rig: TableRig) -> None:
    reserve = rig.asked("a", 2)
    reserve.answer(granted(2))
    assert rig.session.leave() == set()
    assert rig.review() == []
    assert rig.unpublished == ["a"]
    assert rig.abandoned() == [(reserve.reservation, 2)]
    assert rig.session.reservations == set()


def test_giving_up_leaves_what_is_copied(rig: TableRig) -> None:
    """I2: only the end of its copies frees a source that is read."""
    read, asked = rig.asked("a"), rig.asked("b")
    read.answer(granted(1))
    ((opened, _),) = rig.review()
    rig.table.give_up()
    assert rig.unpublished == ["b"]
    assert asked.dropped
    assert not read.dropped
    assert rig.table.copying == (opened,)
    rig.table.give_up()
    assert rig.unpublished == ["b"], "a batch is told of once"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_batch_is_told_of_once(seed: int) -> None:
    """Random answers, refusals, ends, waits and sessions: each batch comes back, is answered, or is still open."""
    random = Random(seed)
    rig = TableRig()
    clients = [rig.client]
    answered: list[str] = []
    reading: list[OpenReserve[str]] = []
    asked = 0

    def pick(kinds: Sequence[Grant], reserve: FakeReserve) -> list[Grant]:
        return [random.choice(kinds) for _ in reserve.keys]

    for _ in range(STEPS):
        waiting = [reserve for client in clients for reserve in client.reserves if reserve.open]
        what = random.choice(["ask", "ask", "answer", "answer", "review", "review", "end", "refuse", "wait", "lose"])
        if what == "ask" and rig.table.may_ask(rig.session):
            rig.ask(f"n{asked}", random.choice([1, COPY_PAGES + 2]))
            asked += 1
        elif what == "answer" and waiting:
            reserve = random.choice(waiting)
            reserve.answer(pick(random.choice([[Grant.GRANTED], [Grant.PRESENT], list(Grant)]), reserve))
        elif what == "refuse" and waiting and random.random() < 0.3:
            random.choice(waiting).refuse(random.choice([Status.BUSY, Status.UNKNOWN]))
        elif what == "review":
            for opened, plans in rig.review(pressed=random.random() < 0.2):
                answered.append(opened.batch)
                reading += [opened] * len(plans)
        elif what == "end" and reading:
            opened = reading.pop(random.randrange(len(reading)))
            assert rig.table.ended(opened) is (opened not in reading)
        elif what == "wait":
            rig.clock.now += random.choice([0.01, PRESSED_SECONDS, DEADLINE_SECONDS])
        elif what == "lose" and not (rig.session.alive and random.random() < 0.9):
            rig.connect()
            clients.append(rig.client)
        open_names = [opened.batch for opened in rig.table.unanswered]
        assert Counter([*rig.unpublished, *answered, *open_names]) == Counter(f"n{i}" for i in range(asked))
        assert set(rig.table.copying) == set(reading)
        assert rig.table.copies == len(reading)
        assert all(opened.reserve.reservation in opened.session.reservations for opened in reading)
        assert len(rig.table.unanswered) <= RESERVES_MAX
