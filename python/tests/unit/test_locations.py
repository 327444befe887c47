"""Runs become one location a page; what does not cover the pages is refused."""

from __future__ import annotations

import numpy as np
import pytest

from orbitkv import _wire
from orbitkv._pages import expand, key_parts, namespace_of
from orbitkv.errors import ProtocolError


def test_runs_expand_part_by_part() -> None:
    runs = [(0, 3, 1 << 48), (0, 1, 5 << 12), (0, 2, 1 << 20), (1, 6, 0)]
    wanted = [1 << 48, (1 << 48) + 8192, (1 << 48) + 16384, 5 << 12, 1 << 20, (1 << 20) + 8192]
    assert expand(runs, 0, 8192, 6).tolist() == wanted
    assert expand(runs, 1, 4096, 6).tolist() == [4096 * i for i in range(6)]
    assert expand([], 0, 4096, 0).dtype == np.uint64


def test_runs_equal_a_slow_expansion_of_random_ones() -> None:
    rng = np.random.default_rng(11)
    for _ in range(200):
        runs = [(0, int(rng.integers(1, 9)), int(rng.integers(0, 1 << 36)) << 12) for _ in range(rng.integers(1, 12))]
        slow = [first + i * 12288 for _, count, first in runs for i in range(count)]
        assert expand(runs, 0, 12288, len(slow)).tolist() == slow


def test_runs_that_do_not_cover_the_pages_are_refused() -> None:
    with pytest.raises(ProtocolError, match="cover 2 pages of 3"):
        expand([(0, 2, 0)], 0, 4096, 3)


def test_a_slice_outside_of_its_part_is_refused() -> None:
    with pytest.raises(ProtocolError, match="rank 1"):
        namespace_of(_wire.Registered(1, 0, 8192, 1 << 20, [8192], [(0, 0, 0, 4096), (1, 0, 4096, 4097)]))
    good = namespace_of(_wire.Registered(1, 0, 8192, 1 << 20, [8192], [(0, 0, 0, 4096), (1, 0, 4096, 4096)]))
    assert good.slice_of(1).offset == 4096
    with pytest.raises(KeyError):
        good.slice_of(2)


def test_keys_are_cut_at_the_bound_of_a_frame() -> None:
    parts = key_parts(bytes(32 * (2 * _wire.FRAME_KEYS_MAX + 1)))
    assert [len(part) // 32 for part in parts] == [_wire.FRAME_KEYS_MAX, _wire.FRAME_KEYS_MAX, 1]
