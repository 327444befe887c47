"""A control group with a memory limit, for a Manager that must live within it; versions 1 and 2 of the interface."""

from __future__ import annotations

import os
import shlex
import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
END_LIMIT_S = 30.0
POLL_S = 0.05


class NoControlGroup(Exception):
    """This machine lets nobody make one; the text says why."""


class MemoryGroup:
    """A group below this process's own. `remove` needs it empty of processes."""

    def __init__(self, limit_bytes: int) -> None:
        self._folder, limit, self._usage, self._events = _make()
        try:
            (self._folder / limit).write_text(str(limit_bytes), encoding="ascii")
            self.usage_bytes()
        except OSError as fault:
            self._folder.rmdir()
            raise NoControlGroup(f"{self._folder} takes no memory limit: {fault}") from fault

    def usage_bytes(self) -> int:
        """Return what the group is charged with."""
        return int((self._folder / self._usage).read_text(encoding="ascii"))

    def kills(self) -> int:
        """Return how often the out-of-memory killer came."""
        for line in (self._folder / self._events).read_text(encoding="ascii").splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
        raise NoControlGroup(f"{self._folder / self._events} counts no kills")

    def wrapped(self, program: Path, folder: Path) -> Path:
        """Return a program that enters the group and becomes `program`."""
        script = folder / f"{program.name}-in-group"
        procs = shlex.quote(str(self._folder / "cgroup.procs"))
        script.write_text(f'#!/bin/sh\necho $$ > {procs} && exec {shlex.quote(str(program))} "$@"\n', encoding="utf-8")
        script.chmod(0o755)
        return script

    def remove(self) -> None:
        """Remove the group once its last process is gone."""
        end = time.monotonic() + END_LIMIT_S
        while True:
            try:
                self._folder.rmdir()
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(POLL_S)
            else:
                return


def _make() -> tuple[Path, str, str, str]:
    """Make the folder; return it and the names of its files for limit, usage and events."""
    name = f"orbitkv-test-{os.getpid()}"
    reasons = []
    for line in Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines():
        _, controllers, inside = line.split(":", 2)
        if controllers == "":
            parent = ROOT / inside.lstrip("/")
            files = ("memory.max", "memory.current", "memory.events")
        elif "memory" in controllers.split(","):
            parent = ROOT / "memory" / inside.lstrip("/")
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control")
        else:
            continue
        try:
            (parent / name).mkdir()
        except OSError as fault:
            reasons.append(str(fault))
            continue
        if (parent / name / files[0]).exists():
            return (parent / name, *files)
        (parent / name).rmdir()
        reasons.append(f"{parent} gives its children no memory controller")
    raise NoControlGroup("; ".join(reasons) or "there is no memory controller")
