"""An engine's KV tensors for the copies and for the golden check, through their methods: nothing imports torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from orbitkv.errors import ConfigurationError
from orbitkv.transfer import KVLayout

HOST, DEVICE = "cpu", "cuda"  # the kinds of torch's devices that hold KV


class TensorPages:
    """Pages through the engine's own view of its tensors, independent of the addresses that the copies use.

    The first dimension of each tensor is the page, or several adjoining rows a page. `settle` waits until every stream
    of the tensors' device has done what it was given; host memory needs none.
    """

    def __init__(self, tensors: Sequence[Any], pages: int, settle: Callable[[], None] = lambda: None) -> None:
        self._tensors = tensors
        self._pages = pages
        self._settle = settle

    def write(self, layer: int, block: int, content: npt.NDArray[np.uint8]) -> None:
        """Put `content` into the page, in the order of the calling thread's stream."""
        target = self._page(layer, block)
        source = self._bytes(target)
        source.numpy()[:] = content
        target.copy_(source.view(target.dtype).reshape(target.shape))

    def read(self, layer: int, block: int) -> npt.NDArray[np.uint8]:
        """Return the page's bytes in the order in which `write` takes them."""
        content: npt.NDArray[np.uint8] = self._bytes(self._page(layer, block)).numpy()
        return content

    def settle(self) -> None:
        """Return once everything that was written is in place for every stream."""
        self._settle()

    def _page(self, layer: int, page: int) -> Any:
        tensor = self._tensors[layer]
        rows = tensor.shape[0] // self._pages
        return tensor[page * rows : (page + 1) * rows]

    @staticmethod
    def _bytes(page: Any) -> Any:
        """Return the page's content as one row of bytes in host memory, a copy of its own."""
        raw = page[:0].byte().dtype  # the name of the type of bytes, from the tensor itself
        return page.cpu().clone().contiguous().reshape(-1).view(raw)


def device_of(tensors: Mapping[str, Any]) -> int | None:
    """Return the ordinal of the CUDA device that holds every tensor, None when host memory does.

    ConfigurationError names the tensor that lies elsewhere, or apart from the others.
    """
    first: Any = None
    for name, tensor in tensors.items():
        device = tensor.device
        if device.type not in (HOST, DEVICE):
            raise ConfigurationError(
                f"layer {name} lies on {device}: OrbitKV copies to host memory and to CUDA devices alone, "
                "so start the engine without it"
            )
        first = device if first is None else first
        if device != first:
            raise ConfigurationError(
                f"layer {name} lies on {device} and others lie on {first}: the KV of one rank must be in one place, "
                "so start the engine without OrbitKV, or without what offloads a part of its KV"
            )
    return int(first.index or 0) if first is not None and first.type == DEVICE else None


def layout_of(tensors: Mapping[str, Any], pages: int, steps: Sequence[int] | None = None) -> KVLayout:
    """Return the layout of tensors in host memory or on one CUDA device, in the mapping's order: the forward's.

    `steps` names the forward's layer that reads each tensor; by default each has its own. ConfigurationError names the
    tensor that lies elsewhere, or whose page is not one contiguous run of bytes.
    """
    device_of(tensors)
    return KVLayout.from_tensors(tensors, pages, steps)
