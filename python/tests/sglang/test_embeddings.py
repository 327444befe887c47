"""An embedding model, whose forward does not say which batch it belongs to: it waits for its restores all the same."""

from __future__ import annotations

from harness import http
from harness.base import words
from harness.sglang import SglangEngine
from harness.sglang_rig import HOPEFUL, PAGE_TOKENS, SLICE_BYTES, SglangRig, restorable

DELAY_US = 50_000  # of each layer of a copy: far longer than a layer of the forward takes


def embed(engine: SglangEngine, prompt: list[int]) -> list[float]:
    """Return the embedding of token ids."""
    answer = http.post(engine.port, "/encode", {"input_ids": prompt})
    assert answer.status == 200, answer.text()
    found: list[float] = answer.json()["embedding"]
    return found


def test_the_embedding_of_a_restored_prompt_equals_that_of_a_device_hit(rig: SglangRig) -> None:
    rig.gate.open()
    rig.serve()
    engine = rig.engine(rig.config(delay_us=DELAY_US, arguments=(*HOPEFUL, "--is-embedding")))
    rig.wait_publishes(lambda prompt: embed(engine, prompt), PAGE_TOKENS + 1)
    for number, tokens in enumerate((17, 300, 1000)):
        prompt, inserted, loaded = words(900 + number, tokens), rig.inserted(), rig.loaded()
        embed(engine, prompt)
        rig.wait_inserted(inserted + tokens // PAGE_TOKENS)
        hit = embed(engine, prompt)
        assert rig.loaded() == loaded, "the device has it"
        engine.flush()
        assert embed(engine, prompt) == hit
        rig.wait_loaded(loaded + restorable(tokens) // PAGE_TOKENS * SLICE_BYTES)
    rig.quiet()
