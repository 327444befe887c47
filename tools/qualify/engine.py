"""Qualify restores of a real vLLM: equal tokens from the device and from OrbitKV, with counters that prove the restore.

Usage, from the root of the checkout:

    PYTHONPATH=python/src:tools python3 -m qualify.engine [--device cuda|cpu] [--checkpoint qwen3-8b] [--output FILE]

One engine and one Manager are started for all cases, the most telling ones first; `--cases` names a selection and
`--seconds` ends the program before the next case once the time is used up. With `--fault corrupt-restore` every byte
that is restored is spoiled and answers must change; with `--fault poison-destination` pages are overwritten first and
no answer may change.
`--device cpu` runs the same on the CPU build of vLLM with a tiny model.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.base import ManagerRig
from harness.checkpoint import SHAPES, ensure
from qualify.offline import EngineChoice, Offline, logged, tail
from qualify.report import Figures, Report
from qualify.rounds import Rounds, lengths

ROOT = Path(__file__).resolve().parents[2]
CASES = ("single", "full-graph", "together", "joining", "chunked", "preempted", "spoiled")
PRESSED = 0.7  # of the prompts' pages: a device that holds fewer has lost a prompt before it is asked again
SPARE = 1.3  # of the Manager's pool above what the prompts need: every case has prompts of its own
GIB = 1 << 30


@dataclass(frozen=True)
class Scale:
    """How much is asked, by the device."""

    prompts: int
    low: int
    high: int
    page: int
    batched_tokens: int
    batch: int
    output: int  # tokens of each request that shall be preempted
    pool_bytes: int  # the Manager's least pool


SCALES = {
    "cuda": Scale(200, 300, 2500, 64, 2048, 16, 600, 16 * GIB),
    "cpu": Scale(8, 150, 1100, 128, 1024, 4, 200, GIB // 2),
}


def main() -> int:
    """Run the command line."""
    options = parser().parse_args()
    scale = SCALES[options.device]
    sizes = lengths(
        options.prompts or scale.prompts, scale.low, scale.high, options.block_size or scale.page, options.seed
    )
    with tempfile.TemporaryDirectory() as folder:
        log = options.log or Path(folder) / "engine.log"
        with logged(log) as write:
            report = Report("engine", options.output, write)
            began = time.monotonic()
            if not report.case("start and cases", lambda: run(options, scale, sizes, report, Path(folder), log)):
                report.note(log_tail=tail(log))
            report.note(seconds_with_start=round(time.monotonic() - began, 1))
            return report.close()


def run(options: Any, scale: Scale, sizes: list[int], report: Report, folder: Path, log: Path) -> Figures:
    """Start a Manager and an engine, run the cases, and end both."""
    choice, pool = choose(options, scale, sizes)
    rig = ManagerRig(options.binary, folder)
    began = time.monotonic()
    try:
        rig.serve(f"{pool >> 20}mib")
        engine = Offline(choice, rig.socket, log)
        try:
            pressed = options.evict == "pressure" and choice.device_blocks < PRESSED * pages_of(
                sizes, choice.block_tokens
            )
            rounds = Rounds(engine, rig, choice.block_tokens, pressed)
            rig.wait_publishes(lambda prompt: engine.ask(prompt, 2), choice.block_tokens + 1)
            report.note(
                started_seconds=round(time.monotonic() - began, 1),
                pool_bytes=pool,
                pressed=pressed,
                **described(choice),
            )
            run_cases(options, scale, sizes, report, rounds, began)
            rig.quiet()
        finally:
            engine.close()
    finally:
        rig.close()
    return {"device_blocks": choice.device_blocks}


def run_cases(options: Any, scale: Scale, sizes: list[int], report: Report, rounds: Rounds, began: float) -> None:
    """Run the cases in order, as long as there is time."""
    if options.fault == "corrupt-restore":
        report.case("spoiled restores change answers", lambda: rounds.single(rounds.prompts(sizes), faulty=True))
        return
    batch = lengths(scale.batch, scale.low, scale.high, rounds.page, options.seed + 1)
    # vLLM's newer runner leaves a step with a prefill to piecewise graphs, however few tokens it computes.
    graphs = options.runner == "v1" and options.device != "cpu" and not options.eager
    device_tokens = (rounds_blocks(options, scale, sizes) - 1) * rounds.page
    cases: dict[str, Callable[[], Figures]] = {
        "single": lambda: rounds.single(rounds.prompts(sizes)),
        "full-graph": lambda: rounds.full_graph(scale.batch, max(1, scale.low // rounds.page), graphs),
        "together": lambda: rounds.together(rounds.prompts(batch)),
        "joining": lambda: rounds.joining(rounds.prompts(batch), scale.batch, 64),
        "chunked": lambda: rounds.chunked(scale.low * 3, scale.batched_tokens * 2),
        "preempted": lambda: rounds.preempted(device_tokens, scale.low * 3, scale.output),
        "spoiled": lambda: rounds.spoiled(rounds.prompts(batch), options.verify == "gpu"),
    }
    for name in options.cases or CASES:
        if options.seconds and time.monotonic() - began > options.seconds:
            report.skip(name, f"{options.seconds} s are used up")
        else:
            report.case(name, cases[name])
            rounds.pressed = False  # Prompts of later cases are too few to push one another off the device.


def rounds_blocks(options: Any, scale: Scale, sizes: list[int]) -> int:
    """Return the engine's number of blocks: a third of what the prompts need, so that they push one another out."""
    page = options.block_size or scale.page
    if options.device_blocks:
        return int(options.device_blocks)
    every = pages_of(sizes, page)
    least = (scale.batch + 2) * (scale.high // page + 2)
    return max(least, every // 3 if options.evict == "pressure" else every + every // 4)


def pages_of(sizes: list[int], page: int) -> int:
    """Return how many blocks all prompts take together."""
    return sum(size // page + 1 for size in sizes)


def choose(options: Any, scale: Scale, sizes: list[int]) -> tuple[EngineChoice, int]:
    """Return how the engine is started, and the bytes of the Manager's pool."""
    page = options.block_size or scale.page
    model = options.model or ensure(SHAPES[options.checkpoint or ("tiny" if options.device == "cpu" else "qwen3-8b")])
    batched = options.max_num_batched_tokens or scale.batched_tokens
    choice = EngineChoice(
        model=model,
        device=options.device,
        block_tokens=page,
        device_blocks=rounds_blocks(options, scale, sizes),
        max_model_len=2 * batched + 4 * scale.high,
        batched_tokens=batched,
        eager=options.eager or options.device == "cpu",
        runner=options.runner,
        asynchronous=options.async_scheduling,
        backend=options.transfer_backend,
        verify=options.verify,
        fault=options.fault,
    )
    width = 4 if options.device == "cpu" else 2
    needed = int(SPARE * sum(sizes) * token_bytes(model, width))
    return choice, max(scale.pool_bytes, needed)


def token_bytes(model: Path, width: int) -> int:
    """Return the bytes of K and V of one token in all layers, by the model's configuration and bytes a value."""
    facts = json.loads((model / "config.json").read_text(encoding="utf-8"))
    heads = facts.get("num_key_value_heads", facts["num_attention_heads"])
    head = facts.get("head_dim") or facts["hidden_size"] // facts["num_attention_heads"]
    return int(2 * facts["num_hidden_layers"] * heads * head * width)


def described(choice: EngineChoice) -> dict[str, Any]:
    """Return the choices that tell one run from another."""
    return {
        "device": choice.device,
        "model": choice.model.name,
        "block_tokens": choice.block_tokens,
        "device_blocks": choice.device_blocks,
        "eager": choice.eager,
        "runner": choice.runner or "default",
        "async_scheduling": choice.asynchronous or "default",
        "transfer_backend": choice.backend or "default",
        "verify": choice.verify,
        "fault": choice.fault,
        "batched_tokens": choice.batched_tokens,
    }


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    found = argparse.ArgumentParser(description="Qualify restores of a real vLLM on this host.")
    found.add_argument("--device", choices=sorted(SCALES), default="cuda")
    found.add_argument("--binary", type=Path, default=ROOT / "bin" / "orbitkv", help="the orbitkv binary")
    found.add_argument("--model", type=Path, help="a folder with a checkpoint (default: made by --checkpoint)")
    found.add_argument("--checkpoint", choices=SHAPES, help="a random checkpoint (default: qwen3-8b, tiny on the CPU)")
    found.add_argument("--cases", nargs="+", choices=CASES, help="cases in their order (default: all)")
    found.add_argument("--seconds", type=float, default=0.0, help="begin no case after so many seconds (default: none)")
    found.add_argument("--prompts", type=int, default=0, help="prompts that are asked singly (default: by device)")
    found.add_argument("--block-size", type=int, default=0, help="tokens of a page (default: by device)")
    found.add_argument("--device-blocks", type=int, default=0, help="blocks of the engine (default: by the prompts)")
    found.add_argument("--evict", choices=("pressure", "reset"), default="pressure", help="how a device loses prompts")
    found.add_argument("--max-num-batched-tokens", type=int, default=0, help="tokens of one step (default: by device)")
    found.add_argument("--eager", action="store_true", help="no compilation and no graphs")
    found.add_argument("--runner", choices=("v1", "v2"), default="", help="vLLM's model runner (default: it chooses)")
    found.add_argument("--async-scheduling", choices=("on", "off"), default="", help="(default: vLLM's own choice)")
    found.add_argument("--transfer-backend", choices=("auto", "direct", "kernel", "host"), default="")
    found.add_argument("--verify", choices=("gpu",), default="", help="who checks restored pages")
    found.add_argument("--fault", choices=("corrupt-restore", "poison-destination"), default="")
    found.add_argument("--seed", type=int, default=1)
    found.add_argument("--output", type=Path, help="a file that gets the lines beside stdout")
    found.add_argument("--log", type=Path, help="a file that keeps what the engine prints")
    return found


if __name__ == "__main__":
    sys.exit(main())
