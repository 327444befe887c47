"""Where a rank's KV pool lies when that is a CUDA device, and on which streams SGLang reads and writes it."""

from __future__ import annotations

import threading
from collections.abc import Callable


class EngineStreams:
    """The engine's streams whose work so far must end before a copy touches its pages.

    SGLang's scheduler thread works on one stream for its whole life, the schedule stream. With overlap it launches each
    forward on another one, the forward stream, behind the schedule stream, and begins the next pass while that forward
    runs; without, forwards run on the schedule stream, and the forward stream stays idle. Pages that the scheduler has
    just freed may so be read or written by a forward on either, and so may pages that it offers to publish.

    Copies are submitted by the scheduler's thread and, when they waited for their turn, by a copying thread, where the
    current stream is none of the engine's: then the stream on which the scheduler's thread was last seen counts.
    """

    def __init__(self, current: Callable[[], int], forward: int) -> None:
        """Belong to the thread that calls, which must be the scheduler's."""
        self.current = current
        self._forward = forward
        self._thread = threading.get_ident()
        self._schedule = current()

    def fences(self) -> tuple[int, ...]:
        """Return the streams, each once."""
        if threading.get_ident() == self._thread:
            self._schedule = self.current()
        if self._schedule == self._forward:
            return (self._forward,)
        return (self._schedule, self._forward)
