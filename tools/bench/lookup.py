"""Cost of SGLang's look-ups in one scheduling pass, with many waiting requests and a real Manager.

Usage, in an environment with SGLang: PYTHONPATH=python/src:tools python -m bench.lookup [--quick] [--json FILE]

One rank without an engine does what SGLang does with the linker in a pass: it begins the pass, looks every waiting
request up, passes those over that have no answer, admits as many as the row says, each of which restores its pages, and
starts the copies. `look-ups` is the time of all calls of `OrbitKVLinker.lookup` in one pass, `whole pass` is everything
but the engine's own work and the waits for copies. SGLang's hashing of prompts is not part of it. Medians, the 99th
percentile and the worst of all passes, in microseconds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import tempfile
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer

from harness.fakes import FakeTensors
from harness.manager import ManagerProcess, eventually
from orbitkv.adapter.attachment import RankPlace
from orbitkv.adapter.settings import read_settings
from orbitkv.sglang.linker import OrbitKVLinker
from orbitkv.sglang.rank import EngineTensors, RankSide
from orbitkv.timeline import Timeline

ROOT = Path(__file__).resolve().parents[2]
POOL = "1gib"
PAGE_TOKENS = 16
WAITING = 256
KEYS = 128
PROMPTS = 1024  # stored ones, so that a request that is admitted is followed by another
LAYERS, BLOCKS, BLOCK_BYTES = 4, 2048, 1024
PASSES = 3000
PASS_SECONDS = 0.005  # between the begins of two passes: an engine's forward
WARM_UP = 50


@dataclass(frozen=True)
class Row:
    """One row: what is waiting, and how many requests a pass admits."""

    name: str
    stored: bool
    admitted: int
    absent: bool = False


ROWS = (
    Row("window full, nothing admitted", True, 0),
    Row("window full, 1 admitted a pass", True, 1),
    Row("window full, 4 admitted a pass", True, 4),
    Row("nothing stored, 1 admitted a pass", False, 1),
    Row("no Manager", True, 1, absent=True),
)


class Rank:
    """One rank: its linker, pages that follow each other, and the waiting requests."""

    def __init__(self, socket: str) -> None:
        settings = read_settings({"orbitkv.socket": socket, "orbitkv.timeout_ms": 60_000}, {})
        self.tensors = FakeTensors(LAYERS, BLOCKS, BLOCK_BYTES)
        engine = EngineTensors(self.tensors.layout, self.tensors)
        self.side = RankSide(settings, RankPlace("bench", 0, 1), engine, {"model": "bench"}, Timeline("bench", False))
        self.linker = OrbitKVLinker(self.side, PAGE_TOKENS)
        self.side.begin()
        self.waiting: deque[tuple[str, PoolTransfer, int]] = deque()
        self._next = 0
        self._page = 1
        eventually(lambda: self.begin() and self.begin(), "the rank uses the Manager")

    def begin(self) -> bool:
        """Begin a pass as the tree does; return whether the Manager may be used."""
        life = self.linker.begin_pass()
        for _ in range(self.linker.num_completed_loads()):
            self.linker.pop_completed_load()
        for _ in range(self.linker.num_completed_offloads()):
            self.linker.pop_completed_offload()
        self.side.agree(life != b"")
        return life != b""

    def pages(self) -> np.ndarray:
        """Return pages for one prompt."""
        if self._page + KEYS > BLOCKS:
            self._page = 1
        self._page += KEYS
        return np.arange(self._page - KEYS, self._page)

    def store(self) -> None:
        """Publish every prompt."""
        for prompt in range(PROMPTS):
            self.side.offload(keys_of(f"stored {prompt}"), self.pages())
            if prompt % 8 == 7:
                eventually(lambda: self.begin() and not self.side.offloads._offers, "it is stored")

    def fill(self, row: Row) -> None:
        """Let requests come until enough wait."""
        while len(self.waiting) < WAITING:
            kind = "stored" if row.stored else f"unknown to {row.name}"
            number = self._next % PROMPTS if row.stored else self._next
            transfer = PoolTransfer(name=PoolName.KV, keys=keys_of(f"{kind} {number}"))
            self.waiting.append((f"r{self._next}", transfer, self._next))
            self._next += 1

    def run_pass(self, row: Row) -> tuple[float, float]:
        """Run one pass; return the seconds of its look-ups and of all of it."""
        self.fill(row)
        begun = time.perf_counter()
        self.begin()
        looked, kept, admitted = 0.0, deque[tuple[str, PoolTransfer, int]](), 0
        for request, transfer, number in self.waiting:
            before = time.perf_counter()
            found = self.linker.lookup(request, [transfer])
            looked += time.perf_counter() - before
            if not self.linker.answered:
                self.side.keep_waiting(request)
            elif admitted < row.admitted:
                admitted += 1
                if found:
                    self.side.queue_load(request, transfer.keys[: found[-1]], self.pages()[: found[-1]])
                self.side.admitted(request)
                continue
            kept.append((request, transfer, number))
        self.linker.start_layer_wise_loading()
        whole = time.perf_counter() - begun
        self.waiting = kept
        return looked, whole

    def clear(self) -> None:
        """Abort every waiting request."""
        for request, _, _ in self.waiting:
            self.linker.cancel_queued_load(request)
        self.waiting.clear()


def main() -> None:
    """Start a Manager, fill it and print the table."""
    parser = argparse.ArgumentParser(description="Look-ups of one rank of SGLang against a real Manager.")
    parser.add_argument("--quick", action="store_true", help="a tenth of the passes")
    parser.add_argument("--json", type=Path, help="append one line a row to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        manager = ManagerProcess(ROOT / "bin" / "orbitkv", Path(folder), POOL).start()
        try:
            rank = Rank(manager.socket)
            rank.store()
            table(manager, rank, PASSES // (10 if options.quick else 1), options.json)
            rank.side.close()
        finally:
            manager.kill()


def table(manager: ManagerProcess, rank: Rank, passes: int, file: Path | None) -> None:
    """Print every row."""
    print(f"{platform.machine()}, {len(os.sched_getaffinity(0))} processors, Python {platform.python_version()}")
    print(f"{WAITING} waiting requests of {KEYS} page hashes each")
    print(f"{'':<36}{'passes':>8}{'look-ups us: p50':>18}{'p99':>8}{'worst':>8}{'whole pass us: p50':>20}{'p99':>8}")
    for row in ROWS:
        if row.absent:
            manager.kill()
        figures = measure(rank, row, passes)
        looked, whole = np.percentile(figures * 1e6, [50, 99, 100], axis=0).T
        columns = (f"{looked[0]:>18.0f}", *(f"{value:>8.0f}" for value in looked[1:]), f"{whole[0]:>20.0f}")
        print(f"{row.name:<36}{passes:>8}{''.join(columns)}{whole[1]:>8.0f}", flush=True)
        if file is not None:
            with file.open("a", encoding="ascii") as out:
                out.write(json.dumps(line_of(row, passes, looked, whole)) + "\n")


def measure(rank: Rank, row: Row, passes: int) -> np.ndarray:
    """Return the seconds of each pass: its look-ups, all of it."""
    figures = []
    for number in range(WARM_UP + passes):
        begun = time.perf_counter()
        figures.append(rank.run_pass(row))
        del figures[: 1 if number < WARM_UP else 0]
        time.sleep(max(0.0, PASS_SECONDS - (time.perf_counter() - begun)))
    rank.clear()
    return np.array(figures)


def line_of(row: Row, passes: int, looked: np.ndarray, whole: np.ndarray) -> dict[str, object]:
    """Return a row as one object."""
    return {
        "name": f"look-ups of a pass, {row.name}",
        "unit": "us",
        "waiting": WAITING,
        "keys": KEYS,
        "n": passes,
        **{name: round(float(value), 1) for name, value in zip(("p50", "p99", "max"), looked, strict=True)},
        **{f"pass_{name}": round(float(value), 1) for name, value in zip(("p50", "p99", "max"), whole, strict=True)},
        "machine": {
            "cpus": len(os.sched_getaffinity(0)),
            "kernel": platform.release(),
            "python": platform.python_version(),
        },
    }


def keys_of(prompt: str) -> list[str]:
    """Return the page hashes of a prompt."""
    return [hashlib.sha256(f"{prompt}/{page}".encode()).hexdigest() for page in range(KEYS)]


if __name__ == "__main__":
    main()
