"""SGLang's KV pools by page: one tensor a layer for K and one for V, or one for both (MLA).

A page is `page_size` adjoining slots of a tensor. The pool's first page is its padding: the engine writes what nobody
reads into it, and its allocator never hands it out. A pool whose tensors hold whole pages in their first dimension
(layout HND) is read the same way, since either way one page is one run of bytes.
"""

from __future__ import annotations

from typing import Any

from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool

from orbitkv.adapter.tensors import TensorPages, host_layout
from orbitkv.errors import ConfigurationError
from orbitkv.sglang.rank import EngineTensors

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


def engine_tensors(pool: Any) -> EngineTensors:
    """Return the pool by pages, in forward order. ConfigurationError names a layer that cannot be copied by page."""
    named: dict[str, Any] = {}
    last: list[int] = []
    for layer in range(pool.layer_num):
        for kind, tensor in tensors_of_layer(pool, layer):
            named[f"{layer}.{kind}"] = tensor
        last.append(len(named) - 1)
    pages = (int(pool.size) + int(pool.page_size)) // int(pool.page_size)
    cut = {name: whole_pages(tensor, pages, int(pool.page_size)) for name, tensor in named.items()}
    return EngineTensors(host_layout(cut, pages), TensorPages(list(cut.values()), pages), tuple(last))


def tensors_of_layer(pool: Any, layer: int) -> list[tuple[str, Any]]:
    """Return the tensors of one layer with their names, in the order in which a forward reads them."""
    if isinstance(pool, MLATokenToKVPool):
        return [("kv", pool.kv_buffer[layer])]
    return [("k", pool.k_buffer[layer]), ("v", pool.v_buffer[layer])]


def whole_pages(tensor: Any, pages: int, page_size: int) -> Any:
    """Return the tensor without slots behind its last whole page; the allocator hands out whole pages only."""
    return tensor if int(tensor.shape[0]) == pages else tensor[: pages * page_size]
