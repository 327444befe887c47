"""The operations of the copy engines for a group of pages: single pieces and strided runs. Pure planning.

What the pages decide is worked out once for a group: the order in which neighbours adjoin, where a border between two
registrations lies, and which pages form evenly spaced runs. A step of the forward then only adds the place of its
layers, which is a handful of operations of numpy for any number of pages.

Addresses are int64 here, since differences of them are taken; those of a process are below 2**47.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from orbitkv.transfer._driver import POINTER_OPERAND, STREAM_ORDER, STRIDED, Addresses
from orbitkv.transfer._mover import Group
from orbitkv.transfer._plan import Blocks, Columns

MAX_PITCH = 2**31 - 1  # the most that the device takes from the start of one row to that of the next

# A batch costs 1.1 us a piece of any size, and a strided operation 2.8 us, but short runs of large rows move at less
# than the link's rate. Measured on an H200 over PCIe 5 x16 (55 GB/s), in GB/s:
#   rows of 256 KiB: single 54.4, runs of 32 and more 54.2, of 16 53.1, of 8 51, of 4 48.5
#   rows of  16 KiB: single 14,   runs of 16 35, of 8 26, of 4 17;  of 8 KiB: single 7.5, runs of 16 25.6, of 4 10
LONG_RUN_ROWS = 32  # a run of so many rows goes at the link's rate whatever their size
SHORT_RUN_ROWS = 4  # a run of so many rows wins where the cost a piece is what counts
SMALL_PIECE_BYTES = 32 << 10  # below this it does


class Operations(NamedTuple):
    """What is handed to the driver: one entry a piece, and rows of STRIDED."""

    targets: Addresses
    sources: Addresses
    sizes: Addresses
    strided: npt.NDArray[np.void]

    @property
    def number(self) -> int:
        """Return how many operations there are."""
        return len(self.targets) + len(self.strided)


class Pieces(NamedTuple):
    """Single pieces with their places on both sides."""

    devices: Blocks
    hosts: Blocks
    sizes: Blocks


class Pattern(NamedTuple):
    """How a group's pages are cut for columns of one shape, without the columns' own places.

    `pieces` are single ones and `runs` strided operations. The last of the pieces are the pages with a border inside.
    """

    pieces: Pieces
    runs: npt.NDArray[np.void]


NO_RUNS = np.empty(0, STRIDED)


class Spans:
    """The operations of one group, for each step or for whole pages."""

    def __init__(self, group: Group) -> None:
        self._layout = group.layout
        self._restore = group.restore
        self._borders = group.borders.view(np.int64)
        hosts = group.hosts.view(np.int64)
        order = adjoining_order(group.blocks, hosts)
        blocks, hosts = group.blocks[order], hosts[order]
        chunks = np.searchsorted(self._borders, hosts, "right")
        crossing = np.searchsorted(self._borders, hosts + group.layout.slice_bytes - 1, "right") != chunks
        self._crossing_blocks, self._crossing_hosts = blocks[crossing], hosts[crossing]
        self._bordered: frozenset[int] = frozenset()  # steps that a border of a page may cut
        if len(self._crossing_blocks):
            blocks, hosts, chunks = blocks[~crossing], hosts[~crossing], chunks[~crossing]
            self._bordered = self._bordered_steps()
        self._blocks, self._hosts, self._chunks = blocks, hosts, chunks
        self._patterns: dict[tuple[int, int], Pattern] = {}

    def steps(self, first: int, past: int) -> Operations:
        """Return the operations that move the layers of the steps `first` to `past` (exclusive) of every page."""
        bordered = not self._bordered.isdisjoint(range(first, past))
        return self._operations(self._layout.columns_of_steps(first, past), bordered)

    def whole(self) -> Operations:
        """Return the operations that move every page as a whole."""
        return self._operations(self._layout.columns, len(self._bordered) > 0)

    def _bordered_steps(self) -> frozenset[int]:
        """Return the steps whose layers a border lies in, in any page."""
        first = np.searchsorted(self._borders, self._crossing_hosts, "right")
        past = np.searchsorted(self._borders, self._crossing_hosts + self._layout.slice_bytes, "left")
        count = past - first
        page = np.repeat(np.arange(len(count)), count)
        number = np.arange(len(page)) - np.repeat(np.cumsum(count) - count, count)
        inside = self._borders[first[page] + number] - self._crossing_hosts[page]
        layers = np.searchsorted(self._layout.layer_offsets, inside, "right") - 1
        return frozenset(self._layout.layer_steps[layers].tolist())

    def _operations(self, columns: Sequence[Columns], bordered: bool) -> Operations:
        pieces: list[Pieces] = []
        runs: list[npt.NDArray[np.void]] = []
        for shape in columns:
            pattern = self._pattern(shape.stride, shape.width)
            if bordered:
                plain = len(pattern.pieces.sizes) - len(self._crossing_blocks)
                pieces.append(place_pieces(Pieces(*(each[:plain] for each in pattern.pieces)), shape))
                crossing = place_pieces(Pieces(*(each[plain:] for each in pattern.pieces)), shape)
                pieces.append(cut_pieces(crossing, self._borders))
            else:
                pieces.append(place_pieces(pattern.pieces, shape))
            if len(pattern.runs):
                runs.append(self._place_runs(pattern.runs, shape))
        devices, hosts, sizes = pieces[0] if len(pieces) == 1 else map(np.concatenate, zip(*pieces, strict=True))
        device, host, size = devices.view(np.uint64), hosts.view(np.uint64), sizes.view(np.uint64)
        strided = runs[0] if len(runs) == 1 else np.concatenate(runs) if runs else NO_RUNS
        return Operations(device, host, size, strided) if self._restore else Operations(host, device, size, strided)

    def _pattern(self, stride: int, width: int) -> Pattern:
        pattern = self._patterns.get((stride, width))
        if pattern is None:
            merged = self._merged(width) if stride == width else None
            pattern = self._patterns[stride, width] = merged or self._runs(stride, width)
        return pattern

    def _merged(self, width: int) -> Pattern | None:
        """Return pieces of many pages each where pages adjoin on both sides, or nothing where none do."""
        joins = (gaps(self._blocks) == 1) & (gaps(self._hosts) == width) & (gaps(self._chunks) == 0)
        if not joins.any():
            return None
        firsts = np.flatnonzero(np.concatenate(([True], ~joins)))
        counts = np.diff(firsts, append=len(self._blocks))
        pieces = Pieces(self._blocks[firsts] * width, self._hosts[firsts], counts * width)
        return self._with_crossing(pieces, width, width, NO_RUNS)

    def _runs(self, stride: int, width: int) -> Pattern:
        """Return strided runs where they win, and single pieces for the rest."""
        starts, rows = self._long_runs(stride, width)
        devices, hosts = self._blocks * stride, self._hosts
        # Every run has a neighbour to its first page, which says the pitch.
        runs = self._strided(width, devices[starts], gaps(devices)[starts], hosts[starts], gaps(hosts)[starts], rows)
        if len(starts):
            edges = np.zeros(len(devices) + 1, np.int64)
            edges[starts] += 1
            np.subtract.at(edges, starts + rows, 1)
            alone = np.cumsum(edges[:-1]) == 0
            devices, hosts = devices[alone], hosts[alone]
        pieces = Pieces(devices, hosts, np.full(len(devices), width, np.int64))
        return self._with_crossing(pieces, stride, width, runs)

    def _with_crossing(self, pieces: Pieces, stride: int, width: int, runs: npt.NDArray[np.void]) -> Pattern:
        crossing = len(self._crossing_blocks)
        if crossing == 0:
            return Pattern(pieces, runs)
        more = (self._crossing_blocks * stride, self._crossing_hosts, np.full(crossing, width, np.int64))
        return Pattern(Pieces(*map(np.concatenate, zip(pieces, more, strict=True))), runs)

    def _long_runs(self, stride: int, width: int) -> tuple[Blocks, Blocks]:
        """Return the first pages and the numbers of rows of runs that are worth an operation of their own."""
        nothing = np.empty(0, np.int64)
        least = SHORT_RUN_ROWS if width < SMALL_PIECE_BYTES else LONG_RUN_ROWS
        if len(self._blocks) < least:
            return nothing, nothing
        blocks, hosts = gaps(self._blocks), gaps(self._hosts)
        even = (gaps(self._chunks) == 0) & (blocks * stride >= width) & (blocks * stride <= MAX_PITCH)
        even &= (hosts >= width) & (hosts <= MAX_PITCH)
        same = even[1:] & even[:-1] & (gaps(blocks) == 0) & (gaps(hosts) == 0)
        firsts = np.flatnonzero(np.concatenate(([True], ~same)))
        rows = np.diff(firsts, append=len(blocks)) + 1
        long = even[firsts] & (rows >= least)
        # Two runs that follow each other share a page, which stays with the first.
        shares = long & np.concatenate(([False], long[:-1]))
        firsts, rows = firsts + shares, rows - shares
        long &= rows >= least
        return firsts[long], rows[long]

    def _strided(
        self, width: int, devices: Blocks, device_pitch: Blocks, hosts: Blocks, host_pitch: Blocks, rows: Blocks
    ) -> npt.NDArray[np.void]:
        runs = np.zeros(len(rows), STRIDED)
        device, host = self._sides()
        for side, address, pitch in ((device, devices, device_pitch), (host, hosts, host_pitch)):
            runs[f"{side}_type"] = POINTER_OPERAND
            runs[side] = address
            runs[f"{side}_pitch"] = pitch
            runs[f"{side}_rows"] = rows
        runs["width"], runs["height"], runs["depth"] = width, rows, 1
        runs["order"] = STREAM_ORDER
        return runs

    def _place_runs(self, runs: npt.NDArray[np.void], shape: Columns) -> npt.NDArray[np.void]:
        device, host = self._sides()
        if len(shape.addresses) == 1:
            placed = runs.copy()
            placed[device] += shape.addresses.view(np.uint64)
            placed[host] += shape.offsets.view(np.uint64)
            return placed
        placed = np.tile(runs, len(shape.addresses))
        placed[device] += np.repeat(shape.addresses, len(runs)).view(np.uint64)
        placed[host] += np.repeat(shape.offsets, len(runs)).view(np.uint64)
        return placed

    def _sides(self) -> tuple[str, str]:
        """Return the fields of STRIDED that hold the device's side and the host's."""
        return ("target", "source") if self._restore else ("source", "target")


def place_pieces(pieces: Pieces, shape: Columns) -> Pieces:
    """Return a pattern's single pieces for every run of layers of one shape."""
    if len(shape.addresses) == 1:
        return Pieces(pieces.devices + shape.addresses, pieces.hosts + shape.offsets, pieces.sizes)
    return Pieces(
        (shape.addresses[:, None] + pieces.devices).ravel(),
        (shape.offsets[:, None] + pieces.hosts).ravel(),
        np.tile(pieces.sizes, len(shape.addresses)),
    )


