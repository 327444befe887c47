"""Qualify what a kill leaves behind: no wrong byte or token, every extent and lease back, device memory back.

Usage, from the root of the checkout:

    PYTHONPATH=python/src:tools python3 -m qualify.kills [--device cuda|cpu] [--output FILE]

`copies`: processes that copy without pause, one after the other, are killed at seeded random moments; the next one
restores and compares what is left. It starts no engine, so that there can be many. `manager`: the Cache Manager is
killed in mid-restore under a vLLM server that goes on with equal answers and attaches to the next Manager. `engine`:
that server is killed while it restores and publishes; with `--restart` another one restores what it published.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from harness.base import ManagerRig
from harness.engine import Engine
from harness.manager import eventually
from harness.server import TOOLS, search_path
from orbitkv.transfer import CudaDriver
from qualify.canary import MEMORY_SLACK, free_bytes
from qualify.report import Figures, Report, Wrong
from qualify.serving import Serving, engine_config

ROOT = TOOLS.parent
PARTS = ("copies", "manager", "engine")
CHILD_LIMIT_S = 180.0  # for a child to begin copying
MOMENT_S = 0.4  # the latest moment of a kill, from the first complete set
MEMORY_LIMIT_S = 20.0  # for the device to show that a dead process's memory came back
LENT = {"publish": "writing_bytes", "restore": "leases"}  # what says that a copy runs
TAKEN = ("leases", "reservations", "writing_bytes", "query_reserved_bytes", "load_bytes_total")


@dataclass
class Books:
    """What must come back after a kill: the Manager's extents and leases, and the device's memory."""

    rig: ManagerRig
    device: str
    free: int = field(init=False)

    def __post_init__(self) -> None:
        if self.device != "cpu":
            CudaDriver(0).bind()
        self.free = self.now()

    def now(self) -> int:
        """Return the free memory of the device."""
        return 0 if self.device == "cpu" else free_bytes()

    def taken(self) -> dict[str, int]:
        """Return what the Manager has lent: how far it was in a kill's moment."""
        stats = self.rig.stats()
        return {name: int(stats[name]) for name in TAKEN}

    def wait_taken(self, name: str) -> dict[str, int]:
        """Return what the Manager has lent as soon as it has lent something of that name."""
        found: dict[str, int] = {}

        def lent() -> bool:
            found.update(self.taken())
            return found[name] > 0

        eventually(lent, f"the Manager has lent {name}")
        return found

    def back(self) -> None:
        """Return once everything is back; the Manager's own check must hold then."""
        self.rig.quiet()
        eventually(lambda: self.rig.stats()["sessions"] == 0, "every session of the dead ends")
        what = f"{self.free - MEMORY_SLACK} bytes of device memory are free again"
        eventually(lambda: self.now() >= self.free - MEMORY_SLACK, what, MEMORY_LIMIT_S)
        self.rig.verify()


class Victim:
    """One child that copies until it is killed. `last` is the number of the last set that it completed."""

    def __init__(self, socket: str, verb: str, seed: int, before: tuple[int, int] | None, *words: str) -> None:
        line = [sys.executable, "-m", "qualify.victim", socket, verb, str(seed), *words]
        line += [] if before is None else ["--before", *map(str, before)]
        self.last = -1
        self.checked = 0
        self._began = threading.Event()
        environment = {"PYTHONPATH": search_path(TOOLS)}
        self._process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment})
        self._reader = threading.Thread(target=self._read, name="victim-reader", daemon=True)
        self._reader.start()

    def wait_copying(self) -> None:
        """Return once the first set is complete."""
        eventually(lambda: self._began.is_set() or self._process.poll() is not None, "a victim copies", CHILD_LIMIT_S)
        if self._process.poll() is not None:
            raise Wrong(f"a victim ended by itself with {self._process.returncode}: see its message on stderr")

    def wait(self) -> int:
        """Return the exit status of one that ends by itself."""
        status = self._process.wait(CHILD_LIMIT_S)
        self._reader.join()
        return status

    def kill(self) -> None:
        """End it by SIGKILL; one that ended before found wrong bytes or broke."""
        ended = self._process.poll()
        self._process.kill()
        self._process.wait()
        self._reader.join()
        if ended is not None:
            raise Wrong(f"a victim ended by itself with {ended}: see its message on stderr")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            word, _, count = line.strip().partition(" ")
            if word == "checked":
                self.checked = int(count)
            else:
                self.last = int(word)
                self._began.set()


def copies(options: Any, folder: Path, report: Report) -> Figures:
    """Kill processes that copy, and let each next one look at what is left."""
    rig = ManagerRig(options.binary, folder)
    try:
        rig.serve(options.victim_pool)
        books, moments = Books(rig, options.device), random.Random(options.seed)
        before: tuple[int, int] | None = None
        words = ("--device", options.device, "--backend", options.backend, "--pages", str(options.pages))
        for number in range(options.cycles):
            verb = ("publish", "restore")[number % 2]
            victim = Victim(rig.socket, verb, number, before, *words)
            moment = moments.random() * MOMENT_S
            report.case(
                f"kill {number} in mid-{verb}", partial(one_kill, victim, books, verb, moment, before is not None)
            )
            before = (number, max(0, victim.last) if verb == "publish" else 0)
        last = Victim(rig.socket, "check", options.cycles, before, *words)
        report.case("what the last victim left", lambda: {"ended": ended(last), "checked_pages": last.checked})
    finally:
        rig.close()
    return {"kills": options.cycles}


