"""The check of restored pages against the digests that travel with them, on the device (see `transfer._digest`)."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import triton.language as tl

from orbitkv.errors import ConfigurationError, TransferError
from orbitkv.kernel.geometry import LANES, largest_word, layer_table
from orbitkv.kernel.kernels import SOUND, settle_rows, sum_terms
from orbitkv.kernel.launcher import Launcher
from orbitkv.kernel.tables import DeviceNumbers, PageTables, Table, scratch_stream
from orbitkv.transfer._digest import is_verified
from orbitkv.transfer._driver import Driver
from orbitkv.transfer._locked import LockedMemory
from orbitkv.transfer._mover import Group
from orbitkv.transfer._plan import Blocks, KVLayout

PROGRAMS = 128  # a digest reads the device's own memory, which a few programs do not keep busy
BATCH_PAGES = 1024  # pages whose partial sums are kept at once
STATUS_BYTES = 4
ELEMENTS = {8: tl.uint64, 4: tl.uint32, 2: tl.uint16, 1: tl.uint8}


@dataclass(frozen=True)
class Checked:
    """A group and its table of engine blocks."""

    group: Group
    table: Table


class DigestVerifier:
    """Implements `transfer._verifier.Verifier` for a verified layout.

    A page that no kernel reached counts as wrong. Construction compiles the kernels.
    """

    def __init__(self, driver: Driver, layout: KVLayout, *, launcher: Launcher | None = None) -> None:
        if not is_verified(layout):
            raise ConfigurationError("the layout has no layer of digests, so its pages cannot be verified")
        self._driver = driver
        self._layout = layout
        self._launcher = launcher if launcher is not None else Launcher(driver)
        summed = layout.layers[:-1]
        self._count = len(summed)
        self._fold = 1 << (self._count - 1).bit_length()
        self._word = largest_word(*(n for each in summed for n in (each.address, each.block_stride, each.block_bytes)))
        driver.bind()
        with ExitStack() as undo:
            self._runs = DeviceNumbers(driver, layer_table(layout.layers))
            undo.callback(self._runs.close)
            self._tables = (PageTables(driver, layout.blocks, columns=1), PageTables(driver, layout.blocks, columns=1))
            for tables in self._tables:
                undo.callback(tables.close)
            # Publishes and restores are on streams of their own, so each direction adds up in memory of its own.
            self._partials = (self._sums(undo), self._sums(undo))
            self._statuses = LockedMemory(driver, layout.blocks * STATUS_BYTES)
            undo.callback(self._statuses.close)
            self._compile()
            self._undo = undo.pop_all()

    def prepare(self, group: Group) -> Checked:
        """Fill the group's table. Waits while older groups hold all of the tables' memory; see PageTables.take.

        TransferError when the group's pages are not of the verifier's layout.
        """
        if group.layout is not self._layout:
            raise TransferError("pages of another layout than the engine's cannot be verified")
        table = self._tables[group.restore].take(group.blocks)
        if group.restore:
            self._status_of(table)[:] = 0
        return Checked(group, table)

    def before_publish(self, checked: Checked, first: int, past: int, stream: int) -> int:
        """Hand over the digests of some pages, into the engine's rows; return the number of launches."""
        return self._submit(checked, first, past, stream)

    def after_restore(self, checked: Checked, stream: int) -> int:
        """Hand over the check of every page; return the number of launches."""
        return self._submit(checked, 0, checked.group.pages, stream)

    def result(self, checked: Checked) -> Blocks:
        """Return the positions of the pages that are wrong."""
        return np.flatnonzero(self._status_of(checked.table) != SOUND).astype(np.int64)

    def release(self, checked: Checked) -> None:
        """Take the group's table back."""
        self._tables[checked.group.restore].give(checked.table)

    def close(self) -> None:
        """Give back the memory of tables and sums."""
        self._undo.close()

    def _sums(self, undo: ExitStack) -> int:
        address = self._driver.allocate(BATCH_PAGES * self._count * 8)
        undo.callback(self._driver.free, address)
        return address

    def _status_of(self, table: Table) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        """Return what the device says of each page of a table: SOUND, WRONG or zero."""
        return self._statuses.bytes.view(np.int32)[table.start : table.start + table.rows]

    def _submit(self, checked: Checked, first: int, past: int, stream: int) -> int:
        table, restore = checked.table, checked.group.restore
        self._tables[restore].upload(table, stream)
        statuses = self._statuses.address + table.start * STATUS_BYTES
        batches = range(first, past, BATCH_PAGES)
        for skip in batches:
            self._launch(table.address, skip, min(BATCH_PAGES, past - skip), statuses, restore, stream)
        return 2 * len(batches)

    def _launch(self, table: int, skip: int, pages: int, statuses: int, restore: bool, stream: int) -> None:
        common = (table, self._runs.address, skip, pages, self._count, self._partials[restore])
        self._launcher.launch(
            sum_terms, PROGRAMS, stream, *common, element=ELEMENTS[self._word], size=self._word, lanes=LANES
        )
        self._launcher.launch(settle_rows, PROGRAMS, stream, *common, statuses, fold=self._fold, check=restore)

    def _compile(self) -> None:
        """Launch every kernel over no pages: that compiles it and loads it onto the device."""
        with scratch_stream(self._driver) as stream:
            for restore in (False, True):
                self._launch(self._runs.address, 0, 0, self._statuses.address, restore, stream)
