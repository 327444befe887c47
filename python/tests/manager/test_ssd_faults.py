"""The SSD tier on disks that fail, stall, fill up, turn read-only or are taken away: misses, never more than that."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from python.tests.manager.conftest import Start

from harness import oracle
from harness import ssd as tier
from harness.manager import ManagerFailure, ManagerProcess, eventually
from harness.replica import Replica
from harness.ssd import STALLING, Volume
from orbitkv.client import State

PAGES = 60
ROUNDS = 8
CAPACITY = "64mib"
OFF_LIMIT_ROUNDS = 60
Act = Callable[[], object]


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """Return the folder of a small file system of its own; skips where none may be mounted."""
    image, folder = tmp_path / "image", tmp_path / "mounted"
    folder.mkdir()
    with image.open("wb") as out:
        out.truncate(160 << 20)
    try:
        for command in (f"mkfs.ext4 -q {image}", f"mount -o loop,errors=remount-ro {image} {folder}"):
            subprocess.run(command.split(), check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as fault:
        pytest.skip(f"no file system can be mounted here: {fault}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def serve(replica: Replica, first: int, rounds: int = ROUNDS) -> int:
    """Publish prefixes, restore each at once and older ones; return the pages that came back. Bytes are compared."""
    found = 0
    for seed in range(first, first + rounds):
        keys = oracle.prefix(seed, PAGES)
        replica.publish(keys)
        found += replica.restore(keys)
        for older in (seed - ROUNDS, seed - 2 * ROUNDS):
            found += replica.restore(oracle.prefix(max(0, older), PAGES))
    return found


def degraded(manager: ManagerProcess, replica: Replica, state: str, text: str, act: Act = lambda: None) -> int:
    """Let requests go on until the folder has failed, and look for the pattern `text` in what the Manager says of it.

    They go on after that. Return the number behind the last prefix that was published until then.
    """
    for first in range(0, ROUNDS * OFF_LIMIT_ROUNDS, ROUNDS):
        serve(replica, first)
        act()
        if manager.status()["health"] == "degraded":
            break
    status = manager.status()
    (folder,) = status["ssd"]["volumes"]
    assert (status["health"], folder["state"]) == ("degraded", state)
    assert re.search(text, folder["reason"])
    assert serve(replica, 10_000) > 0, "the pool goes on without new pages of the tier"
    return first + ROUNDS


def read_only(manager: ManagerProcess, replica: Replica, text: str) -> int:
    """Let requests go on until the folder takes no writes, and read its pages all the same; return how many."""
    behind = degraded(manager, replica, "read_only", text)
    stored = tier.stored(manager)
    assert stored > 0
    tier.empty_memory(manager)
    before = tier.read(manager)
    found = sum(replica.restore(oracle.prefix(seed, PAGES)) for seed in range(behind))
    assert found > 0
    assert tier.read(manager) - before >= found, "nothing of them lay in the pool"
    assert tier.stored(manager) == stored
    return found


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("payload:write-enospc-after=12mb", "no space left"),
        ("index:write-eio=3", "input/output error"),
        ("index:write-enospc-after=64kb", "no space left"),
    ],
)
def test_a_folder_that_takes_no_writes_is_read(start_manager: Start, volume: Volume, fault: str, text: str) -> None:
    manager = start_manager("16mib", *volume.options(fault, CAPACITY))
    with Replica(manager.socket, "one") as replica:
        read_only(manager, replica, text)
        assert manager.metrics("orbitkv_ssd_write_admission_skips_total")['reason="read_only"'] > 0
        manager.verb("/cache/clear")
        assert tier.stored(manager) == 0
    assert manager.violations() == []


def test_a_payload_that_is_cut_under_its_manager(start_manager: Start, volume: Volume) -> None:
    """Reads that find the file's end turn the folder off like those that the disk refuses; writes would go on."""
    manager = start_manager("16mib", *volume.options(capacity=CAPACITY))

    def lose() -> None:
        os.truncate(volume.folder / "payload", 0)
        manager.verb("/cache/memory/cleanup")

    with Replica(manager.socket, "one") as replica:
        assert serve(replica, 0) > 0
        degraded(manager, replica, "off", "reads failed", lose)
        assert tier.stored(manager) == 0
    assert manager.metrics("orbitkv_ssd_prefetch_failures_total")['reason="short"'] > 0
    assert manager.violations() == []


@pytest.mark.parametrize("fault", ["write-eio=7", "read-eio=7", "read-flip=7", "write-eio=5,read-flip=3,read-eio=11"])
def test_single_faults_cost_pages_and_nothing_else(start_manager: Start, volume: Volume, fault: str) -> None:
    spec = ",".join(f"payload:{rule}" for rule in fault.split(","))
    manager = start_manager("16mib", *volume.options(spec, CAPACITY))
    failed = 0.0
    with Replica(manager.socket, "one") as replica:
        for first in range(0, OFF_LIMIT_ROUNDS * ROUNDS, ROUNDS):
            assert serve(replica, first) > 0
            manager.verb("/cache/memory/cleanup")
            failed = manager.metric("orbitkv_ssd_write_failures_total") + tier.unreadable(manager)
            if failed >= 3:
                break
    status = manager.status()
    assert (status["health"], status["ssd"]["volumes"][0]["state"]) == ("ok", "on")
    assert failed >= 3
    assert manager.violations() == []


