"""A vLLM engine in this process whose tokens are timed as they stream, and requests that decode beside another one.

Times are those of `time.perf_counter`, taken when the event loop hands an output over. Tokens that come with one output
came together: the gaps between them are 0.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

from qualify.offline import Counts, EngineChoice, counted, sampling

WARM_TOKENS = 16  # of each decoding request before anything comes beside it
CONTROL_TOKENS = 32  # of each of them that are looked at when nothing comes
Result = TypeVar("Result")


class Ended(RuntimeError):
    """A request that should have gone on decoding has ended; the text says after how many tokens."""


@dataclass(frozen=True)
class Beside:
    """What was seen while one request waited for its first token. Times are in seconds.

    `gaps` are those between the tokens of each of its neighbours; `cached` counts tokens of its own prompt.
    """

    seconds: float
    cached: int
    gaps: tuple[float, ...]


class Decoder:
    """A request that decodes; `times` has the arrival of each of its tokens."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self._ended = False
        self._news = asyncio.Event()

    async def run(self, stream: AsyncIterator[Any]) -> None:
        """Take tokens until the request ends or this task is cancelled, which ends the request."""
        try:
            async for output in stream:
                self.times += [time.perf_counter()] * len(output.outputs[0].token_ids)
                self._news.set()
        finally:
            self._ended = True
            self._news.set()

    async def reached(self, tokens: int) -> None:
        """Return once so many tokens are there; Ended when they will never be."""
        while len(self.times) < tokens:
            if self._ended:
                raise Ended(f"a decoding request ended after {len(self.times)} tokens: give it more (--decoder-tokens)")
            self._news.clear()
            await self._news.wait()


class Streaming:
    """One running engine. `close` ends its processes."""

    def __init__(
        self,
        start: Callable[[], Any],
        params: Callable[[int], Any],
        counts: Callable[[], Counts],
    ) -> None:
        """Start it in an event loop of its own.

        `start` returns vLLM's AsyncLLM, `params` the parameters of a request for so many tokens.
        """
        self.counts = counts
        self._params = params
        self._asked = 0
        self._loop = asyncio.new_event_loop()

        async def started() -> Any:
            return start()

        self._llm = self._run(started())

    def close(self) -> None:
        """End the engine."""
        self._llm.shutdown()
        self._run(asyncio.sleep(0))  # Lets its tasks see that they are cancelled.
        self._loop.close()

    def ask(self, prompt: list[int], tokens: int) -> None:
        """Complete a prompt while no other request runs."""

        async def whole() -> None:
            async for _ in self._stream(prompt, tokens):
                pass

        self._run(whole())

    def reset_device(self) -> bool:
        """Empty the engine's own prefix cache and keep the Manager's pages; False while somebody holds a block."""
        return bool(self._run(self._llm.reset_prefix_cache()))

    def beside(self, others: Sequence[list[int]], tokens: int, prompt: list[int] | None) -> Beside:
        """Let others decode up to so many tokens, ask a prompt for its first token beside them, and end them.

        Without a prompt they decode on for CONTROL_TOKENS. Ended when one of them did not decode to the end of that.
        """
        return self._run(self._beside(others, tokens, prompt))

    async def _beside(self, others: Sequence[list[int]], tokens: int, prompt: list[int] | None) -> Beside:
        decoders = [Decoder() for _ in others]
        running = [
            asyncio.create_task(decoder.run(self._stream(other, tokens)))
            for decoder, other in zip(decoders, others, strict=True)
        ]
        try:
            await all_reached(decoders, WARM_TOKENS)
            begin = end = time.perf_counter()
            cached = 0
            if prompt is None:
                await all_reached(decoders, CONTROL_TOKENS)
                end = time.perf_counter()
            else:
                async for output in self._stream(prompt, 1):
                    end, cached = time.perf_counter(), output.num_cached_tokens or 0
            await all_reached(decoders, 1)  # The gap in which it ended is not over before.
        finally:
            for task in running:
                task.cancel()
            ends = await asyncio.gather(*running, return_exceptions=True)
        for fault in ends:
            if fault is not None and not isinstance(fault, asyncio.CancelledError):
                raise fault
        return Beside(end - begin, cached, tuple(gap for each in decoders for gap in gaps_in(each.times, begin, end)))

    def _stream(self, prompt: list[int], tokens: int) -> AsyncIterator[Any]:
        self._asked += 1
        found: AsyncIterator[Any] = self._llm.generate(
            {"prompt_token_ids": prompt}, self._params(tokens), f"request-{self._asked}"
        )
        return found

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self._loop.run_until_complete(work)


async def all_reached(decoders: Sequence[Decoder], more: int) -> None:
    """Return once each has so many more tokens than now."""
    await asyncio.gather(*[decoder.reached(len(decoder.times) + more) for decoder in decoders])


def gaps_in(times: Sequence[float], begin: float, end: float) -> list[float]:
    """Return the gaps between neighbouring times whose middle lies in a window.

    A step that gives a first token gives its neighbours' tokens some microseconds before: the gap that begins there is
    of the next step, which only its middle tells.
    """
    return [after - before for before, after in pairwise(times) if begin <= (before + after) / 2 <= end]


def open_vllm(choice: EngineChoice, socket: str) -> Streaming:
    """Start vLLM, with OrbitKV's connector unless `socket` is empty.

    stdout and stderr of this process must go to a log already, since its processes inherit them.
    """
    os.environ.update(choice.environment())
    from vllm.config import KVTransferConfig
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.metrics.reader import get_metrics_snapshot

    arguments = choice.arguments(socket)
    connector = arguments.pop("kv_transfer_config")
    if socket:
        arguments["kv_transfer_config"] = KVTransferConfig(**connector)
    return Streaming(
        lambda: AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments)),
        lambda tokens: sampling(tokens, output_kind=RequestOutputKind.DELTA),
        lambda: counted(get_metrics_snapshot()),
    )