def cut_pieces(pieces: Pieces, borders: Blocks) -> Pieces:
    """Return the pieces cut at every border that lies inside of one."""
    devices, hosts, sizes = pieces
    ends = hosts + sizes
    first = np.searchsorted(borders, hosts, "right")
    parts = np.searchsorted(borders, ends, "left") - first + 1
    piece = np.repeat(np.arange(len(parts)), parts)
    number = np.arange(len(piece)) - np.repeat(np.cumsum(parts) - parts, parts)
    # Part k of a piece lies between borders k - 1 and k of it; the first begins and the last ends with the piece.
    edges = np.append(borders, 0)
    border = first[piece] + number
    begins = np.where(number == 0, hosts[piece], edges[border - 1])
    past = np.where(number == parts[piece] - 1, ends[piece], edges[border])
    return Pieces(devices[piece] + begins - hosts[piece], begins, past - begins)


def adjoining_order(blocks: Blocks, hosts: Blocks) -> Blocks:
    """Return the order of pages in which more neighbours are evenly spaced: by host address or by block.

    Pages of two requests that interleave on one side lie apart on the other.
    """
    best, fewest = np.arange(len(blocks)), len(blocks) + 1
    for order in (np.argsort(hosts, kind="stable"), np.argsort(blocks, kind="stable")):
        changes = (gaps(gaps(blocks[order])) != 0) | (gaps(gaps(hosts[order])) != 0)
        if (count := int(np.count_nonzero(changes))) < fewest:
            best, fewest = order, count
    return best


def gaps(values: Blocks) -> Blocks:
    """Return the distance from each value to the next: numpy's own `diff` takes ten times as long for few values."""
    return values[1:] - values[:-1]
