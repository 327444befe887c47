"""Pages whose content is a function of their key, so that every byte of a cache can be checked."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
POISON = 0xA5


def key(seed: int, index: int) -> bytes:
    """Return the key of page `index` of the prefix that `seed` names."""
    return hashlib.sha256(f"{seed}/{index}".encode()).digest()


def prefix(seed: int, pages: int) -> bytes:
    """Return the keys of the first pages of a prefix."""
    return b"".join(key(seed, index) for index in range(pages))


def split(keys: bytes) -> list[bytes]:
    """Return the single keys."""
    return [keys[at : at + 32] for at in range(0, len(keys), 32)]


def content(one: bytes, rank: int, size: int) -> Bytes:
    """Return a rank's slice of the page with that key."""
    return np.frombuffer(hashlib.shake_128(one + rank.to_bytes(2, "little")).digest(size), np.uint8)


def slices(keys: bytes, rank: int, size: int) -> Bytes:
    """Return a rank's slices of pages, one row a page."""
    return np.stack([content(one, rank, size) for one in split(keys)])
