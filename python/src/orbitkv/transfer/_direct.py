"""The mover of the `direct` backend: the device's copy engines, by a batch of pieces and one of strided runs."""

from __future__ import annotations

from dataclasses import dataclass

from orbitkv.transfer._driver import Driver
from orbitkv.transfer._mover import Group
from orbitkv.transfer._spans import Operations, Spans


@dataclass(frozen=True)
class Planned:
    """A group; `spans` plans the steps of a restore, while pages that leave are planned as they are handed over."""

    group: Group
    spans: Spans | None


class DirectMover:
    """Implements `Mover`. It holds nothing of its own, neither memory nor tables."""

    name = "direct"

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def bind(self) -> None:
        """Make the device current in the calling thread."""
        self._driver.bind()

    def prepare(self, group: Group) -> Planned:
        """Plan what is done once for a group."""
        return Planned(group, Spans(group) if group.restore else None)

    def submit_steps(self, prepared: Planned, first: int, past: int, stream: int) -> int:
        """Hand over all layers of the steps `first` to `past` of every page; return the number of operations."""
        assert prepared.spans is not None, "only restores have steps"
        return self._submit(prepared.spans.steps(first, past), stream)

    def submit_pages(self, prepared: Planned, first: int, past: int, stream: int) -> int:
        """Hand over every layer of the pages `first` to `past` (exclusive); return the number of operations."""
        return self._submit(Spans(prepared.group.part(first, past)).whole(), stream)

    def release(self, prepared: Planned) -> None:
        """Do nothing: a plan is memory of this process alone."""

    def close(self) -> None:
        """Do nothing: there is nothing to give back."""

    def _submit(self, operations: Operations, stream: int) -> int:
        # The driver has read the arrays when it returns: they are the descriptors, not the bytes.
        if len(operations.targets):
            self._driver.copy_batch(operations.targets, operations.sources, operations.sizes, stream)
        if len(operations.strided):
            self._driver.copy_strided(operations.strided, stream)
        return operations.number
