"""Results of a qualification: one JSON line a case as soon as it ended, and a last line that sums them up.

A case is a function that raises when something is wrong and returns figures worth keeping. A control is a case with
something needed left out: it passes when wrong bytes or tokens are noticed, so that the other cases prove something.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from orbitkv._faults import FAULTS

Figures: TypeAlias = Mapping[str, Any]
TEXT_MAX = 2000  # characters of a failure's text in a line


class Wrong(AssertionError):
    """Bytes or tokens differ from those that they must be; the text says which."""


class Report:
    """The lines of one program. `output` names a file that gets them beside stdout."""

    def __init__(self, program: str, output: Path | None = None, write: Callable[[str], object] = print) -> None:
        self._program = program
        self._output = output
        self._write = write
        self._begun = time.monotonic()
        self._counts = {"passed": 0, "skipped": 0}
        self._failed: list[str] = []
        if output is not None:
            output.write_text("", encoding="utf-8")

    def case(self, name: str, run: Callable[[], Figures]) -> bool:
        """Run a case; return whether it passed."""
        begun = time.monotonic()
        try:
            figures = run()
        except FAULTS as fault:
            return self._end(name, False, begun, {"error": f"{type(fault).__name__}: {fault}"[:TEXT_MAX]})
        return self._end(name, True, begun, figures)

    def control(self, name: str, run: Callable[[], Figures]) -> bool:
        """Run a case that must be noticed as wrong; return whether it was."""

        def noticed() -> Figures:
            try:
                run()
            except Wrong as wrong:
                return {"noticed": str(wrong)}
            raise AssertionError("nothing was noticed, so the cases beside this control prove nothing")

        return self.case(name, noticed)

    def skip(self, name: str, reason: str) -> None:
        """Say that a case cannot be run here, and why."""
        self._counts["skipped"] += 1
        self._line({"case": name, "skipped": reason})

    def note(self, **facts: Any) -> None:
        """Write a line of facts that is no case."""
        self._line(facts)

    def close(self) -> int:
        """Write the last line and return the exit status: 1 when a case failed or none ran."""
        passed = self._counts["passed"]
        ok = passed > 0 and not self._failed
        seconds = round(time.monotonic() - self._begun, 3)
        self._line(
            {"summary": self._program, "ok": ok, **self._counts, "failed": self._failed, "seconds": seconds},
        )
        return 0 if ok else 1

    def _end(self, name: str, ok: bool, begun: float, figures: Figures) -> bool:
        if ok:
            self._counts["passed"] += 1
        else:
            self._failed.append(name)
        self._line({"case": name, "ok": ok, "seconds": round(time.monotonic() - begun, 3), **figures})
        return ok

    def _line(self, row: Mapping[str, Any]) -> None:
        text = json.dumps(row)
        self._write(text)
        if self._output is not None:
            with self._output.open("a", encoding="utf-8") as out:
                out.write(text + "\n")
