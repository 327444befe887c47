"""A real SGLang and a real Manager on one socket, for tests of what happens between them.

The engine computes in float32: its tokens then do not depend on how prompts are cut and batched, so that every answer
has one right value, cold or restored. Each answer says how many of its tokens came from the device and from OrbitKV;
the bytes that were restored are counted by the Manager.
"""

from __future__ import annotations

import dataclasses
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import sglangcpu
from harness.base import QUERY_WAIT_US, ManagerRig
from harness.gate import FOLDER
from harness.manager import eventually
from harness.plugin import gated, installed
from harness.server import TOOLS, search_path
from harness.sglang import Generation, SglangConfig, SglangEngine, SglangPool
from orbitkv.timeline import parse

PAGE_TOKENS = 16
DEVICE_TOKENS = 4096
CHUNK_TOKENS = 512  # a prompt that is longer is computed in several steps
LAYERS = 4
SLICE_BYTES = LAYERS * PAGE_TOKENS * 2 * 2 * 64 * 4  # layers, tokens, K and V, heads, width, float32
LOADED = "orbitkv_load_bytes_total"
# An engine that admits by this reckons with a short answer, and takes decoding requests back when it was too short.
HOPEFUL = ("--schedule-conservativeness", "0.05")


def restorable(tokens: int) -> int:
    """Return how many tokens of a prompt can be restored: whole pages below its last token, which is computed."""
    return (tokens - 1) // PAGE_TOKENS * PAGE_TOKENS


class SglangRig(ManagerRig):
    """One engine of SGLang, at most one Manager, and a gate in the engine's copying threads."""

    def __init__(self, binary: Path, folder: Path, engines: SglangPool) -> None:
        super().__init__(binary, folder)
        self._engines = engines
        self._met: tuple[int, int] | None = None  # the engine and the Manager that are known to be connected

    def config(self, fault: str = "poison-destination", delay_us: int = 0, **changes: Any) -> SglangConfig:
        """Return the configuration of the shared engine, or one that differs in some fields.

        Every restore fills its destination with poison first, unless `fault` names another fault or none. `delay_us`
        is how long each layer of a copy is put off.
        """
        environment = (
            ("PYTHONPATH", search_path(sglangcpu.STANDINS, installed(), gated(), TOOLS)),
            ("ORBITKV_SOCKET", self.socket),
            ("ORBITKV_QUERY_WAIT_US", str(QUERY_WAIT_US)),
            ("ORBITKV_TRACE_TRANSFERS", "1"),
            ("ORBITKV_FAULT_INJECTION", fault),
            ("ORBITKV_HOST_COPY_DELAY_US", str(delay_us)),
            (FOLDER, str(self.gate.folder)),
        )
        plain = SglangConfig(
            page_size=PAGE_TOKENS,
            device_tokens=DEVICE_TOKENS,
            chunked_prefill=CHUNK_TOKENS,
            dtype="float32",
            orbitkv=True,
            arguments=HOPEFUL,
            environment=environment,
        )
        return dataclasses.replace(plain, **changes)

    def engine(self, config: SglangConfig | None = None) -> SglangEngine:
        """Return a healthy engine of the configuration; whether it is connected is the caller's to see."""
        return self._engines.get(config or self.config())

    def begin(self, config: SglangConfig | None = None) -> SglangEngine:
        """Return an engine that is connected to a fresh Manager, with nothing cached anywhere."""
        self.gate.open()
        self.serve()
        engine = self.engine(config)
        self.connected(engine)
        engine.flush()
        return engine

    def ready(self, config: SglangConfig | None = None) -> SglangEngine:
        """Return an engine that is connected to a Manager, with nothing cached on the device.

        What other tests published is still stored, so a test needs prompts of its own.
        """
        self.gate.open()
        if self._manager is None:
            self.serve()
        engine = self.engine(config)
        engine.abort_all()
        if self._met != (engine.process.pid, self.manager.pid):
            self.connected(engine)
        engine.flush()
        return engine

    def connected(self, engine: SglangEngine) -> None:
        """Return once the engine publishes to the Manager."""
        self._met = (engine.process.pid, self.manager.pid)
        self.wait_publishes(lambda prompt: engine.generate(prompt, max_tokens=2), PAGE_TOKENS + 1)

    def store(self, engine: SglangEngine, prompt: list[int], max_tokens: int = 8, **options: Any) -> Generation:
        """Let a prompt be answered that was never published, and return when its full pages are."""
        before = self.inserted()
        answer = engine.generate(prompt, max_tokens, **options)
        self.wait_inserted(before + len(prompt) // PAGE_TOKENS)
        return answer

    def start(self, engine: SglangEngine, prompt: list[int], max_tokens: int = 8, **options: Any) -> Future[Generation]:
        """Send a request from a thread of its own."""
        return self._threads.submit(engine.generate, prompt, max_tokens, **options)

    def flushing(self, engine: SglangEngine) -> Future[bool]:
        """Ask once to empty the engine's prefix cache, from a thread of its own."""
        return self._threads.submit(engine.try_flush)

    def wait_restored(self, engine: SglangEngine, prompt: list[int]) -> Generation:
        """Ask with an empty device until all that can be is restored, since hits rest after a Manager was silent."""
        answers: list[Generation] = []

        def restored() -> bool:
            engine.flush()
            answers.append(engine.generate(prompt))
            return answers[-1].external_tokens == restorable(len(prompt))

        eventually(restored, "hits come back")
        assert len({answer.tokens for answer in answers}) == 1, "restored or not, the answer is one"
        return answers[-1]

    def loaded(self) -> int:
        """Return how many bytes the engine has told the Manager that it restored, since the Manager's start."""
        return int(self.manager.metric(LOADED))

    def wait_loaded(self, bytes_: int) -> None:
        """Return once so many bytes were told, exactly: a report follows its answer."""
        eventually(lambda: self.loaded() >= bytes_, f"{bytes_} restored bytes are told")
        assert self.loaded() == bytes_


def stages(engine: SglangEngine) -> list[tuple[object, object]]:
    """Return (stage, layer) of every record that the engine has written."""
    lines = engine.log.read_text(errors="replace").splitlines()
    records = [record for line in lines if (record := parse(line)) is not None]
    return [(record["stage"], record.get("layer")) for record in records]
