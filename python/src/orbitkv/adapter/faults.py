"""Faults that are injected on purpose, to show that a test or a demo would notice a real one.

`orbitkv.fault_injection` (ORBITKV_FAULT_INJECTION) holds one of:

    corrupt-restore      every restored byte is inverted once it has arrived: the output must change
    poison-destination   the destination blocks are filled with 0x5a before a restore: the output must not change
    skip-layer-wait=N    the wait of layer N is left out: with a slow copy the output must change

A fault is never on by default, and a worker that runs with one says so in a warning.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from orbitkv.errors import ConfigurationError


@dataclass(frozen=True)
class Fault:
    """Which fault is on. `skip_layer` is -1 when no wait is left out."""

    corrupt_restore: bool = False
    poison_destination: bool = False
    skip_layer: int = -1

    @property
    def on(self) -> bool:
        """Return whether anything is injected."""
        return self.corrupt_restore or self.poison_destination or self.skip_layer >= 0


def parse_fault(text: str) -> Fault:
    """Read the key's value. ConfigurationError lists the faults that exist."""
    if text == "":
        return Fault()
    if text == "corrupt-restore":
        return Fault(corrupt_restore=True)
    if text == "poison-destination":
        return Fault(poison_destination=True)
    if match := re.fullmatch(r"skip-layer-wait=(\d+)", text):
        return Fault(skip_layer=int(match[1]))
    raise ConfigurationError(
        f"orbitkv.fault_injection is {text!r}; it may be empty, corrupt-restore, poison-destination "
        "or skip-layer-wait=N"
    )
