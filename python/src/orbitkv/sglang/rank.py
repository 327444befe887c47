"""One rank of SGLang, which is scheduler and worker in one process: what it may promise, restores and publishes.

The engine's scheduler thread calls in here, in the order of a pass:

    begin_pass   what ended, answers of reserves; then the ranks agree on the Manager's life
    lookup       for every request that the engine considers; ask, hold the lease, promise
    queue_load   an admitted request's pages, whose lease it holds
    start_loads  begin and submit all of them; the pass's promises end

and between passes `offload` and, when the engine's cache is reset, `reset`. Nothing here waits longer than
`orbitkv.query_wait_us` in one pass, but for `reset` and `close`, which wait for copies that run (I2).

Two links keep the sessions with the Cache Manager. They exchange one only while no promise of a pass is open
(`PassGuard`), since SGLang cannot take a promise back.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from orbitkv.adapter.attachment import RankPlace
from orbitkv.adapter.backends import BackendChoice
from orbitkv.adapter.breaker import Breaker
from orbitkv.adapter.copies import Copies, refuse_mismatch, refuse_start
from orbitkv.adapter.golden import PageAccess
from orbitkv.adapter.link import Link
from orbitkv.adapter.logs import LOGGER
from orbitkv.adapter.lookup import Ask, Lookups, Window
from orbitkv.adapter.plans import Blocks
from orbitkv.adapter.prefill import Prefill
from orbitkv.adapter.session import Epoch, SchedulerSession
from orbitkv.adapter.settings import Settings
from orbitkv.adapter.stats import Stats
from orbitkv.errors import ConfigurationError, EngineFault
from orbitkv.sglang.loads import Load, Loads
from orbitkv.sglang.offloads import Offloads
from orbitkv.sglang.proof import SCRATCH_PAGES, ProvenAttachment
from orbitkv.sglang.scratch import scratch_of
from orbitkv.timeline import Timeline
from orbitkv.transfer import DeviceSite, KVLayout

WINDOW_REQUESTS = 8  # look-ups that may hold or await a lease
WINDOW_SHARE = 4  # and the share of the instance's budget that their pages may be: one in so many
RESTORED_MAX = 8  # batches with restores whose ends are awaited; past it the oldest is forgotten
PRESSED_SHARE = 4  # the engine runs out of pages when less than one in so many can be had

log = logging.getLogger(LOGGER)


@dataclass(frozen=True)
class EngineTensors:
    """The engine's KV pool by pages: its layout, access by page, and where it lies when that is a device.

    A page is `page_tokens` tokens, a step of the layout a layer of the engine. `layers_ask` says that a forward asks
    for each of them before it reads it.
    """

    layout: KVLayout
    pages: PageAccess
    site: DeviceSite | None = None
    layers_ask: bool = True
    page_tokens: int = 1


class Sessions(NamedTuple):
    """The two sessions of a rank with one life of the Manager."""

    session: SchedulerSession
    attachment: ProvenAttachment

    @property
    def alive(self) -> bool:
        """Return whether both channels are open."""
        return self.session.alive and self.attachment.alive


class PassGuard:
    """Keeps the links from exchanging a session between a promise and its begin.

    The scheduler's thread never waits for it: while a link holds it nothing is promised.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entered = False  # the scheduler's thread alone
        self._counting = threading.Lock()
        self._exchanges = 0  # that wait or run; without it a busy engine would never let one in

    def enter(self) -> bool:
        """Open this pass's promises; return False while a link exchanges its session or is about to."""
        if not self._entered and self._exchanges == 0:
            self._entered = self._lock.acquire(blocking=False)
        return self._entered

    def leave(self) -> None:
        """End this pass's promises, if there were any."""
        if self._entered:
            self._entered = False
            self._lock.release()

    @contextmanager
    def exchange(self) -> Iterator[None]:
        """Wait for the end of the pass and keep promises off meanwhile; for the links' threads."""
        with self._counting:
            self._exchanges += 1
        try:
            with self._lock:
                yield
        finally:
            with self._counting:
                self._exchanges -= 1


