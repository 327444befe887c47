"""An engine's KV tensors for the copies and for the golden check, through their methods: nothing imports torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from orbitkv.errors import ConfigurationError
from orbitkv.transfer import KVLayout


class TensorPages:
    """Pages through the engine's own view of its tensors, independent of the addresses that the copies use.

    The first dimension of each tensor is the page, or several adjoining rows a page.
    """

    def __init__(self, tensors: Sequence[Any], pages: int) -> None:
        self._tensors = tensors
        self._pages = pages

    def write(self, layer: int, block: int, content: npt.NDArray[np.uint8]) -> None:
        """Put `content` into the page."""
        target = self._page(layer, block)
        source = self._bytes(target)
        source.numpy()[:] = content
        target.copy_(source.view(target.dtype).reshape(target.shape))

    def read(self, layer: int, block: int) -> npt.NDArray[np.uint8]:
        """Return the page's bytes in the order in which `write` takes them."""
        content: npt.NDArray[np.uint8] = self._bytes(self._page(layer, block)).numpy()
        return content

    def _page(self, layer: int, page: int) -> Any:
        tensor = self._tensors[layer]
        rows = tensor.shape[0] // self._pages
        return tensor[page * rows : (page + 1) * rows]

    @staticmethod
    def _bytes(page: Any) -> Any:
        """Return the page's content as one row of bytes in host memory, a copy of its own."""
        raw = page[:0].byte().dtype  # the name of the type of bytes, from the tensor itself
        return page.cpu().clone().contiguous().reshape(-1).view(raw)


def host_layout(tensors: Mapping[str, Any], pages: int) -> KVLayout:
    """Return the layout of tensors in host memory, in the mapping's order, which must be the forward's.

    ConfigurationError names the tensor that lies elsewhere, or whose page is not one contiguous run of bytes.
    """
    for name, tensor in tensors.items():
        if tensor.device.type != "cpu":
            raise ConfigurationError(
                f"layer {name} lies on {tensor.device}: the host backend copies host memory only, "
                "so OrbitKV serves the CPU build of the engine"
            )
    return KVLayout.from_tensors(tensors, pages)
