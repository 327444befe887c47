"""SGLang's unified radix cache with OrbitKV behind it: what all ranks must agree on, and what is kept waiting.

Ranks agree without a collective of their own. `match` reduces a mask of page counts over the ranks by MIN: its element
0, which the engine leaves unused, says that a rank has an answer. `check_hicache_events` reduces two counts by MIN once
a pass: the vector gets two elements more, which tell whether all ranks may use the same life of the Cache Manager.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from sglang.srt.managers.schedule_batch import MM_PAD_SHIFT_VALUE
from sglang.srt.managers.schedule_policy import AddReqResult
from sglang.srt.mem_cache.unified_cache.unified_cache_linker import UnifiedCacheLinkerWrapper
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from orbitkv.sglang.engine import agreed_number
from orbitkv.sglang.linker import OrbitKVLinker

LIFE_BITS = 31  # of a life of the Manager in the ranks' vote; lives that share them are told apart by their sessions


class OrbitKVLinkerWrapper(UnifiedCacheLinkerWrapper):
    """The tree's side of the linker: `held` are requests for which a rank had no answer yet.

    `adapters` says that requests may use LoRA adapters. SGLang makes an adapter's name part of a key and not its
    content, and a node does not say whether its extra key names one: then nothing with an extra key is looked up or
    published. `images` says that requests may carry images, sound or video. SGLang puts 30 bits of their digest into
    the tokens, which is too little for keys that many processes share and keep: what follows one is left alone.
    """

    cache_linker: OrbitKVLinker

    def __init__(self, cache: UnifiedRadixCache, cache_linker: OrbitKVLinker) -> None:
        super().__init__(cache, cache_linker)
        self.held: set[str] = set()
        self.adapters = False
        self.images = False
        self._asking = ""

    def match(self, key: Any, req: Any, result: Any) -> Any:
        """Ask for what the device lacks; a promise of an earlier pass is void."""
        self.hit_markers.pop(req.rid, None)
        self.held.discard(req.rid)
        if getattr(req, "positional_embed_overrides", None) is not None:
            # SGLang matches nothing for it, since its tokens do not name its KV, but would insert it under them; then
            # it would be published. This is the engine's own switch against that.
            req.skip_radix_cache_insert = True
            return result
        if self._left_alone(key) or (self.images and req.multimodal_inputs is not None):
            return result
        self._asking = req.rid
        return super().match(key, req, result)

    def offload_nodes(self, node_ids: Sequence[Any]) -> None:
        """Publish nodes, but for those that are left alone."""
        nodes = {each: self.cache.tree_core.node_by_id(each) for each in node_ids}
        super().offload_nodes(
            [each for each, node in nodes.items() if not (self._left_alone(node.key) or self._follows_image(node))]
        )

    def release_request(self, rid: str) -> None:
        """Let go of a request that was aborted while it waited."""
        self.held.discard(rid)
        super().release_request(rid)

    def reset(self) -> None:
        """Forget with the tree."""
        super().reset()
        self.held.clear()

    def _left_alone(self, key: Any) -> bool:
        return self.adapters and key.extra_key is not None

    def _follows_image(self, node: Any) -> bool:
        """Return whether the node's prefix holds tokens that stand for something else than text."""
        while self.images and node.parent is not None:
            if len(node.key) > 0 and max(node.key.token_ids) >= MM_PAD_SHIFT_VALUE:
                return True
            node = node.parent
        return False

    def _sync_restorable_prefix(self, restorable: list[int], *, num_pages: int, device_hit_pages: int) -> int:
        """Return the longest prefix that all ranks promise, 0 when one has no answer, and then the request is held."""
        mask = torch.zeros(num_pages + 1, dtype=torch.int)
        mask[0] = int(self.cache_linker.answered)
        mask[1 + device_hit_pages : 1 + min(len(restorable), num_pages)] = 1
        self.cache._all_reduce_attn_groups(mask, torch.distributed.ReduceOp.MIN)
        if not mask[0]:
            self.held.add(self._asking)
            return 0
        return int(mask.nonzero()[-1])


