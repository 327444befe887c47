"""A Manager that is killed again and again on one SSD folder while clients publish and restore, and what must hold.

After each kill the folder is verified or not, the next Manager starts, its gauges are compared before anybody asks it,
and then every page that was ever published is asked for, the content being a function of the key. A kill loses no
write that the kernel has, so that a page with a record must have its bytes: none may fail its digest.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from harness import oracle
from harness import ssd as tier
from harness.manager import ManagerProcess, eventually
from harness.replica import Replica, Shape, WrongBytes
from orbitkv.errors import OrbitKVError

CLIENTS = 3
SEEDS = 48  # prefixes of one life between two clears
PAGES = 48  # of a prefix
SHAPE = Shape(blocks=PAGES)
POOL = "16mib"
CAPACITY_BYTES = 48 << 20  # less than all prefixes have, so that pages are evicted and written over
MOMENT_S = 0.5  # the latest moment of a kill after every client restored something
SAMPLE_S = 0.002
METADATA_BYTES = 64 << 10  # a file system's own blocks come and go with a file's extents, after the gauge was set
VERIFY_LIMIT_S = 300.0


class Client(threading.Thread):
    """Publishes and restores until it is stopped. After a fault of the channel it waits until it may go on."""

    def __init__(self, socket: str, number: int, seed: int) -> None:
        super().__init__(daemon=True, name=f"client {number}")
        self.socket = socket
        self.number = number
        self.order = random.Random(seed)
        self.first = 0  # of the prefixes of now
        self.may_go = threading.Event()
        self.ended = threading.Event()
        self.rounds = self.restored = 0
        self.wrong: BaseException | None = None

    def run(self) -> None:
        """Work until it is ended or something is wrong."""
        while self.may_go.wait() and not self.ended.is_set() and self.wrong is None:
            try:
                self._work()
            except OrbitKVError:
                self.may_go.clear()
            except (WrongBytes, AssertionError) as fault:
                self.wrong = fault

    def _work(self) -> None:
        with Replica(self.socket, self.name, SHAPE, timeout_ms=20_000) as replica:
            while not self.ended.is_set():
                keys = oracle.prefix(self.first + self.order.randrange(SEEDS), self.order.randint(1, PAGES))
                replica.publish(keys)
                self.restored += replica.restore(oracle.prefix(self.first + self.order.randrange(SEEDS), PAGES))
                self.rounds += 1


class Sampler(threading.Thread):
    """Measures what a folder occupies on disk, over and over; `most` is the largest that it ever was."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True, name="sampler")
        self.folder = folder
        self.most = self.samples = 0
        self.ended = threading.Event()

    def run(self) -> None:
        """Measure until it is ended."""
        while not self.ended.wait(SAMPLE_S):
            self.most = max(self.most, disk_bytes(self.folder))
            self.samples += 1


def disk_bytes(folder: Path) -> int:
    """Return what the files of a folder occupy; one that is removed meanwhile counts as nothing."""
    occupied = 0
    for file in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            occupied += file.stat().st_blocks * 512
    return occupied


