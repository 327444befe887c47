"""`make measure`: what it refuses before it prepares anything, and how it ends when its preparation is interrupted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import measure
from harness import single_node

ROOT = Path(measure.__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def unprepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every preparation be interrupted at once."""

    def interrupted(_: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(measure, "prepared", interrupted)
    monkeypatch.setattr(single_node, "prepare", interrupted)


def refusal(monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    """Return with what the program ends."""
    monkeypatch.setattr(sys, "argv", ["measure.py", *words])
    with pytest.raises(SystemExit) as ended:
        measure.main()
    return str(ended.value.code)


def test_what_is_no_engine_is_named_with_those_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusal(monkeypatch, "trt") == "measure: trt is no engine: name vllm or sglang"
    assert "[--output FOLDER]" in refusal(monkeypatch)


def test_a_run_is_resumed_in_a_folder_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "nothing to resume: name the folder" in refusal(monkeypatch, "vllm", "--resume")
    assert measure.into_folder(["--output=runs/a", "--resume"]) == ["--output=runs/a", "--resume"]
    flag, folder, *rest = measure.into_folder(["--repeats", "3"])
    assert (flag, Path(folder).parent, rest) == ("--output", measure.MEASURED, ["--repeats", "3"])


def test_an_interrupted_preparation_says_so_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusal(monkeypatch, "vllm").startswith("measure: interrupted before anything was measured")
    monkeypatch.setattr(sys, "argv", ["single_node.py", "vllm"])
    with pytest.raises(SystemExit) as ended:
        single_node.main()
    assert str(ended.value.code).startswith("measure: interrupted before anything was measured")


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        (["FLAGS=--resume"], "tools/measure.py vllm  --resume"),
        (["ENGINE=trt", "OUTPUT=runs/a b"], 'tools/measure.py trt --output "runs/a b"'),
    ],
)
def test_make_passes_a_folder_on_only_where_one_is_named(variables: list[str], said: str) -> None:
    line = ["make", "-n", "--no-print-directory", "-C", str(ROOT), "measure", *variables]
    assert said in subprocess.run(line, capture_output=True, text=True, check=True).stdout
