#!/usr/bin/env python3
"""Run the stages of the tests in order, count their tests and print where the time went.

Usage: stages.py GROUP|STAGE...    groups: all, fast, lint
       stages.py --list

A failed stage does not end the run: everything that does not need it still runs, and the exit status says that
something failed. A stage that could not run is listed with its reason, and counts as a failure of the run.
Only the standard library is used.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from envs import EnvironmentFailure, ensure
from runner.counting import Count, GoEvents, read_junit
from runner.process import run, show
from runner.report import Outcome, closing

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / "build" / "reports"
FUZZ_SECONDS = 20
LIMIT_S = 2400.0  # Of one stage: a guard against a hang, far above what any takes.
PURE_GO = {"CGO_ENABLED": "0"}
GO_TOOL = ("go", "tool", "-modfile=tools/go.mod")
TIDY = "orbitkv/internal/tidy"


@dataclass(frozen=True)
class Stage:
    """One row: its name, the groups that run it, the stages it cannot do without, and what it does."""

    name: str
    groups: str
    needs: tuple[str, ...]
    work: Callable[[str], Count]


class StageFailure(Exception):
    """A stage failed before it could count anything; the text says why."""


def check(*command: str, environment: dict[str, str] | None = None) -> Callable[[str], Count]:
    """Return work that passes when a command ends with 0; it counts as one test, named after the stage."""

    def work(name: str) -> Count:
        status = run(command, ROOT, environment or PURE_GO, LIMIT_S)
        return Count(passed=1) if status == 0 else Count(failed=[f"{name} ended with {status}"])

    return work


def gofumpt(name: str) -> Count:
    """Pass when the formatter would change no Go file; otherwise name those that it would."""
    wrong: list[str] = []
    files = tracked("*.go")
    status = run((*GO_TOOL, "gofumpt", "-l", *files), ROOT, PURE_GO, LIMIT_S, wrong.append)
    for line in wrong:
        show(line)
    if status == 0 and not wrong:
        return Count(passed=1)
    return Count(failed=[f"{name}: {len(wrong)} files to format with `make fmt`"])


def tracked(*patterns: str) -> list[str]:
    """Return the files of the checkout that git does not ignore; new files count before they are committed."""
    command = ["git", "-c", "safe.directory=*", "ls-files", "-co", "--exclude-standard", "--deduplicate", *patterns]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    return [name for name in listed if name and (ROOT / name).is_file()]


def packages() -> list[str]:
    """Return every Go package but the tree's own rules, which are a stage of their own."""
    done = subprocess.run(["go", "list", "./..."], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise StageFailure(f"`go list ./...` ended with {done.returncode}: {done.stderr.strip()}")
    return [package for package in done.stdout.split() if package != TIDY]


def go_test(*options: str, only: str = "", environment: dict[str, str] | None = None) -> Callable[[str], Count]:
    """Return work that runs Go tests and counts them from their events."""

    def work(name: str) -> Count:
        events = GoEvents()
        command = ("go", "test", "-json", "-timeout", "20m", *options, *([only] if only else packages()))
        status = run(command, ROOT, environment or PURE_GO, LIMIT_S, events.line)
        if status != 0 and not events.count.failed:
            events.count.failed.append(f"{name}: `go test` ended with {status}")
        return events.count

    return work


def fuzz(name: str) -> Count:
    """Fuzz every target for FUZZ_SECONDS with one worker each, as many at once as there are cores."""
    targets = fuzz_targets()
    if not targets:
        raise StageFailure(f"{name}: no fuzz target was found, though the decoders must be fuzzed")
    show(f"fuzzing {len(targets)} targets for {FUZZ_SECONDS} s each")
    count = Count()
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        for (package, target), sound in zip(targets, pool.map(fuzz_one, targets), strict=True):
            if sound:
                count.passed += 1
            else:
                count.failed.append(f"{package} {target}")
    return count


def fuzz_one(place: tuple[str, str]) -> bool:
    """Fuzz one target; print its last line of progress, or everything that it said when it found a fault."""
    package, target = place
    lines: list[str] = []
    # Making an input of 4 KiB smaller takes the fuzzer a minute, and fails when it is under way at the end.
    spare = ("-fuzzminimizetime", "10x")
    options = ("-run", "^$", "-fuzz", f"^{target}$", "-fuzztime", f"{FUZZ_SECONDS}s", "-parallel", "1", *spare)
    status = run(("go", "test", *options, package), ROOT, PURE_GO, LIMIT_S, lines.append)
    # The fuzzer sometimes calls its own end a failure; one that found something has written the input.
    ended = any(line.strip() == "context deadline exceeded" for line in lines)
    found = any("Failing input written" in line for line in lines)
    sound = status == 0 or (ended and not found)
    if sound:
        progress = [line.removeprefix("fuzz: ") for line in lines if line.startswith("fuzz: elapsed")]
        show(f"ok   {package} {target}: {progress[-1] if progress else 'no progress was told'}")
    else:
        show("\n".join((f"FAIL {package} {target}", *lines)))
    return sound


def fuzz_targets() -> list[tuple[str, str]]:
    """Return (package, target) of every fuzz target, as the test binaries themselves list them."""
    command = ["go", "test", "-json", "-list", "^Fuzz", *packages()]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        raise StageFailure(f"listing the fuzz targets ended with {listed.returncode}")
    events = [json.loads(line) for line in listed.stdout.splitlines() if line.startswith("{")]
    lines = [(event["Package"], event["Output"].strip()) for event in events if event.get("Action") == "output"]
    return [(package, text) for package, text in lines if text.startswith("Fuzz")]


def tool(environment: str, program: str, *options: str, files: Sequence[str]) -> Callable[[str], Count]:
    """Return work that runs a program of an environment over the files of the checkout that match."""

    def work(name: str) -> Count:
        program_path = str(ensure(environment) / "bin" / program)
        return check(program_path, *options, *tracked(*files))(name)

    return work


def environment(which: str) -> Callable[[str], Count]:
    """Return work that makes an environment, so that its time and its faults have a row of their own."""

    def work(name: str) -> Count:
        show(f"{name}: {ensure(which)}")
        return Count(passed=1)

    return work


def pytest(which: str, *arguments: str) -> Callable[[str], Count]:
    """Return work that runs pytest in an environment and counts from its JUnit file."""

    def work(name: str) -> Count:
        report = REPORTS / f"{name}.xml"
        report.parent.mkdir(parents=True, exist_ok=True)
        report.unlink(missing_ok=True)
        python = str(ensure(which) / "bin" / "python")
        command = (python, "-m", "pytest", "--junitxml", str(report), "--durations", "5", *arguments)
        status = run(command, ROOT / "python", {}, LIMIT_S)
        count = read_junit(report) or Count(failed=[f"{name}: pytest ended with {status} before it wrote a report"])
        if status != 0 and not count.failed:
            count.failed.append(f"{name}: pytest ended with {status}")
        return count

    return work


PYTHON_FILES = ("*.py",)
ENGINE_TESTS, SGLANG_TESTS = "tests/engine", "tests/sglang"
MANAGER_TESTS, WHEEL_TESTS, MEASURE_TESTS = "tests/manager", "tests/packaging", "tests/measure"
KERNEL_TESTS = "tests/kernel"
ELSEWHERE = (ENGINE_TESTS, SGLANG_TESTS, MANAGER_TESTS, WHEEL_TESTS, MEASURE_TESTS, KERNEL_TESTS)
OWN_STAGE = [word for folder in ELSEWHERE for word in ("--ignore", folder)]

STAGES = (
    Stage("gofumpt", "all fast lint", (), gofumpt),
    Stage("go-vet", "all fast lint", (), check("go", "vet", "./...")),
    Stage("staticcheck", "all fast lint", (), check(*GO_TOOL, "staticcheck", "./...")),
    Stage("tidy", "all fast lint", (), go_test("-count=1", only="./internal/tidy")),
    Stage("env-dev", "all fast lint", (), environment("dev")),
    Stage("ruff-format", "all fast lint", ("env-dev",), tool("dev", "ruff", "format", "--check", files=PYTHON_FILES)),
    Stage("ruff-check", "all fast lint", ("env-dev",), tool("dev", "ruff", "check", files=PYTHON_FILES)),
    Stage("mypy", "all fast lint", ("env-dev",), tool("dev", "mypy", files=PYTHON_FILES)),
    Stage("build", "all fast", (), check("make", "--no-print-directory", "build")),
    Stage("go-test", "all fast", (), go_test()),
    Stage("pytest", "all fast", ("env-dev", "build"), pytest("dev", *OWN_STAGE)),
    Stage("manager", "all fast", ("env-dev", "build"), pytest("dev", MANAGER_TESTS)),
    Stage("wheel", "all fast", ("env-dev",), check("make", "--no-print-directory", "wheel")),
    Stage("wheel-test", "all fast", ("wheel",), pytest("dev", WHEEL_TESTS)),
    Stage("go-race", "all", (), go_test("-race", "-short", environment={"CGO_ENABLED": "1"})),
    Stage("go-fuzz", "all", (), fuzz),
    Stage("env-vllm", "all", (), environment("vllm-cpu")),
    Stage("vllm", "all", ("env-vllm", "build"), pytest("vllm-cpu", ENGINE_TESTS)),
    Stage("kernel", "all", ("env-vllm",), pytest("vllm-cpu", KERNEL_TESTS)),
    Stage("measure", "all", ("env-vllm", "build"), pytest("vllm-cpu", MEASURE_TESTS)),
    Stage("demo", "all", ("env-vllm", "build"), check("demo/run")),
    Stage("env-sglang", "all", (), environment("sglang-cpu")),
    Stage("sglang", "all", ("env-sglang", "build"), pytest("sglang-cpu", SGLANG_TESTS)),
    Stage("measure-sglang", "all", ("env-sglang", "build"), pytest("sglang-cpu", MEASURE_TESTS)),
    Stage("demo-sglang", "all", ("env-sglang", "build"), check("demo/run", "--engine", "sglang")),
)


def perform(stages: Sequence[Stage]) -> list[Outcome]:
    """Run the stages in order. A stage whose need failed is not run; a need that was not chosen is taken as met."""
    outcomes: dict[str, Outcome] = {}
    for stage in stages:
        lacking = [need for need in stage.needs if need in outcomes and outcomes[need].result != "ok"]
        if lacking:
            reason = f"it needs {' and '.join(lacking)}, which did not pass"
            outcomes[stage.name] = Outcome(stage.name, "not run", 0.0, Count(skipped=[(stage.name, reason)]))
            continue
        show(f"\n=== {stage.name}")
        begun = time.monotonic()
        try:
            count = stage.work(stage.name)
        except (EnvironmentFailure, StageFailure) as failure:
            show(str(failure))
            count = Count(failed=[f"{stage.name}: {failure}"])
        if count.total() == 0:
            count.failed.append(f"{stage.name}: it ran no test")
        result = "FAILED" if count.failed else "ok"
        outcomes[stage.name] = Outcome(stage.name, result, time.monotonic() - begun, count)
    return list(outcomes.values())


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Run stages of the tests and print where the time went.")
    parser.add_argument("names", nargs="*", help="groups (all, fast, lint) or stages")
    parser.add_argument("--list", action="store_true", help="list the stages")
    arguments = parser.parse_args()
    if arguments.list or not arguments.names:
        for stage in STAGES:
            print(f"{stage.name:<14} in: {stage.groups:<15} needs: {', '.join(stage.needs) or 'nothing'}")
        return 0
    known = {word for stage in STAGES for word in (stage.name, *stage.groups.split())}
    if unknown := [name for name in arguments.names if name not in known]:
        parser.error(f"no stage or group is called {', '.join(unknown)}; `stages.py --list` names them")
    wanted = set(arguments.names)
    chosen = [stage for stage in STAGES if wanted & {stage.name, *stage.groups.split()}]
    show(f"{len(chosen)} stages: {', '.join(stage.name for stage in chosen)}")
    return 0 if closing(perform(chosen)) else 1


if __name__ == "__main__":
    sys.exit(main())
