"""The canary's bookkeeping, with a child that writes by the processor in the place of one that owns a GPU."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.manager import eventually
from qualify.canary import (
    CANARY,
    FILL_BYTES,
    PATTERN,
    PLANT_BYTES,
    WORD,
    Cycle,
    Slot,
    Words,
    changed_bytes,
    fill,
    passed,
    planted,
    run,
    summary,
)

ARENA_BYTES = 4 << 20
# It rehearses, copies a half and waits for its end. `late` leaves a process behind that waits for the canary in the
# arena's last word and then writes one byte before it, as a device would that goes on.
CHILD = f"""
import mmap, os, sys
mode, descriptor, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
memory = mmap.mmap(descriptor, size)
rehearsed = size - (mode == "lazy") * {PLANT_BYTES}
memory[:rehearsed] = b"\\xa5" * rehearsed
if mode == "late" and os.fork() == 0:
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    while memory[-8:] != {CANARY:#x}.to_bytes(8, "little"):
        pass
    memory[-16] = 0xA5
    os._exit(0)
print("ready 0", flush=True)
sys.stdin.readline()
memory[: size // 2] = b"\\xa5" * (size // 2)
print("copying" if mode != "mute" else "done", flush=True)
sys.stdin.readline()
"""
CYCLE = Cycle(0, 0.5, 0.5, 0.75, 0, 0, -1, 0.01, 0.5)


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "child.py"
    path.write_text(CHILD)
    return str(path)


@pytest.fixture
def words() -> Words:
    return np.full(ARENA_BYTES // WORD, CANARY, np.uint64)


def slot(script: str, mode: str) -> Slot:
    return Slot(ARENA_BYTES, [sys.executable, script, mode])


def test_a_writer_that_dies_with_its_process_changes_nothing(script: str) -> None:
    slots = [slot(script, "quiet"), slot(script, "quiet")]
    cycles = run(5, slots, 1, lambda: None)
    assert [c.number for c in cycles] == [0, 1, 2, 3, 4]
    assert len({c.moment for c in cycles}) == 5
    assert [(c.at_kill, c.at_death) for c in cycles] == [(0.5, 0.5)] * 5
    assert not any(c.changed for c in cycles)
    assert all(bool((each.words == CANARY).all()) for each in slots)
    for each in slots:
        each.close()


def test_a_writer_that_goes_on_is_seen(script: str) -> None:
    one = slot(script, "late")
    done = one.cycle(7, 0.0, lambda: eventually(lambda: bool(one.words[-2] != CANARY), "the late write"))
    assert (done.number, done.in_copy, done.changed) == (7, True, True)
    assert (done.early_words, done.late_bytes, done.first_changed) == (0, 1, ARENA_BYTES - 2 * WORD)
    one.close()


@pytest.mark.parametrize(("mode", "says"), [("mute", "said 'done' instead of 'copying'"), ("lazy", "no copy reached")])
def test_a_child_that_cannot_prove_anything_is_an_error(script: str, mode: str, says: str) -> None:
    one = slot(script, mode)
    with pytest.raises(RuntimeError, match=says):
        one.cycle(0, 0.0, lambda: None)
    one.close()


def test_words_that_change_before_the_fill_are_counted(words: Words) -> None:
    planted(words)[[3, 5]] = PATTERN
    words[1] = PATTERN  # Not planted: the fill comes over it.
    assert fill(words, 0.5) == (2, 3 * PLANT_BYTES)
    assert changed_bytes(words) == (0, -1)


@pytest.mark.parametrize("progress", [0.0, 0.4, 1.0])
def test_the_fill_reaches_every_byte_wherever_it_begins(progress: float) -> None:
    words = np.zeros((2 * FILL_BYTES + PLANT_BYTES) // WORD, np.uint64)
    planted(words).fill(CANARY)
    assert fill(words, progress) == (0, -1)
    assert bool((words == CANARY).all())


def test_single_bytes_are_counted(words: Words) -> None:
    words.view(np.uint8)[[8191, 100_000]] ^= 1
    assert changed_bytes(words) == (2, 8191)


def test_what_the_cycles_come_to() -> None:
    done = [CYCLE, replace(CYCLE, at_kill=1.0, at_death=1.0), replace(CYCLE, at_kill=0.25, late_bytes=3)]
    found = summary(done)
    assert (found["cycles"], found["killed_in_copy"], found["changed_cycles"], found["late_bytes"]) == (3, 2, 1, 3)
    assert (found["at_kill_median"], found["at_death_median"], found["unfinished_at_death"]) == (0.5, 0.75, 2)


@pytest.mark.parametrize(
    ("cycles", "back", "expected"),
    [
        ([CYCLE], True, True),
        ([CYCLE], False, False),
        ([replace(CYCLE, early_words=1)], True, False),
        ([replace(CYCLE, at_kill=1.0)], True, False),  # Nothing was killed in its copy: nothing was shown.
    ],
)
def test_it_passes_only_when_it_could_have_failed(cycles: list[Cycle], back: bool, expected: bool) -> None:
    assert passed({**summary(cycles), "device_memory_back": back}) is expected
