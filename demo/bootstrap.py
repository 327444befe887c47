"""Build OrbitKV, make the environment with the real engine, and hand over to the demo inside it.

Only the standard library is used here, since the environment with everything else is made by this program.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENTS = {"vllm": "vllm-cpu", "sglang": "sglang-cpu"}  # An engine's environment, by the name that --engine takes.


def main() -> None:
    """Prepare, then become the demo; exit with the reason when a preparation fails."""
    name = engine_of(sys.argv[1:])
    if name not in ENVIRONMENTS:
        sys.exit(f"demo: no engine is called {name!r}; there is: {', '.join(ENVIRONMENTS)}")
    python = prepare(ENVIRONMENTS[name])
    paths = [str(ROOT), str(ROOT / "tools"), str(ROOT / "python" / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in paths if p), "PYTHONDONTWRITEBYTECODE": "1"}
    os.execve(python, [python, "-m", "demo", *sys.argv[1:]], environment)


def prepare(environment: str) -> str:
    """Build the binary and the environment; return the environment's Python."""
    print("demo: building bin/orbitkv", flush=True)
    built = subprocess.run(["make", "--no-print-directory", "-C", str(ROOT), "build"], check=False)
    if built.returncode != 0:
        sys.exit("demo: the build failed; its own message is above")
    print("demo: looking for the environment with the real engine (the first time it is downloaded)", flush=True)
    tool = [sys.executable, str(ROOT / "tools" / "envs.py"), environment]
    made = subprocess.run(tool, stdout=subprocess.PIPE, text=True, check=False)
    if made.returncode != 0:
        sys.exit("demo: the environment could not be made; the reason is above")
    return str(Path(made.stdout.strip()) / "bin" / "python")


def engine_of(arguments: list[str]) -> str:
    """Return the engine that the arguments name; the demo itself parses and checks all of them."""
    for at, word in enumerate(arguments):
        if word.startswith("--engine="):
            return word.partition("=")[2]
        if word == "--engine" and at + 1 < len(arguments):
            return arguments[at + 1]
    return "vllm"


if __name__ == "__main__":
    main()
