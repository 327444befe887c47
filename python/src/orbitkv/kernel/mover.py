"""The mover of the `kernel` backend: one launch copies all pages of a unit, however small their pieces are."""

from __future__ import annotations

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
ELEMENTS = {8: tl.int64, 4: tl.int32, 2: tl.int16, 1: tl.int8}


@dataclass(frozen=True)
class Prepared:
    """A group and its table: engine blocks and host addresses."""

    group: Group
    table: Table


class KernelMover:
    """Implements `transfer._mover.Mover` with a kernel over mapped host memory.

    Construction compiles what the layout needs, so that no copy waits for a compiler.
    """

    name = "kernel"

    def __init__(self, driver: Driver, layout: KVLayout, *, launcher: Launcher | None = None) -> None:
        self._driver = driver
        self._launcher = launcher if launcher is not None else Launcher(driver)
        runs, launches = plan_launches([*layout.step_columns, layout.columns], layout.blocks)
        *self._steps, self._whole = launches
        driver.bind()
        with ExitStack() as undo:
            self._runs = DeviceNumbers(driver, runs)
            undo.callback(self._runs.close)
            self._tables = (PageTables(driver, layout.blocks, columns=2), PageTables(driver, layout.blocks, columns=2))
            for tables in self._tables:
                undo.callback(tables.close)
            self._compile(sorted({launch.word for batch in launches for launch in batch}))
            self._undo = undo.pop_all()

    def bind(self) -> None:
        """Make the device current in the calling thread."""
        self._driver.bind()

    def prepare(self, group: Group) -> Prepared:
        """Fill the group's table. Waits while older groups hold all of the tables' memory; see PageTables.take."""
        if not aligned(group.hosts):
            raise TransferError(f"a page's slice begins at no multiple of {WORD_MAX} bytes in host memory")
        return Prepared(group, self._tables[group.restore].take(group.blocks, group.hosts))

    def submit_steps(self, prepared: Prepared, first: int, past: int, stream: int) -> int:
        """Hand over all layers of the steps `first` to `past` (exclusive); return the number of launches."""
        launches = joined([launch for step in self._steps[first:past] for launch in step])
        return self._submit(prepared, launches, 0, prepared.group.pages, stream)

    def submit_pages(self, prepared: Prepared, first: int, past: int, stream: int) -> int:
        """Hand over every layer of the pages `first` to `past` (exclusive); return the number of launches."""
        return self._submit(prepared, self._whole, first, past, stream)

    def release(self, prepared: Prepared) -> None:
        """Take the group's table back."""
        self._tables[prepared.group.restore].give(prepared.table)

    def close(self) -> None:
        """Give back the memory of the tables."""
        self._undo.close()

    def _submit(self, prepared: Prepared, batch: Sequence[Launch], first: int, past: int, stream: int) -> int:
        table, restore = prepared.table, prepared.group.restore
        self._tables[restore].upload(table, stream)
        for launch in batch:
            self._launch(launch, table.address, table.rows, first, past - first, restore, stream)
        return len(batch)

    def _launch(self, launch: Launch, table: int, rows: int, skip: int, pages: int, restore: bool, stream: int) -> None:
        self._launcher.launch(
            move_blocks,
            PROGRAMS,
            stream,
            table,
            rows,
            self._runs.address,
            skip,
            pages,
            launch.first,
            launch.count,
            launch.width // launch.word,
            element=ELEMENTS[launch.word],
            lanes=LANES,
            restore=restore,
        )

    def _compile(self, words: list[int]) -> None:
        """Launch every kernel that a copy may need over no pages: that compiles it and loads it onto the device."""
        with scratch_stream(self._driver) as stream:
            for word in words:
                for restore in (False, True):
                    self._launch(Launch(0, 1, word, word), self._runs.address, 0, 0, 0, restore, stream)
