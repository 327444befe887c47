"""The engine's registered KV tensors: their layout for the copies, and access to single blocks for the golden check."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from orbitkv.adapter.tensors import TensorPages, host_layout
from orbitkv.vllm.worker import EngineLayers


def engine_layers(caches: Mapping[str, Any], blocks: int) -> EngineLayers:
    """Return the layers in forward order. Layers that share one tensor are one layer with several names."""
    ordered = sorted(caches, key=forward_order)
    unique: dict[str, Any] = {}
    index: dict[str, int] = {}
    first_names: dict[int, str] = {}
    for name in ordered:
        tensor = caches[name]
        first = first_names.setdefault(tensor.data_ptr(), name)
        unique.setdefault(first, tensor)
        index[name] = list(unique).index(first)
    return EngineLayers(host_layout(unique, blocks), TensorPages(list(unique.values()), blocks), index)


def forward_order(name: str) -> tuple[list[int], str]:
    """Return the sort key of a layer's name: its numbers, as numbers, then the name."""
    return [int(number) for number in re.findall(r"\d+", name)], name
