"""A client process for tests: publishes and restores checked pages, or takes hold of everything and waits to be killed.

Usage: python -m harness.load SOCKET INSTANCE SEED {run ROUNDS|hold|rank NUMBER}

`run` prints the pages that it saved and restored and ends with 0 unless a byte was wrong. `hold` leaves a begun
restore, an unbegun lease and an unfinished publish behind, prints `holding` and does nothing more. `rank` attaches as
one rank of an instance of two, prints `attached` and does nothing more.
"""

from __future__ import annotations

import random
import signal
import sys
from typing import Any

from harness import oracle
from harness.replica import COPY_LIMIT_S, Rank, Replica, Shape

SHARED_SEED = 1  # prefixes that every process works on
PAGES = 96


def run(replica: Replica, seed: int, rounds: int) -> None:
    """Publish and restore prefixes, some of them shared with the other processes."""
    order = random.Random(seed)
    saved = restored = 0
    for _ in range(rounds):
        keys = oracle.prefix(order.choice([SHARED_SEED, SHARED_SEED + 1, seed, seed + 1]), order.randint(1, PAGES))
        saved += replica.publish(keys)
        restored += replica.restore(keys)
    print(saved, restored, flush=True)


def hold(replica: Replica, seed: int) -> None:
    """Hold a begun lease, an unbegun one and a reservation, and wait for the end."""
    keys = oracle.prefix(seed, PAGES)
    replica.publish(keys)
    ask: dict[str, Any] = {"instance": replica.instance, "wait_us": None}
    begun = replica.scheduler.query(replica.namespace, keys, **ask)
    waiting = replica.scheduler.query(replica.namespace, keys, **ask)
    reserve = replica.scheduler.reserve(replica.namespace, oracle.prefix(seed + 1000, PAGES), **ask)
    if begun.lease is None or waiting.lease is None or not reserve.reservation:
        sys.exit("there was nothing to hold")
    begun.lease.begin(begun.lease.pages)
    print("holding", flush=True)
    signal.pause()


def attend(rank: Rank) -> None:
    """Be a rank that never copies, and wait for the end."""
    rank.client.wait_arenas(1, COPY_LIMIT_S)
    print("attached", flush=True)
    signal.pause()


def main(socket: str, instance: str, seed: str, verb: str, number: str = "0") -> None:
    """Run the command line."""
    if verb == "rank":
        attend(Rank(socket, instance, int(number), Shape(world=2)))
    with Replica(socket, instance, Shape()) as replica:
        if verb == "hold":
            hold(replica, int(seed))
        else:
            run(replica, int(seed), int(number))


if __name__ == "__main__":
    main(*sys.argv[1:])
