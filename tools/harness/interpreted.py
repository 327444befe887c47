"""Launches of kernels without a device, by Triton's interpreter; TRITON_INTERPRET=1 must be set before Triton is."""

from __future__ import annotations

import contextlib

from orbitkv.kernel.launcher import Launcher
from orbitkv.transfer._driver import Driver


class Interpreted(Launcher):
    """Launches at once, in memory of the process, and notes for which stream; `fault` refuses the next launch."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver)
        self.streams: list[int] = []
        self.fault: str | None = None

    def on(self, stream: int) -> contextlib.AbstractContextManager[object]:
        """Return a context that changes nothing."""
        if self.fault is not None:
            raise RuntimeError(self.fault)
        self.streams.append(stream)
        return contextlib.nullcontext()
