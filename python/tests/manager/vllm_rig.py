"""A replica of vLLM without the engine: both sides of its adapter, with engine tensors in plain memory.

What vLLM does in a step is done here by hand: plan, restore before the forward, layer hooks, publish, reports.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np

from harness.fakes import FakeTensors, Pool, keys_of
from harness.manager import eventually
from orbitkv.adapter.attachment import RankPlace
from orbitkv.adapter.link import Link
from orbitkv.adapter.session import Epoch, SchedulerSession
from orbitkv.adapter.settings import read_settings
from orbitkv.errors import ChannelError
from orbitkv.timeline import Timeline
from orbitkv.vllm.plans import Progress, StepPlan, StepReport
from orbitkv.vllm.scheduler import Geometry, SchedulerSide
from orbitkv.vllm.worker import EngineLayers, WorkerSide

PAGE, LAYERS, BLOCKS, BLOCK_BYTES = 16, 4, 64, 4096 + 512


class Replica:
    """One engine replica of `world` ranks without an engine."""

    def __init__(
        self,
        socket: str,
        world: int = 1,
        name: str = "engine-1",
        fact: str = "same",
        replicated: bool = False,
        **keys: object,
    ) -> None:
        extra = {"orbitkv.socket": socket, "orbitkv.query_wait_us": 5_000_000, "orbitkv.timeout_ms": 30_000}
        settings = read_settings({**extra, **{f"orbitkv.{key}": value for key, value in keys.items()}}, {})
        timeline = Timeline("test", False)
        self.replicated = replicated
        self.pool = Pool(BLOCKS)
        self.tensors = [FakeTensors(LAYERS, BLOCKS, BLOCK_BYTES) for _ in range(world)]
        self.workers = []
        for rank, tensors in enumerate(self.tensors):
            layers = EngineLayers(tensors.layout, tensors, {f"l{i}": i for i in range(LAYERS)})
            place = RankPlace(name, rank, world, not replicated or rank == 0, 0 if replicated else rank)
            self.workers.append(WorkerSide(settings, place, layers, {"model": fact}, timeline))
            self.workers[-1].begin()
        epoch = Epoch()
        link: Link[SchedulerSession] = Link(
            "scheduler", lambda previous: SchedulerSession.connect(settings, name, epoch, link.wake, previous)
        )
        self.side = SchedulerSide(settings, Geometry(PAGE, world), epoch, link, timeline)
        self.side.bind_pool(self.pool)
        proven = {worker.proven for worker in self.workers}
        self.side.golden.proven = proven.pop() if len(proven) == 1 else b""
        link.start()
        self.errors: set[int] = set()

    def usable(self) -> bool:
        """Step once and return whether the instance would be asked for hits."""
        self.step([], {})
        return self.side._usable() is not None

    def step(self, running: Sequence[Progress], blocks: dict[str, list[int]]) -> StepPlan:
        """Run one step on every rank."""
        plan = self.side.build_plan(running, blocks, [])
        total = StepReport()
        for worker in self.workers:
            worker.start(plan, hooks=True)
            for layer in range(LAYERS):
                worker.wait_layer(f"l{layer}")
            worker.end_step(plan)
            self.errors |= worker.load_errors()
            total = total.merge(worker.report())
        self.side.take_report(total)
        return plan

    def serve(self, name: str, tokens: int) -> tuple[int, list[int]]:
        """Serve a request as an engine would; return its restored pages and the blocks that it had, held no more.

        Blocks that are not restored are filled with bytes that are a function of key, rank and layer.
        """
        keys = keys_of(name, tokens // PAGE)
        request = f"{name}-{id(keys)}"
        external = None
        while external is None:
            external = self.side.matched_tokens(Progress(request, tokens, 0, 0, keys), 0)
            if external is None:
                self.step([], {})
        count = -(-tokens // PAGE)
        blocks = [block.block_id for block in self.pool.get_new_blocks(count)]
        for tensors in self.tensors:
            for block in blocks:
                for layer in range(LAYERS):
                    tensors.write(layer, block, np.full(BLOCK_BYTES, 0x5A, np.uint8))
        self.side.allocated(request, external, blocks)
        self.step([Progress(request, tokens, external, external, keys)], {request: blocks})
        restored = external // PAGE
        if self.errors & set(blocks):
            restored, self.errors = 0, set()
        for index in range(restored, tokens // PAGE):
            for rank in range(len(self.tensors)):
                self.fill(rank, blocks[index], keys[index])
        self.side.finished(Progress(request, tokens + 1, tokens, tokens, keys))
        self.check(blocks[: tokens // PAGE], keys)
        self.pool.free_blocks([self.pool.blocks[block] for block in blocks])
        return restored, blocks

    def fill(self, rank: int, block: int, key: bytes) -> None:
        """Write what the model would compute."""
        for layer in range(LAYERS):
            self.tensors[rank].write(layer, block, self.content(key, rank, layer))

    def check(self, blocks: Sequence[int], keys: Sequence[bytes]) -> None:
        """Compare every byte of every layer and rank."""
        for block, key in zip(blocks, keys, strict=True):
            for rank, tensors in enumerate(self.tensors):
                for layer in range(LAYERS):
                    expected = self.content(key, rank, layer)
                    assert np.array_equal(tensors.read(layer, block), expected), (key, rank, layer)

    def content(self, key: bytes, rank: int, layer: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        """Return what a rank has of a block; replicated content is the same on all."""
        return content(key, 0 if self.replicated else rank, layer)

    def settle(self) -> None:
        """Step until nothing is pending, as an engine does that has no request, and the Manager has read what ended."""

        def quiet() -> bool:
            self.step([], {})
            return not self.side.pending

        eventually(quiet, "the engine may idle")
        assert self.pool.held() == set()
        for worker in self.workers:
            # The reports travel on another session than the next question.
            if (session := worker._link.session) is not None:
                with contextlib.suppress(ChannelError):
                    session.client.ping()

    def close(self) -> None:
        """End every thread."""
        self.side.close()
        for worker in self.workers:
            worker.close()


def content(key: bytes, rank: int, layer: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Return the bytes of one block: a function of what it is."""
    return np.random.default_rng([rank, layer, *key]).integers(0, 256, BLOCK_BYTES, dtype=np.uint8)
