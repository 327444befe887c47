"""The engine's registered KV tensors: their layout for the copies, where they lie, and access to single blocks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

from orbitkv._numa import node_of_device
from orbitkv.adapter.tensors import TensorPages, device_of, layout_of
from orbitkv.transfer import DIGEST_BYTES, DIGEST_LAYER, CudaDriver, DeviceSite
from orbitkv.vllm.worker import EngineLayers


def engine_layers(caches: Mapping[str, Any], blocks: int, *, verify: bool = False) -> EngineLayers:
    """Return the layers in forward order. Layers that share one tensor are one layer with several names.

    With `verify` each page carries a digest, whose rows are the last layer. No name and no hook of the engine's has it.
    """
    ordered = sorted(caches, key=forward_order)
    unique: dict[str, Any] = {}
    index: dict[str, int] = {}
    first_names: dict[int, str] = {}
    for name in ordered:
        tensor = caches[name]
        first = first_names.setdefault(tensor.data_ptr(), name)
        unique.setdefault(first, tensor)
        index[name] = list(unique).index(first)
    device = device_of(unique)
    if verify:
        unique[DIGEST_LAYER] = torch.zeros(
            (blocks, DIGEST_BYTES // 8), dtype=torch.int64, device=next(iter(unique.values())).device
        )
    pages = TensorPages(list(unique.values()), blocks, settle_of(device))
    return EngineLayers(layout_of(unique, blocks), pages, index, None if device is None else site_of(device))


def site_of(device: int) -> DeviceSite:
    """Return a CUDA device with the engine's streams as the calling thread has them."""

    def current() -> int:
        return int(torch.cuda.current_stream(device).cuda_stream)

    driver = CudaDriver(device)
    # Everything that vLLM launches on pages goes to the stream that is current in its worker's thread: the forward, its
    # graphs, the zeroing of new blocks, the drafter.
    return DeviceSite(driver, current, lambda: (current(),), node_of_device(driver.bus_id()))


def settle_of(device: int | None) -> Callable[[], None]:
    """Return what waits until a device has done all that it was given; for host memory it does nothing."""
    return (lambda: None) if device is None else (lambda: torch.cuda.synchronize(device))


def forward_order(name: str) -> tuple[list[int], str]:
    """Return the sort key of a layer's name: its numbers, as numbers, then the name."""
    return [int(number) for number in re.findall(r"\d+", name)], name
