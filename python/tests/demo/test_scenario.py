"""The demo's judgement: whatever a faulty engine or Manager does, the demo must say so."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
from demo import bootstrap
from demo.damage import NothingToDamage, invert_arenas
from demo.engines import ENGINES, Cached, total
from demo.scenario import HEADER, PRESSURE_TOKENS, RESTORABLE_TOKENS, Scenario
from demo.table import render

import envs
from harness.engine import Completion

DEVICE_TOKENS = 8960


@dataclass(frozen=True)
class Faults:
    """What goes wrong."""

    never_evicts: bool = False
    never_restores: bool = False
    restores_half: bool = False
    unconfirmed: bool = False
    wrong_bytes: bool = False
    ignores_damage: bool = False
    answer_lies: bool = False
    ssd_idle: bool = False


class World:
    """An engine and a Manager in one: prompts live on the device in order of use, and everything is stored."""

    name = "fake"

    def __init__(self, faults: Faults, with_cache: bool = True) -> None:
        self.faults = faults
        self.with_cache = with_cache
        self.device: list[tuple[int, ...]] = []
        self.stored: set[tuple[int, ...]] = set()
        self.damaged = False
        self.loaded = 0
        self.on_ssd = False
        self.read = 0
        self.total = Cached(0, 0)

    def complete(self, prompt: list[int], max_tokens: int) -> Completion:
        key = tuple(prompt)
        found = (len(key) - 1) // 128 * 128
        device = found if key in self.device else 0
        external = 0
        if not device and self.with_cache and key in self.stored and not self.faults.never_restores:
            external = found // 2 if self.faults.restores_half else found
            self.loaded += 0 if self.faults.unconfirmed else external * 2048
            self.read += external if self.on_ssd and not self.faults.ssd_idle else 0
            self.on_ssd = False
        self.total = Cached(self.total.device + device, self.total.external + external)
        self._keep(key)
        tokens = [sum(key) % 4096 + i for i in range(max_tokens)]
        if external and (self.faults.wrong_bytes or (self.damaged and not self.faults.ignores_damage)):
            tokens[-1] += 1
        told = device + external + (128 if self.faults.answer_lies else 0)
        return Completion(tuple(tokens), "", len(key), told, 0.1, 0.2, "length", ())

    def _keep(self, key: tuple[int, ...]) -> None:
        self.stored.add(key)
        self.device = [k for k in self.device if k != key] + [key]
        while not self.faults.never_evicts and sum(map(len, self.device)) > DEVICE_TOKENS:
            self.device.pop(0)

    def cached(self) -> Cached:
        return self.total

    def stop(self) -> None:
        self.device.clear()

    def restored_bytes(self) -> int:
        return self.loaded

    def wait_stored(self, pages: int) -> None:
        assert pages * 128 <= sum(map(len, self.stored))

    def leave_to_ssd(self) -> None:
        self.on_ssd = True

    def ssd_bytes(self) -> int:
        return self.read

    def spoil(self) -> int:
        self.damaged = True
        return 1 << 20


def play(faults: Faults, with_cache: bool = True) -> Scenario:
    world = World(faults, with_cache)
    scenario = Scenario(world, world if with_cache else None, lambda _: None)
    scenario.run()
    return scenario


def test_a_sound_run_has_nothing_to_complain_about() -> None:
    scenario = play(Faults())
    assert scenario.failures == []
    restored = [row.cached.external for row in scenario.rows]
    assert restored == [0, 0, 0, 0, RESTORABLE_TOKENS, 0, 0, RESTORABLE_TOKENS, 0, 0, RESTORABLE_TOKENS]
    assert [row.output for row in scenario.rows][-7] == "equal, as it must"
    assert [row.output for row in scenario.rows][-4] == "equal, as it must"
    assert scenario.rows[-1].output == "differs, as it must"


def test_the_engine_alone_computes_again() -> None:
    scenario = play(Faults(), with_cache=False)
    assert scenario.failures == []
    assert scenario.rows[-1].cached == Cached(0, 0)
    assert 2 * PRESSURE_TOKENS > DEVICE_TOKENS


@pytest.mark.parametrize(
    ("faults", "text"),
    [
        (Faults(never_evicts=True), "still on the device"),
        (Faults(never_restores=True), "the prefix was not restored"),
        (Faults(restores_half=True), f"{RESTORABLE_TOKENS // 2} of {RESTORABLE_TOKENS} tokens came from OrbitKV"),
        (Faults(unconfirmed=True), "the Manager counted 0 restored bytes"),
        (Faults(wrong_bytes=True), "the output differs from the device hit's"),
        (Faults(ignores_damage=True), "the output is still equal"),
        (Faults(answer_lies=True), "the engine's counters"),
        (Faults(ssd_idle=True), "read nothing from the SSD"),
    ],
)
def test_each_fault_is_named(faults: Faults, text: str) -> None:
    assert any(text in failure for failure in play(faults).failures)


def test_two_faults_are_both_named() -> None:
    both = play(replace(Faults(wrong_bytes=True), unconfirmed=True)).failures
    assert any("restored bytes" in failure for failure in both)
    assert any("differs" in failure for failure in both)


def test_the_table_is_aligned() -> None:
    rows = [row.cells() for row in play(Faults()).rows]
    lines = render(HEADER, rows).split("\n")
    at = lines[0].index("output")
    assert all(line[at - 2 : at] == "  " for line in lines)


def test_damage_inverts_what_another_process_stores() -> None:
    child = (
        "import os, sys, mmap; fd = os.memfd_create('arena'); os.truncate(fd, 8192); view = mmap.mmap(fd, 8192)\n"
        "view[:] = bytes(range(256)) * 32\n"
        "print('ready', flush=True); sys.stdin.readline(); sys.stdout.buffer.write(view[:])"
    )
    with subprocess.Popen([sys.executable, "-c", child], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert invert_arenas(process.pid) == 8192
        seen, _ = process.communicate(b"\n")
    assert seen == bytes(255 - value for value in range(256)) * 32


def test_damage_to_nothing_is_refused() -> None:
    with pytest.raises(NothingToDamage, match=str(os.getpid())):
        invert_arenas(os.getpid())


def test_every_engine_of_the_demo_has_an_environment() -> None:
    assert set(bootstrap.ENVIRONMENTS) == set(ENGINES)
    assert set(bootstrap.ENVIRONMENTS.values()) <= set(envs.ENVIRONMENTS)


@pytest.mark.parametrize(
    ("arguments", "engine"),
    [
        ([], "vllm"),
        (["--engine", "sglang"], "sglang"),
        (["--plain", "--engine=sglang"], "sglang"),
        (["--engine"], "vllm"),
    ],
)
def test_the_engine_is_known_before_the_arguments_are_parsed(arguments: list[str], engine: str) -> None:
    assert bootstrap.engine_of(arguments) == engine


def test_counters_are_summed_over_the_labels_that_are_asked_for() -> None:
    samples = {'c{s="device",r="0"}': 3.0, 'c{s="device",r="1"}': 4.0, 'c{s="host",r="0"}': 5.0, "cc": 9.0}
    engine = SimpleNamespace(counters=lambda: samples)
    assert [total(engine, "c"), total(engine, "c", 's="host"'), total(engine, "absent")] == [12, 5, 0]  # type: ignore[arg-type]
