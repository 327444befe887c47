"""Count tests from what their runners report: `go test -json` events and JUnit files."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.process import show

OUTPUT_LINES_MAX = 400  # Kept of one test, to be shown when it fails: the first lines say why, the last say where.
OUTPUT_LINES_FIRST = 100
SKIP_REASON = re.compile(r"^\s*\S+\.go:\d+: (.*)$")


@dataclass
class Count:
    """Tests of one stage by result; those that did not pass by name, with the reason of a skip."""

    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)

    def total(self) -> int:
        """Return how many tests were seen."""
        return self.passed + len(self.failed) + len(self.skipped)


class GoEvents:
    """Turns the events of `go test -json` into counts, and prints a line a package and the output of failures.

    A test with subtests is not counted itself, unless it failed while all of them passed.
    """

    def __init__(self) -> None:
        self.count = Count()
        self._output: dict[tuple[str, str], list[str]] = {}
        self._parents: set[tuple[str, str]] = set()
        self._packages: dict[str, Count] = {}

    def line(self, text: str) -> None:
        """Take one line: an event, or anything else that the tool says."""
        try:
            event = json.loads(text)
        except ValueError:
            show(text)
            return
        if not isinstance(event, dict):
            show(text)
            return
        action, test = event.get("Action", ""), event.get("Test", "")
        if action == "build-output":
            show(event["Output"].rstrip("\n"))
        elif action == "output":
            self._keep(event["Package"], test, event["Output"])
        elif action == "run" and "/" in test:
            self._parents.add((event["Package"], test.rpartition("/")[0]))
        elif action in ("pass", "fail", "skip"):
            self._result(event, action, test)

    def _keep(self, package: str, test: str, output: str) -> None:
        if output.startswith("=== "):
            return  # The tool's own marks; the events say it already.
        kept = self._output.setdefault((package, test), [])
        kept.append(output.rstrip("\n"))
        if len(kept) > OUTPUT_LINES_MAX:
            del kept[OUTPUT_LINES_FIRST]

    def _result(self, event: dict[str, Any], action: str, test: str) -> None:
        package = event["Package"]
        mine = self._packages.setdefault(package, Count())
        name, output = f"{package} {test}", self._output.pop((package, test), [])
        if not test:
            self._package(package, action, event.get("Elapsed", 0.0), output)
        elif action == "fail":
            child_failed = any(failed.startswith(name + "/") for failed in mine.failed)
            if not child_failed:
                mine.failed.append(name)
            show("\n".join(output))
        elif (package, test) in self._parents:
            return
        elif action == "skip":
            reasons = [found.group(1) for found in map(SKIP_REASON.match, output) if found]
            mine.skipped.append((name, reasons[-1] if reasons else "no reason given"))
        else:
            mine.passed += 1

    def _package(self, package: str, action: str, seconds: float, output: list[str]) -> None:
        mine = self._packages[package]
        if action == "fail" and not mine.failed:
            # It did not build, panicked outside of a test, or ran past the time limit.
            mine.failed.append(f"{package} (the package itself)")
        if action == "fail":
            show("\n".join(output))
        if action != "skip":
            skipped = f", {len(mine.skipped)} skipped" if mine.skipped else ""
            word = "ok  " if action == "pass" else "FAIL"
            show(f"{word} {package}  {seconds:.1f} s  {mine.passed} passed, {len(mine.failed)} failed{skipped}")
        self.count.passed += mine.passed
        self.count.failed += mine.failed
        self.count.skipped += mine.skipped


def read_junit(path: Path) -> Count | None:
    """Return the counts of a JUnit file, or None when the runner ended before writing a whole one."""
    try:
        cases = ElementTree.parse(path).getroot().iter("testcase")
    except (FileNotFoundError, ElementTree.ParseError):
        return None
    count = Count()
    for case in cases:
        name = f"{case.get('classname')}::{case.get('name')}"
        skip = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            count.failed.append(name)
        elif skip is not None:
            count.skipped.append((name, skip.get("message") or "no reason given"))
        else:
            count.passed += 1
    return count
