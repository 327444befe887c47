"""Timeline records: one log line `cache_timeline {json}` per stage of a request, when ORBITKV_TRACE_TRANSFERS=1.

A record names the request, the process and the time; it never holds tokens or keys. `monotonic_ns` compares inside one
process, and between processes whose first records, of the stage `process`, name the same boot and time namespace.
`orbitkv trace` reads the lines. Writing goes through the logger `orbitkv.timeline`, which gets its own handler on
stderr, since an engine's logging configuration may drop what it does not know.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from enum import Enum
from pathlib import Path

SWITCH = "ORBITKV_TRACE_TRANSFERS"
PREFIX = "cache_timeline "
PROCESS = "process"  # the stage of a process's first record, which belongs to no request


class Stage(str, Enum):
    """What happened. The words are those of the metrics and of the Manager's own records."""

    QUEUED = "queued"  # the engine accepted the request
    STAGED = "staged"  # its wait for a slower tier ended: elapsed_us, pages that it got, whether it stopped the reading
    RESTORE_SUBMIT = "restore_submit"  # the copies of its pages were handed to the backend
    LAYER_READY = "layer_ready"  # the last byte of one layer arrived
    LAYER_USED = "layer_used"  # the engine's forward passed the wait of one layer
    GPU_READY = "gpu_ready"  # every layer arrived, or the restore failed (field success); how the copies were made
    FIRST_USE = "first_use"  # the first step that computes for the request; elapsed_us since it was queued


_telling = threading.Lock()
_told: set[int] = set()  # processes whose first record is written; a fork is another


class Timeline:
    """Writes records of one engine process. Thread-safe; does nothing unless it is enabled."""

    def __init__(self, engine: str, enabled: bool | None = None) -> None:
        self.enabled = os.environ.get(SWITCH) == "1" if enabled is None else enabled
        self._engine = engine
        self._pid = os.getpid()
        self._log = logging.getLogger("orbitkv.timeline")
        if not self.enabled:
            return
        # A record is written once: an engine whose logging takes everything would write it again.
        self._log.propagate = False
        if not self._log.handlers:
            handler = logging.StreamHandler(sys.stderr)
            handler.setFormatter(logging.Formatter("%(message)s"))
            self._log.addHandler(handler)
            self._log.setLevel(logging.INFO)
        with _telling:
            if self._pid not in _told:
                _told.add(self._pid)
                self._write(PROCESS, boot_id=_boot_id(), time_namespace=_time_namespace())

    def record(self, stage: Stage, request: str, **fields: int | float | str | bool) -> None:
        """Write one record. `fields` are numbers and short words, never tokens or keys."""
        if not self.enabled:
            return
        self._write(stage.value, request_id=request, **fields)

    def _write(self, stage: str, **fields: int | float | str | bool) -> None:
        head = {"stage": stage, "engine": self._engine, "pid": self._pid, "monotonic_ns": time.monotonic_ns()}
        self._log.info("%s%s", PREFIX, json.dumps({**head, **fields}, separators=(",", ":")))


def _boot_id() -> str:
    """Return what tells one boot of one machine from all others; empty where the kernel does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _time_namespace() -> str:
    """Return the number by which the kernel names the clocks of this process; empty where it does not tell."""
    try:
        return str(Path("/proc/self/ns/time").readlink()).removeprefix("time:[").removesuffix("]")
    except OSError:
        return ""


def parse(line: str) -> dict[str, object] | None:
    """Return the record that a log line carries, or None when it carries none."""
    at = line.find(PREFIX)
    if at < 0:
        return None
    record = json.loads(line[at + len(PREFIX) :])
    return record if isinstance(record, dict) else None
