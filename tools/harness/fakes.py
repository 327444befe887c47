"""Stand-ins of the engine and of the Cache Manager's client for tests without either.

They keep to the shapes of the real ones (a reference-counted block pool, a client whose answers may be late) and write
down what they were told, so that a test says what must have been sent.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from orbitkv.client import ALL_RANKS, Arena, Estimate, Grant, Limits, Namespace, Slice, State, Status
from orbitkv.errors import ChannelClosed, LeaseLost, Refused
from orbitkv.transfer import KVLayout, LayerLayout

PAGE_BYTES = 4096


class Block:
    """One block of the engine's pool."""

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_cnt = 0


class Pool:
    """A block pool that counts references; block 0 is the null block."""

    def __init__(self, size: int) -> None:
        self.blocks: Sequence[Any] = [Block(i) for i in range(size)]

    def get_num_free_blocks(self) -> int:
        """Return how many blocks nobody holds."""
        return sum(block.ref_cnt == 0 for block in self.blocks[1:])

    def get_new_blocks(self, num_blocks: int) -> list[Any]:
        """Take free blocks."""
        taken = [block for block in self.blocks[1:] if block.ref_cnt == 0][:num_blocks]
        self.touch(taken)
        return taken

    def touch(self, blocks: Sequence[Any]) -> None:
        """Add a reference to each block."""
        for block in blocks:
            block.ref_cnt += 1

    def free_blocks(self, ordered_blocks: Iterable[Any]) -> None:
        """Drop a reference of each block."""
        for block in ordered_blocks:
            if block.ref_cnt <= 0:
                raise AssertionError(f"block {block.block_id} was given back twice")
            block.ref_cnt -= 1

    def held(self) -> set[int]:
        """Return the blocks that somebody holds."""
        return {block.block_id for block in self.blocks if block.ref_cnt}


class Clock:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.now


class FakeLease:
    """A lease of the first `pages` pages; page i lies at i * PAGE_BYTES."""

    def __init__(self, client: FakeClient, number: int, pages: int) -> None:
        self._client = client
        self.id = number
        self.pages = pages
        self.alive = True
        self.begun = False
        self.holds = 0

    def revoke(self) -> bool:
        """Let the Manager ask for it back; return whether it is given, as the client decides."""
        yielded = not (self.begun or self.holds)
        self.alive = self.alive and not yielded
        return yielded

    def locations(self, part: int = 0) -> npt.NDArray[np.uint64]:
        """Return where each page lies."""
        return np.arange(self.pages, dtype=np.uint64) * np.uint64(PAGE_BYTES) + np.uint64(part << 48)

    def begin(self, pages: int, *, closed_ok: bool = False) -> None:
        """Begin the first pages, unless the lease or, but for `closed_ok`, the channel is gone."""
        if not closed_ok:
            self._client.check()
        if not self.alive:
            raise LeaseLost("revoked")
        self.begun = True
        if self._client.alive:
            self._client.sent.append(("begin", self.id, pages))

    def release(self) -> None:
        """Give it back."""
        if self.alive:
            self.alive = False
            self._client.sent.append(("release", self.id))

    def hold(self) -> bool:
        """Keep it safe from revoke."""
        if self.alive:
            self.holds += 1
        return self.alive

    def unhold(self) -> None:
        """Undo one hold."""
        self.holds -= 1


class FakeQuery:
    """A query whose state the test moves with `answer`."""

    def __init__(self, client: FakeClient, request: str, pages: int) -> None:
        self._client = client
        self.request = request
        self.operation: int | None = None
        self.asked_pages = pages
        self.state = State.UNANSWERED
        self.lease: FakeLease | None = None
        self.refreshed: list[int | None] = []
        self.noticed = False
        self.estimate = Estimate(0.0, 0)
        self.at_stop: tuple[State, int] | None = None  # what a stop is answered with, None for nothing
        self._late: tuple[State, int] | None = None
        self._stopped = False

    def answer(self, state: State, pages: int = 0) -> None:
        """Let the answer be there at the next refresh."""
        self._late = (state, pages)
        self.noticed = self.state is not State.UNANSWERED

    def refresh(self, wait_us: int | None = 0) -> State:
        """Take the answer if it is there."""
        self._client.check()
        self.refreshed.append(wait_us)
        if self._late is not None:
            self.state, pages = self._late
            self._late, self.noticed = None, False
            if pages:
                self.lease = FakeLease(self._client, len(self._client.queries) * 10, pages)
        elif self._awaited and wait_us and self._client.clock is not None:
            self._client.clock.now += (wait_us + 1) / 1e6
        return self.state

    def stop(self, wait_us: int | None = 0) -> State:
        """Be told to take what is there."""
        if not self._stopped:
            self._stopped = True
            self._client.sent.append(("stop", self.request))
            self._late = self.at_stop or self._late
        return self.refresh(wait_us)

    @property
    def _awaited(self) -> bool:
        return self.state is State.UNANSWERED or (self._stopped and not self.state.final)

    def cancel(self) -> None:
        """Give it up."""
        self._client.sent.append(("cancel", self.request))


