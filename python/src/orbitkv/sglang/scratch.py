"""Pages that are not the engine's, laid out like its own and in the same kind of memory, for a rank's golden check."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from orbitkv.adapter.golden import PageAccess
from orbitkv.adapter.logs import LOGGER
from orbitkv.errors import ConfigurationError, DeviceError
from orbitkv.transfer import DeviceSite, KVLayout, LockedMemory, copy_one

log = logging.getLogger(LOGGER)


class Scratch(PageAccess, Protocol):
    """Pages to check on, in memory of their own."""

    @property
    def layout(self) -> KVLayout:
        """Return where the pages lie."""
        ...

    def close(self) -> None:
        """Give the memory back, once no copy uses it any more."""
        ...


class HostScratch:
    """Pages in host memory."""

    def __init__(self, layout: KVLayout, pages: int) -> None:
        self._memory: npt.NDArray[np.uint8] = np.zeros(pages * layout.slice_bytes, np.uint8)
        self.layout = layout_at(layout, pages, int(self._memory.ctypes.data), self._memory)

    def write(self, layer: int, block: int, content: npt.NDArray[np.uint8]) -> None:
        """Put `content` into the page."""
        self.layout.layers[layer].rows[block] = content

    def read(self, layer: int, block: int) -> npt.NDArray[np.uint8]:
        """Return the page's bytes."""
        content: npt.NDArray[np.uint8] = self.layout.layers[layer].rows[block].copy()
        return content

    def settle(self) -> None:
        """Do nothing: what was written is there."""

    def close(self) -> None:
        """Do nothing: the memory goes with its last user."""


class DeviceScratch:
    """Pages in device memory that the driver gives, outside of the engine's allocator.

    Bytes pass through one page of one layer in locked host memory, on a stream of its own. Whoever calls waits for the
    copy, so `settle` has nothing left to do. DeviceError names a call of the driver that failed.
    """

    def __init__(self, layout: KVLayout, pages: int, site: DeviceSite) -> None:
        self._driver = site.driver
        self._driver.bind()
        self._window = LockedMemory(self._driver, max(layer.block_bytes for layer in layout.layers))
        self._stream = self._driver.create_stream(self._driver.priorities()[0])
        self._event = self._driver.create_event()
        self._memory = self._driver.allocate(pages * layout.slice_bytes)
        self.layout = layout_at(layout, pages, self._memory, self)

    def write(self, layer: int, block: int, content: npt.NDArray[np.uint8]) -> None:
        """Put `content` into the page."""
        self._window.bytes[: len(content)] = content
        self._copy(self._place(layer, block), self._window.address, len(content))

    def read(self, layer: int, block: int) -> npt.NDArray[np.uint8]:
        """Return the page's bytes."""
        size = self.layout.layers[layer].block_bytes
        self._copy(self._window.address, self._place(layer, block), size)
        return self._window.bytes[:size].copy()

    def settle(self) -> None:
        """Do nothing: what was written is there."""

    def close(self) -> None:
        """Give the memory back, once no copy uses it any more; a device that faulted keeps it until the end."""
        try:
            self._driver.bind()
            self._driver.free(self._memory)
            self._window.close()
            self._driver.destroy_event(self._event)
            self._driver.destroy_stream(self._stream)
        except DeviceError as fault:
            log.warning("pages for checks on CUDA device %d were not given back: %s", self._driver.index, fault)

    def _place(self, layer: int, block: int) -> int:
        place = self.layout.layers[layer]
        return place.address + block * place.block_stride

    def _copy(self, target: int, source: int, size: int) -> None:
        self._driver.bind()
        copy_one(self._driver, target, source, size, self._stream)
        self._driver.record(self._event, self._stream)
        self._driver.synchronize(self._event)


def scratch_of(layout: KVLayout, pages: int, site: DeviceSite | None) -> HostScratch | DeviceScratch:
    """Return so many pages of a layout in the kind of memory where the engine's lie. ConfigurationError: no room."""
    if site is None:
        return HostScratch(layout, pages)
    try:
        return DeviceScratch(layout, pages, site)
    except DeviceError as fault:
        raise ConfigurationError(
            f"{pages * layout.slice_bytes} bytes of CUDA device {site.driver.index}, on which a new Cache Manager is "
            f"checked, cannot be had ({fault}): start with a smaller --mem-fraction-static"
        ) from fault


def layout_at(layout: KVLayout, pages: int, base: int, owner: object) -> KVLayout:
    """Return a layout of so many pages whose layers lie one after the other from an address on."""
    layers = tuple(
        replace(layer, address=base + pages * layer.offset, blocks=pages, block_stride=layer.block_bytes)
        for layer in layout.layers
    )
    return KVLayout(layers, pages, layout.slice_bytes, owner)
