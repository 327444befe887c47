"""A CUDA driver without a device: it moves real bytes, in any order that streams, waits and events allow.

Work that a stream was given stays in its queue until it is executed: by a thread of the device's own, or by `drain` in
the calling one while the device is held. Which stream is next, and in which order the pieces of a batch move, is drawn
from a seed; a test may name streams that go first whenever they can. Before a batch moves, all of its targets are
poisoned. An engine is a stream on which tests put functions.

Faults: calls that name memory which is neither registered nor the device's, or that cross a border of registrations,
fail as the real ones do, and so do calls from a thread without the device. `fail` makes a call fail once or for good.
What the real driver would let pass is in `violations`: work that uses memory which is unregistered meanwhile.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from orbitkv.errors import DeviceError
from orbitkv.transfer._driver import Addresses, DeviceSite

LIMIT_S = 60.0  # no wait of a test is longer; it only stops a hang
POISON = 0xDD
LOWEST, HIGHEST = 0, -5
INVALID_VALUE, INVALID_CONTEXT, LAUNCH_FAILED = 1, 201, 719

Piece = tuple[int, int, int]  # target, source, bytes


@dataclass
class Work:
    """One entry of a stream's queue. Its pieces move in any order once the gate is open."""

    name: str
    gate: Callable[[], bool] = lambda: True
    moves: list[Piece] = field(default_factory=list)
    action: Callable[[], None] | None = None
    begun: bool = False


