"""The mover of the `kernel` backend: one launch copies all pages of a unit, however small their pieces are."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import triton.language as tl

from orbitkv.errors import TransferError
from orbitkv.kernel.geometry import LANES, WORD_MAX, Launch, aligned, joined, plan_launches
from orbitkv.kernel.kernels import move_blocks
from orbitkv.kernel.launcher import Launcher
from orbitkv.kernel.tables import DeviceNumbers, PageTables, Table, scratch_stream
from orbitkv.transfer._driver import Driver
from orbitkv.transfer._mover import Group
from orbitkv.transfer._plan import KVLayout

PROGRAMS = 32  # enough for the link's speed, and few enough to leave the forward its processors
LAYOUTS_MAX = 2  # whose pages one mover copies: the engine's, and that of pages which are checked apart from it
ELEMENTS = {8: tl.int64, 4: tl.int32, 2: tl.int16, 1: tl.int8}


@dataclass(frozen=True)
class Runs:
    """Where the runs of a layout lie, in the device's memory, and the launches of each step and of whole pages."""

    layout: KVLayout
    table: DeviceNumbers
    steps: Sequence[Sequence[Launch]]
    whole: Sequence[Launch]


@dataclass(frozen=True)
class Prepared:
    """A group with its runs and its table: engine blocks and host addresses."""

    group: Group
    runs: Runs
    table: Table


class KernelMover:
    """Implements `transfer._mover.Mover` with a kernel over mapped host memory.

    Construction compiles what the engine's layout needs, so that no copy of its pages waits for a compiler. A group may
    be of another layout, at most LAYOUTS_MAX of them; the first of each takes longer.
    """

    name = "kernel"

    def __init__(self, driver: Driver, layout: KVLayout, *, launcher: Launcher | None = None) -> None:
        self._driver = driver
        self._launcher = launcher if launcher is not None else Launcher(driver)
        self._known: list[Runs] = []
        self._learning = threading.Lock()  # guards `_known`; calls of the driver are made under it
        self._undo = ExitStack()
        driver.bind()
        with ExitStack() as failed:
            failed.callback(self._undo.close)
            self._tables = (PageTables(driver, layout.blocks, columns=2), PageTables(driver, layout.blocks, columns=2))
            for tables in self._tables:
                self._undo.callback(tables.close)
            self._runs_of(layout)
            failed.pop_all()

    def bind(self) -> None:
        """Make the device current in the calling thread."""
        self._driver.bind()

    def prepare(self, group: Group) -> Prepared:
        """Fill the group's table. Waits while older groups hold all of the tables' memory; see PageTables.take."""
        if not aligned(group.hosts):
            raise TransferError(f"a page's slice begins at no multiple of {WORD_MAX} bytes in host memory")
        runs = self._runs_of(group.layout)
        return Prepared(group, runs, self._tables[group.restore].take(group.blocks, group.hosts))

    def submit_steps(self, prepared: Prepared, first: int, past: int, stream: int) -> int:
        """Hand over all layers of the steps `first` to `past` (exclusive); return the number of launches."""
        launches = joined([launch for step in prepared.runs.steps[first:past] for launch in step])
        return self._submit(prepared, launches, 0, prepared.group.pages, stream)

    def submit_pages(self, prepared: Prepared, first: int, past: int, stream: int) -> int:
        """Hand over every layer of the pages `first` to `past` (exclusive); return the number of launches."""
        return self._submit(prepared, prepared.runs.whole, first, past, stream)

    def release(self, prepared: Prepared) -> None:
        """Take the group's table back."""
        self._tables[prepared.group.restore].give(prepared.table)

    def close(self) -> None:
        """Give back the memory of all tables."""
        self._undo.close()

    def _submit(self, prepared: Prepared, batch: Sequence[Launch], first: int, past: int, stream: int) -> int:
        table, restore = prepared.table, prepared.group.restore
        self._tables[restore].upload(table, stream)
        for launch in batch:
            self._launch(launch, prepared.runs, table.address, table.rows, first, past - first, restore, stream)
        return len(batch)

    def _runs_of(self, layout: KVLayout) -> Runs:
        """Return the runs of a layout, and compile what they need the first time. TransferError: there are too many."""
        with self._learning:
            for known in self._known:
                if known.layout is layout:
                    return known
            if len(self._known) == LAYOUTS_MAX:
                raise TransferError(f"the kernel copies pages of {LAYOUTS_MAX} layouts already, and this is another")
            numbers, launches = plan_launches([*layout.step_columns, layout.columns], layout.blocks)
            runs = Runs(layout, DeviceNumbers(self._driver, numbers), launches[:-1], launches[-1])
            self._undo.callback(runs.table.close)
            self._known.append(runs)
            self._compile(runs, sorted({launch.word for batch in launches for launch in batch}))
            return runs

    def _launch(
        self, launch: Launch, runs: Runs, table: int, rows: int, skip: int, pages: int, restore: bool, stream: int
    ) -> None:
        self._launcher.launch(
            move_blocks,
            PROGRAMS,
            stream,
            table,
            rows,
            runs.table.address,
            skip,
            pages,
            launch.first,
            launch.count,
            launch.width // launch.word,
            element=ELEMENTS[launch.word],
            lanes=LANES,
            restore=restore,
        )

    def _compile(self, runs: Runs, words: list[int]) -> None:
        """Launch every kernel that a copy may need over no pages: that compiles it and loads it onto the device."""
        with scratch_stream(self._driver) as stream:
            for word in words:
                for restore in (False, True):
                    self._launch(Launch(0, 1, word, word), runs, runs.table.address, 0, 0, 0, restore, stream)
