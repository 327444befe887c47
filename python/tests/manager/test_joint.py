"""Two ranks that schedule one instance together, by the client alone, against a real Manager: bytes and charges."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from harness import oracle
from harness.manager import ManagerProcess, eventually
from harness.replica import Rank, Shape
from orbitkv.client import ALL_RANKS, CacheManagerClient, Lease, Namespace, Role, State, Status
from orbitkv.errors import Refused

SHAPE = Shape(world=2)
OFFSET_MASK = (1 << 48) - 1


class Member:
    """One rank: a worker and a scheduler session of one process."""

    def __init__(self, manager: ManagerProcess, instance: str, number: int) -> None:
        self.instance = instance
        self.number = number
        self.manager = manager
        self.worker = Rank(manager.socket, instance, number, SHAPE)
        self.scheduler = self.connect()
        self.namespace: Namespace

    def connect(self) -> CacheManagerClient:
        """Return a new scheduler session."""
        return CacheManagerClient(self.manager.socket, role=Role.SCHEDULER, name=f"rank {self.number}")

    def close(self) -> None:
        """End both sessions."""
        self.scheduler.close()
        self.worker.close()

    def publish(self, keys: bytes, operation: int) -> int:
        """Write this rank's slices of the pages that are granted, and return how many are."""
        reserve = self.scheduler.reserve(
            self.namespace, keys, instance=self.instance, wait_us=None, operation=operation
        )
        rows = oracle.slices(keys, self.number, SHAPE.slice_bytes)[reserve.granted()]
        for place, row in zip(self.places(reserve.locations(), reserve.pages), rows, strict=True):
            place[:] = row
        if reserve.pages:
            self.worker.client.committed(reserve.reservation, self.number, [(0, reserve.pages)])
            self.worker.client.ping()
        return reserve.pages

    def ask(self, keys: bytes, operation: int) -> Lease | None:
        """Return the lease of the ranks' common answer."""
        query = self.scheduler.query(self.namespace, keys, instance=self.instance, wait_us=None, operation=operation)
        assert query.state is State.READY
        return query.lease

    def restore(self, lease: Lease, keys: bytes) -> None:
        """Compare this rank's slices with the oracle and report them."""
        for place, row in zip(
            self.places(lease.locations(), lease.pages),
            oracle.slices(keys, self.number, SHAPE.slice_bytes),
            strict=True,
        ):
            assert (np.asarray(place) == row).all()
        arrived = lease.pages * SHAPE.slice_bytes
        self.worker.client.restored(lease.id, self.number, True, arrived, [(0, lease.pages)])
        self.worker.client.ping()
        lease.ended()

    def places(self, locations: Any, pages: int) -> list[Any]:
        """Return this rank's slice of each page in the arena."""
        offset = self.namespace.slice_of(self.number).offset
        views = []
        for location in locations[:pages].tolist():
            at = (location & OFFSET_MASK) + offset
            views.append(self.worker.client.arenas[location >> 48].view[at : at + SHAPE.slice_bytes])
        return views


@pytest.fixture
def team(manager: ManagerProcess) -> Iterator[list[Member]]:
    """Return two ranks of one instance."""
    with contextlib.ExitStack() as undo:
        ranks = []
        for number in range(SHAPE.world):
            ranks.append(Member(manager, "team", number))
            undo.callback(ranks[-1].close)
        for rank in ranks:
            assert rank.worker.client.wait_arenas() == 1
        for rank in ranks:
            rank.namespace = rank.scheduler.register("team", rank.number)
        yield ranks


def stats(manager: ManagerProcess) -> dict[str, Any]:
    """Return the cache's numbers."""
    numbers: dict[str, Any] = manager.status()["cache"]["stats"]
    return numbers


def test_ranks_publish_and_restore_one_operation_with_exact_bytes(manager: ManagerProcess, team: list[Member]) -> None:
    keys = oracle.prefix(1, 8)
    assert [rank.publish(keys, 1) for rank in team] == [8, 8]
    leases = [rank.ask(keys, 2) for rank in team]
    first, second = leases
    assert first is not None
    assert second is not None
    assert (first.id, first.pages) == (second.id, 8)
    assert stats(manager)["query_reserved_bytes"] == 8 * team[0].namespace.page_bytes
    assert team[0].namespace.budget_bytes == stats(manager)["instance_budget_bytes"]
    for rank, lease in zip(team, (first, second), strict=True):
        lease.begin(8)
        rank.restore(lease, keys)
    eventually(lambda: stats(manager)["leases"] == 0, "the lease ends with its last rank")


def test_a_rank_that_skips_holds_nothing(manager: ManagerProcess, team: list[Member]) -> None:
    keys = oracle.prefix(1, 8)
    assert [rank.publish(keys, 1) for rank in team] == [8, 8]
    assert team[0].publish(oracle.prefix(2, 4), 2) == 4
    assert team[1].publish(oracle.prefix(3, 4), 3) == 4  # which abandons its slices of the reserve before
    lease = team[0].ask(keys, 4)
    assert lease is not None
    lease.begin(8)
    team[0].restore(lease, keys)
    eventually(lambda: stats(manager)["leases"] == 0, "nothing waits for a rank that did not ask")
    assert team[0].ask(oracle.prefix(2, 4), 5) is None
    with pytest.raises(Refused) as late:
        team[0].scheduler.register("team", ALL_RANKS)
    assert late.value.status == Status.CONFLICT


def test_a_begin_without_a_channel_is_said_by_the_session_that_follows(
    manager: ManagerProcess, team: list[Member]
) -> None:
    keys = oracle.prefix(1, 8)
    assert [rank.publish(keys, 1) for rank in team] == [8, 8]
    leases = [rank.ask(keys, 2) for rank in team]
    rank, lease, other = team[1], leases[1], leases[0]
    assert lease is not None
    assert other is not None
    rank.scheduler._channel.close("the test breaks it")
    eventually(lambda: stats(manager)["sessions_disconnected"] == 1, "the Manager sees the end")
    lease.begin(8, closed_ok=True)
    other.begin(8)
    team[0].restore(other, keys)
    assert stats(manager)["leases"] == 1, "the part of a rank that lives is kept"
    before, rank.scheduler = rank.scheduler, rank.connect()
    assert rank.scheduler.take_over(before) == ([lease.id], [])
    before.close()
    rank.restore(lease, keys)
    eventually(lambda: stats(manager)["leases"] == 0, "the begin that was said again counts the reports")
    assert rank.ask(keys, 3) is not None, "and the session schedules for its rank without a register"
