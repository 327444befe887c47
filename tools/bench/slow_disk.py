"""What a slow SSD costs a request: time to first token from a throttled folder beside computing, vLLM on a processor.

    PYTHONPATH=tools:python/src VLLM_ENV/bin/python -m bench.slow_disk --folder FOLDER --rate 50mb --policy pays

Each round asks for two prompts of one length: one whose pages lie in the folder alone, and one that nobody stored.
Their order is reversed in every second round, and nothing is read or written beside them. The model is as small as its
KV allows, so that such a disk is slower than computing. A row of JSON for each request, with the tokens that were
restored, then the medians.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from harness import ssd as tier
from harness.base import words
from harness.checkpoint import Checkpoint
from harness.engine import Engine, EngineConfig
from harness.manager import eventually
from harness.pool import EnginePool
from harness.rig import Rig
from harness.ssd import Volume

BINARY = Path(__file__).resolve().parents[2] / "bin" / "orbitkv"
WARM_PROMPTS = 6  # that are computed before anything is measured: the engine's own start, and its rate of prefill
MAX_TOKENS = 4
SMALL = Checkpoint(hidden=128, kv_heads=4)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Time to first token from a slow SSD, beside computing.")
    parser.add_argument("--folder", type=Path, required=True, help="where the tier's files are made, on a disk")
    parser.add_argument("--rate", default="50mb", help="bytes a second that the folder is read at, none for its own")
    parser.add_argument("--policy", default="pays", help="orbitkv.load_wait_policy")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args(arguments)
    engines = EnginePool()
    # The engine ends first, and the Manager ends although it does not.
    with tempfile.TemporaryDirectory() as folder, closing(Rig(BINARY, Path(folder), engines)) as rig, closing(engines):
        measure(rig, options)


def measure(rig: Rig, options: argparse.Namespace) -> None:
    """Start both processes and ask in rounds."""
    volume = Volume(options.folder)
    fault = "" if options.rate == "none" else f"read-rate={options.rate}"
    rig.serve("2gib", *volume.options(fault, "8gib"))
    engine = rig.engine(configured(rig, options))
    rig.connected(engine)
    for seed in range(WARM_PROMPTS):
        rig.store(engine, words(seed, options.tokens), MAX_TOKENS)
    times: dict[str, list[float]] = {"slow disk": [], "recompute": []}
    for number in range(options.rounds + 1):
        stored = words(1000 + number, options.tokens)
        rig.store(engine, stored, MAX_TOKENS)
        prompts = {"slow disk": stored, "recompute": words(2000 + number, options.tokens)}
        for name in list(times)[:: 1 if number % 2 else -1]:
            settle(rig, engine)
            answer, counts = rig.ask(engine, prompts[name], MAX_TOKENS)
            row = {"round": number, "what": name, "policy": options.policy, "rate": options.rate}
            row |= {"first_token_s": round(answer.first_token_s, 4), "restored_tokens": counts.external}
            print(json.dumps(row), flush=True)
            if number:  # The first round shows the tier for the first time.
                times[name].append(answer.first_token_s)
    disk, computed = (statistics.median(times[name]) for name in ("slow disk", "recompute"))
    print(
        f"median of {options.rounds}: slow disk {disk:.3f} s, recompute {computed:.3f} s, ratio {disk / computed:.2f}"
    )
    found = engine.counters()
    for name in ("prefetch_stopped_total", "prefetch_outpaced_total", "prefill_tokens_per_second"):
        print(name, round(sum(value for key, value in found.items() if key.startswith(f"vllm:orbitkv_{name}{{"))))


def configured(rig: Rig, options: argparse.Namespace) -> EngineConfig:
    """Return the engine's configuration."""
    plain = rig.config(checkpoint=SMALL)
    transfer = json.loads(plain.kv_transfer)
    transfer["kv_connector_extra_config"]["orbitkv.load_wait_policy"] = options.policy
    return dataclasses.replace(plain, kv_transfer=json.dumps(transfer))


def settle(rig: Rig, engine: Engine) -> None:
    """Return once nothing is read or written, and neither device nor pool holds a page."""
    eventually(lambda: rig.stats()["reading_pages"] == 0, "nothing is read from the folder", limit_s=120)
    tier.wait_stored(rig.manager, 0)
    rig.reset_device(engine)
    tier.empty_memory(rig.manager)


if __name__ == "__main__":
    main()
