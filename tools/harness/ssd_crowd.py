"""Many sessions of one process that publish, query, restore, cancel and stop, on prefixes that other processes use too.

Usage: python -m harness.ssd_crowd SOCKET NAME SEED SESSIONS ROUNDS COUNTS FIRST

COUNTS is a file of rows of two counters that outlives the process, one row a session from FIRST on: the keys that it
asked for, and those of them whose query it saw answered. The process ends with 0 unless a byte was wrong.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from harness import oracle
from harness.replica import COPY_LIMIT_S, Replica, Shape
from orbitkv.client import Query, State

PREFIXES = 64
PAGES = 64  # of a prefix
SHAPE = Shape(blocks=PAGES)
ASKED, ANSWERED = 0, 1
Counts = npt.NDArray[np.uint64]


class Session:
    """One replica and what it does, drawn by its seed."""

    def __init__(self, replica: Replica, order: random.Random, counts: Counts) -> None:
        self.replica = replica
        self.order = order
        self.counts = counts
        self.actions: tuple[Callable[[], None], ...] = (
            self.publish,
            self.restore,
            self.restore,
            self.stop,
            self.cancel,
            self.release,
        )

    def run(self, rounds: int) -> None:
        """Do so many things."""
        for _ in range(rounds):
            self.order.choice(self.actions)()

    def keys(self) -> bytes:
        """Return a part of some prefix from its start."""
        return oracle.prefix(self.order.randrange(PREFIXES), self.order.randint(1, PAGES))

    def publish(self) -> None:
        """Save a prefix."""
        self.replica.publish(self.keys())

    def restore(self) -> None:
        """Wait until everything is there and compare it."""
        keys = self.keys()
        query = self.ask(keys)
        self.end(query, keys, query.wait(COPY_LIMIT_S))

    def stop(self) -> None:
        """Take what is there, however little."""
        keys = self.keys()
        query = self.ask(keys)
        self.end(query, keys, query.stop(None))

    def cancel(self) -> None:
        """Give a query up at once."""
        self.ask(self.keys(), wait_us=self.order.choice((0, 100, 1000))).cancel()

    def release(self) -> None:
        """Ask and give the pages back."""
        keys = self.keys()
        query = self.ask(keys)
        if query.wait(COPY_LIMIT_S) is State.READY:
            self.counts[ANSWERED] += np.uint64(len(keys) // 32)
        if query.lease is not None:
            query.lease.release()

    def ask(self, keys: bytes, wait_us: int | None = None) -> Query:
        """Query and count."""
        self.counts[ASKED] += np.uint64(len(keys) // 32)
        replica = self.replica
        return replica.scheduler.query(replica.namespace, keys, instance=replica.instance, wait_us=wait_us)

    def end(self, query: Query, keys: bytes, state: State) -> None:
        """Restore and compare what a query leased."""
        if state is not State.READY:
            query.cancel()
            return
        self.counts[ANSWERED] += np.uint64(len(keys) // 32)
        if query.lease is not None:
            self.replica.take(query.lease, keys)


def main(socket: str, name: str, seed: str, sessions: str, rounds: str, path: str, first: str) -> int:
    """Run the command line."""
    counts = np.memmap(Path(path), np.uint64, "r+").reshape(-1, 2)
    faults: list[BaseException] = []

    def work(number: int) -> None:
        with Replica(socket, f"{name}-{number}", SHAPE, timeout_ms=120_000) as replica:
            Session(replica, random.Random(int(seed) + number), counts[int(first) + number]).run(int(rounds))

    threading.excepthook = lambda caught: faults.append(caught.exc_value or caught.exc_type())
    threads = [threading.Thread(target=work, args=(number,)) for number in range(int(sessions))]
    for thread in threads:
        thread.start()
    print("at work", flush=True)
    for thread in threads:
        thread.join()
    for fault in faults:
        print(f"{type(fault).__name__}: {fault}", flush=True)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
