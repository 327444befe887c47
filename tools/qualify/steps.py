"""The waits between an engine's compute stream and the copies, each shown to be needed by a control without it.

The compute stream writes and reads pages by kernels of its own, behind kernels of known duration. Reading compares on
the device with what the pages must hold, so that nothing but the backend's own waits orders the copies.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from harness import oracle
from orbitkv._arenas import Arena
from orbitkv.transfer import Publish, Restore, TransferBackend
from qualify import layouts, rank
from qualify.layouts import Ordinals, Shape
from qualify.report import Figures, Report, Wrong

LAYERS = 8
BLOCKS = 96
KEYS = 160  # contents that exist at all
PAGES = 24  # of a single case
DELAY_S = 0.1  # how long a stream computes before what must be waited for
STEP_DELAY_S = 0.002  # the longest that a step of the played engine computes
GROUP_MAX = 3  # restores of one step
PLAN_MAX = 8  # pages of one restore or publish
LOOK_EVERY = 16  # steps between two looks at what was counted as wrong


@dataclass(frozen=True)
class Pages:
    """Keys in blocks, with their content and the blocks' numbers on the device, uploaded before they are needed."""

    keys: Ordinals
    blocks: Ordinals
    content: Any
    at: Any


@dataclass
class Stage:
    """One memory, its backend, an arena with a place for every key, and every content on the device."""

    backend: TransferBackend
    memory: rank.Memory
    streams: rank.Streams
    arena: Arena
    slices: oracle.Bytes
    contents: Any
    extent: int
    wrong: list[Any] = field(default_factory=list)

    def pages(self, keys: Ordinals, blocks: Ordinals) -> Pages:
        """Return keys in blocks."""
        device = self.streams.device
        return Pages(keys, blocks, self.contents[rank.index(keys, device)], rank.index(blocks, device))

    def locations(self, keys: Ordinals) -> Any:
        """Return the places of keys."""
        return layouts.locations(0, keys * self.extent)

    def store(self, keys: Ordinals) -> None:
        """Put contents into the arena by the processor."""
        for key in keys.tolist():
            self.arena.view[key * self.extent :][: self.memory.layout.slice_bytes] = self.slices[key]

    def write(self, pages: Pages) -> None:
        """Let the compute stream write pages."""
        for layer in range(len(self.memory.layout.layers)):
            self.memory.put(layer, pages.at, pages.content)

    def read(self, layers: range, pages: Pages) -> None:
        """Let the compute stream count the bytes of these layers that are wrong."""
        self.wrong += [self.memory.wrong(layer, pages.at, pages.content) for layer in layers]

    def restore(self, parts: Sequence[Pages]) -> list[Restore]:
        """Submit a group."""
        plans = [rank.plan_of(self.memory, part.blocks, self.locations(part.keys)) for part in parts]
        return self.backend.restore(plans, on_done=rank.ignore)

    def publish(self, pages: Pages) -> Publish:
        """Submit a publish."""
        plan = rank.plan_of(self.memory, pages.blocks, self.locations(pages.keys))
        return self.backend.publish(plan, on_done=rank.ignore)

    def warm_up(self) -> None:
        """Use every kernel and copy once: loading or compiling one would wait for what runs, or be late itself."""
        one = self.pages(np.arange(1, dtype=np.int64), np.arange(1, dtype=np.int64))
        self.write(one)
        self.read(range(1), one)
        rank.finish([self.publish(one)])
        rank.finish(self.restore([one]))
        self.streams.delay(0.0)
        self.look()
        self.memory.poison()
        self.arena.view[...] = oracle.POISON
        self.streams.settle()

    def look(self) -> None:
        """Wait for every stream; Wrong when the compute stream read other bytes than it should."""
        self.streams.settle()
        wrong, self.wrong = sum(int(each) for each in self.wrong), []
        if wrong:
            raise Wrong(f"the compute stream read {wrong} wrong bytes")

    def look_at_arena(self, keys: Ordinals) -> None:
        """Wrong when the arena holds other pages than these."""
        size = self.memory.layout.slice_bytes
        for key in keys.tolist():
            rank.compare(f"page {key} of the arena", self.arena.view[key * self.extent :][:size], self.slices[key])


def shape() -> Shape:
    """Return the layout of these cases: K and V apart, so that two tensors belong to one step."""
    return layouts.split_keys_and_values("steps", LAYERS, BLOCKS, 64, 4, 128)


