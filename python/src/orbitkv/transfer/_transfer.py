"""One submitted plan and its progress. The backend's threads move it; anybody may wait for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from orbitkv.errors import EngineFault, TransferStalled
from orbitkv.transfer._plan import Blocks, CopyPlan

STALL_SECONDS = 120.0  # a local copy that takes longer faults the engine: its destination is unknown


@dataclass(frozen=True)
class CopyTimes:
    """Where the time of a copy went, in seconds, and how many operations it took.

    `build_seconds` made the operations and `submit_seconds` handed them over, both for the whole group and on the
    thread of that name. The first and the last layer's are counted from the call that submitted until each was in
    place. `pieces` are a group's pages times its layers, `copies` what is left of them once neighbours are merged.
    """

    build_seconds: float
    submit_seconds: float
    copies: int
    pieces: int
    first_layer_seconds: float
    last_layer_seconds: float
    thread: str


class Transfer:
    """One plan until its terminal result, which a device that faulted never gives. Thread-safe.

    With the result, `times` is known of a copy that succeeded, and `bad` are the positions in the plan of pages whose
    bytes all came and are not those that their digests speak of: they make it a failure.
    """

    def __init__(self, plan: CopyPlan) -> None:
        self.plan = plan
        self._begin = time.monotonic()
        self.times: CopyTimes | None = None
        self.bad: Blocks = np.empty(0, np.int64)
        self._changed = threading.Condition()
        self._result: bool | None = None
        self._unknown: str | None = None

    @property
    def age_seconds(self) -> float:
        """Return the seconds since it was submitted."""
        return time.monotonic() - self._begin

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

    def wait_all(self, timeout: float = STALL_SECONDS) -> bool:
        """Wait for the terminal result and return whether it is success.

        TransferStalled at the bound; EngineFault when there will never be a result.
        """
        self._wait(lambda: self._result is not None, timeout, "did not end")
        return self.ok

    def finish(self, ok: bool, times: CopyTimes | None = None, bad: Blocks | None = None) -> None:
        """Record the terminal result; only the backend calls this, once."""
        with self._changed:
            if self._result is not None:
                raise RuntimeError("a transfer ended twice")
            self.times = times
            if bad is not None:
                self.bad = bad
            self._result = ok
            self._changed.notify_all()

    def lose(self, reason: str) -> None:
        """Record that the end will never be known: whoever waits gets EngineFault. Only the backend calls this."""
        with self._changed:
            self._unknown = reason
            self._changed.notify_all()

    def _wait(self, holds: Callable[[], bool], timeout: float, complaint: str) -> None:
        """Wait until the condition holds. TransferStalled at the bound, EngineFault when the end is unknown."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while not holds():
                if self._unknown is not None:
                    raise EngineFault(self._unknown)
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TransferStalled(f"a copy of {self.plan.pages} pages {complaint} in {timeout:g} s")
                self._changed.wait(left)


class Restore(Transfer):
    """Arena to engine pages. Its destinations may be reused after the terminal result (I2).

    Layers are reached in forward order: here one is reached once its bytes are in place.
    """

    def __init__(self, plan: CopyPlan) -> None:
        super().__init__(plan)
        self._layers = 0
        self._over = False  # no further layer will be reached

    def layer_ready(self, layer: int) -> bool:
        """Return whether a layer is reached, so that `wait_layer` does not hold the calling thread."""
        return self._layers > layer

    def wait_layer(self, layer: int, timeout: float = STALL_SECONDS) -> bool:
        """Let the forward pass a layer only after its bytes; False when they will not come.

        TransferStalled at the bound; EngineFault when the content is unknown.
        """
        if self._layers <= layer:
            self._wait(lambda: self._layers > layer or self._over, timeout, f"did not reach layer {layer}")
        return self._layers > layer

    def join(self, timeout: float = STALL_SECONDS) -> bool:
        """Let what the engine does next come after every byte, of a failed restore too; False when some are missing.

        TransferStalled at the bound; EngineFault when the content is unknown.
        """
        return self.wait_all(timeout)

    def finish(self, ok: bool, times: CopyTimes | None = None, bad: Blocks | None = None) -> None:
        """Record the terminal result; see Transfer.finish."""
        with self._changed:
            self._over = True
        super().finish(ok, times, bad)

    def stop(self) -> None:
        """Record that no further layer will be reached; only the backend calls this."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def advance(self, layers: int = 1) -> None:
        """Record that more layers are reached; only the backend calls this."""
        with self._changed:
            self._layers += layers
            self._changed.notify_all()


class Publish(Transfer):
    """Engine pages to arena. Its sources may be reused after the terminal result."""