def test_a_slow_disk_keeps_neither_the_pool_nor_anybody(start_manager: Start, volume: Volume) -> None:
    """Pages that wait for the disk are a part of the pool: whatever is published finds room meanwhile."""
    manager = start_manager("16mib", *volume.options("write-rate=1mb,read-rate=4mb", CAPACITY))
    with Replica(manager.socket, "one") as replica:
        for seed in range(16):
            keys = oracle.prefix(seed, PAGES)
            assert replica.publish(keys) == PAGES
            assert replica.restore(keys, expect=PAGES) == PAGES
            assert manager.metric("orbitkv_ssd_write_held_bytes") <= (16 << 20) // 4
    assert manager.metric("orbitkv_ssd_write_queue_full_total") > 0


def test_a_stop_waits_for_reads_that_stall_and_then_ends(start_manager: Start, volume: Volume) -> None:
    manager = start_manager("16mib", *volume.options(STALLING, CAPACITY))
    keys = oracle.prefix(1, PAGES)
    with Replica(manager.socket, "one") as replica:
        pages = replica.publish(keys)
        tier.wait_stored(manager, pages)
        tier.empty_memory(manager)
        volume.stall()
        query = replica.scheduler.query(replica.namespace, keys, instance="one", wait_us=None)
        assert query.state is State.PREPARING
        eventually(lambda: manager.metric("orbitkv_ssd_prefetch_inflight") > 0, "reads are under way")
        cancelled = replica.scheduler.query(replica.namespace, keys, instance="one", wait_us=None)
        cancelled.cancel()
        assert query.stop(None) is State.READY
        assert query.lease is None
        other = oracle.prefix(2, PAGES)
        assert replica.publish(other) == PAGES, "what the stalled reads do not have is lent"
        assert replica.restore(other, expect=PAGES) == PAGES
        assert manager.metric("orbitkv_ssd_prefetch_inflight") > 0
    with ThreadPoolExecutor(1) as pool:
        stopping = pool.submit(manager.stop)
        eventually(lambda: "waited for" in manager.log_tail(), "the Manager waits for what it submitted")
        assert not stopping.done()
        volume.resume()
        stopping.result()
    manager.start()
    with Replica(manager.socket, "two") as replica:
        assert replica.restore(keys, expect=PAGES) == PAGES


def test_a_file_system_that_turns_read_only(mounted: Path, start_manager: Start) -> None:
    """Its pages are read. A clear makes misses of them, and says that no more can be done."""
    volume = Volume(mounted / "ssd")
    manager = start_manager("16mib", *volume.options(capacity=CAPACITY))
    with Replica(manager.socket, "one") as replica:
        assert serve(replica, 0) > 0
        # With files open for writing only the kernel does it, after an error: this makes it believe in one.
        subprocess.run(["mount", "-o", "remount,abort", mounted], check=True, capture_output=True)
        # A write that begins after it is refused; what was under way has the error itself.
        assert read_only(manager, replica, "read-only file system|input/output error") > 0
        with pytest.raises(ManagerFailure, match="come back with a restart; remove its file index before one"):
            manager.verb("/cache/clear")
        assert tier.stored(manager) == 0
        (reason,) = manager.status()["reasons"]
        assert "remove its file index" in reason
        assert replica.restore(oracle.prefix(0, PAGES)) == 0
        assert serve(replica, 0) > 0
    assert manager.violations() == []
    manager.stop()


def test_a_disk_that_others_fill(mounted: Path, start_manager: Start) -> None:
    """The space of pages is reserved; only the index may find none, and then the folder is sound, and is read."""
    volume = Volume(mounted / "ssd")
    manager = start_manager("16mib", *volume.options(capacity=CAPACITY))
    with Replica(manager.socket, "one") as replica:
        assert serve(replica, 0) > 0
        fill(mounted / "theirs")
        for first in range(ROUNDS, 6 * ROUNDS, ROUNDS):
            assert serve(replica, first) > 0
        if manager.status()["health"] == "degraded":
            (folder,) = manager.status()["ssd"]["volumes"]
            assert folder["state"] == "read_only"
            assert "no space left" in folder["reason"]
            assert tier.stored(manager) > 0
    manager.stop()
    (mounted / "theirs").unlink()
    manager.start()
    assert manager.status()["health"] == "ok"
    with Replica(manager.socket, "two") as replica:
        assert serve(replica, 0) > 0
    manager.stop()


def fill(path: Path) -> None:
    """Write a file until the disk has no room for more."""
    with path.open("wb", buffering=0) as out:
        piece = bytes(1 << 20)
        while piece:
            try:
                out.write(piece)
            except OSError:
                piece = piece[: len(piece) // 2]


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_folder_that_is_deleted_under_its_manager(start_manager: Start, volume: Volume, end: str) -> None:
    manager = start_manager("16mib", *volume.options(capacity=CAPACITY))
    with Replica(manager.socket, "one") as replica:
        assert serve(replica, 0) > 0
        shutil.rmtree(volume.folder)
        assert serve(replica, ROUNDS) > 0
        with contextlib.suppress(ManagerFailure):  # The index that says so finds no folder; nothing can come back.
            manager.verb("/cache/clear")
        assert manager.status()["health"] == "degraded"
        assert serve(replica, 0) > 0
    if end == "stop":
        manager.stop()
    else:
        manager.kill()
    manager.start()
    assert manager.status()["health"] == "ok"
    assert tier.stored(manager) == 0
    with Replica(manager.socket, "two") as replica:
        assert serve(replica, 0) > 0
