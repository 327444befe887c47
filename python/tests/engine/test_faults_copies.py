"""Copies of the real engine that are held in the middle: what goes on meanwhile, and what has to wait."""

from __future__ import annotations

from harness.base import words
from harness.engine import Engine
from harness.gate import PUBLISH, RESTORE
from harness.manager import eventually
from harness.rig import PAGE_TOKENS, Rig, pages_below_last_token, reset
from orbitkv.timeline import parse

LAYERS = 4


def test_requests_end_and_decoding_goes_on_while_a_publish_is_held(rig: Rig) -> None:
    engine = rig.begin()
    before = rig.inserted()
    rig.gate.hold(PUBLISH, 2)
    running = rig.start(engine, words(100, 700), 320)
    rig.gate.wait_held(PUBLISH)
    other = engine.complete(words(101, 300), 8)
    spoken = running.result()
    assert (len(spoken.tokens), len(other.tokens)) == (320, 8)
    assert rig.gate.holding(PUBLISH), "the copy is still held"
    assert rig.inserted() == before
    assert rig.stats()["writing_bytes"] > 0
    assert not reset(engine), "the sources of the copy are still referenced"

    rig.gate.open()  # No request comes any more: an idle engine ends its publishes.
    decoded = (700 + 320 - 1) // PAGE_TOKENS  # the last token has no KV yet
    rig.wait_inserted(before + decoded + 300 // PAGE_TOKENS)
    rig.reset_device(engine)
    rig.quiet()

    whole = [*words(100, 700), *spoken.tokens]
    answer, counts = rig.ask(engine, whole)
    assert counts.external == decoded * PAGE_TOKENS, "pages that decoding filled come back too"
    rig.reset_device(engine)
    rig.serve()
    assert engine.complete(whole).tokens == answer.tokens, "computed without OrbitKV"


def test_layers_are_used_before_the_last_one_is_ready(rig: Rig) -> None:
    engine = rig.begin()
    prompt = words(110, 2000)
    cold = rig.store(engine, prompt)
    rig.reset_device(engine)
    seen = len(timeline(engine))
    rig.gate.hold(RESTORE, LAYERS - 1)
    running = rig.start(engine, prompt)
    rig.gate.wait_held(RESTORE)
    eventually(lambda: ("layer_used", LAYERS - 2) in timeline(engine)[seen:], "all layers but the last are used")
    halfway = timeline(engine)[seen:]
    assert ("layer_used", 0) in halfway
    assert ("layer_ready", LAYERS - 1) not in halfway
    assert ("layer_used", LAYERS - 1) not in halfway
    assert not running.done()
    rig.gate.open()
    assert running.result().tokens == cold.tokens
    stages = timeline(engine)[seen:]
    for layer in range(LAYERS):
        assert stages.index(("layer_ready", layer)) < stages.index(("layer_used", layer))
    rig.quiet()


def test_a_restore_does_not_wait_for_a_held_publish(rig: Rig) -> None:
    engine = rig.begin()
    prompt = words(120, 1000)
    cold = rig.store(engine, prompt)
    rig.reset_device(engine)
    rig.gate.hold(PUBLISH, 1)
    engine.complete(words(121, 600))
    rig.gate.wait_held(PUBLISH)
    answer, counts = rig.ask(engine, prompt)
    assert counts.external == pages_below_last_token(1000) * PAGE_TOKENS
    assert answer.tokens == cold.tokens
    assert rig.gate.holding(PUBLISH)
    rig.gate.open()
    rig.quiet()


def timeline(engine: Engine) -> list[tuple[object, object]]:
    """Return (stage, layer) of every record that the engine has written."""
    lines = engine.log.read_text(errors="replace").splitlines()
    records = [record for line in lines if (record := parse(line)) is not None]
    return [(record["stage"], record.get("layer")) for record in records]
