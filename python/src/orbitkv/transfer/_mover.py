"""What the device backend asks of whoever moves the bytes: by the copy engines (`direct`) or by a kernel (`kernel`).

The backend owns threads, streams, events, order and bounds; a mover only hands copies over to the stream that it is
given. All arrays are one-dimensional, one entry a page: entry i of each belongs to the same page.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from orbitkv.transfer._driver import Addresses
from orbitkv.transfer._plan import Blocks, KVLayout

Prepared = TypeVar("Prepared")


@dataclass(frozen=True)
class Group:
    """Pages that are copied together in one direction.

    `blocks` are the engine's, `hosts` the addresses at which the pages' slices begin in host memory: layer l of page i
    is `layout.layers[l].block_bytes` bytes at `hosts[i] + layout.layers[l].offset`. All of it is registered with the
    device. `borders` are the addresses, increasing, at which a registration begins: an operation that reads or writes
    host memory on both sides of one fails. `restore` says host to engine, else engine to host.
    """

    layout: KVLayout
    blocks: Blocks
    hosts: Addresses
    borders: Addresses
    restore: bool

    @property
    def pages(self) -> int:
        """Return how many pages there are."""
        return len(self.blocks)

    def part(self, first: int, past: int) -> Group:
        """Return the group's pages from `first` to `past`, which is exclusive."""
        return replace(self, blocks=self.blocks[first:past], hosts=self.hosts[first:past])


class Mover(Protocol[Prepared]):
    """Hands copies over. Called by the two threads of one backend, each for groups of its own.

    DeviceError from `submit_steps` or `submit_pages` leaves open which of the call's copies were handed over.
    """

    @property
    def name(self) -> str:
        """Return the backend's name that it makes."""
        ...

    def bind(self) -> None:
        """Make the device current in the calling thread; each thread that calls the rest does so first."""
        ...

    def prepare(self, group: Group) -> Prepared:
        """Do what is done once for a group, without handing anything over. DeviceError when it cannot be."""
        ...

    def submit_steps(self, prepared: Prepared, first: int, past: int, stream: int) -> int:
        """Hand over all layers of some steps (`layout.steps[first:past]`) of every page; return how many operations."""
        ...

    def submit_pages(self, prepared: Prepared, first: int, past: int, stream: int) -> int:
        """Hand over every layer of the group's pages `first` to `past` (exclusive); return the number of operations."""
        ...

    def release(self, prepared: Prepared) -> None:
        """Take back what `prepare` made: every copy of the group has ended, or none was handed over."""
        ...

    def close(self) -> None:
        """Give back what the mover holds. No copy runs any more, unless the device has faulted."""
        ...