class OrbitKVRadixCache(UnifiedRadixCache):
    """The unified radix cache that `--radix-cache-backend orbitkv` builds."""

    linker: OrbitKVLinkerWrapper

    def init_cache_linker(self, cache_linker: OrbitKVLinker) -> None:
        """Attach the linker."""
        self.linker = OrbitKVLinkerWrapper(self, cache_linker)

    def check_hicache_events(self) -> None:
        """Begin a pass: take what ended on every rank, and agree on the Cache Manager's life."""
        wrapper, linker = self.linker, self.linker.cache_linker
        life = int.from_bytes(linker.begin_pass(), "little") % ((1 << LIFE_BITS) - 1)
        counts = [wrapper.num_completed_loads(), wrapper.num_completed_offloads(), life, -life]
        agreed = torch.tensor(counts, dtype=torch.int, device="cpu")
        self._all_reduce_attn_groups(agreed, torch.distributed.ReduceOp.MIN)
        loads, offloads, least, most = agreed.tolist()
        wrapper.drain_loads(loads)
        results = wrapper.take_completed_offloads(offloads)
        if results:
            common = torch.tensor(results, dtype=torch.int, device="cpu")
            self._all_reduce_attn_groups(common, torch.distributed.ReduceOp.MIN)
            wrapper.commit_completed_offloads([bool(result) for result in common.tolist()])
        if linker.side.agree(life != 0 and least == -most):
            self._forget_stored()

    def holds(self, rid: str) -> bool:
        """Return whether the request is kept waiting; the same on every rank."""
        return rid in self.linker.held

    def _forget_stored(self) -> None:
        """Unmark every node that an earlier life of the Manager stored: a hit publishes it again.

        All ranks do it in the same pass, so that their publishes stay in one order.
        """
        nodes = [self.tree_core.root_node]
        while nodes:
            node = nodes.pop()
            node.external_cache_stored = False
            nodes.extend(node.children.values())


def admit(original: Callable[..., Any], adder: Any, req: Any, *args: Any, **kwargs: Any) -> Any:
    """Admit a request to the batch, around `PrefillAdder.add_one_req`; pass over one that is held."""
    cache = adder.tree_cache
    if not isinstance(cache, OrbitKVRadixCache):
        return original(adder, req, *args, **kwargs)
    side = cache.linker.cache_linker.side
    # SGLang preempts before it asks, and forgets who was preempted when the batch stays empty: then nobody is held.
    if cache.holds(req.rid) and not adder.preempt_list:
        side.keep_waiting(req.rid)
        return AddReqResult.CONTINUE
    result = original(adder, req, *args, **kwargs)
    if adder.can_run_list and adder.can_run_list[-1] is req:
        side.admitted(req.rid)
    return result


def end_batch(original: Callable[..., Any], scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Process a batch's result, around the scheduler's own: it has ended then, on the device too."""
    result = original(scheduler, batch, *args, **kwargs)
    cache = scheduler.tree_cache
    if isinstance(cache, OrbitKVRadixCache) and batch.launch_ts is not None:
        prefill = batch.forward_mode.is_extend_without_speculative()
        cache.linker.cache_linker.side.computed(batch.launch_ts, batch.extend_num_tokens if prefill else 0)
    return result


def change_weights(original: Callable[..., Any], updater: Any, *args: Any, **kwargs: Any) -> Any:
    """Change weights, around the engine's updater: nothing is restored or published from now to the next flush.

    The flush is part of the change unless the caller asked to leave it out. The ranks enter one new epoch.
    """
    rest_for_weights(updater)
    return original(updater, *args, **kwargs)


def check_weights(original: Callable[..., Any], updater: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
    """Check weights, around the engine's updater: one of the checks overwrites them, and is a change."""
    if request.action == "reset_tensors":
        rest_for_weights(updater)
    return original(updater, request, *args, **kwargs)


def rest_for_weights(updater: Any) -> None:
    """Rest until the next flush, in an epoch that the ranks have in common."""
    cache = updater.scheduler.tree_cache
    if isinstance(cache, OrbitKVRadixCache):
        group = updater.tp_cpu_group
        epoch = agreed_number(group, torch.distributed.get_world_size(group))
        cache.linker.cache_linker.side.rest(epoch)
