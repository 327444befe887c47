"""The engine's processes are killed in mid-publish and mid-restore; another engine differs in one byte of its weights.

The order of the tests is that of their engines: the shared one, one with other weights, and the shared one again, which
starts before any Manager does.
"""

from __future__ import annotations

import os
import shutil
import signal
from concurrent.futures import Future

import pytest

from harness.base import words
from harness.checkpoint import Checkpoint, ensure
from harness.engine import Completion, EngineConfig
from harness.gate import PUBLISH, RESTORE
from harness.http import HTTPFailure
from harness.manager import eventually
from harness.rig import PAGE_TOKENS, Rig, named, pages_below_last_token
from harness.server import EngineFailure

TOKENS = 1000
PAGES = pages_below_last_token(TOKENS)


@pytest.fixture(scope="module")
def one_byte(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    """Return the shared engine's configuration with another model folder: one byte of the weights differs."""
    folder = tmp_path_factory.mktemp("weights") / "model"
    shutil.copytree(ensure(Checkpoint()), folder)
    with (folder / "model.safetensors").open("r+b") as weights:
        weights.seek(-1, os.SEEK_END)
        last = weights.read(1)[0]
        weights.seek(-1, os.SEEK_END)
        weights.write(bytes([last ^ 1]))
    shared = rig.config()
    return rig.config(arguments=(*shared.arguments, "--model", str(folder)))


def test_one_byte_of_the_weights_hides_every_page(rig: Rig, one_byte: EngineConfig) -> None:
    engine = rig.begin()
    prompt = words(400, TOKENS)
    rig.store(engine, prompt)
    rig.reset_device(engine)
    _, counts = rig.ask(engine, prompt)
    assert counts.external == PAGES * PAGE_TOKENS
    engine = rig.engine(one_byte)
    rig.connected(engine)
    _, counts = rig.ask(engine, prompt)
    assert (counts.external, counts.asked) == (0, TOKENS)
    rig.quiet()


def test_engine_core_alone_is_killed_in_mid_publish(rig: Rig, one_byte: EngineConfig) -> None:
    engine = rig.begin(one_byte)
    rig.gate.hold(PUBLISH, 2)
    engine.complete(words(410, TOKENS))
    rig.gate.wait_held(PUBLISH)
    written = taken(rig)
    assert written > 0
    (core,) = named(engine, "EngineCore")
    os.kill(core, signal.SIGKILL)
    eventually(lambda: rig.stats()["sessions"] == 1, "the Manager sees the end of the scheduler's session")
    assert taken(rig) == written, "the worker lives and may still write"
    rig.verify()
    rig.gate.open()
    eventually(lambda: not engine.processes(), "the rest of the engine ends by itself")
    rig.quiet()
    eventually(lambda: rig.stats()["sessions"] == 0, "every session of the dead ends")
    engine.kill()


def test_an_engine_that_starts_before_the_manager_finds_it(rig: Rig) -> None:
    rig.gate.open()
    rig.kill_manager()
    engine = rig.engine()
    prompt = words(420, TOKENS)
    without, counts = rig.ask(engine, prompt)
    assert counts.external == 0
    rig.serve()
    rig.connected(engine)
    rig.reset_device(engine)
    assert rig.store(engine, prompt).tokens == without.tokens
    rig.reset_device(engine)
    again, counts = rig.ask(engine, prompt)
    assert counts.external == PAGES * PAGE_TOKENS
    assert again.tokens == without.tokens


def test_the_whole_engine_is_killed_in_mid_publish_and_mid_restore(rig: Rig) -> None:
    engine = rig.begin()
    prompt = words(430, TOKENS)
    rig.store(engine, prompt)
    rig.reset_device(engine)
    rig.gate.hold(PUBLISH, 2)
    engine.complete(words(431, TOKENS))
    rig.gate.wait_held(PUBLISH)
    rig.gate.hold(RESTORE, 2)
    cut = rig.start(engine, prompt)
    rig.gate.wait_held(RESTORE)
    stats, stored = rig.stats(), rig.inserted()
    assert stats["leases"] == 1
    assert stats["query_reserved_bytes"] > 0
    assert stats["reservations"] > 0
    assert stats["writing_bytes"] > 0
    engine.kill()
    assert failed(cut)
    rig.quiet()
    eventually(lambda: rig.stats()["sessions"] == 0, "every session of the dead ends")
    assert rig.inserted() == stored


def taken(rig: Rig) -> int:
    """Return the bytes of pages that are being written."""
    stats = rig.stats()
    return int(stats["writing_bytes"] + stats["abandoned_bytes"])


def failed(answer: Future[Completion]) -> bool:
    """Return whether a request ended with a failure of its engine."""
    return isinstance(answer.exception(), EngineFailure | HTTPFailure | OSError)
