"""Restores that begin when their step is planned, and where this worker's forwards are launched.

Submitted by `start`, a restore begins once the engine has prepared its step. Where the scheduler plans in the worker's
own process and thread, it may begin at once, in order with everything that this thread has launched so far.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from orbitkv.adapter.plans import Blocks, RestorePlan
from orbitkv.transfer import DeviceSite, Restore
from orbitkv.vllm.plans import StepPlan


@dataclass
class Running:
    """A restore of this step. `usable` turns false at the first layer that will not arrive."""

    plan: RestorePlan
    restore: Restore
    usable: bool = True


@dataclass
class Submitted:
    """The restores of a step's plan, as one group; `errors` are the blocks of those that could not be submitted."""

    plan: StepPlan
    running: list[Running] = field(default_factory=list)
    errors: set[int] = field(default_factory=set)


class Launches:
    """The thread from which forwards are launched and, on a device, the stream that is current in it."""

    def __init__(self, site: DeviceSite | None) -> None:
        self._site = site
        self._place: tuple[int, int] | None = None

    @property
    def here(self) -> bool:
        """Return whether every step since the last restore was launched from the caller's thread and stream."""
        return self._place == self._here()

    def note(self) -> None:
        """Note that a forward is about to be launched from here."""
        self._place = self._here()

    def compare(self) -> None:
        """Know nothing more until the next `note` when a part of a step comes from elsewhere."""
        if not self.here:
            self._place = None

    def _here(self) -> tuple[int, int]:
        return threading.get_ident(), 0 if self._site is None else self._site.current_stream()


def unusable_blocks(running: Running) -> Blocks:
    """Return the blocks of a restore that did not succeed: those with another digest, or all when bytes are missing."""
    bad = running.restore.bad
    return running.plan.blocks[bad] if len(bad) else running.plan.blocks
