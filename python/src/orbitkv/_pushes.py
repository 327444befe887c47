"""The thread that maps pushed arenas and tells the owner of notices, so that the thread that reads never waits.

What the owner's callbacks raise does not end it: an arena is then said to be unusable, a notice is lost, and the log
tells. Whatever else ends it ends the channel too, since nobody would map arenas then.

Notices are hints: past NOTICES_MAX they are dropped and counted. Arenas are never dropped; the Manager has at most
ARENAS_MAX of them.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable

from orbitkv import _wire
from orbitkv._arenas import Arena, ArenaTable, map_arena
from orbitkv._faults import FAULTS
from orbitkv.errors import ArenaError, ChannelClosed, ProtocolError

NOTICES_MAX = 1024
ARENAS_MAX = 65536

log = logging.getLogger("orbitkv.client")


class Pushes:
    """Queue and thread of one client.

    `answer` sends a frame and `end` closes the channel for a reason; the client sets both before a push can come.
    `on_refused()` counts the arenas that cannot be used, but for those that an owner lets go of as it ends.
    """

    def __init__(
        self,
        arenas: ArenaTable,
        on_arena: Callable[[Arena], None] | None,
        on_notice: Callable[[_wire.Notice], None] | None,
        on_refused: Callable[[], None],
    ) -> None:
        self.answer: Callable[[_wire.Message], None] | None = None
        self.end: Callable[[str], None] | None = None
        self.notices_dropped = 0
        self._table = arenas
        self._on_arena = on_arena
        self._on_notice = on_notice
        self._on_refused = on_refused
        self._changed = threading.Condition()
        self._arenas: deque[tuple[_wire.Arena, int]] = deque()
        self._notices: deque[_wire.Notice] = deque()
        self._closing = False
        self._thread: threading.Thread | None = None

    def arena(self, message: _wire.Arena, descriptor: int) -> None:
        """Queue an arena; the descriptor becomes the queue's. ProtocolError past the bound."""
        with self._changed:
            if self._closing:
                os.close(descriptor)
                return
            if len(self._arenas) >= ARENAS_MAX:
                os.close(descriptor)
                raise ProtocolError(f"arena {message.arena} came after {len(self._arenas)} unmapped ones")
            self._arenas.append((message, descriptor))
            self._wake()

    def notice(self, message: _wire.Notice) -> None:
        """Queue a notice for the owner, who may not want any."""
        if self._on_notice is None:
            return
        with self._changed:
            if self._closing or len(self._notices) >= NOTICES_MAX:
                self.notices_dropped += 1
                return
            self._notices.append(message)
            self._wake()

    def stop(self) -> None:
        """Begin nothing more: arenas and notices that wait or come are given up. What runs goes on."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def close(self) -> None:
        """Stop, and wait for the end of what runs."""
        self.stop()
        with self._changed:
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        while self._arenas:
            os.close(self._arenas.popleft()[1])

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="orbitkv-pushes", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:
            if self.end is not None:
                self.end(f"the thread that maps arenas ended: {type(error).__name__}: {error}")
            raise

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._arenas or self._notices)
                if self._closing:
                    return
                arena = self._arenas.popleft() if self._arenas else None
                notice = self._notices.popleft() if arena is None else None
            if arena is not None:
                self._map(*arena)
            elif notice is not None:
                self._notify(notice)

    def _notify(self, notice: _wire.Notice) -> None:
        try:
            if self._on_notice is not None:
                self._on_notice(notice)
        except FAULTS:
            log.exception("the owner could not take a notice about %s %d", notice.topic.name.lower(), notice.id)

    def _map(self, message: _wire.Arena, descriptor: int) -> None:
        fault = ""
        try:
            arena, mapping = map_arena(message.arena, message.node, message.bytes, descriptor)
            if self._on_arena is not None:
                self._on_arena(arena)
            self._table.add(arena, mapping)
        except ArenaError as error:
            fault = str(error)
        except FAULTS as error:
            fault = f"arena {message.arena} could not be registered: {type(error).__name__}: {error}"
        except BaseException as error:
            fault = f"arena {message.arena} ended its thread: {type(error).__name__}: {error}"
            raise
        finally:
            os.close(descriptor)
            self._tell(message, fault)

    def _tell(self, message: _wire.Arena, fault: str) -> None:
        if fault:
            self._note(fault)
        text = fault.encode(errors="replace")[: _wire.TEXT_BYTES_MAX].decode(errors="ignore")
        try:
            if self.answer is not None:
                self.answer(_wire.Mapped(message.arena, not fault, text))
        except ChannelClosed:
            return  # Nobody is left to tell.
        if not fault:
            self._table.announce()

    def _note(self, fault: str) -> None:
        """Tell and count an arena that cannot be used; that an owner lets go of one as it ends is no fault."""
        if self._closing:
            log.debug("%s; pages in it are not used by this process", fault)
            return
        log.error("%s; pages in it are not used by this process", fault)
        self._table.refuse(fault)
        self._on_refused()
