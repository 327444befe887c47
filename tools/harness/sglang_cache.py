"""SGLang's own cache objects of one rank over a CPU pool with OrbitKV behind them, driven without an engine.

`CacheRig` says what the engine's scheduler says, one call at a time and in its order, so that a test can stop between
any two of them. The content of a page is a function of the tokens that it and the pages before it hold.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from harness import sglang_modules  # noqa: F401

# isort: split
import torch
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import (
    CacheRequestHandle,
    InitLoadBackParams,
    InsertParams,
    MatchPrefixParams,
)
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.components import ComponentType

from harness import oracle
from harness.base import INSERTED
from harness.manager import ManagerProcess, eventually
from orbitkv.adapter.attachment import RankPlace
from orbitkv.adapter.settings import read_settings
from orbitkv.sglang.cache import OrbitKVRadixCache, admit
from orbitkv.sglang.linker import OrbitKVLinker
from orbitkv.sglang.rank import RankSide
from orbitkv.sglang.tensors import engine_tensors
from orbitkv.timeline import Timeline

PAGE, LAYERS, HEADS, HEAD = 16, 3, 2, 64


class CacheRig:
    """One rank's cache. `keys` are the connector's, by their names without the prefix."""

    def __init__(self, manager: ManagerProcess, instance: str, pages: int = 64, **keys: object) -> None:
        self._manager = manager
        shape: dict[str, Any] = {"size": pages * PAGE, "page_size": PAGE, "dtype": torch.bfloat16, "head_num": HEADS}
        shape |= {"head_dim": HEAD, "layer_num": LAYERS, "device": "cpu", "enable_memory_saver": False}
        self.pool = MHATokenToKVPool(**shape)
        self.allocator = PagedTokenToKVPoolAllocator(
            pages * PAGE, PAGE, torch.bfloat16, "cpu", self.pool, need_sort=False
        )
        params = CacheInitParams(
            disable=False,
            req_to_token_pool=ReqToTokenPool(4, 64, "cpu", enable_memory_saver=False),
            token_to_kv_pool_allocator=self.allocator,
            page_size=PAGE,
            tree_components=(ComponentType.FULL,),
        )
        tensors = engine_tensors(self.pool)
        self.layers = tensors.layout.layers
        settings = read_settings(
            {"orbitkv.socket": manager.socket, **{f"orbitkv.{name}": v for name, v in keys.items()}}
        )
        place = RankPlace(instance=instance, rank=0, world=1)
        self.side = RankSide(settings, place, tensors, {"rig": "cache"}, Timeline("sglang-cache-rig"))
        self.side.begin()
        self.cache = OrbitKVRadixCache(params)
        self.cache.init_cache_linker(OrbitKVLinker(self.side, PAGE))
        self.pool.register_layer_transfer_counter(self.cache.linker.layer_done_counter)

    def close(self) -> None:
        """Leave the Manager."""
        self.cache.release_host_resources()

    def step(self) -> None:
        """Begin a pass."""
        self.cache.check_hicache_events()

    def connected(self, after: bytes = b"") -> None:
        """Return once this rank may use a Manager, in another life than `after`: later passes ask and publish."""
        eventually(lambda: self.side.life() not in (b"", after), "the rank is registered, attached and proved")
        self.step()
        self.step()

    def compute(self, tokens: Sequence[int]) -> None:
        """Let the engine compute a prompt of whole pages that the device lacks, and insert it, which publishes it."""
        self.step()
        slots = self.allocator.alloc(len(tokens))
        assert slots is not None, "the pool is full"
        for page, content in zip(pages_of(slots), contents(tokens), strict=True):
            for layer, part in enumerate(self.layers):
                part.rows[page] = oracle.content(content, layer, part.block_bytes)
        self.cache.insert(InsertParams(key=key_of(tokens), value=slots))

    def publish(self, tokens: Sequence[int]) -> None:
        """Let a prompt be computed that nobody published and return when the Manager has it."""
        before = self.inserted()
        self.compute(tokens)
        self.settle()
        self.wait_inserted(before + len(tokens) // PAGE)

    def inserted(self) -> int:
        """Return how many pages the Manager has taken since its start."""
        return int(self._manager.metric(INSERTED))

    def wait_inserted(self, pages: int) -> None:
        """Return once the Manager has taken so many pages; it may hear of them after the engine knows."""
        eventually(lambda: self.inserted() >= pages, f"{pages} pages are published")

    def step_until(self, holds: Callable[[], bool], what: str) -> None:
        """Run passes until a condition holds."""

        def stepped() -> bool:
            self.step()
            return holds()

        eventually(stepped, what)

    def settle(self) -> None:
        """Run passes until nothing is loaded or saved any more."""
        wrapper = self.cache.linker
        self.step_until(
            lambda: not wrapper.pending_offloads and not wrapper.pending_loads, "every load and save is acknowledged"
        )

    def flush(self) -> None:
        """Empty the cache as the engine's flush does, and fill the pool with poison."""
        self.cache.reset()
        self.allocator.clear()
        for part in self.layers:
            part.rows[:] = oracle.POISON

    def match(self, request: str, tokens: Sequence[int]) -> Any:
        """Match a prompt in this pass, as for a waiting request; the request says how much was promised."""
        result = self.cache.match_prefix(MatchPrefixParams(key=key_of(tokens), req=(req := new_request(request))))
        req.prefix_indices, req.last_node = result.device_indices, result.last_device_node
        req.best_match_node, req.host_hit_length = result.best_match_node, result.host_hit_length
        return req

    def promised(self, request: str, tokens: Sequence[int]) -> Any:
        """Match in pass after pass until the answer is there."""
        found: list[Any] = []

        def answered() -> bool:
            found.append(self.match(request, tokens))
            return not self.cache.holds(request)

        self.step_until(answered, "the look-up is answered")
        return found[-1]

    def admit(self, req: Any) -> torch.Tensor:
        """Admit a request that was matched in this pass; return the slots that it gets beyond the device's."""
        adder = SimpleNamespace(tree_cache=self.cache, can_run_list=[])
        admit(self._add, adder, req)
        slots: torch.Tensor = req.restored
        return slots

    def abort(self, request: str) -> None:
        """Abort a request that waits or whose load is queued."""
        self.cache.release_aborted_request(CacheRequestHandle(request, 0))

    def start(self) -> int:
        """Begin what was admitted; return the batch's consumer index."""
        index: int = self.cache.ready_to_load_host_cache()
        return index

    def forward(self, index: int, tokens: Sequence[int], slots: torch.Tensor) -> None:
        """Read the last pages of a prompt layer by layer, as a forward does, and compare every byte."""
        expected = contents(tokens)[-len(slots) // PAGE :]
        self.cache.linker.layer_done_counter.set_consumer(index)
        for layer in range(LAYERS):
            self.pool.get_key_buffer(layer)  # waits
            self.check(slots, expected, (2 * layer, 2 * layer + 1))

    def check(self, slots: torch.Tensor, expected: Sequence[bytes], layers: Sequence[int]) -> None:
        """Compare pages with what they should hold."""
        for page, content in zip(pages_of(slots), expected, strict=True):
            for layer in layers:
                part = self.layers[layer]
                assert (part.rows[page] == oracle.content(content, layer, part.block_bytes)).all(), (page, layer)

    def _add(self, adder: Any, req: Any) -> None:
        """Do what `PrefillAdder.add_one_req` does of it."""
        req.restored, req.last_node = self.cache.init_load_back(
            InitLoadBackParams(best_match_node=req.best_match_node, host_hit_length=req.host_hit_length, req=req)
        )
        assert len(req.restored) in (0, req.host_hit_length), "all that was promised, or nothing"
        adder.can_run_list.append(req)


def new_request(name: str) -> SimpleNamespace:
    """Return as much of a request as the cache looks at."""
    return SimpleNamespace(rid=name, kv=None, priority=0, extra_key=None, session=None)


def key_of(tokens: Sequence[int]) -> RadixKey:
    """Return the tree's key of a prompt."""
    return RadixKey(array("q", tokens))


def pages_of(slots: torch.Tensor) -> list[int]:
    """Return the pool's pages behind token slots."""
    pages: list[int] = (slots[::PAGE] // PAGE).tolist()
    return pages


def contents(tokens: Sequence[int]) -> list[bytes]:
    """Return what names the content of each page of a prompt."""
    ends = range(PAGE, len(tokens) + 1, PAGE)
    return [hashlib.sha256(array("q", tokens[:end]).tobytes()).digest() for end in ends]
