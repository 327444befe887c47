"""The pool's scrubber: bytes that change behind the Manager's back are found, dropped, and told with their writer."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import oracle
from harness.manager import ManagerProcess, eventually
from harness.replica import Replica
from harness.ssd import Volume, wait_stored

Start = Callable[..., ManagerProcess]
PAGES = 8
KEYS = oracle.prefix(1, PAGES)
SPOILT = 5  # the page of which a byte is changed
LOCATION_OFFSET_BITS = 48


def spoil(replica: Replica, page: int) -> None:
    """Invert one byte of a resident page in the arena, as a process that writes where it must not would."""
    lease = replica.scheduler.query(replica.namespace, KEYS, instance=replica.instance, wait_us=None).lease
    assert lease is not None
    location = int(lease.locations(0)[page])
    lease.release()
    arena = replica.ranks[0].client.arenas[location >> LOCATION_OFFSET_BITS]
    arena.view[(location & ((1 << LOCATION_OFFSET_BITS) - 1)) + 1234] ^= 0xFF


@pytest.mark.parametrize("ssd", [False, True], ids=["pool alone", "with an SSD"])
def test_a_changed_byte_is_found_and_its_writer_named(start_manager: Start, tmp_path: Path, ssd: bool) -> None:
    tier = Volume(tmp_path / "ssd").options() if ssd else ()
    manager = start_manager("64mib", "--pool-scrub-rate", "1gib", *tier)
    with Replica(manager.socket, "the-writer") as replica:
        assert replica.publish(KEYS) == PAGES
        if ssd:
            wait_stored(manager, PAGES)
        passes = manager.metric("orbitkv_pool_scrub_passes_total")
        eventually(
            lambda: manager.metric("orbitkv_pool_scrub_passes_total") >= passes + 2, "every page was looked at once"
        )
        assert manager.metric("orbitkv_pool_damaged_blocks_total") == 0
        spoil(replica, SPOILT)
        eventually(lambda: manager.metric("orbitkv_pool_damaged_blocks_total") == 1, "the scrubber finds it")
        told = manager.log_tail()
        for part in (oracle.split(KEYS)[SPOILT].hex(), "the-writer", "oracle", f"PID:{os.getpid()}"):
            assert part in told
        if not ssd:
            assert replica.restore(KEYS, expect=SPOILT) == SPOILT, "the page is a miss, and the prefix ends before it"
        else:
            assert replica.restore(KEYS, expect=PAGES) == PAGES, "the page comes back from the SSD as it was written"
        assert manager.metric("orbitkv_pool_scrub_bytes_total") > 0


def test_nothing_is_scrubbed_unless_it_is_asked_for(manager: ManagerProcess) -> None:
    with Replica(manager.socket, "one") as replica:
        replica.publish(KEYS)
        assert manager.metric("orbitkv_pool_scrub_passes_total") == 0
    mapped = Path(f"/proc/{manager.pid}/maps").read_text(encoding="ascii")
    assert "orbitkv-arena" not in mapped, "without SSD and scrubber the Manager maps no part of the pool"
