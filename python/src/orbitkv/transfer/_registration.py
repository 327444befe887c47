"""Arenas locked in memory and mapped for a CUDA device, so that its copy engines read and write them.

An arena is registered in chunks by whoever brings it, in the background of the engine: launches of the engine's
threads wait while a chunk is being locked, so a pause as long as the chunk took follows it, also between two arenas.
An engine that starts and does not serve yet waits for the arenas itself, so nothing pauses. No copy may cross the
border of two chunks.

Lock order: none is nested. `_changed` guards the table; calls of the driver are made outside of it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import numpy as np

from orbitkv._arenas import Arena
from orbitkv.errors import ArenaError, DeviceError
from orbitkv.transfer._driver import Addresses, Driver
from orbitkv.transfer._limits import limits_text, size_text

REGISTER_CHUNK_BYTES = 256 << 20  # locked by one call; larger chunks are no faster, smaller ones are slower

log = logging.getLogger("orbitkv.transfer")


class Registration:
    """One arena. While it is `running` its thread alone adds `chunks`; `wanted` says whether it shall go on."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena  # The view keeps the memory mapped as long as the device may map it.
        self.chunks: list[int] = []  # addresses that were given to the driver
        self.running = True
        self.wanted = True


class Registrations:
    """The arenas of one backend on one device. Thread-safe.

    Whoever unregisters has seen the end of every copy that used the arena (I2).
    """

    def __init__(
        self,
        driver: Driver,
        serving: Callable[[], bool] = lambda: True,
        *,
        chunk_bytes: int = REGISTER_CHUNK_BYTES,
        clock: Callable[[], float] = time.monotonic,
        changed: threading.Condition | None = None,
        limits: Callable[[], str] = limits_text,
    ) -> None:
        self._driver = driver
        self._serving = serving
        self._chunk_bytes = chunk_bytes
        self._clock = clock
        self._limits = limits
        self._changed = changed or threading.Condition()
        self._table: dict[int, Registration] = {}
        self._kept: list[Registration] = []  # those that the driver did not let go of
        self._quiet_until = clock()
        self._closing = False

    def register(self, arena: Arena) -> None:
        """Lock an arena, in the calling thread. ArenaError names the limits, and nothing of it is locked then."""
        registration = Registration(arena)
        with self._changed:
            if self._closing:
                raise ArenaError(f"arena {arena.id} is not registered: its backend is closed")
            if arena.id in self._table:
                raise ArenaError(f"arena {arena.id} is registered already")
            self._table[arena.id] = registration
        complete = False
        try:
            began = self._clock()
            locking = self._lock_chunks(registration)
            complete = True
        except DeviceError as fault:
            raise ArenaError(self._failure(registration, fault)) from fault
        finally:
            if not complete:
                self._undo(registration)
            with self._changed:
                registration.running = False
                if not complete:
                    del self._table[arena.id]
                self._changed.notify_all()
        self._tell(arena, locking, self._clock() - began)

    def unregister(self, arena: int) -> None:
        """Let go of an arena that no copy uses any more; a registration of it that runs ends early."""
        with self._changed:
            registration = self._table.get(arena)
            if registration is None:
                return
            registration.wanted = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: not registration.running)
            if self._table.get(arena) is not registration:
                return
            del self._table[arena]
        self._undo(registration)

    def borders(self, arena: int) -> Addresses:
        """Return the addresses inside of an arena at which a further chunk begins. ArenaError: it is not registered."""
        with self._changed:
            registration = self._table.get(arena)
            if registration is None or registration.running:
                raise ArenaError(f"arena {arena} is not registered with CUDA device {self._driver.index}")
            return np.array(registration.chunks[1:], np.uint64)

    def close(self) -> None:
        """Let go of every arena, which no copy uses any more; a registration that runs ends early."""
        with self._changed:
            self._closing = True
            arenas = list(self._table)
        for arena in arenas:
            self.unregister(arena)

    def _lock_chunks(self, registration: Registration) -> float:
        """Lock chunk after chunk and return the seconds that this took without the pauses."""
        arena = registration.arena
        locking = 0.0
        self._driver.bind()
        for offset in range(0, arena.bytes, self._chunk_bytes):
            self._pause(registration)
            began = self._clock()
            self._driver.register(arena.address + offset, min(self._chunk_bytes, arena.bytes - offset))
            registration.chunks.append(arena.address + offset)
            ended = self._clock()
            locking += ended - began
            with self._changed:
                self._quiet_until = ended + (ended - began)
        return locking

    def _pause(self, registration: Registration) -> None:
        """Leave the driver to an engine that serves, as long as the last chunk took. ArenaError: nobody wants more."""
        with self._changed:
            seconds = max(0.0, self._quiet_until - self._clock()) if self._serving() else 0.0
            self._changed.wait_for(lambda: not registration.wanted, seconds)
            if not registration.wanted:
                raise ArenaError(f"arena {registration.arena.id} was let go of while it was being registered")

    def _undo(self, registration: Registration) -> None:
        faults: list[DeviceError] = []
        for address in registration.chunks:
            try:
                self._driver.bind()  # Who lets go is another thread than who locked.
                self._driver.unregister(address)
            except DeviceError as fault:
                faults.append(fault)
        if faults:
            # I2: what a device may still map is not unmapped, so that its addresses mean nothing else.
            with self._changed:
                self._kept.append(registration)
            log.error(
                "arena %d: %d of %d chunks could not be unregistered from CUDA device %d: %s; "
                "its memory stays in use until this process ends",
                registration.arena.id,
                len(faults),
                len(registration.chunks),
                self._driver.index,
                faults[0],
            )

    def _failure(self, registration: Registration, fault: DeviceError) -> str:
        arena = registration.arena
        done = len(registration.chunks) * self._chunk_bytes
        return (
            f"arena {arena.id} of {size_text(arena.bytes)} cannot be locked for CUDA device {self._driver.index}: "
            f"{fault}, after {size_text(done)} of it. {self._limits()}"
        )

    def _tell(self, arena: Arena, locking: float, whole: float) -> None:
        with self._changed:
            total = sum(each.arena.bytes for each in self._table.values() if not each.running)
        log.info(
            "arena %d: %s registered with CUDA device %d in %.2f s (%.1f GB/s, %.2f s with pauses); %s so far",
            arena.id,
            size_text(arena.bytes),
            self._driver.index,
            locking,
            arena.bytes / 1e9 / locking if locking > 0 else 0.0,
            whole,
            size_text(total),
        )
