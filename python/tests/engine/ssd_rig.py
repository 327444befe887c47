"""vLLM beside a Manager with an SSD tier: prompts that lie on the disk alone, and how long they were waited for."""

from __future__ import annotations

from harness import ssd as tier
from harness.engine import Completion, Engine, EngineConfig
from harness.rig import PAGE_TOKENS, Rig, pages_below_last_token
from harness.ssd import Volume
from orbitkv.timeline import parse

PAGE_BYTES = 4 * PAGE_TOKENS * 2 * 2 * 64 * 4  # layers, tokens, K and V, heads, width, float32


def serve(rig: Rig, config: EngineConfig, volume: Volume, fault: str = "", pool: str = "256mib") -> Engine:
    """Start a Manager on the folder and return the engine once it uses it, with nothing on the device."""
    rig.gate.open()
    rig.serve(pool, *volume.options(fault), "--trace-transfers")
    engine = rig.engine(config)
    rig.connected(engine)
    rig.reset_device(engine)
    return engine


def put_away(rig: Rig, engine: Engine, prompt: list[int]) -> Completion:
    """Let a new prompt's pages be stored on the SSD alone; return what the engine says with them on its device."""
    tier.wait_stored(rig.manager, 0)
    stored = tier.stored(rig.manager)
    rig.store(engine, prompt)
    hit, counts = rig.ask(engine, prompt, logprobs=0)
    assert counts.device == pages_below_last_token(len(prompt)) * PAGE_TOKENS
    tier.wait_stored(rig.manager, stored + len(prompt) // PAGE_TOKENS)
    rig.reset_device(engine)
    tier.empty_memory(rig.manager)
    return hit


def staged(engine: Engine) -> list[dict[str, object]]:
    """Return what the timeline says of waits for the slower tier."""
    records = [parse(line) for line in engine.log.read_text(errors="replace").splitlines()]
    return [record for record in records if record is not None and record["stage"] == "staged"]


def figure(engine: Engine, name: str) -> int:
    """Return a figure of the adapter, which is absent before it counts for the first time."""
    return int(sum(value for key, value in engine.counters().items() if key.startswith(f"vllm:orbitkv_{name}{{")))
