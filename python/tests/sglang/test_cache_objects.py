"""SGLang's own tree, allocator and pool with OrbitKV behind them: what an engine cannot be stopped in the middle of."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

from harness import sglang_modules  # noqa: F401

# isort: split
import numpy as np
import pytest
from sglang.srt.mem_cache.base_prefix_cache import EvictParams

from harness.base import words
from harness.gate import FOLDER, PUBLISH, RESTORE, Gate, gated_backend
from harness.manager import ManagerProcess, eventually
from harness.sglang_cache import LAYERS, PAGE, CacheRig, contents, pages_of
from orbitkv.adapter import backends
from orbitkv.adapter.copies import POISON
from orbitkv.adapter.logs import LOGGER

pytestmark = pytest.mark.usefixtures("configured")

PAGES = 8
EPOCH = 0xC0FFEE


@pytest.fixture
def manager(orbitkv_binary: Path, tmp_path: Path) -> Iterator[ManagerProcess]:
    """Return a Manager of the test's own; it must end in order unless the test killed it."""
    process = ManagerProcess(orbitkv_binary, tmp_path / "manager", "64mib").start()
    yield process
    process.stop()


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """Return a gate in the copying threads of caches that are made after it."""
    gate = Gate(tmp_path / "gate")
    monkeypatch.setenv(FOLDER, str(gate.folder))
    monkeypatch.setattr(backends, "make_backend", gated_backend)
    yield gate
    gate.open()


@pytest.fixture
def fault() -> str:
    """Return the fault that is injected: none, unless a test is parametrized with one."""
    return ""


@pytest.fixture
def rig(manager: ManagerProcess, gate: Gate, fault: str) -> Iterator[CacheRig]:
    """Return a cache that may use its Manager."""
    rig = CacheRig(manager, "cache", query_wait_us=200_000, load_wait_ms=60_000, fault_injection=fault)
    rig.connected()
    yield rig
    gate.open()
    rig.close()


def held_leases(manager: ManagerProcess) -> int:
    """Return how many leases the Manager has given out."""
    return int(manager.status()["cache"]["stats"]["leases"])


def test_what_was_published_is_restored_layer_by_layer(rig: CacheRig, manager: ManagerProcess) -> None:
    prompt = words(1, PAGES * PAGE)
    rig.publish(prompt)
    rig.flush()
    req = rig.promised("a", prompt)
    assert (len(req.prefix_indices), req.host_hit_length) == (0, len(prompt))
    slots = rig.admit(req)
    index = rig.start()
    assert index >= 0
    rig.forward(index, prompt, slots)
    rig.settle()
    eventually(lambda: held_leases(manager) == 0, "the lease ended")
    assert len(rig.match("b", prompt).prefix_indices) == len(prompt), "the tree has it"


def test_a_layer_is_not_used_before_its_bytes_are_there(rig: CacheRig, gate: Gate) -> None:
    prompt = words(19, PAGES * PAGE)
    rig.publish(prompt)
    rig.flush()
    gate.hold(RESTORE, 2)  # the keys of the second layer
    slots = rig.admit(rig.promised("a", prompt))
    index = rig.start()
    gate.wait_held(RESTORE)
    rig.cache.linker.layer_done_counter.set_consumer(index)
    rig.pool.get_key_buffer(0)
    rig.check(slots, contents(prompt), (0, 1))
    rig.step()
    assert rig.cache.linker.pending_loads, "its pages stay locked until all of it arrived"
    assert gate.holding(RESTORE), "the first layer was used while the second is on its way"
    opener = gate.open_after(lambda: True)
    rig.pool.get_key_buffer(1)
    assert opener.is_set(), "it ended after the gate was opened"
    rig.check(slots, contents(prompt), (2, 3))
    rig.settle()


def test_what_was_evicted_is_restored_behind_what_was_not(rig: CacheRig) -> None:
    shared, tails = words(2, 4 * PAGE), [words(seed, 3 * PAGE) for seed in (3, 4)]
    prompts = [shared + tail for tail in tails]
    rig.publish(prompts[0])
    assert len(rig.match("a", shared).prefix_indices) == len(shared)
    rig.cache.evict(EvictParams(num_tokens=3 * PAGE))
    req = rig.promised("b", prompts[0])
    before = len(req.prefix_indices)
    assert before + req.host_hit_length == len(prompts[0])
    assert req.host_hit_length > 0
    slots = rig.admit(req)
    rig.forward(rig.start(), prompts[0], slots)
    rig.settle()


