#!/usr/bin/env python3
"""Measure cache backends with a real engine on a machine without a GPU, with everything that this needs made first.

Usage: measure.py vllm|sglang --output FOLDER [any flag of `orbitkv bench single-node`]

It builds bin/orbitkv, makes the engine's environment and a tiny random checkpoint, and becomes
`orbitkv bench single-node`. What is not said by a flag is small: native and orbitkv, prompts of 256 and 512 tokens,
2,048 tokens of device memory. Only the standard library is used here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from envs import EnvironmentFailure, ensure

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENTS = {"vllm": "vllm-cpu", "sglang": "sglang-cpu"}  # An engine's environment, by the engine's name.


def main() -> None:
    """Prepare, then become the measurement; exit with the reason when a preparation fails."""
    if len(sys.argv) < 2 or sys.argv[1] not in ENVIRONMENTS:
        sys.exit(str(__doc__))
    engine, words = sys.argv[1], sys.argv[2:]
    built = subprocess.run(["make", "--no-print-directory", "-C", str(ROOT), "build"], check=False)
    if built.returncode != 0:
        sys.exit("measure: the build failed; its own message is above")
    try:
        python = str(ensure(ENVIRONMENTS[engine]) / "bin" / "python")
    except EnvironmentFailure as failure:
        sys.exit(f"measure: {failure}")
    paths = [str(ROOT / "tools"), os.environ.get("PYTHONPATH", "")]
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    os.execve(python, [python, "-m", "harness.single_node", engine, *words], found)


if __name__ == "__main__":
    main()