class FakeDriver:
    """See the module's text, and orbitkv.transfer._driver.Driver. Thread-safe."""

    def __init__(self, seed: int = 0, *, held: bool = False) -> None:
        self.index = 0
        self.changed = threading.Condition()
        self.calls: list[tuple[str, str, int]] = []  # thread, call, stream
        self.violations: list[str] = []
        self.first: tuple[int, ...] = ()  # streams that go first whenever they can
        self.registered: dict[int, int] = {}
        self.priority_of: dict[int, int] = {}
        self.events_alive = 0
        self.peaks: dict[int, int] = {}  # the most records that a stream had at once
        self._random = np.random.default_rng(seed)
        self._memory: list[tuple[int, int]] = []  # address and size of what is the device's
        self._allocated: dict[int, npt.NDArray[np.uint8]] = {}
        self._queues: dict[int, deque[Work]] = {}
        self._recorded: dict[int, int] = {}  # how often an event was recorded
        self._passed: dict[int, int] = {}  # and how many of these records were executed
        self._next = 1
        self._bound: set[int] = set()
        self._faults: dict[str, list[int]] = {}
        self._broken: str | None = None
        self._held = held
        self._held_streams: set[int] = set()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="fake-device", daemon=True)
        self._thread.start()

    def __enter__(self) -> FakeDriver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the device's thread."""
        with self.changed:
            self._ended = True
            self.changed.notify_all()
        self._thread.join()

    # What a test does.

    def own(self, address: int, size: int) -> None:
        """Let memory be the device's."""
        self._memory.append((address, size))

    def launch(self, stream: int, action: Callable[[], None], gate: Callable[[], bool] = lambda: True) -> None:
        """Put a function on a stream, as an engine does with a kernel. It runs under the driver's lock."""
        with self.changed:
            self._put(stream, Work("kernel", gate, action=action))
            self.changed.notify_all()

    def hold(self, *streams: int) -> None:
        """Execute nothing from now on but what `drain` does, or nothing of some streams."""
        with self.changed:
            self._held = self._held or not streams
            self._held_streams.update(streams)

    def go(self) -> None:
        """Execute everything again."""
        with self.changed:
            self._held = False
            self._held_streams.clear()
            self.changed.notify_all()

    def drain(self) -> int:
        """Execute what can be, and return how many entries are left; those wait for what nobody will do."""
        with self.changed:
            while self._step():
                pass
            return sum(map(len, self._queues.values()))

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until a condition of the driver holds."""
        with self.changed:
            assert self.changed.wait_for(holds, LIMIT_S), f"{what} did not come"

    def entries(self, stream: int) -> list[str]:
        """Return the names of what a stream has to do, in order."""
        with self.changed:
            return [work.name for work in self._queues[stream]]

    def pending(self, stream: int, name: str) -> int:
        """Return how many entries of that name a stream has."""
        return sum(work.name == name for work in self._queues[stream])

    def streams(self, priority: int) -> list[int]:
        """Return the streams of a priority, in the order of their making."""
        return [stream for stream, each in self.priority_of.items() if each == priority]

    def fail(self, call: str, after: int = 0, *, broken: bool = False) -> None:
        """Let a call fail after so many more that pass; with `broken` every later call fails, too."""
        with self.changed:
            self._faults[call] = [after, int(broken)]

    def forgive(self) -> None:
        """Let no call fail that has not failed yet."""
        with self.changed:
            self._faults.clear()

    def break_now(self) -> None:
        """Let every later call fail, and wake whoever waits for an event."""
        with self.changed:
            self._broken = "by the test"
            self.changed.notify_all()

    # What the product does.

    def bind(self) -> None:
        """See Driver.bind."""
        with self.changed:
            self._bound.add(threading.get_ident())

    def bus_id(self) -> str:
        """See Driver.bus_id."""
        return "0000:00:00.0"

    def priorities(self) -> tuple[int, int]:
        """See Driver.priorities."""
        return LOWEST, HIGHEST

    def register(self, address: int, size: int) -> None:
        """See Driver.register."""
        with self._call("register"):
            self.registered[address] = size

    def unregister(self, address: int) -> None:
        """See Driver.unregister."""
        with self._call("unregister"):
            size = self.registered.pop(address)
            for work in (work for queue in self._queues.values() for work in queue):
                for target, source, count in work.moves:
                    if any(at < address + size and address < at + count for at in (target, source)):
                        self.violations.append(f"{work.name} uses memory that is unregistered")

    def allocate(self, size: int) -> int:
        """See Driver.allocate."""
        with self._call("allocate"):
            memory = np.zeros(size, np.uint8)
            self._allocated[int(memory.ctypes.data)] = memory
            self.own(int(memory.ctypes.data), size)
            return int(memory.ctypes.data)

    def free(self, address: int) -> None:
        """See Driver.free."""
        with self._call("free"):
            self._memory.remove((address, self._allocated.pop(address).size))

    def create_stream(self, priority: int) -> int:
        """See Driver.create_stream."""
        with self._call("create_stream"):
            stream = self._number()
            self._queues[stream] = deque()
            self.priority_of[stream] = priority
            return stream

    def destroy_stream(self, stream: int) -> None:
        """See Driver.destroy_stream."""
        with self._call("destroy_stream"):
            del self.priority_of[stream]

    def create_event(self, *, timing: bool = False) -> int:
        """See Driver.create_event."""
        del timing
        with self._call("create_event"):
            self.events_alive += 1
            return self._number()

    def destroy_event(self, event: int) -> None:
        """See Driver.destroy_event."""
        with self._call("destroy_event"):
            self.events_alive -= 1
            self._recorded.pop(event, None)

    def record(self, event: int, stream: int) -> None:
        """See Driver.record."""
        with self._call("record", stream):
            number = self._recorded[event] = self._recorded.get(event, 0) + 1

            def passed() -> None:
                self._passed[event] = max(self._passed.get(event, 0), number)

            self._put(stream, Work("record", action=passed))

    def wait(self, stream: int, event: int) -> None:
        """See Driver.wait."""
        with self._call("wait", stream):
            target = self._recorded.get(event, 0)
            self._put(stream, Work("wait", lambda: self._passed.get(event, 0) >= target))

    def synchronize(self, event: int) -> None:
        """See Driver.synchronize."""
        with self._call("synchronize"):
            target = self._recorded.get(event, 0)
        with self.changed:
            arrived = self.changed.wait_for(lambda: self._broken or self._passed.get(event, 0) >= target, LIMIT_S)
            assert arrived, "an event did not come"
            if self._passed.get(event, 0) < target:
                raise DeviceError("synchronize", LAUNCH_FAILED, str(self._broken))

    def finished(self, event: int) -> bool:
        """See Driver.finished."""
        with self._call("finished"):
            return self._passed.get(event, 0) >= self._recorded.get(event, 0)

    def elapsed_seconds(self, begin: int, end: int) -> float:
        """See Driver.elapsed_seconds: every pair of events lies a millisecond apart."""
        del begin, end
        return 1e-3

    def copy_batch(self, targets: Addresses, sources: Addresses, sizes: Addresses, stream: int) -> None:
        """See Driver.copy_batch."""
        assert all(each.dtype == np.uint64 and each.flags.c_contiguous for each in (targets, sources, sizes))
        with self._call("copy_batch", stream):
            moves = list(zip(targets.tolist(), sources.tolist(), sizes.tolist(), strict=True))
            for target, source, size in moves:
                self._check(target, size)
                self._check(source, size)
            self._put(stream, Work("copy", moves=moves))

    def copy_strided(self, operations: npt.NDArray[np.void], stream: int) -> None:
        """See Driver.copy_strided."""
        with self._call("copy_strided", stream):
            moves: list[Piece] = []
            for run in operations:
                height, width = int(run["height"]), int(run["width"])
                for side in ("source", "target"):
                    self._check(int(run[side]), (height - 1) * int(run[f"{side}_pitch"]) + width)
                moves += [
                    (
                        int(run["target"]) + row * int(run["target_pitch"]),
                        int(run["source"]) + row * int(run["source_pitch"]),
                        width,
                    )
                    for row in range(height)
                ]
            self._put(stream, Work("copy", moves=moves))

    def _put(self, stream: int, work: Work) -> None:
        self._queues[stream].append(work)
        self.peaks[stream] = max(self.peaks.get(stream, 0), self.pending(stream, "record"))

    def _number(self) -> int:
        self._next += 1
        return self._next

    def _call(self, name: str, stream: int = 0) -> threading.Condition:
        """Note a call and let it fail when it must; the caller holds what is returned."""
        with self.changed:
            self.calls.append((threading.current_thread().name, name, stream))
            if threading.get_ident() not in self._bound:
                raise DeviceError(name, INVALID_CONTEXT, "the device is not current in this thread")
            left = self._faults.get(name)
            if left is not None:
                left[0] -= 1
                if left[0] < 0:
                    del self._faults[name]
                    self._broken = "by the test" if left[1] else self._broken
                    self.changed.notify_all()
                    raise DeviceError(name, LAUNCH_FAILED, "by the test")
            if self._broken is not None:
                raise DeviceError(name, LAUNCH_FAILED, self._broken)
            self.changed.notify_all()
        return self.changed

    def _check(self, address: int, size: int) -> None:
        ranges = [*self._memory, *self.registered.items()]
        if size <= 0 or not any(at <= address and address + size <= at + length for at, length in ranges):
            raise DeviceError("copy", INVALID_VALUE, f"{size} bytes at {address:#x} lie in no one registration")

    def _run(self) -> None:
        with self.changed:
            while not self._ended:
                if self._held or not self._step():
                    self.changed.wait()

    def _step(self) -> bool:
        """Execute one entry, or one piece of one; return whether there was any. The caller holds the lock."""
        free = [stream for stream, queue in self._queues.items() if queue and stream not in self._held_streams]
        ready = [stream for stream in free if self._queues[stream][0].gate()]
        if not ready or self._broken is not None:
            return False
        early = [stream for stream in self.first if stream in ready]
        queue = self._queues[early[0] if early else ready[int(self._random.integers(len(ready)))]]
        work = queue[0]
        if not work.begun:
            work.begun = True
            for target, _, size in work.moves:
                ctypes.memset(target, POISON, size)
        if work.moves:
            # The pieces stay in the work until the last has moved: it uses all of its memory as long as it runs.
            self._move_some(work)
        if not work.moves:
            queue.popleft()
            if work.action is not None:
                work.action()
        self.changed.notify_all()
        return True

    def _move_some(self, work: Work) -> None:
        for _ in range(int(self._random.integers(1, 9))):
            if work.moves:
                target, source, size = work.moves.pop(int(self._random.integers(len(work.moves))))
                ctypes.memmove(target, source, size)


class FakeEngine:
    """An engine's streams and the memory of its KV, on a fake device."""

    def __init__(self, driver: FakeDriver, address: int, size: int, streams: int = 1) -> None:
        driver.bind()
        driver.own(address, size)
        self.driver = driver
        self.streams = [driver.create_stream(LOWEST - 1) for _ in range(streams)]
        self.current = self.streams[0]
        self.site = DeviceSite(driver, lambda: self.current, self.fences)

    def fences(self) -> Sequence[int]:
        """Return the streams whose work comes before copies."""
        return self.streams

    def run(self, action: Callable[[], None]) -> None:
        """Launch a function on the current stream."""
        self.driver.launch(self.current, action)
