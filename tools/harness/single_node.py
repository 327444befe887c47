"""`orbitkv bench single-node` on a machine without a GPU: its command line and environment, for people and tests.

Run as a program by the Python of an engine's environment, it makes the checkpoint and becomes the measurement.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import sglangcpu
from harness import engine as vllm
from harness import sglang
from harness.checkpoint import Checkpoint, ensure
from harness.server import TOOLS

BINARY = TOOLS.parent / "bin" / "orbitkv"
# What is measured where the command line does not say otherwise: small enough for a tiny model on two cores, and with
# pressure all the same, since two requests of three quarters of the device's tokens leave nothing else in them.
SMALL = {
    "--backend": "native,orbitkv",
    "--gpu-tokens": "2048",
    "--lengths": "256,512",
    "--repeats": "2",
    "--output-tokens": "8",
    "--host-gib": "0.25",
}
NOT_SUSTAINED = ("--repeats",)  # Flags that the workload `sustained` has no use for.


def command(engine: str, model: Path, words: Sequence[str]) -> list[str]:
    """Return the command line of a measurement by the Python that runs this; `words` are flags that go before SMALL."""
    line = [str(BINARY), "bench", "single-node", "--engine", engine, "--device", "cpu"]
    line += ["--engine-python", sys.executable, "--model", str(model), *words]
    given = {word.partition("=")[0] for word in words}
    sustained = "--workload=sustained" in words or ("--workload", "sustained") in itertools.pairwise(words)
    for flag, value in SMALL.items():
        if flag not in given and not (sustained and flag in NOT_SUSTAINED):
            line += [flag, value]
    return line


def environment(engine: str) -> dict[str, str]:
    """Return the whole environment of a measurement, which its engines inherit."""
    return {"vllm": vllm.base_environment, "sglang": sglang.base_environment}[engine]()


def prepare(engine: str) -> None:
    """Take away what a killed engine left in the environment and a new one would wait for."""
    if engine == "sglang":
        sglangcpu.remove_abandoned_lock(Path(sys.prefix))


def main() -> None:
    """Become the measurement: the command line is the engine and then flags of `orbitkv bench single-node`."""
    engine, words = sys.argv[1], sys.argv[2:]
    try:
        prepare(engine)
        line = command(engine, ensure(Checkpoint()), words)
    except KeyboardInterrupt:
        sys.exit("measure: interrupted before anything was measured: the same command prepares what is still missing")
    os.execve(line[0], line, environment(engine))


if __name__ == "__main__":
    main()
