"""Queries of waiting requests: what may be promised to the engine, and for how long.

One lookup a request at most. It moves

    asked ──answer──► settled (a lease, or nothing) ──taken──► (gone: the lease was handed to a restore)
      │                  └─ expired, changed or finished ──► (gone: query cancelled, lease given back)
      ├─ waiting or preparing ──answer──► settled
      │         └─ patience, or computing is faster ──► stopped
      │                     stopped ──answer──► settled (a lease of what was there, or nothing)
      │                        └─ query_wait_us ──► settled with nothing
      └─ patience or breaker ──► settled with nothing

A prefix that must be read from a slower tier first is not there yet, and others go first meanwhile. A request waits for
it as long as that pays (`patience`), and at most `load_wait_ms`: then the query is stopped, which gives the pages that
are complete. What it had begun to read is read to its end, so the Cache Manager goes on measuring the tier, and a tier
that becomes fast is waited for again. Each answer weighs the rest of the wait anew, once the request is kept waiting.

An engine asks again and again for the same request, so an answer must be the same until the request's device prefix or
its tokens change (I5: then the lookup is dropped and the hashes are asked anew). Only the engine's scheduler thread
calls in here; nothing here waits longer than `wait_us` says.

A window bounds how many lookups may hold or await a lease, for an engine that asks for every waiting request and not
just for the next one. A question that finds it full is not put: the answer is "not yet".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from orbitkv.adapter.breaker import Breaker
from orbitkv.adapter.patience import Patience
from orbitkv.adapter.prefill import Prefill
from orbitkv.adapter.session import SchedulerSession
from orbitkv.adapter.settings import WAIT_WHILE_IT_PAYS, Settings
from orbitkv.adapter.stats import Stats
from orbitkv.client import Estimate, Lease, Query, State
from orbitkv.errors import OrbitKVError
from orbitkv.timeline import Stage, Timeline

LEASE_SECONDS = 1.0  # an answer is kept this long after the first pass that saw it; asking again costs 100 us
UNASKED_SECONDS = 10.0  # a prefix is read on this long for a request that a busy engine does not look at
LOOKUPS_MAX = 4096  # lookups that are kept; past it a new question waits for an old one to end
WAITS_MAX = 4096  # requests beyond those of the lookups whose patience is remembered; the oldest is forgotten


class Ask(NamedTuple):
    """One question of the engine. `keys` makes the joined keys of pages local to local + pages.

    `names` are the keys as the engine writes them, where it has them at hand: the last one, which stands for the whole
    chain, tells one question from another. `operation` is the number of a joint operation (`CacheManagerClient.query`).
    """

    request: str
    local: int
    pages: int
    keys: Callable[[], bytes]
    names: Sequence[str] = ()
    operation: int | None = None

    def covers(self, later: Ask) -> bool:
        """Return whether the answer to this question answers a later one too: the same pages, or the first of them.

        SGLang's cache-aware policies ask for a whole prompt, and its admission for all but its last token.
        """
        if self.local != later.local or not self.names:
            return (self.local, self.pages, self.names) == (later.local, later.pages, later.names)
        return 0 < later.pages <= self.pages and self.names[later.pages - 1] == later.names[-1]


@dataclass
class Lookup:
    """One request's query: what was asked and how far it came.

    `seen` is when the engine last asked for the request, `counted` when the wait was last counted as unanswered,
    `heard` the state of the last answer, `estimate` what that said of the rest and `news` when. `staging` is when the
    first answer said that pages are being read from a slower tier, and `stopped` when the query was told to take what
    was there, `outpaced` if that was since computing is faster.
    """

    session: SchedulerSession
    query: Query
    ask: Ask
    asked: float
    seen: float
    counted: float
    heard: State = State.UNANSWERED
    estimate: Estimate | None = None
    news: float = 0.0
    staging: float | None = None
    stopped: float | None = None
    outpaced: bool = False
    settled: float | None = None
    lease: Lease | None = None
    held: bool = False

    @property
    def found(self) -> int:
        """Return the pages that the lease covers."""
        return self.lease.pages if self.lease is not None else 0


@dataclass(frozen=True)
class Window:
    """How much lookups that occupy it may be: so many requests, and so many pages that they hold or ask for."""

    requests: int
    pages: int


@dataclass
class Lookups:
    """The lookups of all waiting requests."""

    settings: Settings
    breaker: Breaker
    stats: Stats
    timeline: Timeline
    prefill: Prefill
    clock: Callable[[], float] = time.monotonic
    wait_us: Callable[[], int] | None = None  # how long the next wait for an answer may be; else query_wait_us each
    window: Window | None = None
    patient_from_start: bool = True  # whether a request's wait begins with its first question, or with `reached`
    _table: dict[str, Lookup] = field(default_factory=dict)
    _patience: dict[str, Patience] = field(default_factory=dict)
    _inside: dict[str, int] = field(default_factory=dict)  # pages that are leased, or asked for while no answer came

    _deferred: int = 0  # questions of this pass that were not put

    def __len__(self) -> int:
        return len(self._table)

    @property
    def pending(self) -> int:
        """Return how many queries have no answer that can be used yet."""
        return sum(look.settled is None for look in self._table.values())

    def gauge(self) -> None:
        """Set the gauges of what waits, and of what it is weighed against."""
        self.stats.gauge("pending_prefetches", self.pending)
        if self.prefill.rate:
            self.stats.gauge("prefill_tokens_per_second", self.prefill.rate)

    def answer(self, session: SchedulerSession, ask: Ask) -> int | None:
        """Return how many pages are leased for the request, or None for "not yet".

        A lease that is returned is safe from revoke until `end_pass`.
        """
        try:
            return self._answer(session, ask)
        except OrbitKVError as fault:
            session.fail(fault)
            self.drop(ask.request)
            return 0

    def full(self, request: str) -> bool:
        """Return whether a question about the request is not put, since the window has no place for one more.

        `answer` finds that out too, after a longer look: an engine may ask for hundreds of them in each pass.
        """
        window = self.window
        return window is not None and len(self._inside) >= window.requests and request not in self._table

    def defer(self, request: str) -> int | None:
        """Answer a question that is not put: "not yet" for as long as the request's patience lasts."""
        now = self.clock()
        if not self.breaker.allows(now):
            return 0
        self._deferred += 1
        return None if self._waits(request, now) else 0

    def reached(self, request: str) -> None:
        """Say that the request is kept waiting: from now on it spends its patience."""
        self._patience.setdefault(request, Patience()).begin(self.clock())

    def take(self, request: str) -> Lookup | None:
        """Return the request's lookup and forget it; its lease is now the caller's."""
        self._patience.pop(request, None)
        self._inside.pop(request, None)
        return self._table.pop(request, None)

    def drop(self, request: str) -> None:
        """Give back what a request holds, keeping what it has waited so far."""
        look = self._table.pop(request, None)
        if look is None:
            return
        self._inside.pop(request, None)
        try:
            if look.lease is not None:
                self._unhold(look)
                look.lease.release()
            else:
                look.query.cancel()
        except OrbitKVError as fault:
            look.session.fail(fault)

    def finish(self, request: str) -> None:
        """Give back what a request holds; it will not be asked for again."""
        self.drop(request)
        self._patience.pop(request, None)

    def drop_all(self) -> None:
        """Give back what every request holds."""
        for request in list(self._table):
            self.drop(request)

    def end_pass(self) -> None:
        """Let revokes win again, and give back what no pass has used for too long."""
        now = self.clock()
        expired = []
        for request, look in self._table.items():
            if look.held:
                self._unhold(look)
            if self._over(look, now):
                expired.append(request)
        for request in expired:
            self.drop(request)
        if self._deferred:
            self.stats.count("query_deferred", self._deferred)
            self._deferred = 0
        while len(self._patience) > len(self._table) + WAITS_MAX:
            del self._patience[next(iter(self._patience))]

    def _over(self, look: Lookup, now: float) -> bool:
        """Return whether no pass has used an answer, or asked for one, for so long that the lookup is given back."""
        if look.settled is not None:
            return look.settled <= now - LEASE_SECONDS
        # An answer that comes while the engine does not ask would be leased with nobody to use it. What is being read
        # is worth that: an engine that is busy with others asks later. It is not worth a place of a window.
        reading = look.staging is not None and self.window is None
        return look.seen <= now - (UNASKED_SECONDS if reading else LEASE_SECONDS)

    def _answer(self, session: SchedulerSession, ask: Ask) -> int | None:
        look = self._table.get(ask.request)
        if look is not None and not self._still_valid(look, session, ask):
            self.drop(ask.request)
            look = None
        if look is None:
            if not self._has_room(ask):
                return self.defer(ask.request)
            if not self.breaker.allows(self.clock()):
                return 0
            look = self._submit(session, ask)
        elif look.settled is None:
            look.seen = self.clock()
            # After a notice the answer is a round trip away, and waiting for it saves a pass.
            near = look.query.state is State.UNANSWERED or look.query.noticed
            look.query.refresh(self._wait_us() if near and self.breaker.allows(self.clock()) else 0)
        if look.settled is None and not self._settle(ask.request, look):
            return None
        if look.lease is not None and not look.held:
            look.held = look.lease.hold()
            if not look.held:  # A revoke won: what was promised by nobody yet is simply not there.
                self.drop(ask.request)
                return 0
        return min(look.found, ask.pages)

    def _still_valid(self, look: Lookup, session: SchedulerSession, ask: Ask) -> bool:
        """Return whether an earlier question is still the one that is asked now (I5)."""
        if look.session is not session or not look.ask.covers(ask):
            return False
        return look.lease is None or look.held or look.lease.alive

    def _wait_us(self) -> int:
        return self.settings.query_wait_us if self.wait_us is None else self.wait_us()

    def _has_room(self, ask: Ask) -> bool:
        """Return whether one more lookup fits. The first one always does: the Manager cuts what is too large."""
        if len(self._table) >= LOOKUPS_MAX:
            return False
        if self.window is None:
            return True
        inside = self._inside
        return not inside or (
            len(inside) < self.window.requests and sum(inside.values()) + ask.pages <= self.window.pages
        )

    def _waits(self, request: str, now: float) -> bool:
        """Return whether the request may wait longer."""
        patience = self._patience.get(request)
        return patience is None or patience.lasts(now, self.settings.load_wait_seconds)

    def _pays(self, request: str, look: Lookup, now: float) -> bool:
        """Return whether the rest of the wait is shorter than computing what is missing; True while nobody knows."""
        patience, estimate = self._patience.get(request), look.estimate
        if patience is None or patience.since is None or self.settings.load_wait_policy != WAIT_WHILE_IT_PAYS:
            return True  # It is not kept waiting, or shall be whatever that costs.
        if look.heard is not State.PREPARING or estimate is None or estimate.seconds == 0:
            return True
        computing = self.prefill.seconds(estimate.missing)
        if computing is None:
            return True
        return patience.pays(now, max(0.0, look.news + estimate.seconds - now), estimate.missing, computing)

    def _submit(self, session: SchedulerSession, ask: Ask) -> Lookup:
        now = self.clock()
        query = session.client.query(
            session.namespace,
            ask.keys(),
            instance=session.instance,
            request=ask.request,
            wait_us=self._wait_us(),
            operation=ask.operation,
        )
        look = Lookup(session, query, ask, now, now, now)
        self._table[ask.request] = look
        self._inside[ask.request] = ask.pages
        if self.patient_from_start:
            self.reached(ask.request)
        return look

    def _settle(self, request: str, look: Lookup) -> bool:
        """Read the query's state; return whether the answer is final for this request."""
        now = self.clock()
        self._listen(look, now)
        if look.heard is State.UNANSWERED:
            return self._settle_unanswered(request, look, now)
        if not look.heard.final:
            pays = self._pays(request, look, now)
            if look.stopped is None and pays and self._waits(request, now):
                return False
            # What a request waited for in vain is not asked for again in this life of the lookup.
            if not self._stop(look, now, outpaced=not pays):
                return False
            now = self.clock()
        if look.heard is State.READY:
            look.lease = look.query.lease
            self._inside[request] = look.found
            self.stats.observe("prefetch_duration_seconds", now - look.asked)
            self.stats.observe("prefetch_blocks", look.found)
        if look.lease is None:
            self._inside.pop(request, None)
        look.settled = now
        if request in self._patience:
            self._patience[request].rest(now)
        self._tell_staging(request, look, now)
        return True

    def _listen(self, look: Lookup, now: float) -> None:
        """Note what the last answer said."""
        state, estimate = look.query.state, look.query.estimate
        if estimate is not look.estimate:
            look.estimate, look.news = estimate, now
        if state is look.heard:
            return  # A state that stays is no sign of life.
        look.heard = state
        self.breaker.answered()
        if state is State.PREPARING and look.staging is None:
            look.staging = now

    def _settle_unanswered(self, request: str, look: Lookup, now: float) -> bool:
        """Count a wait that passed without any answer; return whether the query is given up."""
        counted = self.wait_us is not None and now - look.counted < self.settings.query_wait_seconds
        if counted and self._waits(request, now):
            return False  # its wait goes on in later passes, which are short
        look.counted = now
        self.stats.count("query_unanswered")
        if self.breaker.allows(now):
            if self.breaker.unanswered(now):
                self.stats.count("breaker_opened")
            elif self._waits(request, now):
                return False
        self.drop(request)
        look.settled = now
        return True

    def _stop(self, look: Lookup, now: float, *, outpaced: bool) -> bool:
        """Take what is there of a prefix that the request will not wait for any longer; return whether that is known.

        A Manager that does not say it within `query_wait_us` is not asked further: the query is cancelled.
        """
        if not self.breaker.allows(now):
            look.query.cancel()
            return True
        if look.stopped is None:
            look.stopped, look.outpaced = now, outpaced
            self.stats.count("prefetch_stopped")
            if outpaced:
                self.stats.count("prefetch_outpaced")
        look.query.stop(self._wait_us())
        self._listen(look, now)
        if look.heard.final:
            return True
        now = self.clock()
        if self.wait_us is not None and now - look.stopped < self.settings.query_wait_seconds:
            return False  # This pass's wait is used up; the next ones take the answer.
        self.stats.count("query_unanswered")
        if self.breaker.unanswered(now):
            self.stats.count("breaker_opened")
        look.query.cancel()
        return True

    def _tell_staging(self, request: str, look: Lookup, now: float) -> None:
        """Count and record what a request got from its wait for a slower tier."""
        if look.stopped is not None:
            self.stats.observe("prefetch_stopped_blocks", look.found)
        if look.staging is not None:
            waited = now - look.staging
            self.stats.observe("prefetch_staging_seconds", waited)
            self.timeline.record(
                Stage.STAGED,
                request,
                elapsed_us=round(waited * 1e6),
                pages=look.found,
                stopped=look.stopped is not None,
                outpaced=look.outpaced,
            )

    def _unhold(self, look: Lookup) -> None:
        if look.held and look.lease is not None:
            look.lease.unhold()
        look.held = False
