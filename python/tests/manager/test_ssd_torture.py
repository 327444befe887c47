"""The SSD tier under load: Managers that are killed, and many clients with a working set far larger than the pool."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from python.tests.manager.conftest import Spawn, Start

from harness import ssd as tier
from harness import ssd_crowd, ssd_kills
from harness.base import SETTLED_AT_ZERO
from harness.manager import ManagerProcess, eventually
from harness.ssd import Volume

CYCLES = 12
PROCESSES, SESSIONS, ROUNDS = 4, 16, 12
CROWD_LIMIT_S = 600.0
POOL_BYTES = 16 << 20
WORKING_SET = ssd_crowd.PREFIXES * ssd_crowd.PAGES * ssd_crowd.SHAPE.slice_bytes


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_managers_that_are_killed_under_load(start_manager: Start, orbitkv_binary: Path, volume: Volume) -> None:
    manager = start_manager(ssd_kills.POOL, *volume.options(capacity=str(ssd_kills.CAPACITY_BYTES)))
    kills = ssd_kills.Kills(manager, orbitkv_binary, volume, seed=1)
    with kills.running():
        for number in range(CYCLES):
            kills.cycle(verify=number % 2 == 0, clear=number % 4 == 3)
    assert kills.found > 0, "no page outlived a kill"
    assert kills.cleared > 0


def test_a_crowd_with_a_working_set_of_eight_pools(
    start_manager: Start, spawn: Spawn, volume: Volume, tmp_path: Path
) -> None:
    """Some are stopped, one process dies; the others go on, no byte is wrong, and nothing is left at the end."""
    assert WORKING_SET >= 8 * POOL_BYTES
    manager = start_manager(str(POOL_BYTES), *volume.options(capacity="192mib"))
    path = tmp_path / "counts"
    rows = (PROCESSES + 1) * SESSIONS
    np.zeros(2 * rows, np.uint64).tofile(path)

    def begin(number: int) -> subprocess.Popen[str]:
        words = (manager.socket, f"crowd-{number}", 1000 * number, SESSIONS, ROUNDS, path, number * SESSIONS)
        process = spawn(*words, module="harness.ssd_crowd")
        assert process.stdout is not None
        assert process.stdout.readline() == "at work\n"
        return process

    crowd = [begin(number) for number in range(PROCESSES)]
    moments = random.Random(3)
    eventually(lambda: tier.read(manager) > 0, "pages come from the SSD")
    for process in crowd[:2]:
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(moments.random())  # The moment itself is what is drawn.
        os.kill(process.pid, signal.SIGCONT)
    crowd[0].kill()
    crowd[0].wait()
    crowd.append(begin(PROCESSES))
    for process in crowd[1:]:
        output, _ = process.communicate(timeout=CROWD_LIMIT_S)
        assert process.returncode == 0, output
    settled(manager)
    check_sums(manager, np.fromfile(path, np.uint64).reshape(-1, 2))
    assert tier.read(manager) > 0
    assert tier.unreadable(manager) == 0


def settled(manager: ManagerProcess) -> None:
    """Return once nothing is held by anybody; the Manager's own check must then hold."""
    stats: dict[str, Any] = {}

    def quiet() -> bool:
        stats.update(manager.status()["cache"]["stats"])
        return stats["sessions"] == 0 and not any(stats[name] for name in SETTLED_AT_ZERO)

    eventually(quiet, "nobody holds anything")
    store = manager.status()["ssd"]["stats"]
    assert [name for name in tier.BUSY if store[name]] == []
    assert manager.violations() == []


def check_sums(manager: ManagerProcess, counts: Any) -> None:
    """Compare what the Manager counted with itself, and with what the clients asked for."""
    stats = manager.status()["cache"]["stats"]
    ended = stats["warmup_restored_bytes_total"] + stats["warmup_unused_bytes_total"]
    assert stats["warmup_prepared_bytes_total"] == ended + stats["warmup_pending_bytes"]
    tiers = manager.metrics("orbitkv_cache_tier_block_requests_total")
    assert sum(tiers.values()) == stats["page_hits_total"] + stats["page_misses_total"]
    # A query that was given up before its end is in neither; one that a killed client never heard of may be.
    asked, answered = (int(column) for column in counts.sum(axis=0))
    assert answered <= sum(tiers.values()) <= asked
    tier.empty_memory(manager)
    stats = manager.status()["cache"]["stats"]
    assert stats["warmup_pending_bytes"] == 0