@dataclass
class Kills:
    """One folder, its clients, and what was seen. Use as a context: clients run inside."""

    manager: ManagerProcess
    binary: Path
    volume: tier.Volume
    seed: int
    found: int = 0  # pages that were compared after a start
    cleared: int = 0  # cycles that emptied the cache
    first: int = 0  # of the prefixes that were not cleared
    most_disk_bytes: int = 0
    clients: list[Client] = field(default_factory=list)
    order: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.order = random.Random(self.seed)

    @contextlib.contextmanager
    def running(self) -> Iterator[Kills]:
        """Run the clients and the sampler; at the end both have ended, and nothing wrong was seen."""
        sampler = Sampler(self.volume.folder)
        self.clients = [Client(self.manager.socket, n, self.seed + n) for n in range(CLIENTS)]
        for thread in (sampler, *self.clients):
            thread.start()
        try:
            yield self
        finally:
            sampler.ended.set()
            for client in self.clients:
                client.ended.set()
                client.may_go.set()
                client.join(VERIFY_LIMIT_S)
            sampler.join()
        self.look()
        assert sampler.samples > 0
        self.most_disk_bytes = sampler.most
        assert sampler.most <= CAPACITY_BYTES, f"the folder had {sampler.most} bytes on disk of {CAPACITY_BYTES}"

    def look(self) -> None:
        """Raise what a client saw."""
        for client in self.clients:
            if client.wrong is not None:
                raise client.wrong

    def cycle(self, *, verify: bool, clear: bool) -> dict[str, int]:
        """Let the clients work, kill the Manager and check the next one. `clear` empties the cache just before."""
        before = [client.rounds for client in self.clients]
        for client in self.clients:
            client.may_go.set()
        eventually(lambda: self._progressed(before), "every client restores, and pages come to the SSD")
        self.look()
        time.sleep(self.order.random() * MOMENT_S)  # The moment itself is what is drawn.
        evicted = int(sum(self.manager.metrics("orbitkv_ssd_evictions_total").values()))
        if clear:
            self.clear()
        self.manager.kill()
        for client in self.clients:
            eventually(lambda c=client: not c.may_go.is_set() or c.wrong, f"{client.name} notices")  # type: ignore[misc]
        self.look()
        if verify:
            self.verify()
        self.manager.start()
        stored = self.check_gauges()
        found = self.check_pages(stored, clear)
        return {"evicted": evicted, "stored": stored, "found": found}

    def clear(self) -> None:
        """Empty the cache once nobody publishes the prefixes of before any more; others are published meanwhile."""
        self.first += SEEDS
        before = [client.rounds for client in self.clients]
        for client in self.clients:
            client.first = self.first
        eventually(lambda: self._progressed(before), "every client has gone on to other prefixes")
        self.manager.verb("/cache/clear")
        self.cleared += 1

    def _progressed(self, before: list[int]) -> bool:
        if any(client.wrong for client in self.clients):
            return True
        worked = all(client.rounds > rounds for client, rounds in zip(self.clients, before, strict=True))
        return worked and self.manager.metric("orbitkv_ssd_write_blocks_total") > 0

    def verify(self) -> None:
        """Let the folder be verified without a Manager: every page that has a record is as it was written."""
        command = [str(self.binary), "verify", "--ssd-cache-path", str(self.volume.folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=VERIFY_LIMIT_S)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"

    def check_gauges(self) -> int:
        """Compare what a fresh Manager tells with its folder; return how many pages it has."""
        stats = self.manager.status()["ssd"]["stats"]
        pages = int(sum(stats["pages"].values()))
        expected = {
            "recovered_pages": pages,
            "stored_bytes": pages * SHAPE.slice_bytes,
            "used_bytes": pages * (SHAPE.slice_bytes + tier.BLOCK_BYTES),
            "capacity_bytes": CAPACITY_BYTES,
            **dict.fromkeys(tier.BUSY, 0),
        }
        wrong = [f"{name} is {stats[name]}, not {value}" for name, value in expected.items() if stats[name] != value]
        assert not wrong, "; ".join(wrong)
        assert abs(stats["disk_bytes"] - disk_bytes(self.volume.folder)) <= METADATA_BYTES
        return pages

    def check_pages(self, stored: int, cleared: bool) -> int:
        """Ask for every page that was ever published; each that is found has its bytes, and no cleared one is."""
        with Replica(self.manager.socket, "checker", SHAPE) as replica:
            if cleared:
                back = sum(self._all_of(replica, seed) for seed in range(self.first - SEEDS, self.first))
                assert back == 0, f"{back} pages came back that were cleared"
            found = sum(self._all_of(replica, self.first + seed) for seed in range(SEEDS))
        assert tier.unreadable(self.manager) == 0, "a page with a record did not have its bytes"
        assert found == stored, "every recovered page can be asked for"
        self.found += found
        return found

    def _all_of(self, replica: Replica, seed: int) -> int:
        """Restore every page of a prefix that there is, those behind a gap too."""
        keys, at, found = oracle.prefix(seed, PAGES), 0, 0
        while at < PAGES:
            got = replica.restore(keys[at * 32 :])
            found, at = found + got, at + got + 1
        return found
