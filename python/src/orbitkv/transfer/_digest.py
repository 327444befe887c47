"""The digest of a page's slice that travels inside of it, byte by byte, and what computes it without a device.

A layout is *verified* when its last layer is DIGEST_LAYER: one row of DIGEST_BYTES for each engine block, in the
engine's memory like any other layer, so it is published and restored with the page. A row is two little-endian numbers
of 64 bits: the digest of the other layers of the block, then DIGEST_MARK, which tells a row that was written from
memory that never was.

The digest of a block is the sum modulo 2^64 of one term for each word of its slice. Each layer's `block_bytes` are cut
into words of 8 bytes, little-endian; the last one is filled up with zero bytes. A word x that begins at byte p of the
slice has the term mix(x XOR (p + 1) * STEP), with all arithmetic modulo 2^64 and

    mix(z):  z = (z XOR z >> 30) * FIRST;  z = (z XOR z >> 27) * SECOND;  return z XOR z >> 31

`mix` is a bijection, so a fault within one word always changes the digest; words that were swapped, shifted or taken
from another page change it but for one case in 2^64. Terms have no order, so a device may add them in any.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from orbitkv.transfer._plan import KVLayout

DIGEST_LAYER = "orbitkv.digests"  # the name of the layer of digests, always the last of a layout
DIGEST_BYTES = 16  # of one block's row
DIGEST_FORMAT = (
    "mix64-sum-1"  # what the namespace's facts call this page, so that other digests are never read as these
)
DIGEST_MARK = 0x31474944_564B424F
DIGEST_STEP = 0x9E3779B97F4A7C15
DIGEST_FIRST = 0xBF58476D1CE4E5B9
DIGEST_SECOND = 0x94D049BB133111EB

WORD = 8

Words = npt.NDArray[np.uint64]


def is_verified(layout: KVLayout) -> bool:
    """Return whether pages of a layout carry a digest."""
    return layout.layers[-1].name == DIGEST_LAYER


def digest_of(data: bytes, layers: Sequence[int]) -> int:
    """Return the digest of one slice without its row: `layers` are the bytes of each layer, in the slice's order."""
    if len(data) != sum(layers):
        raise ValueError(f"{len(data)} bytes are no slice of {sum(layers)}")
    total = 0
    start = 0
    for size in layers:
        part = data[start : start + size]
        words = np.frombuffer(part + bytes(-size % WORD), "<u8")
        total += int(terms(words, start).sum(dtype=np.uint64))
        start += size
    return total & 0xFFFF_FFFF_FFFF_FFFF


def terms(words: Words, start: int) -> Words:
    """Return the term of each word of a run that begins at byte `start` of the slice."""
    begins = np.arange(len(words), dtype=np.uint64) * np.uint64(WORD) + np.uint64(start + 1)
    z = words ^ (begins * np.uint64(DIGEST_STEP))
    z = (z ^ (z >> np.uint64(30))) * np.uint64(DIGEST_FIRST)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(DIGEST_SECOND)
    mixed: Words = z ^ (z >> np.uint64(31))
    return mixed
