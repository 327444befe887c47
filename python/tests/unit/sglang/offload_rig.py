"""Saves of one rank over a fake client, copies that end when the test says so and a clock that the test turns."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from harness.fakes import PAGE_BYTES, Clock, FakeClient, FakeReserve, FakeTensors, keys_of
from orbitkv.adapter.attachment import Attachment, RankPlace
from orbitkv.adapter.copies import Copies
from orbitkv.adapter.plans import Blocks
from orbitkv.adapter.session import Epoch, SchedulerSession
from orbitkv.adapter.settings import read_settings
from orbitkv.adapter.stats import Stats
from orbitkv.client import CacheManagerClient, Grant
from orbitkv.errors import OrbitKVError, TransferError
from orbitkv.sglang.offloads import Offloads
from orbitkv.timeline import Timeline
from orbitkv.transfer import CopyPlan, Publish, Transfer, TransferBackend

BLOCKS = 4096
LAYERS = 2


@dataclass(eq=False)
class Job:
    """A copy that runs."""

    transfer: Publish
    on_done: Callable[[Transfer], None]

    @property
    def pages(self) -> list[int]:
        """Return the pages that it reads."""
        return cast(list[int], self.transfer.plan.blocks.tolist())


class HeldBackend:
    """A backend whose copies end when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.submitted: list[list[int]] = []
        self.refusing = False
        self.fault: OrbitKVError | None = None

    def check(self) -> None:
        """Raise the fault of the device, if the test wants one."""
        if self.fault is not None:
            raise self.fault

    def publish(self, plan: CopyPlan, *, on_done: Callable[[Transfer], None]) -> Publish:
        """Take a copy."""
        plan.check()
        if self.refusing:
            raise TransferError("refused by the test")
        self.jobs.append(Job(Publish(plan), on_done))
        self.submitted.append(self.jobs[-1].pages)
        return self.jobs[-1].transfer

    def end(self, at: int = 0, ok: bool = True) -> None:
        """Let one copy end."""
        job = self.jobs.pop(at)
        job.transfer.finish(ok)
        job.on_done(job.transfer)

    def end_all(self) -> None:
        """Let every copy end well."""
        while self.jobs:
            self.end()

    def reading(self) -> set[int]:
        """Return the pages that copies read."""
        return {page for job in self.jobs for page in job.pages}


class FakeAttachment:
    """An attachment over a backend; `told` is what the Manager hears of copies."""

    def __init__(self, incarnation: bytes, backend: TransferBackend) -> None:
        self.incarnation = incarnation
        self.backend = backend
        self.told: list[tuple[Any, ...]] = []

    def committed(self, reservation: int, ranges: Sequence[tuple[int, int]]) -> None:
        """Note that slices are complete."""
        self.told.append(("committed", reservation, list(ranges)))

    def abandoned(self, reservation: int, ranges: Sequence[tuple[int, int]]) -> None:
        """Note that slices will not be written."""
        self.told.append(("abandoned", reservation, list(ranges)))


class OffloadRig:
    """Everything around one rank's saves. `numbers` are those that were drawn."""

    def __init__(self, *, storage: bool = True, backend: TransferBackend | None = None) -> None:
        self.clock = Clock()
        self.held = HeldBackend()
        self.backend = backend or cast(TransferBackend, self.held)
        self.stats = Stats()
        self.epoch = Epoch()
        self.tensors = FakeTensors(LAYERS, BLOCKS, PAGE_BYTES // LAYERS)
        self.numbers: list[int] = []
        self._numbers = itertools.count(1)
        self._reservations = itertools.count(1)
        self.connect()
        self.attachment = FakeAttachment(self.client.incarnation, self.backend)
        settings = read_settings({"orbitkv.timeout_ms": 5000}, {})
        place = RankPlace("engine-1", 0, 1, storage)
        timeline = Timeline("test", False)
        copies = Copies(settings, place, self.tensors.layout, self.tensors, timeline, self.stats, self.clock)
        self.offloads = Offloads(copies, settings, self.stats, self._number, self.clock)

    @property
    def reserves(self) -> list[FakeReserve]:
        """Return what the current client was asked for."""
        return self.client.reserves

    def connect(self, incarnation: bytes = b"life-1".ljust(16)) -> None:
        """Begin a session; an earlier one is lost."""
        self.client = FakeClient(incarnation)
        self.client.reservations = self._reservations
        client = cast(CacheManagerClient, self.client)
        self.session = SchedulerSession(client, "engine-1", self.epoch, lambda: None)
        assert self.session.advance()

    def pump(self, session: bool = True) -> None:
        """Begin a pass, with the session unless it is lost."""
        usable = self.session if session and self.session.alive else None
        self.offloads.pump(usable, cast(Attachment, self.attachment))

    def offer(self, name: str, first: int, count: int = 2) -> None:
        """Offer pages first, first + 1, ... whose keys are named by `name`."""
        self.offloads.offer(b"".join(keys_of(name, count)), pages_of(first, count))

    def ask(self, *counts: int) -> list[FakeReserve]:
        """Offer nodes of so many pages from page 0 on, and return the reserves that were sent for them."""
        self.pump()
        first, before = 0, len(self.reserves)
        for index, count in enumerate(counts):
            self.offer(f"n{index}", first, count)
            first += count
        self.pump()
        return self.reserves[before:]

    def results(self) -> list[bool]:
        """Take every result that is there."""
        return [self.offloads.pop() for _ in range(self.offloads.completed)]

    def counted(self, name: str) -> float:
        """Return a counter since the last look, all of which begin anew."""
        value = self.stats.take().get(name, 0.0)
        assert isinstance(value, float | int)
        return value

    def abandoned(self) -> list[tuple[Any, ...]]:
        """Return the late grants that were abandoned: reservation and pages."""
        return [message[1:] for message in self.client.sent if message[0] == "abandoned"]

    def _number(self) -> int:
        self.numbers.append(next(self._numbers))
        return self.numbers[-1]


def pages_of(first: int, count: int) -> Blocks:
    """Return pages first, first + 1, ..."""
    return np.arange(first, first + count, dtype=np.int64)


def granted(count: int) -> list[Grant]:
    """Return the answer that grants every page."""
    return [Grant.GRANTED] * count