@contextmanager
def stage(
    name: str,
    device: str,
    seed: int,
    fences: Callable[[], Sequence[int]] = lambda: [rank.current_stream()],
    slow: bool = False,
    default_stream: bool = False,
) -> Iterator[Stage]:
    """Yield a stage whose thread launches on the compute stream."""
    memory = rank.Memory(shape(), device)
    slices = rank.contents(seed, KEYS, memory.layout.slice_bytes)
    extent = layouts.extent_bytes(memory.layout.slice_bytes)
    streams = rank.Streams(device, default_stream)
    with rank.arena(0, KEYS * extent) as arena, streams.running():
        backend = rank.make(name, memory, device, fences, slow)
        try:
            backend.register_arena(arena)
            found = Stage(backend, memory, streams, arena, slices, rank.upload(slices, device), extent)
            found.warm_up()
            yield found
        finally:
            streams.settle()
            backend.close()


FIRST, SECOND = np.arange(PAGES, dtype=np.int64), np.arange(PAGES, 2 * PAGES, dtype=np.int64)
UNFENCED: dict[str, Any] = {"fences": list}


def publish_after_writes(name: str, device: str, seed: int, **options: Any) -> Figures:
    """Publish pages that the compute stream has not written yet when the publish is submitted."""
    with stage(name, device, seed, **options) as s:
        pages = s.pages(FIRST, FIRST)
        s.streams.delay(DELAY_S)
        s.write(pages)
        rank.finish([s.publish(pages)])
        s.look_at_arena(FIRST)
    return {"pages": PAGES}


def restore_after_reads(name: str, device: str, seed: int, **options: Any) -> Figures:
    """Restore into pages that the compute stream has not read to the end when the restore is submitted."""
    with stage(name, device, seed, **options) as s:
        s.store(SECOND)
        before, after = s.pages(FIRST, FIRST), s.pages(SECOND, FIRST)
        s.write(before)
        s.streams.settle()
        s.streams.delay(DELAY_S)
        s.read(range(2 * LAYERS), before)
        rank.finish(s.restore([after]))
        s.look()
        s.memory.expect(FIRST, s.slices[SECOND])
    return {"pages": PAGES}


def layer_by_layer(
    name: str, device: str, seed: int, waits: str = "layers", skipped: int | None = None, **options: Any
) -> Figures:
    """Read each layer of a late restore behind its own wait, or behind one for "all" of them.

    The copies are late because a fence of theirs is: another stream that computes. `skipped` leaves one layer's wait
    out, and it is read first, so that no other wait stands in for its own.
    """
    with late_stage(name, device, seed, **options) as (s, delay):
        s.store(FIRST)
        pages, half = s.pages(FIRST, FIRST), PAGES // 2
        parts = [s.pages(part, part) for part in (FIRST[:half], FIRST[half:])]
        s.streams.settle()
        delay()
        restores = s.restore(parts)
        if waits == "all":
            require(all(restore.join() for restore in restores), "a restore failed")
        order = sorted(enumerate(s.memory.layout.steps), key=lambda step: (step[0] != skipped, step[0]))
        for step, (first, past) in order:
            if waits == "layers" and step != skipped:
                require(all(restore.wait_layer(past - 1) for restore in restores), "a restore failed")
            s.read(range(first, past), pages)
        rank.finish(restores)
        s.look()
    return {"pages": PAGES}


@contextmanager
def late_stage(name: str, device: str, seed: int, **options: Any) -> Iterator[tuple[Stage, Callable[[], None]]]:
    """Yield a stage and what makes the next restore late: a second fence on a device.

    On the host every layer is late by itself.
    """
    other = rank.Streams(device)
    handles: list[int] = []
    if other.asynchronous:
        with other.running():
            handles.append(rank.current_stream())

    def delay() -> None:
        with other.running():
            other.delay(DELAY_S)

    with stage(name, device, seed, lambda: [rank.current_stream(), *handles], slow=True, **options) as s:
        yield s, delay


def older_group_first(name: str, device: str, seed: int) -> Figures:
    """Submit groups whose fences come behind the forward that waits for the group before: none may wait for itself."""
    with late_stage(name, device, seed) as (s, delay):
        s.store(np.arange(KEYS, dtype=np.int64))
        delay()
        groups = []
        for number in range(8):
            keys = np.arange(number, number + 6, dtype=np.int64)
            blocks = 8 * np.arange(6, dtype=np.int64) + number
            pages = s.pages(keys, blocks)
            group = s.restore([pages])
            groups += group
            for first, past in s.memory.layout.steps:
                require(all(restore.wait_layer(past - 1) for restore in group), "a restore failed")
                s.read(range(first, past), pages)
            s.streams.delay(STEP_DELAY_S)
        rank.finish(groups)
        s.look()
    return {"groups": len(groups)}


def require(holds: bool, text: str) -> None:
    """Raise when something does not hold."""
    if not holds:
        raise AssertionError(text)


