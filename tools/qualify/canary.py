"""Whether a GPU still writes into memory that has a new owner, after the process that copied was killed.

Usage: PYTHONPATH=python/src:tools python -m qualify.canary [--cycles 50] [--gib 4] [--parallel 8] [--json FILE]

One cycle: a child maps a sealed memfd of this process, registers it with CUDA and copies device memory into all of
it. At a seeded random moment it is killed by SIGKILL. As soon as its pidfd fires, which is when the Cache Manager would
give the memory to somebody else, this process writes a canary: first a word into every 64 KiB, which takes
milliseconds, then all of the rest. Words that changed before the rest was written, and bytes that changed after it, are
late writes.

It prints a line a cycle and a JSON object at the end. The exit status is 0 when nothing changed, the device's memory
came back and at least one kill hit a copy in its middle; 1 when not.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import json
import os
import random
import select
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import numpy.typing as npt

from orbitkv._arenas import Arena, map_arena
from orbitkv.transfer._cuda import LIBRARY, CudaDriver

PATTERN = 0xA5A5A5A5A5A5A5A5  # what the device writes
CANARY = 0x5C5C5C5C5C5C5C5C  # what the next owner writes
WORD = 8
PLANT_BYTES = 64 << 10  # one planted word in so many bytes
FILL_BYTES = 64 << 20  # filled and compared at a time
PIECE_BYTES = 256 << 10  # of one copy
BATCH_PIECES = 512  # of one call of the driver; the child tells that it copies after the first one
SOURCE_BYTES = 256 << 20  # of device memory, which every copy reads over and over
CHILD_SECONDS = 120.0  # the longest life of a child: a guard against a hang
MEMORY_SECONDS = 10.0  # for the device to show that its memory came back
MEMORY_SLACK = 64 << 20  # bytes by which it may differ: contexts of others come and go
# From linux/fcntl.h and linux/mman.h; the standard library names them only in later Pythons.
F_ADD_SEALS, SEAL_SIZE = 1033, 0x0002 | 0x0004
MADV_POPULATE_WRITE = 23

Words = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Cycle:
    """What one cycle gave. Shares are of the arena; offsets are bytes, -1 where nothing changed."""

    number: int
    moment: float  # of the kill, as a share of what a whole copy takes
    at_kill: float  # how much had been copied when the child was killed
    at_death: float  # how much when its pidfd fired
    early_words: int  # planted words that changed before the whole arena was filled
    late_bytes: int  # bytes that changed after it was
    first_changed: int
    plant_seconds: float  # from the pidfd's firing to the last planted word
    fill_seconds: float  # from there to the last byte

    @property
    def in_copy(self) -> bool:
        """Return whether the kill hit the copy: it had been submitted, and not all of it had arrived."""
        return self.at_kill < 1.0

    @property
    def changed(self) -> bool:
        """Return whether anything wrote after the process was dead."""
        return self.early_words > 0 or self.late_bytes > 0


class Slot:
    """One arena and the cycles on it, one after the other; for one thread at a time. Close it."""

    def __init__(self, size: int, victim: Sequence[str]) -> None:
        """`size` is in bytes, a multiple of FILL_BYTES or below it; `victim` is the child's command."""
        self._victim = victim
        self._descriptor = os.memfd_create("canary", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self._descriptor, size)
        fcntl.fcntl(self._descriptor, F_ADD_SEALS, SEAL_SIZE)
        self._arena, self._mapping = map_arena(0, -1, size, self._descriptor)
        # Page faults in the fill would give a late write time to hide before it.
        self._mapping.madvise(MADV_POPULATE_WRITE)
        self.words: Words = self._arena.view.view(np.uint64)

    def close(self) -> None:
        """Unmap the arena."""
        del self.words, self._arena
        self._mapping.close()
        os.close(self._descriptor)

    def cycle(self, number: int, moment: float, settle: Callable[[], object]) -> Cycle:
        """Let a child copy, kill it, and look again after `settle`. RuntimeError when the child does not get so far."""
        child = subprocess.Popen(
            [*self._victim, str(self._descriptor), str(self.words.nbytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=(self._descriptor,),
        )
        guard = threading.Timer(CHILD_SECONDS, child.kill)
        guard.start()
        try:
            at_kill, dead = self._kill_in_copy(child, moment)
        finally:
            guard.cancel()
            child.kill()
            child.communicate()
        return self._inspect(number, moment, at_kill, dead, settle)

    def _kill_in_copy(self, child: subprocess.Popen[str], moment: float) -> tuple[float, float]:
        """Return how much was copied at the kill, and when the child's pidfd fired, in seconds of time.monotonic."""
        whole_seconds = float(heard(child, "ready"))
        if not bool((planted(self.words) == PATTERN).all()):
            raise RuntimeError("the child's rehearsal left words that no copy reached: nothing can be said by it")
        self.words.fill(0)
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
        pidfd = os.pidfd_open(child.pid)
        try:
            heard(child, "copying")
            time.sleep(moment * whole_seconds)
            at_kill = float((planted(self.words) == PATTERN).mean())
            child.kill()
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            if not poll.poll(CHILD_SECONDS * 1e3):
                raise RuntimeError(f"process {child.pid} is not dead {CHILD_SECONDS:g} s after SIGKILL")
            return at_kill, time.monotonic()
        finally:
            os.close(pidfd)

    def _inspect(self, number: int, moment: float, at_kill: float, dead: float, settle: Callable[[], object]) -> Cycle:
        places = planted(self.words)
        seen = places.copy()
        places.fill(CANARY)
        planting = time.monotonic()
        at_death = float((seen == PATTERN).mean())
        early, first = fill(self.words, at_death)
        filled = time.monotonic()
        settle()
        late, first_late = changed_bytes(self.words)
        first = min((at for at in (first, first_late) if at >= 0), default=-1)
        return Cycle(number, moment, at_kill, at_death, early, late, first, planting - dead, filled - planting)


def planted(words: Words) -> Words:
    """Return the words, one in every PLANT_BYTES, that are looked at and planted first, as a view."""
    return words[:: PLANT_BYTES // WORD]


def fill(words: Words, progress: float) -> tuple[int, int]:
    """Fill with the canary; return how many planted words had changed, and the first one's offset in bytes or -1.

    It begins where the copy had come to: a device that goes on by itself would write there next.
    """
    step = FILL_BYTES // WORD
    starts = list(range(0, len(words), step))
    begin = min(int(progress * len(words)) // step, len(starts) - 1)
    changed, first = 0, -1
    for start in starts[begin:] + starts[:begin]:
        part = words[start : start + step]
        wrong = np.flatnonzero(planted(part) != CANARY)
        if len(wrong):
            changed += len(wrong)
            offset = start * WORD + int(wrong[0]) * PLANT_BYTES
            first = offset if first < 0 else min(first, offset)
        part.fill(CANARY)
    return changed, first


def changed_bytes(words: Words) -> tuple[int, int]:
    """Return how many bytes are not the canary's, and the first one's offset in bytes or -1."""
    step = FILL_BYTES // WORD
    changed, first = 0, -1
    for start in range(0, len(words), step):
        part = words[start : start + step]
        if bool((part == CANARY).all()):
            continue
        wrong = np.flatnonzero(part.view(np.uint8) != CANARY & 0xFF)
        changed += len(wrong)
        first = start * WORD + int(wrong[0]) if first < 0 else first
    return changed, first


def heard(child: subprocess.Popen[str], word: str) -> str:
    """Return what follows a word that the child says. RuntimeError when it says another, or ends."""
    assert child.stdout is not None
    said, _, rest = child.stdout.readline().strip().partition(" ")
    if said != word:
        raise RuntimeError(f"process {child.pid} said {said!r} instead of {word!r}; its own message is above")
    return rest


def victim(descriptor: int, size: int, device: int) -> None:
    """Be the child: copy device memory into the arena once as a rehearsal, and again until the end or the kill."""
    arena, _mapping = map_arena(0, -1, size, descriptor)
    driver = CudaDriver(device)
    driver.bind()
    driver.register(arena.address, arena.bytes)
    source_bytes = min(SOURCE_BYTES, size)
    source = driver.allocate(source_bytes)
    stream, event = driver.create_stream(driver.priorities()[0]), driver.create_event()
    arena.view[:source_bytes].fill(PATTERN & 0xFF)
    whole = np.array([source_bytes], np.uint64)
    driver.copy_batch(np.array([source], np.uint64), np.array([arena.address], np.uint64), whole, stream)
    submit(driver, arena, source, source_bytes, stream, told=False)  # The first one is not timed.
    driver.record(event, stream)
    driver.synchronize(event)
    begun = time.monotonic()
    submit(driver, arena, source, source_bytes, stream, told=False)
    driver.record(event, stream)
    driver.synchronize(event)
    print(f"ready {time.monotonic() - begun}", flush=True)
    sys.stdin.readline()
    submit(driver, arena, source, source_bytes, stream, told=True)
    driver.record(event, stream)
    driver.synchronize(event)
    sys.stdin.readline()  # Copied before the kill came.


def submit(driver: CudaDriver, arena: Arena, source: int, source_bytes: int, stream: int, *, told: bool) -> None:
    """Submit the copies into the whole arena; `told` says so once the first are submitted."""
    offsets = np.arange(0, arena.bytes, PIECE_BYTES, dtype=np.uint64)
    sizes = np.minimum(np.uint64(PIECE_BYTES), np.uint64(arena.bytes) - offsets)
    for at in range(0, len(offsets), BATCH_PIECES):
        part = offsets[at : at + BATCH_PIECES]
        sources = np.uint64(source) + part % np.uint64(source_bytes)
        driver.copy_batch(np.uint64(arena.address) + part, sources, sizes[at : at + BATCH_PIECES], stream)
        if told and at == 0:
            print("copying", flush=True)


def free_bytes() -> int:
    """Return the device memory that is free, whoever uses the rest; the device is current in the calling thread."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    code = ctypes.CDLL(LIBRARY).cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    if code != 0:
        raise RuntimeError(f"cuMemGetInfo ended with {code}")
    return free.value


def run(cycles: int, slots: Sequence[Slot], seed: int, settle: Callable[[], object]) -> list[Cycle]:
    """Run the cycles, as many at once as there are slots; print each. The moments follow from the seed."""
    moments = random.Random(seed)
    idle: SimpleQueue[Slot] = SimpleQueue()
    for slot in slots:
        idle.put(slot)

    def one(number: int, moment: float) -> Cycle:
        slot = idle.get()
        try:
            done = slot.cycle(number, moment, settle)
        finally:
            idle.put(slot)
        print(line(done), flush=True)
        return done

    with ThreadPoolExecutor(len(slots)) as pool:
        waiting = [pool.submit(one, number, moments.uniform(0.0, 0.9)) for number in range(cycles)]
        return [future.result() for future in waiting]


def line(c: Cycle) -> str:
    """Return a cycle as a line of the table."""
    verdict = f"CHANGED from byte {c.first_changed}" if c.changed else "unchanged"
    words = [
        f"{c.number:>5}  killed at {c.moment:>4.0%}",
        f"copied {c.at_kill:>6.1%}, and {c.at_death:>6.1%} when it was dead",
        f"planted in {c.plant_seconds * 1e3:>6.1f} ms",
        f"filled in {c.fill_seconds:>5.2f} s",
        f"{c.early_words} early words, {c.late_bytes} late bytes",
        verdict,
    ]
    return "  ".join(words)


def summary(cycles: Sequence[Cycle]) -> dict[str, object]:
    """Return what all cycles came to."""
    return {
        "qualification": "canary",
        "cycles": len(cycles),
        "killed_in_copy": sum(c.in_copy for c in cycles),
        "changed_cycles": sum(c.changed for c in cycles),
        "early_words": sum(c.early_words for c in cycles),
        "late_bytes": sum(c.late_bytes for c in cycles),
        "unfinished_at_death": sum(c.at_death < 1.0 for c in cycles),
        "at_kill_median": round(statistics.median(c.at_kill for c in cycles), 4),
        "at_death_median": round(statistics.median(c.at_death for c in cycles), 4),
        "plant_ms_median": round(statistics.median(c.plant_seconds for c in cycles) * 1e3, 2),
        "plant_ms_max": round(max(c.plant_seconds for c in cycles) * 1e3, 2),
        "fill_s_median": round(statistics.median(c.fill_seconds for c in cycles), 3),
    }


def passed(found: dict[str, object]) -> bool:
    """Return whether a summary says that a dead writer is harmless, and could have said otherwise."""
    return found["changed_cycles"] == 0 and bool(found["killed_in_copy"]) and bool(found["device_memory_back"])


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Kill processes whose GPU copies into shared memory, and watch it.")
    parser.add_argument("--cycles", type=int, default=50)
    parser.add_argument("--gib", type=float, default=4.0, help="size of each arena (default 4)")
    parser.add_argument("--parallel", type=int, default=8, help="cycles at a time, each with an arena (default 8)")
    parser.add_argument("--seed", type=int, default=6)
    parser.add_argument("--settle", type=float, default=5.0, help="seconds until the canary is read back (default 5)")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--json", type=Path, help="file to which the last line is appended, too")
    parser.add_argument("--victim", nargs=2, type=int, metavar=("DESCRIPTOR", "BYTES"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.victim:
        victim(options.victim[0], options.victim[1], options.device)
        return 0
    CudaDriver(options.device).bind()
    free = free_bytes()
    begun = time.monotonic()
    command = [sys.executable, "-m", "qualify.canary", "--device", str(options.device), "--victim"]
    size = int(options.gib * (1 << 30)) // PIECE_BYTES * PIECE_BYTES
    slots = [Slot(size, command) for _ in range(min(options.parallel, options.cycles))]
    cycles = run(options.cycles, slots, options.seed, lambda: time.sleep(options.settle))
    for slot in slots:
        slot.close()
    found = {
        **summary(cycles),
        "arena_bytes": size,
        "parallel": len(slots),
        "seed": options.seed,
        "settle_s": options.settle,
        **device_memory(free),
        "seconds": round(time.monotonic() - begun, 1),
    }
    text = json.dumps(found)
    if options.json:
        with options.json.open("a", encoding="utf-8") as out:
            out.write(text + "\n")
    print(text, flush=True)
    return 0 if passed(found) else 1


def device_memory(before: int) -> dict[str, object]:
    """Return the free device memory before and now, and whether what the children had came back."""
    limit = time.monotonic() + MEMORY_SECONDS
    while (now := free_bytes()) < before - MEMORY_SLACK and time.monotonic() < limit:
        time.sleep(0.1)
    return {"device_free_before": before, "device_free_after": now, "device_memory_back": now >= before - MEMORY_SLACK}


if __name__ == "__main__":
    sys.exit(main())