class RankSide:
    """See the module's text. `facts` are the namespace facts of this rank."""

    def __init__(
        self,
        settings: Settings,
        place: RankPlace,
        tensors: EngineTensors,
        facts: Mapping[str, str],
        timeline: Timeline,
        stats: Stats | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self.stats = stats or Stats()
        self.epoch = Epoch()
        self.available: Callable[[], float] = lambda: 1.0  # the share of the engine's pages that it can still allocate
        self._place = place
        self._tensors = tensors
        self._facts = facts
        self._timeline = timeline
        self._clock = clock
        self._numbers = itertools.count(1)
        self._guard = PassGuard()
        self._choice = BackendChoice(settings, tensors.layout, tensors.site)
        self._scratch = scratch_of(tensors.layout, SCRATCH_PAGES, tensors.site)
        self._copies = Copies(settings, place, tensors.layout, tensors.pages, timeline, self.stats, clock)
        current_stream = tensors.site.current_stream if tensors.site is not None else lambda: 0
        self.loads = Loads(self._copies, timeline, current_stream, tensors.layers_ask, clock)
        self.offloads = Offloads(self._copies, settings, self.stats, self._number, clock)
        self.offloads.pressed = lambda: self.available() * PRESSED_SHARE < 1.0
        self.prefill = Prefill(tensors.page_tokens)
        self.lookups = Lookups(settings, Breaker(), self.stats, timeline, self.prefill, clock, self._wait_left_us)
        self.lookups.patient_from_start = False
        self._restored: deque[float] = deque(maxlen=RESTORED_MAX)  # when batches with restores were complete
        self._wait_until = 0.0
        self._through: Sessions | None = None  # what this pass promises through; no link exchanges it meanwhile
        self._keys_max = 0
        self._agreed = False  # in this pass, and for every rank
        self._voted = b""  # the Manager's life that this rank named in this pass
        self._life = b""  # the one that the ranks agreed on last
        self._resting = False  # the engine's pages are of two kinds of weights
        self._scheduler: Link[SchedulerSession] = Link(
            f"scheduler of rank {place.rank}", self._connect_scheduler, exchange=self._exchange
        )
        self._worker: Link[ProvenAttachment] = Link(f"rank {place.rank}", self._connect_worker, exchange=self._exchange)

    def begin(self) -> None:
        """Connect, attach and prove the tensors while every page is spare. ConfigurationError: see `refuse_start`."""
        refuse_mismatch(self._copies.prove_alone(1, 2, self._choice))  # page 0 is the pool's padding
        self._worker.start()
        attachment = self._worker.session
        if attachment is not None:
            try:
                refuse_start(attachment.result, attachment.client)
            except ConfigurationError:
                self._worker.stop()
                raise
        self._scheduler.start()
        self._choice.serve()

    # The order of a pass.

    def begin_pass(self) -> None:
        """End what the pass before promised, and take what ended or was answered meanwhile.

        TransferStalled and EngineFault when a copy will not end: what it moves is unknown then.
        """
        self._check_copies()
        self._end_promises()
        self._wait_until = self._clock() + self.settings.query_wait_seconds
        self.offloads.pump(*(self._usable() or (None, None)))
        self.lookups.gauge()

    def life(self) -> bytes:
        """Name the Manager's life that this rank could use in this pass, empty for none."""
        sessions = None if self._resting else self._sessions()
        self._voted = sessions.session.incarnation if sessions is not None else b""
        return self._voted

    def agree(self, agreed: bool) -> bool:
        """Take whether every rank named the same life in this pass; return whether it is one that is new to them.

        What was named counts, also when it was lost meanwhile: the ranks must not differ in what is new.
        """
        self._agreed = agreed
        if not agreed or self._voted in (b"", self._life):
            return False
        self._life = self._voted
        return True

    def lookup(self, request: str, keys: Sequence[str]) -> int | None:
        """Return how many leading pages are leased for the request, or None for "no answer yet".

        `keys` are SGLang's page hashes, 64 hexadecimal digits each. A promise holds until the pass ends.
        """
        number = self._number()  # Drawn by every call, so that all ranks count alike.
        through = self._through
        if through is None and self._usable() is not None:
            if not self._guard.enter():
                return None
            # Again, since a link may have exchanged them before the guard was held.
            through = self._through = self._usable()
            self._measure_window()
        if through is not None and self.loads.pending(request):
            return None
        if through is not None and self.lookups.full(request):
            return self.lookups.defer(request)
        if through is None or not through.alive:
            self.lookups.drop(request)
            return 0
        asked = keys if len(keys) <= self._keys_max else keys[: self._keys_max]
        ask = Ask(request, 0, len(asked), lambda: bytes.fromhex("".join(asked)), asked, number)
        return self.lookups.answer(through.session, ask)

    def keep_waiting(self, request: str) -> None:
        """Say that the engine passed the request over, since a rank had no answer: its patience begins."""
        self.lookups.reached(request)

    def admitted(self, request: str) -> None:
        """Say that the engine admitted the request: what it still holds is given back."""
        self.lookups.finish(request)

    def forget(self, request: str) -> None:
        """Let go of a request that the engine aborted while it waited."""
        self.lookups.finish(request)

    def queue_load(self, request: str, keys: Sequence[str], pages: Blocks) -> None:
        """Take an admitted request's restore: keys of its look-up, in their order, and the engine's pages for them."""
        look = self.lookups.take(request)
        attachment = self._worker.session_of(look.session.incarnation) if look is not None else None
        places = places_of(keys, look.ask.names[: look.found]) if look is not None else None
        if look is None or look.lease is None or not look.held or attachment is None or places is None:
            raise EngineFault(
                f"SGLang restores {len(keys)} pages of request {request} that were not promised in this pass, so this "
                "release of it does not fit the adapter. Start it without --radix-cache-backend orbitkv"
            )
        self.loads.queue(Load(request, look.session, attachment, look.lease, places, pages))

    def start_loads(self) -> int:
        """Begin the pass's restores and end its promises; return the batch's consumer index, -1 without any."""
        index = self.loads.start()
        if index >= 0:
            self._restored.append(self._clock())
        self._end_promises()
        return index

    # Between passes.

    def computed(self, begun: float, tokens: int) -> None:
        """Say that a batch which was launched at `begun` has ended, and how many tokens of prompts it computed.

        Batches end in the order of their launch, so the first one that was launched after restores had begun waited
        for these, and says nothing of computing.
        """
        if self._restored and self._restored[0] <= begun:
            self._restored.popleft()
            tokens = 0
        self.prefill.ended(begun, tokens, self._clock())

    def offload(self, keys: Sequence[str], pages: Blocks) -> None:
        """Take pages to publish. Never refused: what cannot be published completes as failed, in its turn."""
        self.offloads.offer(bytes.fromhex("".join(keys)), pages)

    def reset(self) -> None:
        """Let every copy end and forget what the engine forgets; the Cache Manager keeps its pages."""
        self.loads.quiesce(self._check_copies)
        self.offloads.quiesce(self._check_copies)
        self.lookups.drop_all()
        self._leave_guard()
        if self._resting:
            self._resting = False
            log.info("the cache was emptied after a change of weights: epoch %x", self.epoch.value)

    def rest(self, epoch: int) -> None:
        """Stop restoring and publishing, since the weights change; go on in a new epoch after the next reset.

        Until then the engine's pages may be of the old weights, of the new ones or of both.
        """
        self._resting = True
        self._agreed = False
        self.lookups.drop_all()
        self._leave_guard()
        self.offloads.forget()
        self.epoch.move(epoch)
        self._scheduler.wake()
        log.info("the weights change: nothing is restored or published before the cache is flushed")

    def close(self) -> None:
        """Let every copy end, give everything back and end the links' threads, after a fault of a copy too."""
        try:
            self.loads.quiesce(self._check_copies)
            self.offloads.quiesce(self._check_copies)
        finally:
            self.lookups.drop_all()
            self._leave_guard()
            self._scheduler.stop()
            self._worker.stop()
            self._scratch.close()

    def _check_copies(self) -> None:
        """Ask every backend that may hold a copy whether it can still end."""
        backends = self.loads.backends()
        attachment = self._worker.session
        if attachment is not None and attachment.backend not in backends:
            backends.append(attachment.backend)
        for backend in backends:
            backend.check()

    def _number(self) -> int:
        return next(self._numbers)

    def _wait_left_us(self) -> int:
        """Return what is left of this pass's wait for answers."""
        return max(0, round((self._wait_until - self._clock()) * 1e6))

    def _end_promises(self) -> None:
        self.lookups.end_pass()
        self._leave_guard()

    def _leave_guard(self) -> None:
        self._through = None
        self._guard.leave()

    def _measure_window(self) -> None:
        """Read the bounds of look-ups from the session that this pass promises through."""
        if self._through is not None:
            session = self._through.session
            budget = session.namespace.budget_bytes // WINDOW_SHARE // session.namespace.page_bytes
            self.lookups.window = Window(WINDOW_REQUESTS, budget)
            self._keys_max = session.client.limits.operation_keys_max

    def _usable(self) -> Sessions | None:
        """Return the sessions to use in this pass, None unless the ranks agreed."""
        return self._sessions() if self._agreed and not self._resting else None

    def _sessions(self) -> Sessions | None:
        """Return the sessions that could be used now: registered, attached and proved with one life of the Manager."""
        session, attachment = self._scheduler.session, self._worker.session
        if session is None or attachment is None or session.incarnation != attachment.incarnation:
            return None
        ready = session.registered and attachment.attached and attachment.proven
        return Sessions(session, attachment) if ready else None

    @contextmanager
    def _exchange(self) -> Iterator[None]:
        """Let a link exchange its session: no promise is open, and every begun restore is the backend's to finish."""
        with self._guard.exchange():
            self.loads.wait_submitted()
            yield

    def _connect_scheduler(self, previous: SchedulerSession | None) -> SchedulerSession:
        return SchedulerSession.connect(
            self.settings,
            self._place.instance,
            self.epoch,
            self._scheduler.wake,
            previous,
            self.stats.count,
            self._place.rank,
        )

    def _connect_worker(self, previous: ProvenAttachment | None) -> ProvenAttachment:
        return ProvenAttachment(
            self.settings,
            self._place,
            self._tensors.layout,
            self._facts,
            self._timeline,
            previous,
            lambda: self.epoch.value,
            self.stats.count,
            choice=self._choice,
            scratch=self._scratch,
        )


def places_of(keys: Sequence[str], names: Sequence[str]) -> npt.NDArray[np.int64] | None:
    """Return where the keys stand among the names, None unless they stand there in the same order."""
    if not keys:
        return None
    if list(names[: len(keys)]) == list(keys):
        return np.arange(len(keys))
    index = {name: place for place, name in enumerate(names)}
    places = np.array([index.get(key, -1) for key in keys], np.int64)
    increasing = places[0] >= 0 and bool((np.diff(places) > 0).all())
    return places if increasing else None
