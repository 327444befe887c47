"""The ranks of one SGLang instance without the engine: the tree's part of a pass is done here, as the adapter does it.

What the ranks agree on is reduced by MIN in the order in which the tree reduces it. Bytes are a function of key, rank
and layer, destinations are poisoned, and each layer is compared as soon as its wait returns.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from harness import oracle
from harness.fakes import FakeTensors
from harness.manager import ManagerProcess, eventually
from orbitkv.adapter.attachment import RankPlace
from orbitkv.adapter.settings import read_settings
from orbitkv.errors import ChannelError
from orbitkv.sglang.rank import EngineTensors, RankSide
from orbitkv.timeline import Timeline

LAYERS, BLOCKS, BLOCK_BYTES = 4, 96, 4096 + 512
WORLD = 2  # ranks of a joint instance
LIMIT_S = 120.0
BOOKS = (
    "leases",
    "reservations",
    "operations_waiting",
    "operations_preparing",
    "operations_draining",
    "operations_ready",
    "reading_pages",
    "tier_write_bytes",
    "query_reserved_bytes",
    "writing_bytes",
    "quarantined_bytes",
    "abandoned_bytes",
    "settling_bytes",
)


@dataclass
class Admitted:
    """A request that has its pages: the first `restored` of them are being restored."""

    request: str
    keys: list[str]
    pages: list[int]
    restored: int


class Ranks:
    """All ranks of one instance, and what their equal trees know."""

    def __init__(
        self, sockets: Sequence[str], name: str = "engine-1", fact: str = "same", wait: bool = True, **keys: object
    ) -> None:
        """`sockets` has the Manager's socket of each rank."""
        usual = {"query_wait_us": 5_000_000, "timeout_ms": 30_000, "load_wait_ms": 60_000}
        extra = {f"orbitkv.{key}": value for key, value in {**usual, **keys}.items()}
        world = len(sockets)
        self.tensors = [FakeTensors(LAYERS, BLOCKS, BLOCK_BYTES) for _ in sockets]
        self.sides: list[RankSide] = []
        self.stored: set[str] = set()
        self.lives = 0  # how often a life was new
        self.decisions: list[tuple[str, int]] = []  # what the ranks promised together
        self.skipped = 0  # passes in which a rank had no answer
        self._free = set(range(1, BLOCKS))  # page 0 is the pool's padding
        self._offers: deque[tuple[list[str], list[int]]] = deque()
        self._loading: dict[str, Admitted] = {}
        self._computed: list[Admitted] = []  # their pages are free once no copy uses them
        for rank, (path, tensors) in enumerate(zip(sockets, self.tensors, strict=True)):
            settings = read_settings({**extra, "orbitkv.socket": path}, {})
            place = RankPlace(name, rank, world, True, rank)
            engine = EngineTensors(tensors.layout, tensors)
            self.sides.append(RankSide(settings, place, engine, {"model": fact}, Timeline("test", False)))
            self.sides[-1].begin()
        if wait:
            self.wait_usable()

    @property
    def room(self) -> int:
        """Return how many pages are free."""
        return len(self._free)

    # What the tree does in a pass.

    def begin_pass(self) -> bool:
        """Begin a pass on every rank; return whether the ranks may use a life of the Manager."""
        votes = []
        for side in self.sides:
            side.begin_pass()
            votes.append(side.life())
        for _ in range(min(side.loads.completed() for side in self.sides)):
            (batch,) = {tuple(side.loads.pop()) for side in self.sides}
            for request in batch:
                self._arrive(self._loading.pop(request))
        for _ in range(min(side.offloads.completed for side in self.sides)):
            keys, _ = self._offers.popleft()
            results = [side.offloads.pop() for side in self.sides]
            if all(results):
                self.stored |= set(keys)
        agreed = votes[0] != b"" and len(set(votes)) == 1
        (new,) = {side.agree(agreed) for side in self.sides}
        if new:
            self.lives += 1
            self.stored.clear()
        return agreed

    def match(self, request: str, keys: Sequence[str]) -> int | None:
        """Return the pages that all ranks promise, None when one has no answer: then the request is held."""
        answers = [side.lookup(request, keys) for side in self.sides]
        if None in answers:
            self.skipped += 1
            for side in self.sides:
                side.keep_waiting(request)
            return None
        common = min(answer for answer in answers if answer is not None)
        self.decisions.append((request, common))
        return common

    def admit(self, request: str, keys: Sequence[str], restored: int) -> Admitted:
        """Give a request its pages, with other bytes in them, and queue its restore."""
        pages = sorted(self._free)[: len(keys)]
        self._free -= set(pages)
        admitted = Admitted(request, list(keys), pages, restored)
        for side, tensors in zip(self.sides, self.tensors, strict=True):
            for page in pages:
                for layer in range(LAYERS):
                    tensors.write(layer, page, np.full(BLOCK_BYTES, oracle.POISON, np.uint8))
            if restored:
                side.queue_load(request, keys[:restored], np.array(pages[:restored], np.int64))
            side.admitted(request)
        if restored:
            self._loading[request] = admitted
        return admitted

    def start(self) -> int:
        """Start the pass's restores on every rank; return the batch's consumer index."""
        (index,) = {side.start_loads() for side in self.sides}
        return index

    def forward(self, batch: Sequence[Admitted] = (), index: int | None = None) -> None:
        """Run a pass's forward on every rank: wait for each layer and compare its bytes. Its restores start first."""
        consumer = self.start() if index is None else index
        for rank, side in enumerate(self.sides):
            side.loads.set_consumer(consumer)
            for layer in range(LAYERS):
                side.loads.wait_until(layer)
                for admitted in batch:
                    self.check(rank, admitted, [layer])

    def compute(self, admitted: Admitted) -> None:
        """Write what the model would compute into the pages that are not restored, and offer all for publishing."""
        for rank, tensors in enumerate(self.tensors):
            for key, page in list(zip(admitted.keys, admitted.pages, strict=True))[admitted.restored :]:
                for layer in range(LAYERS):
                    tensors.write(layer, page, content(key, rank, layer))
        self._computed.append(admitted)
        new = [at for at, key in enumerate(admitted.keys) if key not in self.stored and at >= admitted.restored]
        self.offload([admitted.keys[at] for at in new], [admitted.pages[at] for at in new])

    def offload(self, keys: list[str], pages: list[int]) -> None:
        """Offer pages on every rank."""
        if keys:
            self._offers.append((keys, pages))
            for side in self.sides:
                side.offload(keys, np.array(pages, np.int64))

    # What a test does.

    def breaks(self, which: str, rank: int = 0) -> None:
        """Break a rank's channel to the Manager, as a connection that is reset would; its link looks at once."""
        side = self.sides[rank]
        link = side._scheduler if which == "scheduler" else side._worker
        session = link.session
        assert session is not None
        session.client._channel.close("broken by the test")
        link.wake()

    def breaks_in_the_pass(self, which: str, rank: int = 0) -> None:
        """Break a rank's channel after a promise, and return when its link waits for the end of the pass."""
        waiting = self.sides[rank]._guard._exchanges
        self.breaks(which, rank)
        eventually(lambda: self.sides[rank]._guard._exchanges > waiting, "the link waits for the end of the pass")

    def wait_usable(self) -> None:
        """Pass until the ranks use the Manager, and publish to it."""
        eventually(lambda: self.begin_pass() and self.begin_pass(), "the ranks use the Manager")

    def ask(self, request: str, keys: Sequence[str]) -> int:
        """Pass until the request has an answer; the pass of the answer is open then."""
        end = time.monotonic() + LIMIT_S
        while True:
            self.begin_pass()
            found = self.match(request, keys)
            if found is not None:
                return found
            self.forward()
            assert time.monotonic() < end, f"request {request} has no answer"

    def serve(self, name: str, pages: int) -> int:
        """Serve a request of so many pages; return how many were restored, all of which were compared."""
        keys = keys_of(name, pages)
        request = f"{name}-{time.monotonic_ns()}"
        admitted = self.admit(request, keys, self.ask(request, keys))
        self.finish(admitted)
        return admitted.restored

    def finish(self, admitted: Admitted) -> None:
        """Run an admitted request's forward, publish it, and pass until its pages are free."""
        self.forward([admitted])
        self.compute(admitted)
        self.settle()
        self.free_idle()

    def settle(self) -> None:
        """Pass until nothing runs on any rank, as the tree knows it, and the Manager has read what ended."""

        def quiet() -> bool:
            self.begin_pass()
            return not self._offers and not self._loading

        eventually(quiet, "every load and save has ended")
        for side in self.sides:
            # The reports travel on another session than the next question.
            if (session := side._worker.session) is not None:
                with contextlib.suppress(ChannelError):
                    session.client.ping()

    def free_idle(self) -> None:
        """Free the pages of requests that are computed, once no copy uses them; all of their bytes are compared."""
        busy = {page for _, pages in self._offers for page in pages}
        for admitted in list(self._computed):
            if admitted.request not in self._loading and not busy & set(admitted.pages):
                for rank in range(len(self.sides)):
                    self.check(rank, admitted, range(LAYERS), whole=True)
                self._free |= set(admitted.pages)
                self._computed.remove(admitted)

    def flush(self) -> None:
        """Empty the engine's cache."""
        for side in self.sides:
            side.reset()
        self._offers.clear()
        self._loading.clear()
        self.stored.clear()

    def check(self, rank: int, admitted: Admitted, layers: Sequence[int], *, whole: bool = False) -> None:
        """Compare restored pages, or all of them, on one rank."""
        count = len(admitted.keys) if whole else admitted.restored
        for key, page in list(zip(admitted.keys, admitted.pages, strict=True))[:count]:
            self.check_page(rank, key, page, layers)

    def check_page(self, rank: int, key: str, page: int, layers: Sequence[int] = range(LAYERS)) -> None:
        """Compare one page on one rank."""
        for layer in layers:
            got = self.tensors[rank].read(layer, page)
            assert np.array_equal(got, content(key, rank, layer)), (key, rank, layer, page)

    def close(self) -> None:
        """End every thread."""
        for side in self.sides:
            side.close()

    def _arrive(self, admitted: Admitted) -> None:
        for rank in range(len(self.sides)):
            self.check(rank, admitted, range(LAYERS))


