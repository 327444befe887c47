"""One rank over a fake client, copies that a test moves layer by layer, and a clock that the test turns."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from python.tests.unit.sglang.offload_rig import FakeAttachment, HeldBackend, pages_of

from harness.fakes import PAGE_BYTES, Clock, FakeClient, FakeLease, FakeTensors, keys_of
from orbitkv.adapter.attachment import RankPlace
from orbitkv.adapter.copies import Copies
from orbitkv.adapter.golden import GoldenResult
from orbitkv.adapter.link import Link
from orbitkv.adapter.session import Epoch, SchedulerSession
from orbitkv.adapter.settings import read_settings
from orbitkv.adapter.stats import Stats
from orbitkv.client import CacheManagerClient, Lease, State
from orbitkv.errors import TransferError
from orbitkv.sglang.loads import Load, Loads
from orbitkv.sglang.proof import ProvenAttachment
from orbitkv.sglang.rank import EngineTensors, RankSide
from orbitkv.timeline import Timeline
from orbitkv.transfer import STALL_SECONDS, CopyPlan, DeviceSite, KVLayout, Restore, Transfer, TransferBackend

BLOCKS = 64
LAYERS = 4
BLOCK_BYTES = PAGE_BYTES // LAYERS
LIFE_1, LIFE_2 = (name.ljust(16) for name in (b"life-1", b"life-2"))


@dataclass(eq=False)
class Job:
    """A restore that the backend has."""

    transfer: Restore
    on_done: Callable[[Transfer], None]


class NotedRestore(Restore):
    """A restore whose waits are put on a stream, as a device's are: nobody is held, and they are written down."""

    def __init__(self, plan: CopyPlan, waits: list[tuple[int, str, int | None]], stream: Callable[[], int]) -> None:
        super().__init__(plan)
        self._waits = waits
        self._stream = stream

    def wait_layer(self, layer: int, timeout: float = STALL_SECONDS) -> bool:  # noqa: ARG002 - nothing is waited for
        """Note the wait for a layer."""
        self._waits.append((self._stream(), self.plan.request, layer))
        return True

    def join(self, timeout: float = STALL_SECONDS) -> bool:  # noqa: ARG002 - nothing is waited for
        """Note the wait for everything."""
        self._waits.append((self._stream(), self.plan.request, None))
        return True


class HeldCopies(HeldBackend):
    """A backend whose restores, too, move when the test says so.

    With a `stream` it stands for a device: waits go into `waits`, with the stream, the request and the layer or None.
    """

    def __init__(self, stream: Callable[[], int] | None = None) -> None:
        super().__init__()
        self.waits: list[tuple[int, str, int | None]] = []
        self.taken = threading.Event()  # a group was submitted
        self._stream = stream
        self.restores: list[Job] = []
        self.groups: list[list[str]] = []  # requests, as they were submitted
        self.closed = False

    def restore(self, plans: Sequence[CopyPlan], *, on_done: Callable[[Transfer], None]) -> list[Restore]:
        """Take a group of copies."""
        for plan in plans:
            plan.check()
        if self.closed or self.refusing:
            raise TransferError("refused by the test")
        jobs = [Job(self._transfer(plan), on_done) for plan in plans]
        self.restores.extend(jobs)
        self.groups.append([plan.request for plan in plans])
        self.taken.set()
        return [job.transfer for job in jobs]

    def arrive(self, at: int = 0, layers: int = LAYERS) -> None:
        """Let so many layers of one restore arrive; with all of them it has ended."""
        job = self.restores[at]
        for _ in range(layers):
            job.transfer.advance()
        if job.transfer.layer_ready(LAYERS - 1):
            self.finish(at, True)

    def finish(self, at: int = 0, ok: bool = True) -> None:
        """Let one restore end."""
        job = self.restores.pop(at)
        job.transfer.finish(ok)
        job.on_done(job.transfer)

    def arrive_all(self) -> None:
        """Let every restore arrive, and those that follow."""
        while self.restores:
            self.arrive()

    def close(self) -> None:
        """Take no more."""
        self.closed = True

    def _transfer(self, plan: CopyPlan) -> Restore:
        return Restore(plan) if self._stream is None else NotedRestore(plan, self.waits, self._stream)


class RankAttachment(FakeAttachment):
    """A proven attachment."""

    def __init__(self, incarnation: bytes, backend: TransferBackend) -> None:
        super().__init__(incarnation, backend)
        self.client = FakeClient(incarnation)
        self.alive = self.attached = self.proven = True
        self.result = GoldenResult.PASSED

    def restored(self, lease: int, ok: bool, ranges: Sequence[tuple[int, int]]) -> None:
        """Note the end of a restore."""
        self.told.append(("restored", lease, ok, list(ranges)))

    def advance(self) -> bool:
        """Do nothing: it is complete."""
        return True

    def detach(self) -> None:
        """Leave the instance."""

    def close(self) -> None:
        """Close the backend."""
        self.backend.close()


