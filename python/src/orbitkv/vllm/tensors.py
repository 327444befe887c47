"""The engine's registered KV tensors: their layout for the copies, and access to single blocks for the golden check."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from orbitkv.errors import ConfigurationError
from orbitkv.transfer import KVLayout
from orbitkv.vllm.worker import EngineLayers


class TorchPages:
    """Blocks through torch's own view of the tensors, independent of the addresses that the copies use."""

    def __init__(self, tensors: list[Any], blocks: int) -> None:
        self._tensors = tensors
        self._blocks = blocks

    def write(self, layer: int, block: int, content: npt.NDArray[np.uint8]) -> None:
        """Put `content` into the block."""
        target = self._block(layer, block)
        source = torch.from_numpy(np.ascontiguousarray(content)).view(target.dtype).reshape(target.shape)
        target.copy_(source)

    def read(self, layer: int, block: int) -> npt.NDArray[np.uint8]:
        """Return the block's bytes in the order in which `write` takes them."""
        content: npt.NDArray[np.uint8] = (
            self._block(layer, block).contiguous().cpu().view(torch.uint8).numpy().reshape(-1)
        )
        return content

    def _block(self, layer: int, block: int) -> Any:
        """Return the view of one block of the engine, which is one or several kernel blocks."""
        tensor = self._tensors[layer]
        ratio = tensor.shape[0] // self._blocks
        return tensor[block * ratio : (block + 1) * ratio]


def engine_layers(caches: Mapping[str, Any], blocks: int) -> EngineLayers:
    """Return the layers in forward order. Layers that share one tensor are one layer with several names."""
    ordered = sorted(caches, key=forward_order)
    unique: dict[str, Any] = {}
    index: dict[str, int] = {}
    first_names: dict[int, str] = {}
    for name in ordered:
        tensor = caches[name]
        if tensor.device.type != "cpu":
            raise ConfigurationError(
                f"layer {name} lies on {tensor.device}: the host backend copies host memory only, "
                "so OrbitKV serves the CPU build of the engine"
            )
        first = first_names.setdefault(tensor.data_ptr(), name)
        unique.setdefault(first, tensor)
        index[name] = list(unique).index(first)
    layout = KVLayout.from_tensors(unique, blocks)
    return EngineLayers(layout, TorchPages(list(unique.values()), blocks), index)


def forward_order(name: str) -> tuple[list[int], str]:
    """Return the sort key of a layer's name: its numbers, as numbers, then the name."""
    return [int(number) for number in re.findall(r"\d+", name)], name
