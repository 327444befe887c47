"""How the scheduler's thread waits for copies to end: with a bound, and not for copies that cannot end any more."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from orbitkv.transfer import STALL_SECONDS

CHECK_SECONDS = 1.0  # how often a wait looks whether the device faulted


def wait_ended(changed: threading.Condition, ended: Callable[[], bool], check: Callable[[], None]) -> bool:
    """Wait until copies have ended, at most STALL_SECONDS; return whether they have. `check` raises when none can."""
    deadline = time.monotonic() + STALL_SECONDS
    while True:
        with changed:
            if changed.wait_for(ended, CHECK_SECONDS):
                return True
        check()
        if time.monotonic() >= deadline:
            return False