class LoadRig:
    """Restores of one rank, with leases of their own."""

    def __init__(
        self,
        backend: TransferBackend | None = None,
        steps: Sequence[int] = range(LAYERS),
        *,
        device: bool = False,
        layers_ask: bool = True,
        current: Callable[[], int] | None = None,
        **keys: object,
    ) -> None:
        self.stream = 7  # the engine's that is current
        self.clock = Clock()
        self.held = HeldCopies((lambda: self.stream) if device else None)
        self.tensors = FakeTensors(LAYERS, BLOCKS, BLOCK_BYTES)
        self.stats = Stats()
        self.client = FakeClient()
        self.session = SchedulerSession(cast(CacheManagerClient, self.client), "engine-1", Epoch(), lambda: None, 0)
        assert self.session.advance()
        self.attachment = RankAttachment(self.client.incarnation, backend or cast(TransferBackend, self.held))
        settings = read_settings({f"orbitkv.{key}": value for key, value in keys.items()}, {})
        timeline = Timeline("test", False)
        place = RankPlace("engine-1", 0, 1)
        layout = stepped(self.tensors.layout, steps)
        self.steps = len(layout.steps)
        copies = Copies(settings, place, layout, self.tensors, timeline, self.stats, self.clock)
        self.loads = Loads(copies, timeline, current or (lambda: self.stream), layers_ask, self.clock)
        self._ids = itertools.count(1)
        self._blocks = itertools.cycle(range(1, BLOCKS))

    def load(self, request: str, pages: int = 1, places: Sequence[int] | None = None) -> Load:
        """Return a restore of so many pages, or of these places of a lease of so many."""
        lease = FakeLease(self.client, next(self._ids), pages)
        lease.hold()
        chosen = np.array(range(pages) if places is None else places, np.int64)
        blocks = np.array([next(self._blocks) for _ in chosen], np.int64)
        attachment = cast(ProvenAttachment, self.attachment)
        return Load(request, self.session, attachment, cast(Lease, lease), chosen, blocks)

    def batch(self, *requests: str, pages: int = 1) -> int:
        """Queue a restore each and start the batch; return its consumer index."""
        for request in requests:
            self.loads.queue(self.load(request, pages))
        return self.loads.start()

    def forward(self, index: int, layers: int | None = None) -> None:
        """Let a forward of the batch pass so many of the engine's layers, by default all."""
        self.loads.set_consumer(index)
        for layer in range(self.steps if layers is None else layers):
            self.loads.wait_until(layer)

    def waits(self) -> list[tuple[int, str, int | None]]:
        """Take the waits that were put on streams since the last call."""
        waits, self.held.waits[:] = list(self.held.waits), []
        return waits

    def acknowledged(self) -> list[list[str]]:
        """Take the batches that have arrived."""
        return [self.loads.pop() for _ in range(self.loads.completed())]


class RankRig:
    """One rank whose sessions the test makes and breaks."""

    def __init__(self, site: DeviceSite | None = None, **keys: object) -> None:
        self.clock = Clock()
        self.held = HeldCopies()
        self.tensors = FakeTensors(LAYERS, BLOCKS, BLOCK_BYTES)
        self.client = FakeClient()
        self.client.budget_bytes = 1 << 30
        self.attachment = RankAttachment(LIFE_1, cast(TransferBackend, self.held))
        settings = read_settings({f"orbitkv.{key}": value for key, value in keys.items()}, {})
        tensors = EngineTensors(self.tensors.layout, self.tensors, site)
        place = RankPlace("engine-1", 0, 1)
        self.side = RankSide(settings, place, tensors, {}, Timeline("test", False), clock=self.clock)
        self.side._scheduler = Link("scheduler", self._session, exchange=self.side._exchange)
        self.side._worker = Link(
            "rank", lambda _: cast(ProvenAttachment, self.attachment), exchange=self.side._exchange
        )
        self.open()

    def open(self) -> None:
        """Connect what is not connected, as the links' threads do."""
        self.side._scheduler.open_once()
        self.side._worker.open_once()

    def restart(self, life: bytes = LIFE_2) -> None:
        """Let the Manager's life end and another one begin; nothing is connected to it yet."""
        self.client.alive = self.attachment.alive = False
        self.client = FakeClient(life)
        self.client.budget_bytes = 1 << 30
        self.held = HeldCopies()
        self.attachment = RankAttachment(life, cast(TransferBackend, self.held))

    def begin(self, others: bool = True) -> bool:
        """Begin a pass as the tree does; return whether the ranks agree on a life that is new to them."""
        self.side.begin_pass()
        return self.side.agree(self.side.life() != b"" and others)

    def lookup(self, request: str, pages: int = 4) -> int | None:
        """Ask for a waiting request's pages."""
        return self.side.lookup(request, hashes(request, pages))

    def found(self, request: str, pages: int = 4) -> FakeLease:
        """Let a request's pages be found and promised; return the lease."""
        self.client.script = [(State.READY, pages)]
        assert self.lookup(request, pages) == pages
        lease = self.client.queries[-1].lease
        assert lease is not None
        return lease

    def load(self, request: str, pages: int = 4, first: int = 1) -> None:
        """Admit a request whose pages were promised."""
        self.side.queue_load(request, hashes(request, pages), pages_of(first, pages))
        self.side.admitted(request)

    def sent(self, *kinds: str) -> list[tuple[Any, ...]]:
        """Return what was sent to the Manager of now, of these kinds."""
        return [message for message in self.client.sent if message[0] in kinds]

    def _session(self, _previous: SchedulerSession | None) -> SchedulerSession:
        return SchedulerSession(
            cast(CacheManagerClient, self.client), "engine-1", self.side.epoch, self.side._scheduler.wake, 0
        )


def stepped(layout: KVLayout, steps: Sequence[int]) -> KVLayout:
    """Return a layout whose layers are read by these layers of the engine."""
    layers = tuple(replace(layer, step=step) for layer, step in zip(layout.layers, steps, strict=True))
    return replace(layout, layers=layers)


def hashes(request: str, pages: int) -> list[str]:
    """Return SGLang's page hashes for a request's pages."""
    return [key.hex() for key in keys_of(request, pages)]
