"""One submitted plan and its progress. The thread that copies moves it; anybody may wait for it."""

from __future__ import annotations

import threading
import time

from orbitkv.errors import TransferStalled
from orbitkv.transfer._plan import CopyPlan

STALL_SECONDS = 120.0  # a local copy that takes longer faults the engine: its destination is unknown


class Transfer:
    """Progress of one plan: layers done in forward order, then one terminal result. Thread-safe."""

    def __init__(self, plan: CopyPlan) -> None:
        self.plan = plan
        self._changed = threading.Condition()
        self._layers = 0
        self._result: bool | None = None

    @property
    def done(self) -> bool:
        """Return whether the terminal result is known."""
        return self._result is not None

    @property
    def ok(self) -> bool:
        """Return whether every byte arrived."""
        return self._result is True

    @property
    def failed(self) -> bool:
        """Return whether the transfer ended without all of its bytes."""
        return self._result is False

    @property
    def bytes(self) -> int:
        """Return the bytes that arrived: all of a successful transfer, none of a failed one."""
        return self.plan.bytes if self.ok else 0

    def layer_ready(self, layer: int) -> bool:
        """Return whether a layer is in place."""
        return self._layers > layer

    def wait_layer(self, layer: int, timeout: float = STALL_SECONDS) -> bool:
        """Wait until a layer is in place; return False when the transfer failed. TransferStalled at the bound."""
        if self._layers > layer:
            return True
        deadline = time.monotonic() + timeout
        with self._changed:
            while self._layers <= layer and self._result is None:
                if not self._changed.wait(max(0.0, deadline - time.monotonic())) and time.monotonic() >= deadline:
                    raise TransferStalled(f"layer {layer} of {self.plan.pages} pages did not arrive in {timeout:g} s")
            return self._layers > layer

    def wait_all(self, timeout: float = STALL_SECONDS) -> bool:
        """Wait for the terminal result and return whether it is success. TransferStalled at the bound."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._result is not None, timeout):
                raise TransferStalled(f"a copy of {self.plan.pages} pages did not end in {timeout:g} s")
            return self.ok

    def advance(self) -> None:
        """Record one more layer; only the copying thread calls this."""
        with self._changed:
            self._layers += 1
            self._changed.notify_all()

    def finish(self, ok: bool) -> None:
        """Record the terminal result; only the copying thread calls this, once."""
        with self._changed:
            if self._result is not None:
                raise RuntimeError("a transfer ended twice")
            self._result = ok
            self._changed.notify_all()


class Restore(Transfer):
    """Arena to engine pages. Its destinations may be used layer by layer, and reused after the terminal result (I2)."""


class Publish(Transfer):
    """Engine pages to arena. Its sources may be reused after the terminal result."""
