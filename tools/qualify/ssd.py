"""Qualify the SSD tier of a host's own disk: Managers that are killed under load on one folder, again and again.

Usage, from the root of the checkout:

    PYTHONPATH=python/src:tools python3 -m qualify.ssd [--folder FOLDER] [--cycles N] [--output FILE]

Each cycle lets clients publish and restore, kills the Manager at a seeded moment, verifies the folder or does not,
starts the next Manager and asks for every page that was ever published: exact bytes, no page that was cleared, gauges
that are right before the first request, and never more bytes on disk than the capacity. FOLDER lies on the disk in
question and must not exist; it is removed at the end.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path

from harness.manager import ManagerProcess
from harness.server import TOOLS
from harness.ssd import Volume
from harness.ssd_kills import CAPACITY_BYTES, POOL, Kills
from qualify.report import Figures, Report

VERIFY_EVERY, CLEAR_EVERY = 2, 4  # cycles


def cycles(kills: Kills, number: int, report: Report) -> Figures:
    """Run the cycles, each a case of its own, and return what they amount to."""
    with kills.running():
        for cycle in range(number):
            verify = cycle % VERIFY_EVERY == 0
            clear = cycle % CLEAR_EVERY == CLEAR_EVERY - 1
            run = partial(kills.cycle, verify=verify, clear=clear)
            if not report.case(f"kill {cycle}{', verified' * verify}{', cleared' * clear}", run):
                raise AssertionError(f"cycle {cycle} failed; what follows it would prove nothing")
    if not kills.found:
        raise AssertionError("no page outlived a kill, so nothing was compared")
    return {"kills": number, "compared_pages": kills.found, "most_disk_bytes": kills.most_disk_bytes}


def main() -> int:
    """Run the command line."""
    options = parser().parse_args()
    report = Report("ssd", options.output)
    with tempfile.TemporaryDirectory() as folder:
        volume = Volume(options.folder or Path(folder) / "ssd")
        more = ("--ssd-backend", options.backend)
        manager = ManagerProcess(
            options.binary, Path(folder) / "manager", POOL, *volume.options(capacity=str(CAPACITY_BYTES)), *more
        )
        volume.folder.mkdir(mode=0o700)
        try:
            manager.start()
            kills = Kills(manager, options.binary, volume, options.seed)
            report.case("all kills", partial(cycles, kills, options.cycles, report))
            report.case("the last Manager ends in order", partial(ended, manager))
        finally:
            manager.kill()
            shutil.rmtree(volume.folder)
    return report.close()


def ended(manager: ManagerProcess) -> Figures:
    """Stop the Manager."""
    manager.stop()
    return {}


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    found = argparse.ArgumentParser(description="Qualify the SSD tier on this host's disk.")
    found.add_argument("--folder", type=Path, help="a new folder on the disk in question; default: a temporary one")
    found.add_argument("--cycles", type=int, default=200, help="Managers that are killed")
    found.add_argument("--backend", choices=("auto", "uring", "pool"), default="auto", help="who does the I/O")
    found.add_argument("--binary", type=Path, default=TOOLS.parent / "bin" / "orbitkv", help="the orbitkv binary")
    found.add_argument("--seed", type=int, default=1)
    found.add_argument("--output", type=Path, help="a file that gets the lines beside stdout")
    return found


if __name__ == "__main__":
    sys.exit(main())
