"""What requests that decode feel of a prompt beside them: nothing, a cold one, a device hit, a restored one.

Usage, from the root of the checkout, in an environment with vLLM:

    PYTHONPATH=python/src:tools python -m bench.neighbours [--connector none|orbitkv] [--lengths 8192,32768]

Each sample is a round of its own: requests decode, one prompt comes beside them and gets its first token, all end. A
row has the prompt's time to first token and, of the gaps between its neighbours' tokens meanwhile, p50, p99 and the
longest; `nothing` is the control, without a prompt. Figures are medians over the samples, which are taken in turn over
all rows, once in this order and once in the opposite one. Before a prompt comes to be restored, the device's own cache
is emptied. A sample counts only when the counters of the engine and of the Manager say that it was what its row says.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench.streaming import Beside, Streaming, open_vllm
from bench.transfer import machine, median_ms
from harness.base import ManagerRig, words
from harness.checkpoint import SHAPES, ensure
from harness.manager import eventually
from orbitkv._faults import FAULTS
from qualify.engine import described, token_bytes
from qualify.offline import Counts, EngineChoice, logged, tail
from qualify.rounds import LOADED

ROOT = Path(__file__).resolve().parents[2]
NOTHING, COLD, HIT, RESTORED = "nothing", "cold", "device hit", "restored"
SAMPLES = 5  # of a row in each order of rows
DECODER_PROMPT = 256  # tokens of the prompt of each request that decodes
POOL_TURNS = 3  # turns over all rows whose pages the Manager's pool holds, so that what is restored stays in it
POOL_LEAST = 1 << 29
QUERY_WAIT_US = {"cuda": 1000, "cpu": 500_000}  # the product's own; cores that compute a model answer late
BLOCK_TOKENS = {"cuda": 64, "cpu": 128}
BATCHED_TOKENS = {"cuda": 8192, "cpu": 1024}


@dataclass
class Row:
    """What comes beside the decoding requests, and what was seen. `unproven` says why samples do not count."""

    kind: str
    tokens: int = 0
    samples: list[Beside] = field(default_factory=list)
    unproven: list[str] = field(default_factory=list)

    def quantiles_ms(self, share: float) -> float:
        """Return the median over the samples of a quantile of their gaps."""
        return median_ms([float(np.quantile(sample.gaps, share)) for sample in self.samples])

    def figures(self) -> dict[str, object]:
        """Return everything that was measured and what follows from it, by names with units."""
        return {
            "bench": "neighbours",
            "row": self.kind,
            "tokens": self.tokens,
            "n": len(self.samples),
            "unproven": self.unproven,
            "window_seconds": [sample.seconds for sample in self.samples],
            "cached_tokens": [sample.cached for sample in self.samples],
            "gaps_seconds": [[round(gap, 6) for gap in sample.gaps] for sample in self.samples],
            "window_ms": median_ms([sample.seconds for sample in self.samples]),
            "gaps": statistics.median([len(sample.gaps) for sample in self.samples]) if self.samples else 0,
            "gap_p50_ms": self.quantiles_ms(0.5),
            "gap_p99_ms": self.quantiles_ms(0.99),
            "gap_max_ms": self.quantiles_ms(1.0),
        }


class Table:
    """The rows, and the engine and the Manager that they are measured with; without a Manager nothing is restored."""

    def __init__(self, engine: Streaming, rig: ManagerRig | None, options: Any, page: int, token_size: int) -> None:
        self._engine = engine
        self._rig = rig
        self._options = options
        self._page = page
        self._token_size = token_size
        self._seeds = itertools.count(1)
        self._kept: dict[int, list[int]] = {}
        kinds = (COLD, HIT, RESTORED) if rig else (COLD, HIT)
        self.rows = [Row(NOTHING), *[Row(kind, tokens) for tokens in options.lengths for kind in kinds]]

    def measure(self) -> None:
        """Store the prompts that come again, and take all samples."""
        for tokens in self._options.lengths:
            self._kept[tokens] = self._fresh(tokens)
            if self._rig:
                self._store(self._kept[tokens])
        for row in self.rows:
            self._sample(Row(row.kind, row.tokens))  # The first of each shape compiles or loads what others find.
        for order in (self.rows, self.rows[::-1]):
            for _ in range(self._options.samples):
                for row in order:
                    self._sample(row)

    def restorable(self, row: Row) -> int:
        """Return how many tokens of a row's prompt can come from a cache: its last one is always computed."""
        return max(0, row.tokens - 1) // self._page * self._page

    def proven(self, row: Row, found: Counts, loaded: int, seen: Beside) -> str:
        """Return nothing when the counters say that a sample is what its row says, else what they say."""
        whole = self.restorable(row)
        device, external = whole * (row.kind == HIT), whole * (row.kind == RESTORED)
        if found != Counts(device, external, 0, 0):
            return f"{found}, not {Counts(device, external, 0, 0)}"
        if loaded != external * self._token_size:
            return f"the Manager counted {loaded} restored bytes, not {external * self._token_size}"
        if seen.cached != device + external:
            return f"the answer says {seen.cached} cached tokens, not {device + external}"
        return "" if seen.gaps else "no token of a neighbour came meanwhile"

    def _sample(self, row: Row) -> None:
        """Take one sample of a row."""
        self._forget()
        prompt = self._kept.get(row.tokens)
        if row.kind == HIT and prompt is not None:
            self._engine.ask(prompt, 1)
        elif row.kind == COLD:
            prompt = self._fresh(row.tokens)
        loaded, before = self._loaded(), self._engine.counts()
        others = [self._fresh(DECODER_PROMPT) for _ in range(self._options.decoders)]
        seen = self._engine.beside(others, self._options.decoder_tokens, prompt)
        loaded = self._loaded() - loaded
        reason = self.proven(row, self._engine.counts().since(before), loaded, seen)
        if reason:
            row.unproven.append(reason)
        else:
            row.samples.append(seen)

    def _fresh(self, tokens: int) -> list[int]:
        """Return a prompt that nobody had before."""
        return words(next(self._seeds), tokens)

    def _store(self, prompt: list[int]) -> None:
        """Let a prompt be computed until all of it is restored: a publish may be left out on a busy machine."""
        whole = self.restorable(Row(RESTORED, len(prompt)))

        def restored() -> bool:
            self._forget()
            before = self._engine.counts()
            self._engine.ask(prompt, 1)
            self._loaded()  # Waits until all of it is stored.
            return self._engine.counts().since(before).external == whole

        eventually(restored, f"all of a prompt of {len(prompt)} tokens is restored")

    def _forget(self) -> None:
        """Empty the device's cache."""
        eventually(self._engine.reset_device, "the engine's own cache is emptied: nobody holds a block")

    def _loaded(self) -> int:
        """Return the bytes that were restored so far, once nothing is restored or stored any more."""
        if self._rig is None:
            return 0
        self._rig.quiet()
        return int(self._rig.manager.metric(LOADED))


def lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table as it is printed; a row without a sample that counts has no figures."""
    yield f"{'beside':<14}{'tokens':>8}{'n':>4}{'TTFT ms':>10}{'gaps':>7}{'p50 ms':>9}{'p99 ms':>9}{'max ms':>9}"
    for row in rows:
        head = f"{row.kind:<14}{row.tokens or '-':>8}{len(row.samples):>4}"
        if not row.samples:
            yield f"{head}{'-':>10}{'-':>7}{'-':>9}{'-':>9}{'-':>9}"
            continue
        found = row.figures()
        first = "-" if row.kind == NOTHING else f"{found['window_ms']:.2f}"
        gaps = "".join(f"{found[f'gap_{name}_ms']:>9.2f}" for name in ("p50", "p99", "max"))
        yield f"{head}{first:>10}{found['gaps']:>7.0f}{gaps}"
    for row in rows:
        for reason in row.unproven:
            yield f"does not count: {row.kind}, {row.tokens} tokens: {reason}"


def choose(options: Any) -> EngineChoice:
    """Return how the engine is started: the device holds all requests of a round and a prompt of each length more."""
    page = options.block_size or BLOCK_TOKENS[options.device]
    decoding = options.decoders * (DECODER_PROMPT + options.decoder_tokens + 2 * page)
    tokens = options.device_tokens or decoding + sum(options.lengths) + max(options.lengths) + 4 * page
    return EngineChoice(
        model=options.model
        or ensure(SHAPES[options.checkpoint or ("tiny" if options.device == "cpu" else "qwen3-8b")]),
        device=options.device,
        block_tokens=page,
        device_blocks=tokens // page + 1,  # One is the engine's null block.
        max_model_len=max(*options.lengths, DECODER_PROMPT + options.decoder_tokens) + page,
        batched_tokens=options.max_num_batched_tokens or BATCHED_TOKENS[options.device],
        eager=options.eager or options.device == "cpu",
        backend=options.transfer_backend,
        query_wait_us=QUERY_WAIT_US[options.device],
        traced=False,
    )


def pool_bytes(lengths: Sequence[int], decoding: int, token_size: int) -> int:
    """Return the size of the Manager's pool: the prompts that come again and POOL_TURNS turns of what is new.

    `decoding` counts the tokens of all requests that decode in one round.
    """
    rounds = 1 + 3 * len(lengths)
    return max(POOL_LEAST, (sum(lengths) + POOL_TURNS * (sum(lengths) + rounds * decoding)) * token_size)


def run(options: Any, folder: Path) -> tuple[EngineChoice, list[Row]]:
    """Start a Manager and an engine, measure, and end both."""
    choice = choose(options)
    token_size = token_bytes(choice.model, 4 if options.device == "cpu" else 2)
    rig = ManagerRig(options.binary, folder) if options.connector == "orbitkv" else None
    try:
        if rig:
            decoding = options.decoders * (DECODER_PROMPT + options.decoder_tokens)
            rig.serve(options.pool or f"{pool_bytes(options.lengths, decoding, token_size) >> 20}mib")
        engine = open_vllm(choice, rig.socket if rig else "")
        try:
            if rig:
                rig.wait_publishes(lambda prompt: engine.ask(prompt, 2), choice.block_tokens + 1)
            table = Table(engine, rig, options, choice.block_tokens, token_size)
            table.measure()
            return choice, table.rows
        finally:
            engine.close()
    finally:
        if rig:
            rig.close()


def report(options: Any, choice: EngineChoice, rows: Sequence[Row], write: Callable[[str], object]) -> int:
    """Print the table and append its rows; return 1 when a row has no sample that counts."""
    facts = {"machine": machine(), "connector": options.connector, "decoders": options.decoders, **described(choice)}
    write(", ".join(f"{name} {value}" for name, value in facts.items() if value != ""))
    for text in lines(rows):
        write(text)
    if options.json:
        with options.json.open("a", encoding="utf-8") as out:
            for row in rows:
                out.write(json.dumps({**facts, **row.figures()}) + "\n")
    return 0 if all(row.samples for row in rows) else 1


def main() -> int:
    """Run the command line."""
    options = parser().parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log = options.log or Path(folder) / "engine.log"
        with logged(log) as write:
            try:
                choice, rows = run(options, Path(folder))
            except FAULTS as fault:
                write(f"{type(fault).__name__}: {fault}\n{tail(log)}")
                return 1
            return report(options, choice, rows, write)


def numbers(text: str) -> list[int]:
    """Return the numbers of a list with commas."""
    return [int(each) for each in text.split(",")]


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    found = argparse.ArgumentParser(description="What decoding requests feel of a prompt beside them, with vLLM.")
    found.add_argument("--connector", choices=("none", "orbitkv"), default="orbitkv")
    found.add_argument("--device", choices=sorted(BLOCK_TOKENS), default="cuda")
    found.add_argument("--binary", type=Path, default=ROOT / "bin" / "orbitkv", help="the orbitkv binary")
    found.add_argument("--model", type=Path, help="a folder with a checkpoint (default: made by --checkpoint)")
    found.add_argument("--checkpoint", choices=SHAPES, help="a random checkpoint (default: qwen3-8b, tiny on the CPU)")
    found.add_argument("--decoders", type=int, default=7, help="requests that decode (default 7)")
    found.add_argument("--decoder-tokens", type=int, default=1024, help="tokens that each of them may get")
    found.add_argument("--lengths", type=numbers, default=[8192, 32768], help="tokens of the prompts beside them")
    found.add_argument("--samples", type=int, default=SAMPLES, help=f"in each order of rows (default {SAMPLES})")
    found.add_argument("--block-size", type=int, default=0, help="tokens of a page (default: by device)")
    found.add_argument("--device-tokens", type=int, default=0, help="tokens that the device holds (default: enough)")
    found.add_argument("--max-num-batched-tokens", type=int, default=0, help="tokens of one step (default: by device)")
    found.add_argument("--pool", default="", help="size of the Manager's pool (default: enough)")
    found.add_argument("--eager", action="store_true", help="no compilation and no graphs")
    found.add_argument("--transfer-backend", choices=("auto", "direct", "kernel", "host"), default="")
    found.add_argument("--json", type=Path, help="file to which each row is appended as one JSON object")
    found.add_argument("--log", type=Path, help="a file that keeps what the engine prints")
    return found


if __name__ == "__main__":
    sys.exit(main())
