"""How a kernel gets onto one of the backend's streams."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

from orbitkv.errors import DeviceError
from orbitkv.transfer._driver import Driver

WARPS = 8
UNKNOWN = 999  # CUDA_ERROR_UNKNOWN: torch and Triton say what happened in words alone


class Launcher:
    """Launches kernels of one device. Thread-safe."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._streams: dict[int, Any] = {}  # by handle: those of the backend, and one that warmed up

    def launch(self, kernel: Any, programs: int, stream: int, *arguments: int, **constants: Any) -> None:
        """Hand one launch to a stream. DeviceError when it is refused; it is then unknown whether it was taken."""
        try:
            with self.on(stream):
                kernel[(programs,)](*arguments, **constants, num_warps=WARPS)
        except RuntimeError as fault:
            raise DeviceError("a kernel launch", UNKNOWN, str(fault)) from fault

    def on(self, stream: int) -> AbstractContextManager[object]:
        """Return what makes a stream, and its device, current in the calling thread."""
        known = self._streams.get(stream)
        if known is None:
            known = self._streams[stream] = torch.cuda.ExternalStream(stream, device=self._driver.index)
        context: AbstractContextManager[object] = torch.cuda.stream(known)
        return context