def one_kill(victim: Victim, books: Books, verb: str, moment: float, checks: bool) -> Figures:
    """Kill a victim so many seconds after its first set, as soon as it holds something then."""
    try:
        victim.wait_copying()
        time.sleep(moment)  # The moment itself is what is drawn.
        taken = books.wait_taken(LENT[verb])
    finally:
        victim.kill()
    books.back()
    if checks and not victim.checked:
        raise AssertionError("nothing of the victim before was found, so nothing was compared")
    return {"moment": round(moment, 3), "sets": victim.last + 1, "checked_pages": victim.checked, **taken}


def ended(victim: Victim) -> int:
    """Return the exit status of a checker, which must be 0."""
    status = victim.wait()
    if status != 0:
        raise Wrong(f"the checker ended with {status}: see its message on stderr")
    return status


def with_engine(options: Any, folder: Path, report: Report) -> Figures:
    """Kill Managers under a serving engine, then the engine."""
    rig = ManagerRig(options.binary, folder)
    moments = random.Random(options.seed)
    try:
        rig.serve(options.engine_pool)
        books = Books(rig, options.device)
        config = engine_config(options, rig.socket)
        engine = Engine.start(config, options.log or folder / "engine.log")
        try:
            serving = Serving(rig, engine, options.block_size, options.tokens)
            report.case("answers before any kill", serving.learn)
            if "manager" in options.parts:
                for number in range(options.manager_kills):
                    name = f"Manager {number} killed in mid-restore"
                    report.case(name, partial(serving.kill_manager, moments.random() * 0.02, options.engine_pool))
            if "engine" in options.parts:
                report.case("engine killed", partial(kill_engine, serving, books, moments.random() * 0.02))
        finally:
            engine.kill()
        if options.restart and "engine" in options.parts:
            report.case("another engine restores what the dead one left", partial(restart, options, rig, serving))
    finally:
        rig.close()
    return {"tokens": options.tokens}


def kill_engine(serving: Serving, books: Books, moment: float) -> Figures:
    """Kill the engine while it restores and publishes; everything that it had must come back."""
    taken = serving.kill_engine(moment, books.taken)
    books.back()
    return {"moment": round(moment, 4), **taken}


def restart(options: Any, rig: ManagerRig, before: Serving) -> Figures:
    """Start another engine and restore what the dead one had published."""
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine.start(engine_config(options, rig.socket), Path(folder) / "engine.log")
        try:
            return before.succeed(engine)
        finally:
            engine.kill()


def main() -> int:
    """Run the command line."""
    options = parser().parse_args()
    for name, value in (CPU if options.device == "cpu" else CUDA).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    report = Report("kills", options.output)
    with tempfile.TemporaryDirectory() as folder:
        if "copies" in options.parts:
            report.case("copies: start and end", lambda: copies(options, Path(folder) / "copies", report))
        if {"manager", "engine"} & set(options.parts):
            report.case("engine: start and end", lambda: with_engine(options, Path(folder) / "engine", report))
    return report.close()


CPU: dict[str, Any] = {
    "backend": "host",
    "pages": 128,
    "cycles": 6,
    "victim_pool": "512mib",
    "engine_pool": "512mib",
    "block_size": 128,
    "tokens": 4000,
    "checkpoint": "tiny",
}
CUDA: dict[str, Any] = {
    "backend": "direct",
    "pages": 1024,
    "cycles": 16,
    "victim_pool": "12gib",
    "engine_pool": "16gib",
    "block_size": 64,
    "tokens": 12000,
    "checkpoint": "qwen3-8b",
}


def parser() -> argparse.ArgumentParser:
    """Return the command line. What is left out follows from the device."""
    found = argparse.ArgumentParser(description="Qualify what kills leave behind on this host.")
    found.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    found.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    found.add_argument("--binary", type=Path, default=ROOT / "bin" / "orbitkv", help="the orbitkv binary")
    found.add_argument("--backend", choices=("direct", "kernel", "host"), help="of the copies that are killed")
    found.add_argument("--cycles", type=int, help="processes that are killed while they copy")
    found.add_argument("--pages", type=int, help="pages of 1 MiB that such a process copies at a time")
    found.add_argument("--victim-pool", help="the Manager's pool for them")
    found.add_argument("--manager-kills", type=int, default=3, help="Managers that are killed under one engine")
    found.add_argument("--engine-pool", help="the Manager's pool for the engine")
    found.add_argument("--checkpoint", help="a random checkpoint for the engine")
    found.add_argument("--model", type=Path, help="a folder with a checkpoint instead")
    found.add_argument("--block-size", type=int, help="tokens of a page")
    found.add_argument("--tokens", type=int, help="tokens of a prompt whose restore is killed")
    found.add_argument("--transfer-backend", choices=("auto", "direct", "kernel", "host"), default="")
    found.add_argument("--restart", action="store_true", help="start a second engine on what the killed one left")
    found.add_argument("--seed", type=int, default=1)
    found.add_argument("--output", type=Path, help="a file that gets the lines beside stdout")
    found.add_argument("--log", type=Path, help="a file that keeps what the engine prints")
    return found


if __name__ == "__main__":
    sys.exit(main())