@dataclass
class Played:
    """The books of the played engine: free blocks, stored keys, and publishes whose blocks are held."""

    draw: random.Random
    free: list[int]
    stored: list[int] = field(default_factory=list)
    unused: list[int] = field(default_factory=list)
    held: list[tuple[Publish, Pages]] = field(default_factory=list)
    restores: list[Restore] = field(default_factory=list)

    def take(self, count: int) -> Ordinals:
        """Take so many free blocks, any of them."""
        self.draw.shuffle(self.free)
        taken, self.free = self.free[:count], self.free[count:]
        return np.asarray(taken, np.int64)

    def collect(self, last: bool = False) -> None:
        """Take back the blocks of publishes that ended; at the last wait for all of them."""
        if last:
            rank.finish([publish for publish, _ in self.held])
        for publish, pages in [each for each in self.held if each[0].done]:
            require(publish.ok, "a publish failed")
            self.stored += pages.keys.tolist()
            self.free += pages.blocks.tolist()
        self.held = [each for each in self.held if not each[0].done]


def played_engine(name: str, device: str, seed: int, rounds: int, default_stream: bool = False) -> Figures:
    """Play an engine: steps that restore, read layer by layer, write and publish, and reuse blocks at once."""
    with stage(name, device, seed, default_stream=default_stream) as s:
        draw = random.Random(seed)
        keys = list(range(KEYS))
        draw.shuffle(keys)
        books = Played(draw, list(range(BLOCKS)), unused=keys)
        for number in range(rounds):
            play_step(s, books)
            if number % LOOK_EVERY == LOOK_EVERY - 1:
                s.look()
        books.collect(last=True)
        rank.finish(books.restores)
        s.look()
        s.look_at_arena(np.asarray(sorted(books.stored), np.int64))
        return {
            "steps": rounds,
            "restored": sum(restore.plan.pages for restore in books.restores),
            "published": len(books.stored),
        }


def play_step(s: Stage, books: Played) -> None:
    """Play one step. Every block that a step restored into is free for anything right behind it."""
    books.collect()
    draw = books.draw
    parts = []
    for _ in range(draw.randint(0, GROUP_MAX) if books.stored else 0):
        keys = np.asarray(draw.sample(books.stored, min(len(books.stored), draw.randint(1, PLAN_MAX))), np.int64)
        if len(keys) <= len(books.free):
            parts.append(s.pages(keys, books.take(len(keys))))
    group = s.restore(parts) if parts else []
    books.restores += group
    if not draw.randint(0, 7):
        books.unused, books.stored = books.unused + books.stored[:PLAN_MAX], books.stored[PLAN_MAX:]
    count = min(draw.randint(0, PLAN_MAX), len(books.unused), len(books.free))
    fresh = s.pages(np.asarray(books.unused[:count], np.int64), books.take(count))
    books.unused = books.unused[count:]
    if count:
        s.write(fresh)
    s.streams.delay(draw.random() * STEP_DELAY_S)
    for first, past in s.memory.layout.steps:
        for restore, pages in zip(group, parts, strict=True):
            require(restore.wait_layer(past - 1), "a restore failed")
            s.read(range(first, past), pages)
    require(all(restore.join() for restore in group), "a restore failed")
    s.backend.check()
    if count:
        books.held.append((s.publish(fresh), fresh))
    books.free += [block for pages in parts for block in pages.blocks.tolist()]


def cases(report: Report, name: str, device: str, rounds: int, seed: int) -> None:
    """Run every case of one backend."""
    run = partial(partial, name=name, device=device, seed=seed)
    report.case(f"{name}: publish after the writes", run(publish_after_writes))
    report.case(f"{name}: restore after the reads", run(restore_after_reads))
    report.case(f"{name}: each layer behind its wait", run(layer_by_layer))
    report.case(f"{name}: all layers behind one wait", run(layer_by_layer, waits="all"))
    report.case(f"{name}: an older group goes first", run(older_group_first))
    report.case(f"{name}: an engine's steps", run(played_engine, rounds=rounds))
    if device == "cpu":
        for what in ("publish", "restore", "default stream"):
            report.skip(f"{name}: {what}, on streams", "host memory has no streams")
    else:
        report.case(f"{name}: default stream", run(played_engine, rounds=rounds, default_stream=True))
        report.control(f"{name}: publish without its fence", run(publish_after_writes, **UNFENCED))
        report.control(f"{name}: restore without its fence", run(restore_after_reads, **UNFENCED))
    for skipped in (0, LAYERS - 1):
        report.control(f"{name}: layer {skipped} without its wait", run(layer_by_layer, skipped=skipped))
