"""The timeline of the real Manager: stages of queries that the SSD serves, joined with those of other processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from python.tests.manager.conftest import Start

from harness import oracle
from harness import ssd as tier
from harness.manager import ManagerProcess, eventually
from harness.replica import Replica
from harness.server import SOURCE
from harness.ssd import Volume
from orbitkv.client import State
from orbitkv.timeline import PREFIX, Stage, parse

PAGES = 20
ANSWER_S = 60.0
ADAPTER = """
import sys
from orbitkv.timeline import Stage, Timeline
Timeline("engine-1", True).record(Stage(sys.argv[1]), sys.argv[2])
"""


def records(manager: ManagerProcess) -> list[dict[str, object]]:
    """Return what the Manager's log has of the timeline."""
    lines = manager.log.read_text(errors="replace").splitlines()
    return [record for line in lines if (record := parse(line)) is not None]


def ask(replica: Replica, keys: bytes, request: str) -> None:
    """Ask for a prefix under a request's id until it is in the pool, and give it back."""
    query = replica.scheduler.query(replica.namespace, keys, instance=replica.instance, request=request)
    assert query.wait(ANSWER_S) is State.READY
    assert query.lease is not None
    assert query.lease.pages == PAGES
    query.lease.release()


def record_stage(log: Path, stage: Stage, request: str) -> None:
    """Let a process of its own write one stage of a request, as an engine's adapter does."""
    command = [sys.executable, "-c", ADAPTER, stage.value, request]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    with log.open("ab") as out:
        subprocess.run(command, stderr=out, env=environment, check=True, timeout=ANSWER_S)


def test_a_query_that_the_ssd_serves_says_when_it_began_and_what_came(
    start_manager: Start, volume: Volume, orbitkv_binary: Path, tmp_path: Path
) -> None:
    manager = start_manager("64mib", *volume.options(), "--trace-transfers")
    keys = oracle.prefix(1, PAGES)
    engine = tmp_path / "engine.log"
    begun_ns = time.monotonic_ns()
    with Replica(manager.socket, "one") as replica:
        assert replica.publish(keys) == PAGES
        tier.wait_stored(manager, PAGES)
        tier.empty_memory(manager)
        record_stage(engine, Stage.QUEUED, "req-1")
        ask(replica, keys, "req-1")
        record_stage(engine, Stage.FIRST_USE, "req-1")
        ask(replica, keys, "req-2")  # it is in the pool by now
        eventually(lambda: len(records(manager)) >= 3, "the lines are in the log")
        slice_bytes = replica.shape.slice_bytes
    manager.stop()

    process, start, ready = records(manager)
    assert process["stage"] == "process"
    assert process["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    assert process["time_namespace"] == str(Path("/proc/self/ns/time").stat().st_ino)
    for record, stage, hits in ((start, "read_start", 0), (ready, "host_ready", PAGES)):
        assert (record["stage"], record["request_id"], record["instance_id"]) == (stage, "req-1", "one")
        assert (record["hit_blocks"], record["pages"], record["pid"]) == (hits, PAGES, process["pid"])
        assert int(str(record["bytes"])) >= PAGES * slice_bytes
    assert start["elapsed_us"] == 0
    assert int(str(ready["elapsed_us"])) > 0
    times = [int(str(record["monotonic_ns"])) for record in (process, start, ready)]
    assert times[0] < begun_ns < times[1] < times[2] < time.monotonic_ns()
    assert names_no_key(manager.log.read_text(errors="replace"), keys)

    shown = trace(orbitkv_binary, engine, manager.log)
    assert shown.returncode == 0, shown.stderr
    stages = [line.split("|")[2].split()[0] for line in shown.stdout.splitlines() if "|" in line]
    assert stages == ["queued", "read_start", "host_ready", "first_use"]
    assert "one boot and time namespace, so one clock" in shown.stdout


def names_no_key(text: str, keys: bytes) -> bool:
    """Return whether no record in a text has one of the keys in it."""
    lines = [line for line in text.splitlines() if PREFIX in line]
    named = [keys[at : at + 32].hex() for at in range(0, len(keys), 32)]
    return not any(name[:16] in line for line in lines for name in named)


def trace(binary: Path, *logs: Path) -> subprocess.CompletedProcess[str]:
    """Return what `orbitkv trace` says of logs."""
    command = [str(binary), "trace", *map(str, logs)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=ANSWER_S)


def test_a_manager_writes_no_timeline_unless_it_is_switched_on(
    start_manager: Start, volume: Volume, orbitkv_binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ORBITKV_TRACE_TRANSFERS", raising=False)
    manager = start_manager("64mib", *volume.options())
    keys = oracle.prefix(1, PAGES)
    with Replica(manager.socket, "one") as replica:
        assert replica.publish(keys) == PAGES
        tier.wait_stored(manager, PAGES)
        tier.empty_memory(manager)
        ask(replica, keys, "req-1")
    manager.stop()
    assert records(manager) == []
    said = trace(orbitkv_binary, manager.log)
    assert said.returncode == 1
    assert "ORBITKV_TRACE_TRANSFERS=1" in said.stderr
