"""What the device backend asks of whoever checks restored pages against the digests that travel with them.

A verifier works on pages of a verified layout (see `_digest`). Like a mover it only hands work over to the stream that
it is given; all arrays have one entry a page.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from orbitkv.transfer._mover import Group
from orbitkv.transfer._plan import Blocks

Checked = TypeVar("Checked")


class Verifier(Protocol[Checked]):
    """Writes digests before pages leave the engine and checks them once pages are back. Thread-safe.

    DeviceError from `before_publish` and `after_restore` leaves open what was handed over.
    """

    def prepare(self, group: Group) -> Checked:
        """Do what is done once for a group, without handing anything over. DeviceError when it cannot be."""
        ...

    def before_publish(self, checked: Checked, first: int, past: int, stream: int) -> int:
        """Hand over the digests of pages `first` to `past` (exclusive), into the engine's rows; return the launches.

        Copies of these pages that are handed to the stream later take their rows along.
        """
        ...

    def after_restore(self, checked: Checked, stream: int) -> int:
        """Hand over the check of every page of the group, whose copies the stream has; return the launches."""
        ...

    def result(self, checked: Checked) -> Blocks:
        """Return the positions in the group of the pages that are wrong, once what was handed over has ended."""
        ...

    def release(self, checked: Checked) -> None:
        """Take back what `prepare` made: everything that was handed over has ended, or nothing was."""
        ...

    def close(self) -> None:
        """Give back what the verifier holds. Nothing runs any more, unless the device has faulted."""
        ...
