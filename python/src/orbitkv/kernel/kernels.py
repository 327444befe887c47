"""The kernels. Arguments are whole numbers: addresses of registered host or of device memory, and counts.

`table` is a table of pages (see `tables`): `rows` engine blocks, then, where there are copies, as many host addresses.
`runs` is a table of `geometry`: where in the engine and in a slice a run of bytes of each page lies. Programs take
items in turn, so any number of them does all of the work. Nothing is specialised on a value: what was compiled at start
serves every launch. Addresses are reckoned with in 64 bits, since pools are larger than 4 GiB, and counts in 32, since
division is what costs (`geometry.ITEMS_MAX` bounds them).
"""

from __future__ import annotations

import triton
import triton.language as tl

from orbitkv.kernel.geometry import RUN_NUMBERS
from orbitkv.transfer._digest import DIGEST_FIRST, DIGEST_MARK, DIGEST_SECOND, DIGEST_STEP

SOUND, WRONG = 1, 2  # what `settle_rows` says of a page; a page that it did not reach keeps the zero it began with

FACTS = tl.constexpr(RUN_NUMBERS)
STEP = tl.constexpr(DIGEST_STEP)
FIRST = tl.constexpr(DIGEST_FIRST)
SECOND = tl.constexpr(DIGEST_SECOND)
MARK = tl.constexpr(DIGEST_MARK)
IS_SOUND = tl.constexpr(SOUND)
IS_WRONG = tl.constexpr(WRONG)

PAGES = ["table", "runs", "skip", "pages"]


@triton.jit(do_not_specialize=[*PAGES, "rows", "first", "count", "width"])
def move_blocks(
    table: tl.int64,
    rows: tl.int32,
    runs: tl.int64,
    skip: tl.int32,
    pages: tl.int32,
    first: tl.int32,
    count: tl.int32,
    width: tl.int32,
    element: tl.constexpr,
    lanes: tl.constexpr,
    restore: tl.constexpr,
) -> None:
    """Copy runs `first` to `first + count` of the table's pages `skip` to `skip + pages`, host to engine or back.

    A run of a page is `width` elements; one item is `lanes` of them.
    """
    chunks = tl.cdiv(width, lanes)
    ids = table.to(tl.pointer_type(tl.int64)) + skip
    places = ids + rows
    facts = runs.to(tl.pointer_type(tl.int64))
    lane = tl.arange(0, lanes)
    for item in range(tl.program_id(0), count * pages * chunks, tl.num_programs(0)):
        piece = item // chunks
        page = piece % pages
        fact = facts + (first + piece // pages) * FACTS
        at = (item % chunks) * lanes + lane
        keep = at < width
        engine = tl.load(fact) + tl.load(ids + page) * tl.load(fact + 1)
        host = tl.load(places + page) + tl.load(fact + 2)
        if restore:
            values = tl.load(host.to(tl.pointer_type(element)) + at, mask=keep)
            tl.store(engine.to(tl.pointer_type(element)) + at, values, mask=keep)
        else:
            values = tl.load(engine.to(tl.pointer_type(element)) + at, mask=keep)
            tl.store(host.to(tl.pointer_type(element)) + at, values, mask=keep)


@triton.jit(do_not_specialize=[*PAGES, "count", "partials"])
def sum_terms(
    table: tl.int64,
    runs: tl.int64,
    skip: tl.int32,
    pages: tl.int32,
    count: tl.int32,
    partials: tl.int64,
    element: tl.constexpr,
    size: tl.constexpr,
    lanes: tl.constexpr,
) -> None:
    """Write the sum of the terms of each of the pages' first `count` runs to `partials[page - skip, run]`.

    Memory is read in elements of `size` bytes, as small as the runs' addresses demand.
    """
    ids = table.to(tl.pointer_type(tl.int64)) + skip
    facts = runs.to(tl.pointer_type(tl.int64))
    sums = partials.to(tl.pointer_type(tl.uint64))
    lane = tl.arange(0, lanes).to(tl.int64)
    part = tl.arange(0, 8 // size).to(tl.int64)
    for item in range(tl.program_id(0), pages * count, tl.num_programs(0)):
        fact = facts + (item % count) * FACTS
        block = (tl.load(fact) + tl.load(ids + item // count) * tl.load(fact + 1)).to(tl.pointer_type(element))
        start = tl.load(fact + 2)
        width = tl.load(fact + 3)
        total = tl.zeros([lanes], tl.uint64)
        for chunk in range(tl.cdiv(width, lanes * 8)):
            begin = (chunk * lanes + lane) * 8
            if size == 8:
                z = tl.load(block + begin // 8, mask=begin < width, other=0)
            else:
                at = begin[:, None] + part[None, :] * size
                pieces = tl.load(block + at // size, mask=at < width, other=0).to(tl.uint64)
                z = tl.sum(pieces << (part[None, :] * (size * 8)).to(tl.uint64), axis=1)
            z = z ^ ((start + begin + 1).to(tl.uint64) * STEP)
            z = (z ^ (z >> 30)) * FIRST
            z = (z ^ (z >> 27)) * SECOND
            z = z ^ (z >> 31)
            total += tl.where(begin < width, z, tl.zeros([lanes], tl.uint64))
        tl.store(sums + item, tl.sum(total))


@triton.jit(do_not_specialize=[*PAGES, "count", "partials", "statuses"])
def settle_rows(
    table: tl.int64,
    runs: tl.int64,
    skip: tl.int32,
    pages: tl.int32,
    count: tl.int32,
    partials: tl.int64,
    statuses: tl.int64,
    fold: tl.constexpr,
    check: tl.constexpr,
) -> None:
    """Add up the partial sums of each page and write its row of digests, or compare with it and say so in `statuses`.

    The run after the `count` summed ones is that of the rows. `fold` is a power of two, at least `count`.
    """
    ids = table.to(tl.pointer_type(tl.int64)) + skip
    fact = runs.to(tl.pointer_type(tl.int64)) + count * FACTS
    sums = partials.to(tl.pointer_type(tl.int64))
    lane = tl.arange(0, fold)
    for page in range(tl.program_id(0), pages, tl.num_programs(0)):
        total = tl.sum(tl.load(sums + page * count + lane, mask=lane < count, other=0))
        row = (tl.load(fact) + tl.load(ids + page) * tl.load(fact + 1)).to(tl.pointer_type(tl.int64))
        if check:
            sound = (tl.load(row) == total) & (tl.load(row + 1) == MARK)
            status = tl.where(sound, IS_SOUND, IS_WRONG).to(tl.int32)
            tl.store(statuses.to(tl.pointer_type(tl.int32)) + skip + page, status)
        else:
            tl.store(row, total)
            tl.store(row + 1, MARK)