class FakeReserve:
    """A reserve whose grants the test gives with `answer`. Those of a dropped one are abandoned, as the client does."""

    def __init__(self, client: FakeClient, keys: bytes, number: int) -> None:
        self._client = client
        self.operation: int | None = None
        self.keys = [keys[at : at + 32] for at in range(0, len(keys), 32)]
        self.answered = False
        self.grants: npt.NDArray[np.uint8] = np.zeros(0, np.uint8)
        self.reservation = number
        self.pages = 0
        self.dropped = False
        self.late: list[Grant] = []
        self._refusal: Refused | None = None

    @property
    def open(self) -> bool:
        """Return whether the test gave neither an answer nor a refusal."""
        return not self.late and self._refusal is None

    def answer(self, grants: Sequence[Grant]) -> None:
        """Let the answer be there at the next refresh."""
        self.late = list(grants)
        if self.dropped:
            self._abandon()

    def refuse(self, status: Status) -> None:
        """Let a refusal be there at the next refresh."""
        self._refusal = Refused(status, "refused by the test")

    def refresh(self, wait_us: int | None = 0) -> bool:  # noqa: ARG002 - the fake never waits
        """Take the answer if it is there."""
        self._client.check()
        if self._refusal is not None:
            raise self._refusal
        if self.late:
            self.grants = np.array(self.late, np.uint8)
            self.pages = int((self.grants == Grant.GRANTED).sum())
            self.answered = True
        return self.answered

    def granted(self) -> npt.NDArray[np.int64]:
        """Return the indices of the granted keys."""
        return np.flatnonzero(self.grants == Grant.GRANTED)

    def locations(self, part: int = 0) -> npt.NDArray[np.uint64]:
        """Return where each granted page lies."""
        return np.arange(self.pages, dtype=np.uint64) * np.uint64(PAGE_BYTES) + np.uint64(part << 48)

    def drop(self) -> None:
        """Give up what was granted, or will be."""
        if not self.dropped:
            self.dropped = True
            self._abandon()

    def _abandon(self) -> None:
        if self._client.alive and (pages := self.late.count(Grant.GRANTED)):
            self._client.sent.append(("abandoned", self.reservation, pages))


