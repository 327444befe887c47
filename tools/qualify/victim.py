"""A process that copies without pause until it is killed, with its KV on a device: an engine's rank without an engine.

Usage: python -m qualify.victim SOCKET {publish|restore|check} SEED --device DEVICE --backend BACKEND [--before SEED N]

What a page holds is a function of its number alone, so that a publish need not wait for new contents: `publish` offers
the same pages under new keys, over and over, and `restore` takes one set of keys again and again into poison and
compares every byte. Both print the number of each set or round that is complete. First they restore and compare what is
left of the last sets of a victim before them, whose seed and last number `--before` names; `check` does nothing else.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from harness import oracle
from harness.replica import Ordinals, Rank, Replica, Shape, WrongBytes
from orbitkv.transfer import KVLayout, TransferBackend
from qualify import layouts, rank

INSTANCE = "victim"
CONTENTS = 1  # the seed of what pages hold
LAYERS, LAYER_BYTES = 16, 64 << 10
DISTINCT = 128  # pages that differ from one another; then contents repeat
SETS_MAX = 1 << 20  # sets of keys of one seed
SETS_BACK = 16  # sets of the victim before that are looked for, and the one that was cut off


def shape(pages: int) -> Shape:
    """Return the shape that all victims have, so that they share a namespace."""
    return Shape(layers=LAYERS, layer_bytes=LAYER_BYTES, blocks=pages, model=INSTANCE)


class DeviceRank(Rank):
    """A rank whose KV lies on a device. Its content is uploaded once."""

    def __init__(self, device: str, backend: str, *arguments: Any, **options: Any) -> None:
        self._device = device
        self._backend = backend
        self.writer = "host" if device == "cpu" else "cuda"
        super().__init__(*arguments, **options)

    def open(self) -> tuple[KVLayout, TransferBackend]:
        """Make the memory on the device, in vLLM's packed layout."""
        shape = self.shape
        values = shape.layer_bytes // layouts.ELEMENT
        self._kv = rank.Memory(layouts.packed("victim", shape.layers, shape.blocks, 1, 1, values), self._device)
        slices = oracle.slices(oracle.prefix(CONTENTS, DISTINCT), self.number, shape.slice_bytes)
        self._contents = rank.upload(np.resize(slices, (shape.blocks, shape.slice_bytes)), self._device)
        return self._kv.layout, rank.make(self._backend, self._kv, self._device)

    def fill(self, keys: bytes) -> Ordinals:
        """Write the contents of the first pages into the first blocks, and return those."""
        blocks = np.arange(len(keys) // 32, dtype=np.int64)
        for layer in range(self.shape.layers):
            self._kv.put(layer, rank.index(blocks, self._device), self._contents[: len(blocks)])
        return blocks

    def poison(self) -> None:
        """Overwrite everything."""
        self._kv.poison()

    def check(self, keys: bytes, blocks: Ordinals) -> None:
        """Compare blocks with the contents of the first pages."""
        contents, at = self._contents[: len(keys) // 32], rank.index(blocks, self._device)
        wrong = sum(int(self._kv.wrong(layer, at, contents)) for layer in range(self.shape.layers))
        if wrong:
            raise WrongBytes(f"{wrong} bytes of {len(blocks)} restored pages are wrong")


def opened(options: argparse.Namespace) -> Replica:
    """Return a replica of one device rank."""

    def make_rank(*arguments: Any, **more: Any) -> Rank:
        return DeviceRank(options.device, options.backend, *arguments, **more)

    return Replica(options.socket, INSTANCE, shape(options.pages), make_rank=make_rank, timeout_ms=60_000)


def publish(replica: Replica, options: argparse.Namespace) -> None:
    """Publish sets of keys until the end; tell of each that is stored. A pool that is being populated has no room."""
    for number in itertools.count():
        if replica.publish(keys_of(options.seed, number, options.pages)):
            print(number, flush=True)


def restore(replica: Replica, options: argparse.Namespace) -> None:
    """Publish one set and restore it until the end."""
    keys = keys_of(options.seed, 0, options.pages)
    replica.publish(keys)
    for number in itertools.count():
        replica.restore(keys)
        print(number, flush=True)


def check(replica: Replica, options: argparse.Namespace) -> None:
    """Restore and compare what is left of the last sets of the victim before, and print how many pages that were."""
    if options.before is not None:
        seed, last = options.before
        numbers = range(max(0, last - SETS_BACK), last + 2)
        print("checked", sum(replica.restore(keys_of(seed, number, options.pages)) for number in numbers), flush=True)


def keys_of(seed: int, number: int, pages: int) -> bytes:
    """Return the keys of one set."""
    return oracle.prefix(seed * SETS_MAX + number, pages)


VERBS: dict[str, Callable[[Replica, argparse.Namespace], None]] = {
    "publish": publish,
    "restore": restore,
}


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Copy until killed.")
    parser.add_argument("socket")
    parser.add_argument("verb", choices=(*VERBS, "check"))
    parser.add_argument("seed", type=int)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--backend", default="direct")
    parser.add_argument("--pages", type=int, default=512)
    parser.add_argument("--before", type=int, nargs=2, metavar=("SEED", "LAST"))
    options = parser.parse_args()
    with opened(options) as replica:
        check(replica, options)
        if options.verb != "check":
            VERBS[options.verb](replica, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
