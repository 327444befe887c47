"""A scheduler side over a fake client, a fake block pool and a clock that the test turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest

from harness.fakes import Clock, FakeClient, Pool, keys_of
from orbitkv.adapter.link import Link
from orbitkv.adapter.session import Epoch, SchedulerSession
from orbitkv.adapter.settings import read_settings
from orbitkv.client import CacheManagerClient
from orbitkv.timeline import Timeline
from orbitkv.vllm.plans import Progress, StepPlan
from orbitkv.vllm.scheduler import Geometry, SchedulerSide

PAGE = 128


@dataclass
class Rig:
    """Everything around one scheduler side."""

    client: FakeClient
    clock: Clock
    pool: Pool
    side: SchedulerSide
    epoch: Epoch
    link: Link[SchedulerSession]
    clients: list[FakeClient]  # the last one is what the link connects to
    plan: StepPlan = field(default_factory=StepPlan)  # the last one

    def progress(self, name: str, tokens: int, computed: int = 0, confirmed: int | None = None) -> Progress:
        """Return a request of so many tokens; its keys are named by it."""
        known = computed if confirmed is None else confirmed
        return Progress(name, tokens, computed, known, keys_of(name, tokens // PAGE))

    def match(self, name: str, tokens: int, device: int = 0) -> int | None:
        """Ask what is restored for a request."""
        return self.side.matched_tokens(self.progress(name, tokens), device)

    def admit(self, name: str, external: int, blocks: Sequence[int]) -> None:
        """Admit a request in the engine's order: blocks with a reference each, then the call."""
        self.pool.touch([self.pool.blocks[block] for block in blocks])
        self.side.allocated(name, external, blocks)

    def step(
        self, name: str, tokens: int, computed: int, in_flight: int = 0, blocks: Sequence[int] | None = None
    ) -> StepPlan:
        """Let one request compute in a pass that began with `computed` tokens counted."""
        progress = self.progress(name, tokens, computed, computed - in_flight)
        self.plan = self.side.build_plan([progress], {} if blocks is None else {name: blocks}, [])
        return self.plan

    def sent(self, kind: str) -> list[tuple[object, ...]]:
        """Return what was sent of one kind."""
        return [message for message in self.client.sent if message[0] == kind]


def make_rig(extra: dict[str, object] | None = None, world: int = 1, volatile: int = 0, blocks: int = 100) -> Rig:
    """Return a registered and proven scheduler side."""
    client, clock, pool, epoch = FakeClient(), Clock(), Pool(blocks), Epoch()
    clients = [client]

    def connect(_previous: SchedulerSession | None) -> SchedulerSession:
        return SchedulerSession(cast(CacheManagerClient, clients[-1]), "engine-1", epoch, lambda: None)

    link: Link[SchedulerSession] = Link("test", connect)
    settings = read_settings(extra or {}, {})
    side = SchedulerSide(settings, Geometry(PAGE, world, volatile), epoch, link, Timeline("test", False), clock)
    side.bind_pool(pool)
    side.golden.proven = client.incarnation
    link.open_once()
    return Rig(client, clock, pool, side, epoch, link, clients)


@pytest.fixture
def rig() -> Rig:
    """Return a registered and proven scheduler side of one rank."""
    return make_rig()
