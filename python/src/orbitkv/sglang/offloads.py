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

import itertools
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
from orbitkv.adapter.plans import Blocks
from orbitkv.adapter.publishing import COPY_PAGES, PRESSED_SECONDS, RESERVE_PAGES_MAX, RESERVES_MAX, publish_plans
from orbitkv.adapter.session import SchedulerSession
from orbitkv.adapter.settings import Settings
from orbitkv.adapter.stats import Stats
from orbitkv.client import KEY_BYTES, Grant, Namespace, Reserve
from orbitkv.errors import OrbitKVError, TransferStalled
from orbitkv.transfer import STALL_SECONDS, Gate

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

    `since` is when it was offered and, once it is asked for, when that was; `whole` says whether every page is present
    or was copied so far; `copies` are the batches that are still read.
    """

    offer: Offer
    number: int
    keys: bytes
    pages: Blocks
    fence: Gate | None
    session: SchedulerSession
    namespace: Namespace
    since: float
    state: State = State.QUEUED
    reserve: Reserve | None = None
    whole: bool = True
    copies: int = 0

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
        self._deadline_seconds = settings.call_seconds
        self._stats = stats
        self._number = number
        self._clock = clock
        self._session: SchedulerSession | None = None
        self._namespace: Namespace | None = None
        self._offers: deque[Offer] = deque()
        self._results: deque[bool] = deque()
        self._queued: deque[Chunk] = deque()
        self._asked: list[Chunk] = []
        self._copying: set[Chunk] = set()
        self._running = 0  # submitted copies whose end is not settled
        self._silent = False  # the last reserve was given up unanswered: the next one goes alone, as a probe
        self._tickets = itertools.count(1)
        self._changed = threading.Condition()  # guards _ended, which copying threads fill
        self._ended: list[tuple[Chunk, bool]] = []

    @property
    def completed(self) -> int:
        """Return how many results can be taken."""
        return len(self._results)

    def offer(self, keys: bytes, pages: Blocks, fence: Gate | None) -> None:
        """Take pages to save; their result follows those of earlier offers. `keys` are 32 bytes for each page.

        The pages are read once `fence` opens.
        """
        offer = Offer()
        self._offers.append(offer)
        for first in range(0, len(pages), RESERVE_PAGES_MAX):
            number = self._number()
            past = min(first + RESERVE_PAGES_MAX, len(pages))
            # Replicated content is saved by one rank for all.
            if self._copies.place.storage:
                self._enqueue(offer, number, keys[first * KEY_BYTES : past * KEY_BYTES], pages[first:past], fence)
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
            self._review(attachment, pressed=bool(self._queued or self._asked) and self.pressed())
            self._settle()
            self._ask(session)
        self._advance()
        self._stats.gauge("pending_save_requests", len(self._asked) + len(self._copying))

    def pop(self) -> bool:
        """Take the oldest result: whether every page is stored or being held by the Manager already."""
        return self._results.popleft()

    def forget(self) -> None:
        """Fail what no copy reads yet. Nothing is taken until `pump` brings a session."""
        self._session = self._namespace = None
        for chunk in self._queued:
            self._skip(chunk)
        for chunk in self._asked:
            self._give_up(chunk)
        self._queued.clear()
        self._asked.clear()
        self._settle()
        self._advance()

    def quiesce(self) -> None:
        """Forget, wait for the copies that run, and drop every offer and result. TransferStalled when one hangs."""
        self.forget()
        # I2: the engine may use every page again after this, so a copy that does not end must end the engine.
        while self._running:
            with self._changed:
                if not self._changed.wait_for(lambda: bool(self._ended), STALL_SECONDS):
                    raise TransferStalled(
                        f"{self._running} publishes did not end, the next one not in {STALL_SECONDS:g} s"
                    )
            self._settle()
        self._offers.clear()
        self._results.clear()

    def _enqueue(self, offer: Offer, number: int, keys: bytes, pages: Blocks, fence: Gate | None) -> None:
        if self._session is None or self._namespace is None or len(self._queued) + len(self._asked) >= OFFERS_MAX:
            offer.stored = False
            self._stats.count("save_skipped", len(pages))
            return
        offer.unfinished += 1
        self._queued.append(Chunk(offer, number, keys, pages, fence, self._session, self._namespace, self._clock()))

    def _review(self, attachment: Attachment, *, pressed: bool) -> None:
        """Take answers and submit what was granted; give up what is overdue or not of this session any more."""
        now = self._clock()
        patience = PRESSED_SECONDS if pressed else self._deadline_seconds
        heard = overdue = False
        asked, self._asked = self._asked, []
        for chunk in asked:
            if not self._is_current(chunk):
                self._give_up(chunk)
            elif self._answered(chunk):
                heard = True
                self._submit(chunk, attachment)
            elif chunk.state is State.ASKED and now - chunk.since < patience:
                self._asked.append(chunk)
            elif chunk.state is State.ASKED:
                overdue = True
                self._give_up(chunk)
        self._silent = (self._silent or overdue) and not heard
        queued, self._queued = self._queued, deque()
        for chunk in queued:
            # A Manager that does not answer, or an engine that lacks pages, must not find pages locked for nothing.
            if (
                (overdue and not heard)
                or not self._is_current(chunk)
                or (pressed and now - chunk.since >= PRESSED_SECONDS)
            ):
                self._skip(chunk)
            else:
                self._queued.append(chunk)

    def _is_current(self, chunk: Chunk) -> bool:
        return chunk.session is self._session and chunk.namespace == self._namespace

    def _answered(self, chunk: Chunk) -> bool:
        """Return whether the answer is there; a fault fails the chunk."""
        assert chunk.reserve is not None
        try:
            return chunk.reserve.refresh()
        except OrbitKVError as fault:
            self._fail(chunk, fault)
            return False

    def _submit(self, chunk: Chunk, attachment: Attachment) -> None:
        """Copy what was granted. What another operation writes, and what found no room, is tried at the next hit."""
        reserve, session = chunk.reserve, chunk.session
        assert reserve is not None
        chunk.whole = bool(np.isin(reserve.grants, (Grant.GRANTED, Grant.PRESENT)).all())
        try:
            plans = publish_plans(reserve, chunk.pages, session.parts, self._tickets)
        except OrbitKVError as fault:
            self._fail(chunk, fault)
            return
        if not plans:
            chunk.move(State.STORED if chunk.whole else State.FAILED)
            return
        if not session.own(reserve.reservation):
            # A later session has named what is written into, and this is not among it: the Manager takes it back.
            self._give_up(chunk)
            return
        chunk.move(State.COPYING)
        chunk.copies = len(plans)
        self._copying.add(chunk)
        self._running += len(plans)
        slices = session.slices
        for plan in plans:
            self._copies.publish(attachment, slices, plan, partial(self._note_end, chunk), chunk.fence)

    def _note_end(self, chunk: Chunk, ok: bool) -> None:
        """Note that nobody reads a batch of the chunk any more; called by the thread that copied."""
        with self._changed:
            self._ended.append((chunk, ok))
            self._changed.notify_all()

    def _settle(self) -> None:
        """Finish the chunks whose last copy ended."""
        with self._changed:
            ended, self._ended = self._ended, []
        self._running -= len(ended)
        for chunk, ok in ended:
            chunk.copies -= 1
            chunk.whole = chunk.whole and ok
            if chunk.copies == 0:
                assert chunk.reserve is not None
                self._copying.remove(chunk)
                chunk.session.reservations.discard(chunk.reserve.reservation)
                chunk.move(State.STORED if chunk.whole else State.FAILED)

    def _ask(self, session: SchedulerSession) -> None:
        while self._queued and session.alive and not self._at_bound(session):
            chunk = self._queued.popleft()
            try:
                chunk.reserve = session.client.reserve(
                    chunk.namespace, chunk.keys, instance=session.instance, wait_us=0, operation=chunk.number
                )
            except OrbitKVError as fault:
                self._fail(chunk, fault)
                continue
            chunk.move(State.ASKED)
            chunk.since = self._clock()
            self._asked.append(chunk)

    def _at_bound(self, session: SchedulerSession) -> bool:
        """Return whether answers or copies must come before more is asked for."""
        under_way = [*self._asked, *self._copying]
        pages = sum(len(chunk.pages) for chunk in under_way)
        return (
            len(self._asked) >= (1 if self._silent else RESERVES_MAX)
            or len(self._asked) + len(session.reservations) >= session.reservations_max
            or sum(chunk.batches for chunk in under_way) >= COPIES_MAX
            or pages * self._copies.layout.slice_bytes >= COPYING_BYTES_MAX
        )

    def _skip(self, chunk: Chunk) -> None:
        """Fail a chunk that was not asked for."""
        self._stats.count("save_skipped", len(chunk.pages))
        chunk.move(State.FAILED)

    def _give_up(self, chunk: Chunk) -> None:
        """Fail a chunk whose answer is of no use any more; the client abandons a grant that still comes."""
        assert chunk.reserve is not None
        chunk.reserve.drop()
        self._stats.count("save_failure", len(chunk.pages))
        chunk.move(State.FAILED)

    def _fail(self, chunk: Chunk, fault: OrbitKVError) -> None:
        """Fail a chunk after a fault. A full table of the Manager's is a bound, not a fault of the session."""
        chunk.session.fail(fault)
        self._stats.count("save_skipped" if chunk.session.alive else "save_failure", len(chunk.pages))
        chunk.move(State.FAILED)

    def _advance(self) -> None:
        """Turn the oldest offers that are finished into results."""
        while self._offers and self._offers[0].unfinished == 0:
            self._results.append(self._offers.popleft().stored)
