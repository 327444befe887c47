"""SGLang's KV pools by page: one tensor a layer for K and one for V, or one for both (MLA).

A page is `page_size` adjoining slots of a tensor. The pool's first page is its padding: the engine writes what nobody
reads into it, and its allocator never hands it out. A pool whose tensors hold whole pages in their first dimension
(layout HND) is read the same way, since either way one page is one run of bytes.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool

from orbitkv._numa import node_of_device
from orbitkv.adapter.tensors import TensorPages, device_of, layout_of
from orbitkv.errors import ConfigurationError
from orbitkv.sglang.device import EngineStreams
from orbitkv.sglang.rank import EngineTensors
from orbitkv.transfer import CudaDriver, DeviceSite

# Exactly these: a subclass keeps scales, an index or state beside what is read here.
POOLS = (MHATokenToKVPool, MLATokenToKVPool)


def refuse_pool(pool: Any) -> None:
    """Refuse a pool whose pages are not all in the tensors that are read here. ConfigurationError names its class."""
    if type(pool) not in POOLS:
        raise ConfigurationError(
            f"the KV pool is a {type(pool).__name__}; supported are {' and '.join(kind.__name__ for kind in POOLS)}, "
            "the pools of models with full attention in every layer and no quantized KV cache: "
            "start without --radix-cache-backend orbitkv"
        )
    if getattr(pool, "is_quantized_kv_cache", False):
        raise ConfigurationError(
            f"the KV cache is quantized ({pool.quant_method.name}), with scales in tensors of their own that are not "
            "stored: start with --kv-cache-dtype auto"
        )


def is_replicated(pool: Any) -> bool:
    """Return whether every rank holds the same bytes."""
    return isinstance(pool, MLATokenToKVPool)


def engine_tensors(pool: Any, forward_stream: Any = None, *, layers_ask: bool = True) -> EngineTensors:
    """Return the pool by pages, in forward order; keys and values of one layer of the engine are one step.

    `forward_stream` is the one on which the engine launches forwards when it overlaps them with its scheduler; a pool
    in host memory needs none. `layers_ask` says that a forward asks the pool for each layer before it reads it.
    ConfigurationError names a layer that cannot be copied by page.
    """
    page_size = int(pool.page_size)
    pages = (int(pool.size) + page_size) // page_size
    cut: dict[str, Any] = {}
    steps: list[int] = []
    for layer in range(pool.layer_num):
        for kind, tensor in tensors_of_layer(pool, layer):
            cut[f"{layer}.{kind}"] = whole_pages(tensor, pages, page_size)
            steps.append(layer)
    layout, device = layout_of(cut, pages, steps), device_of(cut)
    if device is None:
        return EngineTensors(layout, TensorPages(list(cut.values()), pages), None, layers_ask, page_size)
    access = TensorPages(list(cut.values()), pages, lambda: torch.cuda.synchronize(device))
    return EngineTensors(layout, access, site_of(device, forward_stream), layers_ask, page_size)


def site_of(device: int, forward_stream: Any) -> DeviceSite:
    """Return a CUDA device with the engine's streams. The scheduler's thread calls it."""

    def current() -> int:
        return int(torch.cuda.current_stream(device).cuda_stream)

    driver = CudaDriver(device)
    streams = EngineStreams(current, int(forward_stream.cuda_stream))
    return DeviceSite(driver, streams.current, streams.fences, node_of_device(driver.bus_id()))


def tensors_of_layer(pool: Any, layer: int) -> list[tuple[str, Any]]:
    """Return the tensors of one layer with their names, in the order in which a forward reads them."""
    if isinstance(pool, MLATokenToKVPool):
        return [("kv", pool.kv_buffer[layer])]
    return [("k", pool.k_buffer[layer]), ("v", pool.v_buffer[layer])]


def whole_pages(tensor: Any, pages: int, page_size: int) -> Any:
    """Return the tensor without slots behind its last whole page; the allocator hands out whole pages only."""
    return tensor if int(tensor.shape[0]) == pages else tensor[: pages * page_size]
