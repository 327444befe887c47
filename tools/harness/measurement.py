"""One run of `orbitkv bench single-node` in tests: started, cut off, resumed, and read from the files that it left.

The files are read as their description says, not with the program that wrote them.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.checkpoint import Checkpoint, ensure
from harness.manager import eventually
from harness.single_node import BINARY, command, environment, prepare

PR_SET_CHILD_SUBREAPER = 36
RUN_LIMIT_S = 1200.0  # A guard against a hang: three starts of an engine on a busy small machine take a few minutes.
END_LIMIT_S = 60.0  # For everything that a killed measurement leaves to be gone.
Row = dict[str, Any]


class Measurement:
    """A measurement into one folder, which may be run in several attempts. `close` leaves nothing of it running."""

    def __init__(self, engine: str, checkpoint: Checkpoint, folder: Path, *words: str) -> None:
        self.folder = folder
        self._engine = engine
        self._line = command(engine, ensure(checkpoint), ["--output", str(folder), *words])
        self._log = folder.with_name(folder.name + ".log")
        self._process: subprocess.Popen[bytes] | None = None
        adopt_orphans()
        self._before = descendants()

    def start(self, *words: str) -> None:
        """Start an attempt, with further flags."""
        prepare(self._engine)
        with self._log.open("ab") as out:
            self._process = subprocess.Popen(
                [*self._line, *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=environment(self._engine),
                start_new_session=True,
            )

    def wait(self) -> int:
        """Return the exit status of the attempt."""
        assert self._process is not None
        return self._process.wait(RUN_LIMIT_S)

    def run(self, *words: str) -> None:
        """Run one attempt to its end; anything but status 0 is an error with the end of what it printed."""
        self.start(*words)
        status = self.wait()
        assert status == 0, f"the measurement ended with {status}:\n{self.printed()[-6000:]}"

    def wait_until(self, reached: Callable[[], bool], what: str) -> None:
        """Return once something is so; an attempt that ends before is an error."""
        assert self._process is not None
        process = self._process

        def over() -> bool:
            assert process.poll() is None, f"the measurement ended before {what}:\n{self.printed()[-6000:]}"
            return reached()

        eventually(over, what, limit_s=RUN_LIMIT_S)

    def kill(self) -> None:
        """End the measurement's own process by SIGKILL, and nothing else."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait(END_LIMIT_S)

    def running(self) -> list[int]:
        """Return every live process that the measurement started, directly or not."""
        return sorted(descendants() - self._before)

    def wait_gone(self) -> None:
        """Return once nothing that the measurement started is left."""
        eventually(lambda: not self.running(), "nothing of the measurement is left", limit_s=END_LIMIT_S)

    def close(self) -> None:
        """End whatever is left."""
        for pid in self.running():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def printed(self) -> str:
        """Return what all attempts printed."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def ask(self, *words: str) -> str:
        """Return what another verb of `orbitkv bench` prints; CalledProcessError when it refuses."""
        line = [str(BINARY), "bench", *words]
        return subprocess.run(line, capture_output=True, text=True, check=True, timeout=END_LIMIT_S).stdout

    def rows(self, kind: str) -> list[Row]:
        """Return the whole rows of a file of the output, none where it is not there yet."""
        path = self.folder / f"{kind}.jsonl"
        if not path.is_file():
            return []
        lines = path.read_text(encoding="utf-8").split("\n")
        return [json.loads(line) for line in lines[:-1]]  # The last piece is empty, or a row that was cut off.

    def document(self, name: str) -> Any:
        """Return a JSON document of the output."""
        return json.loads((self.folder / name).read_text(encoding="utf-8"))

    def finished(self, backend: str = "") -> dict[str, int]:
        """Return the attempt that finished each cell, of one backend or of all."""
        return {row["cell"]: row["attempt"] for row in self.rows("cells") if backend in ("", row["backend"])}

    def final(self, kind: str) -> list[Row]:
        """Return the rows that count: those of the attempt that finished their cell."""
        finished = self.finished()
        return [row for row in self.rows(kind) if finished.get(row["cell"]) == row["attempt"]]


@dataclass(frozen=True)
class Group:
    """Measured samples that are alike but for their prompt."""

    backend: str
    length: int
    phase: str


def groups(samples: list[Row]) -> dict[Group, list[Row]]:
    """Return the measured samples by what they have in common."""
    found: dict[Group, list[Row]] = {}
    for sample in samples:
        if sample["measured"]:
            found.setdefault(Group(sample["backend"], sample["length"], sample["phase"]), []).append(sample)
    return found


def adopt_orphans() -> None:
    """Become the parent of every process that loses its own below this one, so that none can hide."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def descendants() -> set[int]:
    """Return every live process below this one; zombies are left out, since they hold nothing any more."""
    children: dict[int, list[int]] = {}
    for pid, state, parent in _processes():
        if state not in "ZX":
            children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    below = [os.getpid()]
    while below:
        own = [pid for pid in children.get(below.pop(), []) if pid not in found]
        found.update(own)
        below += own
    return found


def _processes() -> Iterator[tuple[int, str, int]]:
    """Yield the id, the state and the parent of every process."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                facts = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
                yield int(entry.name), facts[0], int(facts[1])
