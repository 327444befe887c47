"""The answer of one call, as the thread that reads collects it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from orbitkv import _wire
from orbitkv.errors import ProtocolError

Message = _wire.Message


class Reply:
    """The answer of one call, in parts until it is complete. Its fields are set by the thread that reads."""

    __slots__ = ("complete", "gate", "hook", "id", "parts")

    def __init__(self, hook: Callable[[list[Message]], None] | None = None) -> None:
        self.id = 0
        self.parts: list[Message] = []
        self.complete = False
        self.gate: threading.Event | None = None
        self.hook = hook

    def take(self, message: Message) -> bool:
        """Add a part and return whether it was the last. ProtocolError when parts are out of order."""
        self.parts.append(message)
        if not isinstance(message, _wire.Result | _wire.Reserved):
            return True
        if message.part != len(self.parts) - 1 or message.part >= message.parts:
            raise ProtocolError(f"part {message.part} of {message.parts} came as number {len(self.parts)} of an answer")
        return message.part == message.parts - 1
