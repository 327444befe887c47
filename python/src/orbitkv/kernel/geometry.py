"""How a layout becomes launches: the table of runs of bytes that kernels read, and what one launch can take of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from orbitkv.errors import ConfigurationError
from orbitkv.transfer._plan import Columns, LayerLayout

RUN_NUMBERS = (
    4  # of one run in the table: address of block 0, distance of blocks, offset in the slice, width; all bytes
)
WORD_MAX = 8  # bytes that one lane of a kernel moves at once
LANES = 1024  # words that one program moves at once: an item
ITEMS_MAX = 1 << 30  # of one launch over all blocks: kernels count them in 32 bits

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Launch:
    """Runs `first` to `first + count` (exclusive) of the table: `width` bytes each, moved in words of `word` bytes."""

    first: int
    count: int
    width: int
    word: int


def plan_launches(batches: Sequence[Sequence[Columns]], blocks: int) -> tuple[Numbers, tuple[tuple[Launch, ...], ...]]:
    """Return the table of all runs, and the launches of each batch: one for all runs of one shape.

    ConfigurationError when a launch over that many blocks would have more than ITEMS_MAX items.
    """
    rows: list[tuple[int, int, int, int]] = []
    planned = []
    for batch in batches:
        launches = []
        for each in batch:
            places = list(zip(each.addresses.tolist(), each.offsets.tolist(), strict=True))
            word = largest_word(each.stride, each.width, *(number for place in places for number in place))
            items = blocks * len(places) * -(-each.width // (word * LANES))
            if items > ITEMS_MAX:
                raise ConfigurationError(
                    f"{blocks} blocks of {len(places)} times {each.width} bytes are more than a kernel copies: "
                    "set orbitkv.transfer_backend to 'direct'"
                )
            launches.append(Launch(len(rows), len(places), each.width, word))
            rows.extend((address, each.stride, offset, each.width) for address, offset in places)
        planned.append(tuple(launches))
    return table_of(rows), tuple(planned)


def joined(launches: Sequence[Launch]) -> list[Launch]:
    """Return as few launches as do the same: runs of one shape that follow each other in the table go together."""
    fewer: list[Launch] = []
    for launch in launches:
        last = fewer[-1] if fewer else None
        if (
            last is not None
            and (last.width, last.word) == (launch.width, launch.word)
            and last.first + last.count == launch.first
        ):
            fewer[-1] = Launch(last.first, last.count + launch.count, last.width, last.word)
        else:
            fewer.append(launch)
    return fewer


def layer_table(layers: Sequence[LayerLayout]) -> Numbers:
    """Return the table in which each layer is a run."""
    return table_of([(layer.address, layer.block_stride, layer.offset, layer.block_bytes) for layer in layers])


def table_of(rows: Sequence[tuple[int, int, int, int]]) -> Numbers:
    """Return RUN_NUMBERS numbers for each run, one run after the other."""
    return np.array(rows, np.int64).reshape(-1)


def largest_word(*numbers: int) -> int:
    """Return the largest power of two, at most WORD_MAX, that divides every number.

    Given addresses, distances and widths, it is the largest word at whose multiples all pieces begin and end.
    """
    low = WORD_MAX
    for number in numbers:
        low |= number
    return low & -low


def aligned(addresses: npt.NDArray[np.uint64]) -> bool:
    """Return whether all addresses are multiples of WORD_MAX."""
    return int(np.bitwise_or.reduce(addresses)) % WORD_MAX == 0
