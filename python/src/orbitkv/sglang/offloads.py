"""Saves of one rank: the engine's offloads in their order, from the offer to the result.

The engine locks a node's pages from its offer until the offer's result is taken, and every rank takes the results in
the order of the offers, as many at a time as the slowest rank has. So no offer is refused: what cannot be saved
completes as failed in its turn. An offer is cut into chunks of one reserve each, and a chunk moves

    queued ──reserve──► asked ──granted──► copying ──last copy ended──► stored or failed
      │                   ├─ every page is present ───────────────────► stored
      │                   ├─ being written, no room, refused ─────────► failed
      │                   └─ overdue, session lost, reset ────────────► failed; a late grant is abandoned
      └─ the engine runs out of pages, session lost, reset ───────────► failed

- The ranks draw the same numbers for their reserves, since each offer draws one for each chunk, sent or not.
- A chunk keeps to the session and the namespace that it was offered under, since pages of other weights must not
  appear under a later epoch.
- Only the end of its copies takes a chunk out of `copying`, so no source is written again while it is read (I1, I2).
- Everything runs on the scheduler's thread, save that copying threads note the ends. Nothing waits but `quiesce`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial

import numpy as np

from orbitkv.adapter.attachment import Attachment
from orbitkv.adapter.copies import Copies
from orbitkv.adapter.plans import Blocks, PublishPlan
from orbitkv.adapter.publishing import COPY_PAGES, PRESSED_SECONDS, RESERVE_PAGES_MAX, OpenReserve, ReserveTable
from orbitkv.adapter.session import SchedulerSession
from orbitkv.adapter.settings import Settings
from orbitkv.adapter.stats import Stats
from orbitkv.client import KEY_BYTES, Grant, Namespace
from orbitkv.errors import TransferStalled
from orbitkv.sglang.waits import wait_ended
from orbitkv.transfer import STALL_SECONDS

OFFERS_MAX = 256  # chunks without an answer; those of later offers fail in their turn
COPIES_MAX = 512  # batches that were asked for or are copied; at the bound the rest stays queued
COPYING_BYTES_MAX = 16 << 30  # bytes that were asked for or are copied; at the bound the rest stays queued


class State(Enum):
    """Where a chunk stands."""

    QUEUED = "queued"
    ASKED = "asked"
    COPYING = "copying"
    STORED = "stored"
    FAILED = "failed"


MOVES = {
    State.QUEUED: frozenset({State.ASKED, State.FAILED}),
    State.ASKED: frozenset({State.COPYING, State.STORED, State.FAILED}),
    State.COPYING: frozenset({State.STORED, State.FAILED}),
    State.STORED: frozenset[State](),
    State.FAILED: frozenset[State](),
}


@dataclass(eq=False)
class Offer:
    """One entry of the FIFO. `unfinished` are its chunks that are neither stored nor failed."""

    unfinished: int = 0
    stored: bool = True


@dataclass(eq=False)
class Chunk:
    """Up to RESERVE_PAGES_MAX pages of an offer, and under what they are published.

    `since` is when it was offered; `whole` says whether every page is present or was copied so far.
    """

    offer: Offer
    number: int
    keys: bytes
    pages: Blocks
    session: SchedulerSession
    namespace: Namespace
    since: float
    state: State = State.QUEUED
    whole: bool = True

    @property
    def batches(self) -> int:
        """Return how many batches of copies it is at most."""
        return -(-len(self.pages) // COPY_PAGES)

    def move(self, state: State) -> None:
        """Enter a state. RuntimeError when that is no legal move: the code that called is wrong."""
        if state not in MOVES[self.state]:
            raise RuntimeError(f"reserve {self.number} cannot go from {self.state.value} to {state.value}")
        self.state = state
        if not MOVES[state]:
            self.offer.unfinished -= 1
            self.offer.stored = self.offer.stored and state is State.STORED


class Offloads:
    """See the module's text. `number` draws the next joint operation; `pressed` says that the engine lacks pages."""

    def __init__(
        self,
        copies: Copies,
        settings: Settings,
        stats: Stats,
        number: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
        pressed: Callable[[], bool] = lambda: False,
    ) -> None:
        self.pressed = pressed
        self._copies = copies
        self._stats = stats
        self._number = number
        self._clock = clock
        self._session: SchedulerSession | None = None
        self._namespace: Namespace | None = None
        self._offers: deque[Offer] = deque()
        self._results: deque[bool] = deque()
        self._queued: deque[Chunk] = deque()
        self._reserves: ReserveTable[Chunk] = ReserveTable(
            settings.call_seconds, stats, lambda chunk: chunk.move(State.FAILED), clock
        )
        self._changed = threading.Condition()  # guards _ended, which copying threads fill
        self._ended: list[tuple[OpenReserve[Chunk], bool]] = []

    @property
    def completed(self) -> int:
        """Return how many results can be taken."""
        return len(self._results)

    def offer(self, keys: bytes, pages: Blocks) -> None:
        """Take pages to save; their result follows those of earlier offers. `keys` are 32 bytes for each page."""
        offer = Offer()
        self._offers.append(offer)
        for first in range(0, len(pages), RESERVE_PAGES_MAX):
            number = self._number()
            past = min(first + RESERVE_PAGES_MAX, len(pages))
            # Replicated content is saved by one rank for all.
            if self._copies.place.storage:
                self._enqueue(offer, number, keys[first * KEY_BYTES : past * KEY_BYTES], pages[first:past])
        self._advance()

    def pump(self, session: SchedulerSession | None, attachment: Attachment | None) -> None:
        """Take answers and ends, submit copies, give up what is overdue and ask for more, without waiting.

        `session` is the one to publish through, None while nothing may be published; `attachment` is the rank's with
        the same life of the Manager, or there is nobody to publish to.
        """
        if session is None or attachment is None or attachment.incarnation != session.incarnation:
            self.forget()
        else:
            self._session, self._namespace = session, session.namespace
            self._review(attachment, pressed=bool(self._queued or self._reserves.unanswered) and self.pressed())
            self._settle()
            self._ask(session)
        self._advance()
        self._stats.gauge("pending_save_requests", self._reserves.open)

    def pop(self) -> bool:
        """Take the oldest result: whether every page is stored or being held by the Manager already."""
        return self._results.popleft()

    def forget(self) -> None:
        """Fail what no copy reads yet. Nothing is taken until `pump` brings a session."""
        self._session = self._namespace = None
        for chunk in self._queued:
            self._skip(chunk)
        self._queued.clear()
        self._reserves.give_up()
        self._settle()
        self._advance()

    def quiesce(self, check: Callable[[], None] = lambda: None) -> None:
        """Forget, wait for the copies that run, and drop every offer and result. TransferStalled when one hangs.

        `check` raises when a copy cannot end any more.
        """
        self.forget()
        # I2: the engine may use every page again after this, so a copy that does not end must end the engine.
        while self._reserves.copies:
            if not wait_ended(self._changed, lambda: bool(self._ended), check):
                raise TransferStalled(
                    f"{self._reserves.copies} publishes did not end, the next one not in {STALL_SECONDS:g} s"
                )
            self._settle()
        self._offers.clear()
        self._results.clear()

    def _enqueue(self, offer: Offer, number: int, keys: bytes, pages: Blocks) -> None:
        waiting = len(self._queued) + len(self._reserves.unanswered)
        if self._session is None or self._namespace is None or waiting >= OFFERS_MAX:
            offer.stored = False
            self._stats.count("save_skipped", len(pages))
            return
        offer.unfinished += 1
        self._queued.append(Chunk(offer, number, keys, pages, self._session, self._namespace, self._clock()))

    def _review(self, attachment: Attachment, *, pressed: bool) -> None:
        """Submit what was granted; give up what is overdue or not of this session any more."""
        for opened, plans in self._reserves.review(self._session, pressed=pressed):
            self._submit(opened, plans, attachment)
        now = self._clock()
        queued, self._queued = self._queued, deque()
        for chunk in queued:
            # A Manager that does not answer, or an engine that lacks pages, must not find pages locked for nothing.
            if (
                self._reserves.unheard
                or not self._is_current(chunk)
                or (pressed and now - chunk.since >= PRESSED_SECONDS)
            ):
                self._skip(chunk)
            else:
                self._queued.append(chunk)

    def _is_current(self, chunk: Chunk) -> bool:
        return chunk.session is self._session and chunk.namespace == self._namespace

    def _submit(self, opened: OpenReserve[Chunk], plans: list[PublishPlan], attachment: Attachment) -> None:
        """Copy what was granted. What another operation writes, and what found no room, is tried at the next hit."""
        chunk = opened.batch
        chunk.whole = bool(np.isin(opened.reserve.grants, (Grant.GRANTED, Grant.PRESENT)).all())
        if not plans:
            chunk.move(State.STORED if chunk.whole else State.FAILED)
            return
        chunk.move(State.COPYING)
        slices = chunk.session.slices
        for plan in plans:
            self._copies.publish(attachment, slices, plan, partial(self._note_end, opened))

    def _note_end(self, opened: OpenReserve[Chunk], ok: bool) -> None:
        """Note that nobody reads a batch of the chunk any more; called by the thread that copied."""
        with self._changed:
            self._ended.append((opened, ok))
            self._changed.notify_all()

    def _settle(self) -> None:
        """Finish the chunks whose last copy ended."""
        with self._changed:
            ended, self._ended = self._ended, []
        for opened, ok in ended:
            chunk = opened.batch
            chunk.whole = chunk.whole and ok
            if self._reserves.ended(opened):
                chunk.move(State.STORED if chunk.whole else State.FAILED)

    def _ask(self, session: SchedulerSession) -> None:
        while self._queued and self._reserves.may_ask(session) and not self._at_bound():
            chunk = self._queued.popleft()
            if self._reserves.ask(session, chunk.namespace, chunk.keys, chunk.pages, chunk, chunk.number):
                chunk.move(State.ASKED)

    def _at_bound(self) -> bool:
        """Return whether copies must end before more is asked for."""
        under_way = [opened.batch for opened in (*self._reserves.unanswered, *self._reserves.copying)]
        pages = sum(len(chunk.pages) for chunk in under_way)
        return (
            sum(chunk.batches for chunk in under_way) >= COPIES_MAX
            or pages * self._copies.layout.slice_bytes >= COPYING_BYTES_MAX
        )

    def _skip(self, chunk: Chunk) -> None:
        """Fail a chunk that was not asked for."""
        self._stats.count("save_skipped", len(chunk.pages))
        chunk.move(State.FAILED)

    def _advance(self) -> None:
        """Turn the oldest offers that are finished into results."""
        while self._offers and self._offers[0].unfinished == 0:
            self._results.append(self._offers.popleft().stored)