def test_a_queued_load_is_not_cancelled_by_an_abort(rig: CacheRig) -> None:
    """Another request may have matched its pages already, so they must land although nobody waits for the first."""
    prompt = words(5, PAGES * PAGE)
    rig.publish(prompt)
    rig.flush()
    slots = rig.admit(rig.promised("aborted", prompt))
    other = rig.match("other", prompt)
    assert len(other.prefix_indices) == len(prompt), "the other one finds the pages in the tree"
    rig.abort("aborted")
    index = rig.start()
    rig.forward(index, prompt, slots)
    rig.settle()
    assert rig.cache.linker.pending_loads == {}
    rig.check(other.prefix_indices, contents(prompt), range(2 * LAYERS))


def test_an_abort_before_the_admission_gives_the_lease_back(rig: CacheRig, manager: ManagerProcess) -> None:
    prompt = words(6, PAGES * PAGE)
    rig.publish(prompt)
    rig.flush()
    rig.promised("aborted", prompt)
    assert held_leases(manager) == 1
    rig.abort("aborted")
    eventually(lambda: held_leases(manager) == 0, "the lease is given back")
    assert rig.start() == -1, "nothing is loaded"


def test_a_promise_is_void_in_the_next_pass(rig: CacheRig) -> None:
    prompt = words(7, PAGES * PAGE)
    rig.publish(prompt)
    rig.flush()
    rig.promised("late", prompt)
    rig.step()
    again = rig.match("late", prompt)
    assert again.host_hit_length == len(prompt), "it is promised anew, from what is known"
    slots = rig.admit(again)
    rig.forward(rig.start(), prompt, slots)
    rig.settle()


def test_two_requests_of_one_prefix_in_one_pass_load_it_once(rig: CacheRig, manager: ManagerProcess) -> None:
    prompt = words(8, PAGES * PAGE)
    rig.publish(prompt)
    rig.flush()
    loaded = manager.metric("orbitkv_load_bytes_total")
    first, second = rig.promised("first", prompt), rig.promised("second", prompt)
    first = rig.match("first", prompt)
    slots, others = rig.admit(first), rig.admit(second)
    assert slots.tolist() == others.tolist()
    rig.forward(rig.start(), prompt, slots)
    rig.settle()
    eventually(lambda: held_leases(manager) == 0, "both leases ended")
    pages = manager.metric("orbitkv_load_bytes_total") - loaded
    assert pages == PAGES * sum(part.block_bytes for part in rig.layers)


def test_a_promise_survives_the_death_of_its_manager(rig: CacheRig, manager: ManagerProcess) -> None:
    """SGLang cannot take a promise back: the copy runs from a mapping that outlives the Manager."""
    prompt = words(9, PAGES * PAGE)
    rig.publish(prompt)
    rig.flush()
    req, life = rig.promised("a", prompt), rig.side.life()
    manager.kill()
    slots = rig.admit(req)
    rig.forward(rig.start(), prompt, slots)
    rig.settle()
    assert rig.match("b", words(10, PAGES * PAGE)).host_hit_length == 0
    manager.start()
    rig.connected(after=life)
    assert published(rig, words(11, PAGES * PAGE)), "hits come back"


def published(rig: CacheRig, prompt: list[int]) -> bool:
    """Publish a prompt, restore it, and return whether that worked."""
    rig.flush()
    rig.publish(prompt)
    rig.flush()
    req = rig.promised("again", prompt)
    if req.host_hit_length == 0:
        return False
    slots = rig.admit(req)
    rig.forward(rig.start(), prompt, slots)
    rig.settle()
    return True


def test_what_an_earlier_manager_stored_is_published_again_on_a_hit(rig: CacheRig, manager: ManagerProcess) -> None:
    prompt = words(12, PAGES * PAGE)
    rig.publish(prompt)
    life = rig.side.life()
    manager.kill()
    manager.start()
    rig.connected(after=life)
    rig.compute(prompt)  # The engine inserts what it hit: the tree's pages are published.
    rig.settle()
    rig.wait_inserted(PAGES)
    rig.flush()
    req = rig.promised("a", prompt)
    assert req.host_hit_length == len(prompt)
    rig.forward(index_of(rig, req), prompt, req.restored)
    rig.settle()


def index_of(rig: CacheRig, req: object) -> int:
    """Admit a request alone and begin its restore."""
    rig.admit(req)
    return rig.start()


def test_a_flush_waits_for_copies_that_write(rig: CacheRig, gate: Gate, manager: ManagerProcess) -> None:
    """I2: after it the engine uses every page again."""
    prompt = words(13, PAGES * PAGE)
    rig.publish(prompt)
    rig.flush()
    gate.hold(RESTORE, 3)
    rig.admit(rig.promised("a", prompt))
    assert rig.start() >= 0
    gate.wait_held(RESTORE)
    opener = gate.open_after(lambda: held_leases(manager) == 1)
    rig.cache.reset()
    assert opener.is_set(), "it ended after the gate was opened"
    eventually(lambda: held_leases(manager) == 0, "the copy ended and its lease with it")
    rig.flush()
    rig.forward(index_of(rig, req := rig.promised("b", prompt)), prompt, req.restored)
    rig.settle()


