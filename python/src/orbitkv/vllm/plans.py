"""What the engine says of a request, what the scheduler side tells the workers in a step, and what they report back.

The last two travel inside vLLM's own step metadata. Everything is plain data.
A plan names the incarnation of the Cache Manager whose arenas its locations are in, and a worker that is not attached
to that incarnation refuses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from orbitkv.adapter.golden import GoldenResult
from orbitkv.adapter.plans import PublishPlan, RestorePlan, SlicePlace


class Progress(NamedTuple):
    """What the engine says about one request: `hashes` are the keys of its full pages.

    `computed` counts the tokens of steps that are still in flight, `confirmed` does not.
    """

    request: str
    tokens: int
    computed: int
    confirmed: int
    hashes: Sequence[bytes]


@dataclass(frozen=True)
class GoldenLoan:
    """Two free blocks lent to every worker for a golden round trip after a reconnection."""

    loan: int
    source: int
    target: int


@dataclass
class StepPlan:
    """The work of one step. `lost` are blocks whose restore was promised but cannot be submitted."""

    incarnation: bytes = b""
    epoch: int = 0
    slices: tuple[SlicePlace, ...] = ()
    restores: list[RestorePlan] = field(default_factory=list)
    publishes: list[PublishPlan] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    golden: GoldenLoan | None = None


@dataclass
class StepReport:
    """What workers report in one step: `copied[ticket]` is how many ranks no longer read a batch's blocks."""

    copied: dict[int, int] = field(default_factory=dict)
    golden: dict[int, tuple[int, GoldenResult]] = field(default_factory=dict)  # loan to (ranks, worst result)

    def __bool__(self) -> bool:
        return bool(self.copied or self.golden)

    def merge(self, other: StepReport) -> StepReport:
        """Return the sum of two ranks' reports."""
        merged = StepReport(dict(self.copied), dict(self.golden))
        for ticket, ranks in other.copied.items():
            merged.copied[ticket] = merged.copied.get(ticket, 0) + ranks
        for loan, (ranks, result) in other.golden.items():
            others, worst = merged.golden.get(loan, (0, GoldenResult.PASSED))
            merged.golden[loan] = (others + ranks, max(worst, result))
        return merged


@dataclass(frozen=True)
class WorkerHello:
    """What a worker tells the scheduler side once, before the first step: vLLM's handshake metadata."""

    instance: str
    rank: int
    world: int
    proven: bytes  # incarnation with which the golden round trip passed at start, empty when it is still due
