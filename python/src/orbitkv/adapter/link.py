"""A thread that keeps one session with the Cache Manager: connects, looks after it, and connects anew.

The engine's threads only read `Link.session`; they never connect, register or wait here. The first attempt runs in the
caller, so that a misconfiguration stops the engine at its start; an absent Manager is a warning, and it is tried again
each second. `stop` joins the thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Generic, Protocol, TypeVar

from orbitkv.adapter.logs import LOGGER
from orbitkv.client import Status
from orbitkv.errors import ConfigurationError, ManagerUnavailable, OrbitKVError, Refused

RETRY_SECONDS = 1.0  # between two attempts to connect
TICK_SECONDS = 0.1  # between two looks at a session that is not complete yet
WATCH_SECONDS = 0.25  # between two looks at a complete session

# Refusals that no waiting mends: they stop an engine that starts.
FATAL = frozenset({Status.WRONG_ABI, Status.WRONG_USER, Status.NO_LIVENESS, Status.CONFLICT})

# What an attempt may fail with besides: no descriptor, thread or memory is left. It is tried again like the others.
EXHAUSTED = (OSError, RuntimeError, MemoryError)

log = logging.getLogger(LOGGER)


class Session(Protocol):
    """What the link needs of a session."""

    @property
    def incarnation(self) -> bytes:
        """Return the life of the Manager that the session is with."""
        ...

    @property
    def alive(self) -> bool:
        """Return whether the channel is open and nothing failed on it."""
        ...

    def advance(self) -> bool:
        """Do the next step towards being complete; return whether it is. Called by the link's thread alone."""
        ...

    def detach(self) -> None:
        """Let running copies end and leave the instance for good; `close` follows. Called where no session follows."""
        ...

    def close(self) -> None:
        """Finish running copies, unmap and close the channel."""
        ...


S = TypeVar("S", bound=Session)


class Link(Generic[S]):
    """Owns the current session. `connect(previous)` makes the next one; the previous one is closed after it.

    `exchange()` is entered around both, for an engine that may be in the middle of using the previous one.
    """

    def __init__(
        self,
        name: str,
        connect: Callable[[S | None], S],
        clock: Callable[[], float] = time.monotonic,
        exchange: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._name = name
        self._connect = connect
        self._clock = clock
        self._exchange = exchange
        self._session: S | None = None
        self._wake = threading.Event()
        self._stopping = False
        self._absent = False  # whether the absence was already told
        self._refusal = ""
        self._thread: threading.Thread | None = None

    @property
    def session(self) -> S | None:
        """Return the session if it is usable on the channel, else None. Any thread may read it."""
        session = self._session
        return session if session is not None and session.alive else None

    def session_of(self, incarnation: bytes) -> S | None:
        """Return the session with that life of the Manager, also after its channel closed: its mappings still stand."""
        session = self._session
        return session if session is not None and session.incarnation == incarnation else None

    def start(self) -> None:
        """Try once, then leave the rest to the thread. ConfigurationError and FATAL refusals stop an engine's start."""
        try:
            self.open_once()
        except ManagerUnavailable as fault:
            self._tell_absence(fault)
        except (OrbitKVError, *EXHAUSTED) as fault:
            if isinstance(fault, ConfigurationError) or (isinstance(fault, Refused) and fault.status in FATAL):
                self._close()
                raise
            log.warning("%s: %s", self._name, fault)
        self._thread = threading.Thread(target=self._run, name=f"orbitkv-{self._name}", daemon=True)
        self._thread.start()

    def open_once(self) -> None:
        """Connect if there is no session and advance it by one step, in the caller; faults are the caller's."""
        if self.session is None:
            self._open()
        if self._session is not None:
            self._session.advance()

    def wake(self) -> None:
        """Make the thread look at once."""
        self._wake.set()

    def stop(self) -> None:
        """End the thread, leave the instance and close the session."""
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        if (session := self.session) is not None:
            try:
                session.detach()
            except OrbitKVError as fault:
                log.debug("%s: left without a word to the Cache Manager: %s", self._name, fault)
        self._close()

    def _run(self) -> None:
        pause = TICK_SECONDS
        while not self._stopping:
            self._wake.wait(pause)
            self._wake.clear()
            if not self._stopping:
                pause = self._look_after()

    def _look_after(self) -> float:
        """Connect or advance once; return how long the next look may wait, in seconds."""
        try:
            if self._session is None or not self._session.alive:
                self._open()
            complete = self._session is not None and self._session.advance()
        except ManagerUnavailable as fault:
            self._tell_absence(fault)
        except (Refused, ConfigurationError) as fault:
            self._tell_refusal(str(fault))
        except (OrbitKVError, *EXHAUSTED) as fault:
            self._tell_refusal(str(fault), logging.WARNING)
        else:
            self._refusal = ""  # What went wrong before is over, and would be told again.
            return WATCH_SECONDS if complete else TICK_SECONDS
        return RETRY_SECONDS

    def _open(self) -> None:
        with self._exchange():
            previous = self._session
            session = self._connect(previous)
            self._session = session
            if previous is not None:
                previous.close()
        if self._absent or previous is not None:
            log.info("%s: connected to the Cache Manager", self._name)
        self._absent = False
        self._refusal = ""

    def _close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _tell_absence(self, fault: ManagerUnavailable) -> None:
        if not self._absent:
            log.warning(
                "%s: %s The engine serves without external hits; this is tried again each second.", self._name, fault
            )
        self._absent = True

    def _tell_refusal(self, text: str, level: int = logging.ERROR) -> None:
        """Say why there is no session, once for as long as it is the same."""
        if text != self._refusal:
            log.log(
                level,
                "%s: %s The engine serves without external hits; this is tried again each second.",
                self._name,
                text,
            )
        self._refusal = text
