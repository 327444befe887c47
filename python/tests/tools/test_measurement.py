"""The tests' own view of a measurement: its command line, the processes that it started, and the rows that count."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness import measurement
from harness.checkpoint import Checkpoint
from harness.manager import eventually
from harness.measurement import Measurement, adopt_orphans, descendants
from harness.single_node import SMALL, command, environment

SMALLEST = Checkpoint(layers=1, hidden=32, heads=2, kv_heads=1, head_dim=16, vocabulary=64)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test a cache of its own."""
    monkeypatch.setenv("ORBITKV_CACHE", str(tmp_path / "cache"))


def value(line: list[str], flag: str) -> str:
    """Return what the last mention of a flag says, as the program reads it."""
    return line[len(line) - line[::-1].index(flag)]


def test_flags_that_are_given_go_before_the_small_ones() -> None:
    line = command("vllm", Path("model"), ["--lengths=64", "--gpu-tokens", "512"])
    assert "--lengths" not in line
    assert value(line, "--gpu-tokens") == "512"
    assert line.count("--gpu-tokens") == 1
    assert value(line, "--backend") == SMALL["--backend"]
    assert value(line, "--engine-python") == sys.executable


@pytest.mark.parametrize("words", [["--workload", "sustained"], ["--workload=sustained"]])
def test_a_sustained_run_is_not_given_what_it_refuses(words: list[str]) -> None:
    assert "--repeats" not in command("vllm", Path("model"), words)
    assert "--repeats" in command("vllm", Path("model"), ["--workload", "partial"])


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_engines_find_the_product(engine: str) -> None:
    found = environment(engine)
    assert any(Path(part, "orbitkv").is_dir() for part in found["PYTHONPATH"].split(os.pathsep))
    assert found["HF_HUB_OFFLINE"] == "1"


def test_a_process_whose_parent_died_is_still_found() -> None:
    adopt_orphans()
    before = descendants()
    # The shell leaves a process in a session of its own behind, and tells its id.
    told = subprocess.run(
        ["setsid", "sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $!"], capture_output=True, text=True, check=True
    )
    orphan = int(told.stdout)
    try:
        assert descendants() - before == {orphan}
    finally:
        os.kill(orphan, signal.SIGKILL)
    eventually(lambda: descendants() == before, "the process is gone")


def test_rows_of_an_attempt_that_did_not_finish_its_cell_do_not_count(tmp_path: Path) -> None:
    run = Measurement("vllm", SMALLEST, tmp_path / "run")
    run.folder.mkdir()
    cells = [{"cell": "a", "attempt": 1, "backend": "native"}, {"cell": "b", "attempt": 2, "backend": "orbitkv"}]
    rows = [{"cell": cell, "attempt": attempt} for cell in "abc" for attempt in (1, 2)]
    (run.folder / "cells.jsonl").write_text("".join(json.dumps(row) + "\n" for row in cells))
    (run.folder / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"cell": "a", "att')
    assert run.final("samples") == [{"cell": "a", "attempt": 1}, {"cell": "b", "attempt": 2}]
    assert run.finished("orbitkv") == {"b": 2}
    assert run.rows("failures") == []


def test_an_attempt_that_ends_too_early_is_an_error_with_what_it_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measurement, "command", lambda *_: ["sh", "-c", "echo spoken; exit 3"])
    run = Measurement("vllm", SMALLEST, tmp_path / "run")
    with pytest.raises(AssertionError, match="ended with 3:\nspoken"):
        run.run()
    run.start()
    with pytest.raises(AssertionError, match="ended before it is ready"):
        run.wait_until(lambda: False, "it is ready")
    run.close()
    assert run.running() == []
