#!/usr/bin/env python3
"""Measure cache backends with a real engine on a machine without a GPU, with everything that this needs made first.

Usage: measure.py vllm|sglang [--output FOLDER] [any flag of `orbitkv bench single-node`]

Without --output the folder is a new one under build/measured, named by the time. It builds bin/orbitkv, makes the
engine's environment and a tiny random checkpoint, and becomes `orbitkv bench single-node`. What is not said by a flag
is small: native and orbitkv, prompts of 256 and 512 tokens, 2,048 tokens of device memory. Only the standard library
is used here.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from envs import EnvironmentFailure, ensure

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENTS = {"vllm": "vllm-cpu", "sglang": "sglang-cpu"}  # An engine's environment, by the engine's name.
MEASURED = Path("build", "measured")  # Where runs lie that were given no folder, below the current folder.


def main() -> None:
    """Prepare, then become the measurement; exit with the reason when a preparation fails."""
    if len(sys.argv) < 2:
        sys.exit(str(__doc__))
    engine = sys.argv[1]
    if engine not in ENVIRONMENTS:
        sys.exit(f"measure: {engine} is no engine: name {' or '.join(ENVIRONMENTS)}")
    words = into_folder(sys.argv[2:])
    try:
        python = prepared(engine)
    except KeyboardInterrupt:
        sys.exit("measure: interrupted before anything was measured: the same command prepares what is still missing")
    paths = [str(ROOT / "tools"), os.environ.get("PYTHONPATH", "")]
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    os.execve(python, [python, "-m", "harness.single_node", engine, *words], found)


def into_folder(words: Sequence[str]) -> list[str]:
    """Return the flags with a folder for the run; exit where a run is to be resumed and nobody says which."""
    if any(word == "--output" or word.startswith("--output=") for word in words):
        return list(words)
    if "--resume" in words or "--resume=true" in words:
        sys.exit("measure: nothing to resume: name the folder: make measure OUTPUT=FOLDER FLAGS=--resume")
    return ["--output", str(MEASURED / time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())), *words]


def prepared(engine: str) -> str:
    """Build the binary and make the engine's environment; return its Python."""
    built = subprocess.run(["make", "--no-print-directory", "-C", str(ROOT), "build"], check=False)
    if built.returncode != 0:
        sys.exit("measure: the build failed; its own message is above")
    try:
        return str(ensure(ENVIRONMENTS[engine]) / "bin" / "python")
    except EnvironmentFailure as failure:
        sys.exit(f"measure: {failure}")


if __name__ == "__main__":
    main()
