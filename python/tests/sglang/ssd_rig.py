"""SGLang beside a Manager with an SSD tier: prompts that lie on the disk alone, and how long they were waited for."""

from __future__ import annotations

from harness import ssd as tier
from harness.sglang import Generation, SglangConfig, SglangEngine
from harness.sglang_rig import PAGE_TOKENS, SglangRig, restorable
from harness.ssd import Volume
from orbitkv.timeline import parse


def serve(rig: SglangRig, config: SglangConfig, volume: Volume, fault: str = "", pool: str = "256mib") -> SglangEngine:
    """Start a Manager on the folder and return the engine once it uses it, with nothing on the device."""
    rig.serve(pool, *volume.options(fault))
    return rig.ready(config)


def put_away(rig: SglangRig, engine: SglangEngine, prompt: list[int]) -> Generation:
    """Let a new prompt's pages be stored on the SSD alone; return what the engine says with them on its device."""
    tier.wait_stored(rig.manager, 0)
    stored = tier.stored(rig.manager)
    rig.store(engine, prompt)
    hit = engine.generate(prompt)
    assert (hit.device_tokens, hit.external_tokens) == (restorable(len(prompt)), 0)
    tier.wait_stored(rig.manager, stored + len(prompt) // PAGE_TOKENS)
    engine.flush()
    tier.empty_memory(rig.manager)
    return hit


def staged(engine: SglangEngine) -> list[dict[str, object]]:
    """Return what the timeline says of waits for the slower tier."""
    records = [parse(line) for line in engine.log.read_text(errors="replace").splitlines()]
    return [each for each in records if each and each["stage"] == "staged"]
