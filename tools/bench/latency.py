"""Latency of queries and publishes, as an engine's process sees it.

Usage: PYTHONPATH=python/src:tools python -m bench.latency [--quick]

Each client is a process of its own with one connection. A row gives the median, the 99th percentile and the worst of
all calls of all clients in microseconds. `floor` is a ping over the same channel: what no query can beat. `beside a
busy thread` adds a Python thread that computes and so wants the interpreter lock for itself.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from harness.manager import ManagerProcess
from harness.replica import Replica, Shape

ROOT = Path(__file__).resolve().parents[2]
POOL = "512mib"
INSTANCE = "bench"
KEYS = (512, 8192, 65536)
CLIENTS = (1, 8)
SHAPE = Shape(layers=1, layer_bytes=4096, blocks=1024)
COMMIT_PAGES = 128
WARM_UP = 20


def main() -> None:
    """Start a Manager, fill it and print the table."""
    parser = argparse.ArgumentParser(description="Latency of the Python client against a real Manager.")
    parser.add_argument("--quick", action="store_true", help="a tenth of the calls")
    parser.add_argument("--client", nargs=4, metavar=("SOCKET", "KIND", "KEYS", "CALLS"), help=argparse.SUPPRESS)
    parser.add_argument("--busy", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        socket, kind, keys, calls = options.client
        client(socket, kind, int(keys), int(calls), options.busy)
        return
    share = 10 if options.quick else 1
    with tempfile.TemporaryDirectory() as folder:
        manager = ManagerProcess(ROOT / "bin" / "orbitkv", Path(folder), POOL).start()
        try:
            table(manager, share)
        finally:
            manager.stop()


def table(manager: ManagerProcess, share: int) -> None:
    """Print every row."""
    print(f"{platform.machine()}, {len(os.sched_getaffinity(0))} processors, Python {platform.python_version()}")
    print(f"{'what':<44}{'clients':>8}{'calls':>8}{'p50 us':>10}{'p99 us':>10}{'worst us':>10}")
    with Replica(manager.socket, INSTANCE, SHAPE, timeout_ms=60_000) as replica:
        replica.publish(keys_of(max(KEYS)))
        for busy in (False, True):
            beside = ", beside a busy thread" if busy else ""
            row(manager, "floor: ping" + beside, "ping", 0, 1, 10_000 // share, busy)
            for keys in KEYS:
                calls = max(20, 2_000_000 // keys // share)
                for clients in CLIENTS if not busy else CLIENTS[:1]:
                    each = min(calls, 10_000 // share) // clients
                    row(manager, f"query of {keys} keys{beside}", "query", keys, clients, each, busy)
        row(manager, f"reserve + commit of {COMMIT_PAGES} pages", "commit", COMMIT_PAGES, 1, 1000 // share, False)


def row(manager: ManagerProcess, what: str, kind: str, keys: int, clients: int, calls: int, busy: bool) -> None:
    """Run the clients of one row and print it."""
    command = [sys.executable, "-m", "bench.latency", "--client", manager.socket, kind, str(keys), str(calls)]
    command += ["--busy"] if busy else []
    running = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(clients)
    ]
    for each in running:
        expect(each, "ready")
    for each in running:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()
    figures = np.concatenate([np.array(json.loads(each.communicate()[0])) for each in running])
    p50, p99, worst = np.percentile(figures, [50, 99, 100])
    print(f"{what:<44}{clients:>8}{len(figures):>8}{p50:>10.0f}{p99:>10.0f}{worst:>10.0f}", flush=True)


def expect(process: subprocess.Popen[str], word: str) -> None:
    """Read the word that a client says when it is ready."""
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if line != word:
        raise SystemExit(f"a client said {line!r} instead of {word!r}")


def client(path: str, kind: str, keys: int, calls: int, busy: bool) -> None:
    """Be one client: warm up, wait for the word, call, and print the microseconds of each call."""
    with Replica(path, f"{INSTANCE}-{os.getpid()}", SHAPE, timeout_ms=60_000) as replica:
        call = CALLS[kind](replica, keys)
        for _ in range(WARM_UP):
            call()
        print("ready", flush=True)
        sys.stdin.readline()
        stop = threading.Event()
        if busy:
            threading.Thread(target=compute, args=(stop,), daemon=True).start()
        figures = [call() for _ in range(calls)]
        stop.set()
    print(json.dumps([round(seconds * 1e6, 1) for seconds in figures]), flush=True)


def compute(stop: threading.Event) -> None:
    """Hold the interpreter lock as pure Python code does."""
    total = 0
    while not stop.is_set():
        total = sum(range(1000))
    del total


def ping_of(replica: Replica, _: int) -> Callable[[], float]:
    """Return one ping, timed."""

    def call() -> float:
        begun = time.perf_counter()
        replica.scheduler.ping()
        return time.perf_counter() - begun

    return call


def query_of(replica: Replica, count: int) -> Callable[[], float]:
    """Return one query that finds all of its pages; the lease is given back outside of the time."""
    keys = keys_of(count)

    def call() -> float:
        begun = time.perf_counter()
        query = replica.scheduler.query(replica.namespace, keys, instance=replica.instance, wait_us=None)
        taken = time.perf_counter() - begun
        while query.lease is None:  # With many clients the budget can be full: the wait is not the query's latency.
            query.wait(60.0)
        if query.pages != count:
            raise SystemExit(f"a query of {count} keys found {query.pages}")
        query.lease.release()
        return taken

    return call


def commit_of(replica: Replica, count: int) -> Callable[[], float]:
    """Return one reserve of fresh pages and their commit, timed until the commit was sent."""
    client = replica.ranks[0].client
    numbers = iter(range(1 << 40, 1 << 62, count))

    def call() -> float:
        keys = keys_of(count, next(numbers))
        begun = time.perf_counter()
        reserve = replica.scheduler.reserve(replica.namespace, keys, instance=replica.instance, wait_us=None)
        client.committed(reserve.reservation, 0, [(0, reserve.pages)])
        return time.perf_counter() - begun

    return call


CALLS: dict[str, Callable[[Replica, int], Callable[[], float]]] = {
    "ping": ping_of,
    "query": query_of,
    "commit": commit_of,
}


def keys_of(count: int, first: int = 0) -> bytes:
    """Return keys that are numbers."""
    return b"".join((first + n).to_bytes(32, "big") for n in range(count))


if __name__ == "__main__":
    main()
