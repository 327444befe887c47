"""Publishing as either engine does it: reserves from the question to the end of the last copy, and what bounds them.

A batch of an engine's pages is asked for with one reserve, which moves

    unanswered ──answer──► copying ──last copy ended──► ended
      │           ├─ nothing granted ─────────────────► ended
      │           └─ not to be made sense of ─────────► unpublished
      └─ refused, overdue, session or epoch left, given up ──► unpublished; a late grant is abandoned

The engine keeps the sources from the question to the end, and hears of it once: `unpublished` of a batch that is not
published, `review` of an answer, and `ended` of the last copy.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from orbitkv.adapter.plans import Blocks, PublishPlan
from orbitkv.adapter.session import SchedulerSession
from orbitkv.adapter.stats import Stats
from orbitkv.client import Namespace, Reserve
from orbitkv.errors import OrbitKVError

RESERVE_PAGES_MAX = 1024  # pages of one reserve, which the Manager places under one hold; the rest waits a step
RESERVES_MAX = 16  # unanswered reserves; at the bound no more is asked for
COPY_PAGES = 32  # pages of one batch of copies: they become visible together
PRESSED_SECONDS = 0.1  # how long an unanswered reserve keeps its sources from an engine that runs out of pages

B = TypeVar("B")


@dataclass(eq=False)
class OpenReserve(Generic[B]):
    """One reserve of a batch, whose key i is published from block `sources[i]`.

    `since` is when it was sent, in seconds of the clock; `copies` are the batches of copies that still read.
    """

    batch: B
    sources: Blocks
    session: SchedulerSession
    namespace: Namespace
    reserve: Reserve
    since: float
    copies: int = 0

    def is_current(self, session: SchedulerSession | None) -> bool:
        """Return whether it was asked for in this session and in the epoch that this one is in."""
        return session is self.session and session.namespace == self.namespace


class ReserveTable(Generic[B]):
    """See the module's text. Everything runs on the scheduler's thread, and nothing waits.

    `deadline_seconds` is how long an answer may take; `unpublished` is called once for each batch that is not
    published, whose sources nobody reads.
    """

    def __init__(
        self,
        deadline_seconds: float,
        stats: Stats,
        unpublished: Callable[[B], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._deadline_seconds = deadline_seconds
        self._stats = stats
        self._unpublished = unpublished
        self._clock = clock
        self._unanswered: list[OpenReserve[B]] = []
        self._copying: dict[OpenReserve[B], None] = {}
        self._silent = False
        self._unheard = False
        self._tickets = itertools.count(1)

    @property
    def unanswered(self) -> tuple[OpenReserve[B], ...]:
        """Return the reserves without an answer, the oldest first."""
        return tuple(self._unanswered)

    @property
    def copying(self) -> tuple[OpenReserve[B], ...]:
        """Return the reserves whose pages are being copied."""
        return tuple(self._copying)

    @property
    def open(self) -> int:
        """Return how many reserves have not ended."""
        return len(self._unanswered) + len(self._copying)

    @property
    def copies(self) -> int:
        """Return how many batches of copies have not ended."""
        return sum(each.copies for each in self._copying)

    @property
    def silent(self) -> bool:
        """Return whether the last reserve was given up unanswered, so that the next one goes alone, as a probe."""
        return self._silent

    @property
    def unheard(self) -> bool:
        """Return whether the last review gave up what was overdue, and found no other answer."""
        return self._unheard

    def may_ask(self, session: SchedulerSession) -> bool:
        """Return whether one more may be asked for; otherwise an answer, an end or another session must come first."""
        return (
            session.alive
            and len(self._unanswered) < (1 if self._silent else RESERVES_MAX)
            and len(self._unanswered) + len(session.reservations) < session.reservations_max
        )

    def ask(
        self,
        session: SchedulerSession,
        namespace: Namespace,
        keys: bytes,
        sources: Blocks,
        batch: B,
        operation: int | None = None,
    ) -> bool:
        """Send a reserve; return whether it was sent. Otherwise the batch is unpublished."""
        try:
            reserve = session.client.reserve(namespace, keys, instance=session.instance, wait_us=0, operation=operation)
        except OrbitKVError as fault:
            self._fail(session, fault, batch, len(sources))
            return False
        self._unanswered.append(OpenReserve(batch, sources, session, namespace, reserve, self._clock()))
        return True

    def review(
        self, session: SchedulerSession | None, *, pressed: bool
    ) -> list[tuple[OpenReserve[B], list[PublishPlan]]]:
        """Take answers, and give up what is overdue or not of this session and epoch any more.

        Returns each answered reserve with the batches to copy, which may be none, and of which the engine reports each
        with `ended`. `pressed` says that the engine runs out of pages.
        """
        now = self._clock()
        patience = PRESSED_SECONDS if pressed else self._deadline_seconds
        answered = []
        overdue = False
        unanswered, self._unanswered = self._unanswered, []
        for each in unanswered:
            if not each.is_current(session):
                self._give_up(each)
                continue
            try:
                there = each.reserve.refresh()
            except OrbitKVError as fault:
                self._fail(each.session, fault, each.batch, len(each.sources))
                continue
            if there:
                answered.append(each)
            elif now - each.since < patience:
                self._unanswered.append(each)
            else:
                overdue = True
                self._give_up(each)
        # One answer among others that are overdue makes no silence.
        self._unheard = overdue and not answered
        self._silent = (self._silent or overdue) and not answered
        return [(each, plans) for each in answered if (plans := self._plan(each)) is not None]

    def ended(self, opened: OpenReserve[B]) -> bool:
        """Count one batch of copies that nobody reads any more; return whether it was the reserve's last one."""
        opened.copies -= 1
        if opened.copies:
            return False
        del self._copying[opened]
        opened.session.reservations.discard(opened.reserve.reservation)
        return True

    def give_up(self) -> None:
        """Give up every reserve that is unanswered."""
        unanswered, self._unanswered = self._unanswered, []
        for each in unanswered:
            self._give_up(each)

    def _plan(self, opened: OpenReserve[B]) -> list[PublishPlan] | None:
        """Return what is to be copied; None when the batch is unpublished although there is an answer."""
        try:
            plans = publish_plans(opened.reserve, opened.sources, opened.session.parts, self._tickets)
        except OrbitKVError as fault:
            self._fail(opened.session, fault, opened.batch, len(opened.sources))
            return None
        if plans:
            if not opened.session.own(opened.reserve.reservation):
                # A later session has named what is written into, and this is not among it: the Manager takes it back.
                self._give_up(opened)
                return None
            opened.copies = len(plans)
            self._copying[opened] = None
        return plans

    def _give_up(self, opened: OpenReserve[B]) -> None:
        """Leave an answer that is of no use any more; the client abandons a grant that still comes."""
        opened.reserve.drop()
        self._stats.count("save_failure", len(opened.sources))
        self._unpublished(opened.batch)

    def _fail(self, session: SchedulerSession, fault: OrbitKVError, batch: B, pages: int) -> None:
        """Take note of a fault. A full table of the Manager's is a bound, not a fault of the session."""
        session.fail(fault)
        self._stats.count("save_skipped" if session.alive else "save_failure", pages)
        self._unpublished(batch)


def publish_plans(reserve: Reserve, sources: Blocks, parts: int, tickets: Iterator[int]) -> list[PublishPlan]:
    """Return the granted pages of a reserve as batches. `sources[i]` is the block of key i.

    ProtocolError when the answer does not say where every granted page lies.
    """
    granted = reserve.granted()
    locations = [reserve.locations(part) for part in range(parts)]
    plans = []
    for first in range(0, len(granted), COPY_PAGES):
        chosen = granted[first : first + COPY_PAGES]
        places = tuple(np.ascontiguousarray(each[first : first + len(chosen)]) for each in locations)
        ordinals = np.arange(first, first + len(chosen), dtype=np.uint32)
        plans.append(PublishPlan(next(tickets), reserve.reservation, ordinals, sources[chosen], places))
    return plans
