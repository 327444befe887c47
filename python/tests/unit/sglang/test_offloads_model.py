"""Saves of one rank against a model: random answers, ends, deaths and resets, all rules checked after each step.

The model is what the engine knows: which pages it offered, in which order, and which of them it may write again.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from dataclasses import dataclass
from itertools import pairwise
from random import Random

import pytest
from python.tests.unit.sglang.offload_rig import BLOCKS, OffloadRig

from harness.fakes import FakeReserve, keys_of
from orbitkv.adapter.publishing import COPY_PAGES, PRESSED_SECONDS, RESERVE_PAGES_MAX, RESERVES_MAX
from orbitkv.client import Grant, Status
from orbitkv.sglang.offloads import OFFERS_MAX

SEEDS = 150
STEPS = 150
WAIT_SECONDS = 30.0


@dataclass(eq=False)
class Node:
    """One offer as the engine sees it: its pages are locked until its result is taken."""

    name: str
    pages: range


class Model:
    """One run. No page is offered twice, so that a page names its offer."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.rig = OffloadRig()
        self.locked: deque[Node] = deque()
        self.free: set[int] = set()  # pages that the engine may write again
        self.stored: set[int] = set()  # pages whose copy ended well
        self.page_of: dict[bytes, int] = {}
        self.clients = [self.rig.client]
        self.sessions = [self.rig.session]
        self.pressed = False
        self.rig.offloads.pressed = lambda: self.pressed
        self.rig.pump()

    def run(self) -> None:
        """Do random steps, then let everything end."""
        often = [self.offer] * 4 + [self.pump] * 5 + [self.answer] * 5 + [self.end] * 5 + [self.take] * 3
        seldom = [self.refuse, self.wait, self.squeeze, self.lose, self.reconnect, self.forget, self.reset]
        for _ in range(STEPS):
            self.random.choice(often + seldom)()
            self.check()
        self.drain()

    def offer(self) -> None:
        """Offer a node, seldom a very long one."""
        long = self.random.random() < 0.03
        count = RESERVE_PAGES_MAX + 1 if long else self.random.choice([0, 1, 2, COPY_PAGES + 3])
        first = len(self.page_of)
        if first + count > BLOCKS:
            return
        node = Node(f"n{first}", range(first, first + count))
        self.page_of.update(zip(keys_of(node.name, count), node.pages, strict=True))
        drawn = len(self.rig.numbers)
        self.rig.offer(node.name, first, count)
        assert len(self.rig.numbers) - drawn == -(-count // RESERVE_PAGES_MAX), "the ranks must draw alike"
        self.locked.append(node)

    def pump(self) -> None:
        """Begin a pass, sometimes without a session."""
        self.rig.pump(session=self.random.random() < 0.95)

    def answer(self) -> None:
        """Answer an open reserve of any session, in any order."""
        if waiting := self.open_reserves():
            reserve = self.random.choice(waiting)
            kinds = self.random.choice([[Grant.GRANTED], [Grant.PRESENT], [Grant.GRANTED, Grant.PRESENT], list(Grant)])
            reserve.answer([self.random.choice(kinds) for _ in reserve.keys])

    def refuse(self) -> None:
        """Refuse an open reserve; UNKNOWN breaks the session."""
        if waiting := self.open_reserves():
            self.random.choice(waiting).refuse(self.random.choice([Status.BUSY, Status.STALE, Status.UNKNOWN]))

    def end(self) -> None:
        """Let a copy end, seldom badly."""
        if jobs := self.rig.held.jobs:
            at, ok = self.random.randrange(len(jobs)), self.random.random() < 0.9
            self.stored.update(jobs[at].pages if ok else ())
            self.rig.held.end(at, ok)

    def take(self) -> None:
        """Take results as the engine does: as many as the slowest rank has, which may be fewer than there are."""
        for _ in range(self.random.randint(0, self.rig.offloads.completed)):
            node = self.locked.popleft()
            assert not self.rig.held.reading() & set(node.pages), "a source is free while a copy reads it (I1)"
            assert self.rig.offloads.pop() is (set(node.pages) <= self.stored | self.present()), node.name
            self.free.update(node.pages)

    def wait(self) -> None:
        """Let time pass: a little, past the patience of an engine without pages, or past the call deadline."""
        self.rig.clock.now += self.random.choice([0.01, PRESSED_SECONDS, 5.0])

    def squeeze(self) -> None:
        """Let the engine run out of pages, or have some again."""
        self.pressed = not self.pressed

    def lose(self) -> None:
        """Lose the channel."""
        self.rig.client.alive = False

    def reconnect(self) -> None:
        """Begin a session, which may take over what the earlier one writes into."""
        previous = self.rig.session
        self.rig.connect()
        if self.random.random() < 0.5:
            self.rig.session.reservations = previous.leave()
        self.clients.append(self.rig.client)
        self.sessions.append(self.rig.session)

    def forget(self) -> None:
        """Let the weights change."""
        self.rig.offloads.forget()

    def reset(self) -> None:
        """Empty the engine's cache: that returns once no copy runs, and the engine unlocks every node."""
        returned: list[set[int]] = []

        def quiesce() -> None:
            self.rig.offloads.quiesce()
            returned.append(self.rig.held.reading())

        resetting = threading.Thread(target=quiesce)
        resetting.start()
        while self.rig.held.jobs:
            assert resetting.is_alive(), "a reset returned while copies run (I2)"
            self.end()
        resetting.join(WAIT_SECONDS)
        assert returned == [set()]
        assert self.rig.offloads.completed == 0
        for node in self.locked:
            self.free.update(node.pages)
        self.locked.clear()

    def drain(self) -> None:
        """Answer and end everything: every node is unlocked, and nothing stays behind."""
        self.reconnect()
        while self.locked:
            before = len(self.locked)
            for reserve in self.open_reserves():
                reserve.answer([Grant.PRESENT] * len(reserve.keys))
            self.rig.pump()
            while self.rig.held.jobs:
                self.end()
            self.rig.pump()
            while self.rig.offloads.completed:
                self.take()
            self.check()
            assert len(self.locked) < before, "an offer has no end"
        assert all(not session.reservations for session in self.sessions)
        given_up = [r for client in self.clients if client.alive for r in client.reserves if not r.answered]
        late = Counter({reserve.reservation: 1 for reserve in given_up if Grant.GRANTED in reserve.late})
        abandoned = Counter(m[1] for client in self.clients if client.alive for m in client.sent if m[0] == "abandoned")
        assert abandoned == late, "a late grant stays reserved, or one that was copied is given back"

    def open_reserves(self) -> list[FakeReserve]:
        """Return what no answer was given to."""
        return [reserve for client in self.clients for reserve in client.reserves if reserve.open]

    def present(self) -> set[int]:
        """Return the pages that an answer that was taken called present."""
        return {
            self.page_of[key]
            for client in self.clients
            for reserve in client.reserves
            for key, grant in zip(reserve.keys, reserve.grants.tolist(), strict=False)
            if grant == Grant.PRESENT
        }

    def check(self) -> None:
        """Check what holds after every step."""
        rig, offloads = self.rig, self.rig.offloads
        reading = rig.held.reading()
        reported = list(self.locked)[: offloads.completed]
        assert not reading & self.free, "a copy reads a page that the engine may write (I1)"
        assert not reading & {page for node in reported for page in node.pages}, "it is reported while it is read"
        assert len(offloads._offers) + offloads.completed == len(self.locked), "each node has one result"
        # Every page is terminal or accounted: an offer counts just its chunks that are in a list.
        table = offloads._reserves
        chunks = [*offloads._queued, *(opened.batch for opened in (*table.unanswered, *table.copying))]
        counted = Counter(id(chunk.offer) for chunk in chunks)
        assert all(offer.unfinished == counted[id(offer)] for offer in offloads._offers)
        assert {id(offer) for offer in offloads._offers} >= set(counted)
        assert reading <= {page for opened in table.copying for page in opened.sources.tolist()}
        assert all(opened.reserve.reservation in opened.session.reservations for opened in table.copying), (
            "a later session would not claim what is written into"
        )
        assert table.copies == len(rig.held.jobs) + len(offloads._ended)
        assert len(offloads._queued) + len(table.unanswered) <= OFFERS_MAX
        assert len(table.unanswered) <= RESERVES_MAX
        for client in self.clients:
            numbers = [reserve.operation or 0 for reserve in client.reserves]
            assert all(a < b for a, b in pairwise(numbers)), "a rank's reserves rise"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_page_is_accounted_and_no_source_is_free_while_it_is_read(seed: int) -> None:
    Model(seed).run()