class FakeClient:
    """A session whose calls are written down in `sent`. `script` answers queries at once, in order.

    With a `clock`, a wait for an answer that does not come takes its time.
    """

    def __init__(self, incarnation: bytes = b"life-1".ljust(16)) -> None:
        self.incarnation = incarnation
        self.token = b"token".ljust(16)
        self.limits = Limits(1 << 16, 1 << 16, 128, 1 << 30)
        self.alive = True
        self.leases_in_use: list[int] = []
        self.sent: list[tuple[Any, ...]] = []
        self.queries: list[FakeQuery] = []
        self.reserves: list[FakeReserve] = []
        self.reservations = itertools.count(1)  # of the Manager, which clients may share
        self.script: list[tuple[State, int]] = []
        self.epoch = 0
        self.budget_bytes = 0
        self.clock: Clock | None = None
        self.ranks_missing = 0
        self.maps_arenas = True
        self.arenas_unusable_because: str | None = None

    def stop_pushes(self) -> None:
        """Map no further arenas."""
        self.maps_arenas = False

    def check(self) -> None:
        """Raise when the channel is closed."""
        if not self.alive:
            raise ChannelClosed("closed by the test")

    def register(self, instance: str, rank: int = ALL_RANKS) -> Namespace:
        """Return a namespace of one slice."""
        self.check()
        self.sent.append(("register", instance) if rank == ALL_RANKS else ("register", instance, rank))
        if self.ranks_missing:
            raise Refused(Status.NOT_READY, "refused by the test")
        return self.namespace(rank)

    def new_epoch(self, instance: str, epoch: int, rank: int = ALL_RANKS) -> Namespace:
        """Move to another epoch."""
        self.check()
        self.sent.append(("epoch", instance, epoch))
        self.epoch = epoch
        return self.namespace(rank)

    def namespace(self, rank: int = ALL_RANKS) -> Namespace:
        """Return the current namespace."""
        slices = (Slice(0, 0, 0, PAGE_BYTES),)
        return Namespace(7, self.epoch, PAGE_BYTES, (PAGE_BYTES,), slices, rank, self.budget_bytes)

    def query(
        self,
        _namespace: Namespace,
        keys: bytes,
        *,
        instance: str,
        request: str,
        wait_us: int,
        operation: int | None = None,
    ) -> FakeQuery:
        """Ask; the next entry of `script` is the answer, else there is none yet."""
        self.check()
        query = FakeQuery(self, request, len(keys) // 32)
        query.operation = operation
        self.queries.append(query)
        self.sent.append(("query", instance, request, keys))
        if self.script:
            query.answer(*self.script.pop(0))
        query.refresh(wait_us)
        return query

    def reserve(
        self, _namespace: Namespace, keys: bytes, *, instance: str, wait_us: int, operation: int | None = None
    ) -> FakeReserve:
        """Ask for extents; the test answers."""
        self.check()
        reserve = FakeReserve(self, keys, next(self.reservations))
        reserve.operation = operation
        self.reserves.append(reserve)
        self.sent.append(("reserve", instance, len(reserve.keys), wait_us))
        return reserve

    def detach(self, instance: str) -> None:
        """Leave an instance."""
        self.check()
        self.sent.append(("detach", instance))

    def close(self) -> None:
        """Close the channel."""
        self.alive = False


def keys_of(name: str, pages: int) -> list[bytes]:
    """Return 32-byte keys that nobody else's name gives."""
    return [f"{name}:{index}".encode().ljust(32, b".") for index in range(pages)]


class FakeTensors:
    """The engine's KV tensors as plain memory, and access to single blocks.

    `shift` moves the engine's own view against the addresses of the layout, as a layout that was read wrongly would.
    """

    def __init__(self, layers: int, blocks: int, block_bytes: int) -> None:
        self.memory: npt.NDArray[np.uint8] = np.zeros(layers * blocks * block_bytes, np.uint8)
        self.shift = 0
        self._block_bytes = block_bytes
        self._blocks = blocks
        base = int(self.memory.ctypes.data)
        span = blocks * block_bytes
        self.layout = KVLayout(
            tuple(
                LayerLayout(f"l{i}", base + i * span, blocks, block_bytes, block_bytes, i * block_bytes, i)
                for i in range(layers)
            ),
            blocks,
            layers * block_bytes,
            self.memory,
        )

    def write(self, layer: int, block: int, content: npt.NDArray[np.uint8]) -> None:
        """Put `content` into the block."""
        self._view(layer, block)[:] = content

    def read(self, layer: int, block: int) -> npt.NDArray[np.uint8]:
        """Return a copy of the block's bytes."""
        return self._view(layer, block).copy()

    def settle(self) -> None:
        """Do nothing: what was written into host memory is there."""

    def scramble(self) -> None:
        """Fill everything with bytes that no two places share by chance."""
        self.memory[:] = np.random.default_rng(1).integers(0, 256, len(self.memory), dtype=np.uint8)

    def _view(self, layer: int, block: int) -> npt.NDArray[np.uint8]:
        at = (layer * self._blocks + block) * self._block_bytes + self.shift
        return self.memory[at : at + self._block_bytes]


class FakeManager:
    """A Cache Manager in memory with a private namespace of one page. `damage` flips a byte of what is committed."""

    def __init__(self, slice_bytes: int, pages: int = 16) -> None:
        self.incarnation = b"life-1".ljust(16)
        self.page_bytes = -(-slice_bytes // PAGE_BYTES) * PAGE_BYTES
        self.memory: npt.NDArray[np.uint8] = np.zeros(pages * self.page_bytes, np.uint8)
        self.arena = Arena(0, -1, len(self.memory), self.memory)
        self.arenas_there = 1
        self.arenas_unusable_because: str | None = None
        self.damage = False
        self.private_closed = False
        self._client = FakeClient(self.incarnation)

    def wait_arenas(self, minimum: int, timeout: float) -> int:  # noqa: ARG002 - nothing arrives later
        """Return how many arenas are mapped."""
        return self.arenas_there

    def open_private(self, slice_bytes: int) -> Namespace:
        """Open the namespace of one slice."""
        return Namespace(1, 0, self.page_bytes, (self.page_bytes,), (Slice(0, 0, 0, slice_bytes),))

    def close_private(self) -> None:
        """Drop it."""
        self.private_closed = True

    def reserve(self, _namespace: Namespace, keys: bytes, *, instance: str, wait_us: int) -> FakeReserve:
        """Grant the one page."""
        reserve = self._client.reserve(_namespace, keys, instance=instance, wait_us=wait_us)
        reserve.answer([Grant.GRANTED])
        reserve.refresh()
        return reserve

    def committed(self, _reservation: int, _rank: int, _ranges: Sequence[tuple[int, int]]) -> None:
        """Seal the page."""
        if self.damage:
            self.memory[self.page_bytes // 2] ^= 1

    def query(self, namespace: Namespace, keys: bytes, *, instance: str, wait_us: int) -> FakeQuery:
        """Lease the page."""
        self._client.script = [(State.READY, 1)]
        return self._client.query(namespace, keys, instance=instance, request="", wait_us=wait_us)

    def restored(self, *_: Any) -> None:
        """Take the terminal report."""

    def fill(self, pages: int) -> None:
        """Put bytes into the first pages that differ from page to page and from layer to layer."""
        content = np.random.default_rng(2).integers(1, 256, pages * self.page_bytes, dtype=np.uint8)
        self.memory[: pages * self.page_bytes] = content

    def layer(self, page: int, layer: int, block_bytes: int) -> npt.NDArray[np.uint8]:
        """Return the bytes of one layer of a page."""
        at = page * self.page_bytes + layer * block_bytes
        return self.memory[at : at + block_bytes]