def test_a_flush_waits_for_copies_that_read(rig: CacheRig, gate: Gate, manager: ManagerProcess) -> None:
    prompt = words(14, PAGES * PAGE)
    gate.hold(PUBLISH, 3)
    rig.compute(prompt)
    rig.step_until(lambda: bool(gate.holding(PUBLISH)), "the copy is held")
    opener = gate.open_after(lambda: manager.status()["cache"]["stats"]["writing_bytes"] > 0)
    rig.flush()  # with poison over every page
    assert opener.is_set(), "it ended after the gate was opened"
    rig.wait_inserted(PAGES)
    req = rig.promised("a", prompt)
    assert req.host_hit_length == len(prompt)
    rig.forward(index_of(rig, req), prompt, req.restored)
    rig.settle()


def test_an_offer_of_the_pass_ends_with_the_tree(rig: CacheRig) -> None:
    """Its pages are the engine's again, and hold other bytes when the next pass begins."""
    prompt, other = words(16, PAGES * PAGE), words(17, PAGES * PAGE)
    before = rig.inserted()
    rig.compute(prompt)
    rig.flush()
    rig.publish(other)
    assert rig.inserted() == before + PAGES
    assert rig.promised("a", prompt).host_hit_length == 0


def test_a_queued_load_ends_with_the_tree(rig: CacheRig, manager: ManagerProcess) -> None:
    prompt = words(15, PAGES * PAGE)
    rig.publish(prompt)
    rig.flush()
    rig.admit(rig.promised("a", prompt))
    rig.flush()
    assert rig.start() == -1
    eventually(lambda: held_leases(manager) == 0, "the lease is given back")
    rig.forward(index_of(rig, req := rig.promised("b", prompt)), prompt, req.restored)
    rig.settle()


def test_a_change_of_weights_rests_until_the_flush(rig: CacheRig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    prompt, other = words(16, PAGES * PAGE), words(17, PAGES * PAGE)
    rig.publish(prompt)
    rig.side.rest(EPOCH)
    rig.step_until(lambda: f"epoch {EPOCH:x}, " in caplog.text, "the session is in the new epoch")
    rig.step()
    rig.compute(other)  # A page of the old weights, or of the new ones, or of both.
    rig.settle()
    assert rig.match("a", words(18, PAGES * PAGE)).host_hit_length == 0
    rig.flush()
    rig.connected()
    for tokens in (prompt, other):
        assert rig.promised("b", tokens).host_hit_length == 0, "nothing of the old weights is found"
    assert published(rig, prompt), "the new epoch has hits of its own"


@pytest.mark.parametrize("fault", ["corrupt-restore"])
def test_injected_corruption_inverts_every_restored_byte(rig: CacheRig) -> None:
    prompt = words(20, PAGES * PAGE)
    rig.publish(prompt)
    rig.flush()
    slots = rig.admit(rig.promised("a", prompt))
    with pytest.raises(AssertionError):
        rig.forward(rig.start(), prompt, slots)
    rig.cache.linker.layer_done_counter.wait_until(LAYERS - 1)
    for part in rig.layers:
        np.invert(part.rows, out=part.rows)
    rig.check(slots, contents(prompt), range(2 * LAYERS))
    rig.settle()


@pytest.mark.parametrize("fault", ["poison-destination"])
def test_injected_poison_fills_the_destination_before_the_copy(rig: CacheRig, gate: Gate) -> None:
    prompt = words(21, PAGES * PAGE)
    rig.publish(prompt)
    rig.flush()
    gate.hold(RESTORE, 0)
    slots = rig.admit(rig.promised("a", prompt))
    index = rig.start()
    gate.wait_held(RESTORE)
    assert all((part.rows[page] == POISON).all() for part in rig.layers for page in pages_of(slots))
    gate.open()
    rig.forward(index, prompt, slots)
    rig.settle()


@pytest.mark.parametrize("fault", ["skip-layer-wait=1"])
def test_an_injected_missing_wait_shows_a_layer_without_its_bytes(rig: CacheRig, gate: Gate) -> None:
    prompt = words(22, PAGES * PAGE)
    rig.publish(prompt)
    rig.flush()
    gate.hold(RESTORE, 2)
    slots = rig.admit(rig.promised("a", prompt))
    index = rig.start()
    gate.wait_held(RESTORE)
    with pytest.raises(AssertionError):
        rig.forward(index, prompt, slots)
    assert gate.holding(RESTORE), "the forward did not wait for what is held"
    gate.open()
    rig.settle()