class Traffic:
    """Requests that come, wait, are admitted together, recomputed or aborted, by a random order."""

    def __init__(self, engine: Ranks, order: random.Random, disturb: Callable[[], None] = lambda: None) -> None:
        """`disturb` is called at the places of a pass in which something may break."""
        self.disturb = disturb
        self.passes = 0
        self.restored = 0
        self._engine = engine
        self._order = order
        self._numbers = itertools.count()
        self._waiting: dict[str, list[str]] = {}

    def step(self) -> None:
        """Run one pass."""
        engine, order = self._engine, self._order
        self.passes += 1
        if len(self._waiting) < 6 and order.random() < 0.6:
            keys = keys_of(f"p{order.randrange(5)}", order.randrange(1, 7))
            self._waiting[f"r{next(self._numbers)}"] = keys
        engine.begin_pass()
        batch = []
        for request, keys in list(self._waiting.items()):
            self.disturb()
            found = engine.match(request, keys)
            self.disturb()
            if order.random() < 0.05:
                self._abort(request)
            elif found is not None and order.random() < 0.7 and len(keys) <= engine.room:
                batch.append(engine.admit(request, keys, found))
                del self._waiting[request]
                self.restored += found
        index = engine.start()
        self.disturb()
        engine.forward(batch, index)
        for admitted in batch:
            engine.compute(admitted)
        self.disturb()
        engine.free_idle()

    def end(self) -> None:
        """Abort what waits, and pass until nothing runs."""
        for request in list(self._waiting):
            self._abort(request)
        self._engine.settle()
        self._engine.free_idle()

    def _abort(self, request: str) -> None:
        del self._waiting[request]
        for side in self._engine.sides:
            side.forget(request)


def keys_of(name: str, pages: int) -> list[str]:
    """Return SGLang's page hashes of a prompt."""
    return [hashlib.sha256(f"{name}/{page}".encode()).hexdigest() for page in range(pages)]


def content(key: str, rank: int, layer: int) -> oracle.Bytes:
    """Return one layer of a rank's slice of a page."""
    return oracle.content(bytes.fromhex(key), rank * LAYERS + layer, BLOCK_BYTES)


def books(manager: ManagerProcess) -> dict[str, int]:
    """Return what the Manager holds for anybody, without what it holds nothing of."""
    stats = manager.status()["cache"]["stats"]
    return {name: int(stats[name]) for name in BOOKS if stats[name]}


def drained(manager: ManagerProcess) -> None:
    """Wait until the Manager holds nothing for anybody: the last reports have no reply. Nothing was a violation."""
    eventually(lambda: not books(manager), "the books end at zero")
    assert not any(manager.status()["cache"]["stats"]["violations_total"].values())
