"""A worker's session and its reports: what is told again, and what a session that cannot take over leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.fakes import FakeClient, FakeTensors
from orbitkv.adapter import attachment as attachment_module
from orbitkv.adapter import reports as reports_module
from orbitkv.adapter import session as session_module
from orbitkv.adapter.attachment import Attachment, RankPlace
from orbitkv.adapter.backends import BackendChoice
from orbitkv.adapter.reports import Report, Reports
from orbitkv.adapter.session import Epoch, SchedulerSession
from orbitkv.adapter.settings import read_settings
from orbitkv.adapter.stats import Stats
from orbitkv.client import CacheManagerClient, Status
from orbitkv.errors import CallTimeout, ChannelClosed, DeviceError, ManagerUnavailable, OrbitKVError, Refused
from orbitkv.timeline import Timeline
from orbitkv.vllm.worker import EngineLayers, WorkerSide


class WorkerClient(FakeClient):
    """A worker's end of a Manager that knows some leases and reservations."""

    def __init__(self, incarnation: bytes = b"life-1".ljust(16)) -> None:
        super().__init__(incarnation)
        self.known: tuple[set[int], set[int]] = (set(), set())
        self.instance_epoch = 0
        self.fault: OrbitKVError | None = None
        self.told: list[tuple[Any, ...]] = []
        self.claimed: list[tuple[list[int], list[int]]] = []
        self.pings = 0
        self.nodes: list[int] = []
        self.copied_by: list[tuple[str, str]] = []

    def attach(self, *_: Any, epoch: int, numa: int, writer: str, backend: str, **__: Any) -> int:
        self.check()
        self.nodes.append(numa)
        self.copied_by.append((writer, backend))
        if epoch != self.instance_epoch:
            raise Refused(Status.CONFLICT, "epoch differs")
        return 1

    def resume_after(self, _: Any, leases: Sequence[int], reservations: Sequence[int]) -> tuple[list[int], list[int]]:
        if self.fault is not None:
            raise self.fault
        self.claimed.append((list(leases), list(reservations)))
        return [x for x in leases if x in self.known[0]], [x for x in reservations if x in self.known[1]]

    def take_over(self, _: Any, reservations: Sequence[int]) -> tuple[list[int], list[int]]:
        return self.resume_after(None, [], reservations)

    def ping(self) -> None:
        self.check()
        self.pings += 1

    def restored(self, *report: Any) -> None:
        self._tell("restored", report)

    def committed(self, *report: Any) -> None:
        self._tell("committed", report)

    def abandoned(self, *report: Any) -> None:
        self._tell("abandoned", report)

    def _tell(self, kind: str, report: tuple[Any, ...]) -> None:
        self.check()
        self.told.append((kind, report[0]))


Make = Callable[..., Attachment]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes an attachment over a client; the fixture closes every one."""
    made: list[Attachment] = []

    def attachment(
        client: WorkerClient, previous: Attachment | None = None, numa: int = -1, **options: Any
    ) -> Attachment:
        monkeypatch.setattr(attachment_module, "CacheManagerClient", lambda *_, **__: client)
        place, layout = RankPlace("engine-1", 0, 1, numa=numa), FakeTensors(1, 2, 4096).layout
        settings = read_settings({}, {})
        choice = BackendChoice(settings, layout)
        made.append(
            Attachment(settings, place, layout, {}, Timeline("test", False), previous, choice=choice, **options)
        )
        return made[-1]

    yield attachment
    for each in made:
        each.close()


def test_the_manager_hears_the_node_of_the_rank(make: Make) -> None:
    client = WorkerClient()
    assert make(client, numa=1).advance()
    assert client.nodes == [1]


@pytest.mark.parametrize("way", ["detach", "close", "take over"])
def test_no_arena_is_begun_once_the_backend_closes(make: Make, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """Each would be refused by the closed backend, and the log would call it an error."""
    client = WorkerClient()
    attachment = make(client)
    mapped: list[bool] = []
    close = attachment.backend.close

    def closing() -> None:
        mapped.append(client.maps_arenas)
        close()

    monkeypatch.setattr(attachment.backend, "close", closing)
    if way == "take over":
        make(WorkerClient(), attachment)
    else:
        (attachment.detach if way == "detach" else attachment.close)()
    assert mapped == [False]


def test_the_manager_hears_who_writes_and_by_which_backend(make: Make) -> None:
    client = WorkerClient()
    assert make(client).advance()
    assert client.copied_by == [("host", "host")]


def test_reports_that_the_manager_still_waits_for_are_told_again(make: Make) -> None:
    """A frame that the channel took may be lost with it; what the Manager has read ended its lease."""
    first, second = WorkerClient(), WorkerClient()
    old = make(first)
    assert old.advance()
    old.restored(1, True, [(0, 1)])
    old.restored(2, True, [(0, 1)])
    old.committed(5, [(0, 1)])
    old.abandoned(6, [(0, 1)])
    first.alive = False
    old.restored(3, True, [(0, 1)])
    second.known = ({2, 3}, {5})
    new = make(second, old)
    assert second.claimed == [([1, 2, 3], [5, 6])]
    assert second.told == [], "it is not the rank yet"
    assert new.advance()
    assert second.told == [("restored", 2), ("committed", 5), ("restored", 3)]


def test_a_report_that_comes_after_the_take_over_reaches_the_new_session(make: Make) -> None:
    first, second = WorkerClient(), WorkerClient()
    old = make(first)
    assert old.advance()
    first.alive = False
    new = make(second, old)
    old.committed(5, [(0, 1)])
    assert new.advance()
    old.restored(7, False, [(0, 1)])
    assert second.told == [("committed", 5), ("restored", 7)]


def test_confirmed_reports_are_not_told_again(make: Make) -> None:
    first, second = WorkerClient(), WorkerClient()
    old = make(first)
    assert old.advance()
    old.committed(5, [(0, 1)])
    assert old.advance()
    assert first.pings == 1
    assert old.advance()
    assert first.pings == 1, "there is nothing to confirm"
    first.alive = False
    second.known = (set(), {5})
    assert make(second, old).advance()
    assert second.claimed == [([], [])]
    assert second.told == []


def test_a_manager_that_does_not_answer_confirms_nothing(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent() -> None:
        raise CallTimeout("no answer")

    client = WorkerClient()
    attachment = make(client)
    assert attachment.advance()
    attachment.committed(5, [(0, 1)])
    with monkeypatch.context() as patch:
        patch.setattr(client, "ping", silent)
        assert not attachment.advance()
    assert len(attachment._reports) == 1
    assert attachment.advance()
    assert len(attachment._reports) == 0


def test_a_new_life_of_the_manager_hears_nothing_of_the_old_one(make: Make) -> None:
    first, second = WorkerClient(), WorkerClient(b"life-2".ljust(16))
    old = make(first)
    assert old.advance()
    old.committed(5, [(0, 1)])
    first.alive = False
    assert make(second, old).advance()
    assert (second.claimed, second.told) == ([], [])


def lone_attachment(make_backend: Callable[..., Any]) -> Attachment:
    """Make an attachment whose backend the function makes."""
    settings, layout = read_settings({}, {}), FakeTensors(1, 2, 4096).layout
    choice = cast(BackendChoice, SimpleNamespace(writer="host", make=make_backend))
    return Attachment(settings, RankPlace("engine-1", 0, 1), layout, {}, Timeline("test", False), choice=choice)


def test_without_a_manager_no_backend_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried each second, and a device's streams and tables would be made and dropped beside a serving engine."""
    made: list[object] = []

    def connect(*_: Any, **__: Any) -> WorkerClient:
        raise ManagerUnavailable([("/nowhere", "absent")])

    monkeypatch.setattr(attachment_module, "CacheManagerClient", connect)
    with pytest.raises(ManagerUnavailable):
        lone_attachment(made.append)
    assert made == []


def test_a_backend_that_cannot_be_made_leaves_no_session_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    client = WorkerClient()
    monkeypatch.setattr(attachment_module, "CacheManagerClient", lambda *_, **__: client)

    def refuse(*_: object) -> object:
        raise DeviceError("cuStreamCreateWithPriority", 2, "out of memory")

    with pytest.raises(DeviceError):
        lone_attachment(refuse)
    assert not client.alive


def test_bounds_of_either_sides_client_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Callable[[str], None]] = []

    def connect(*_: Any, on_bound: Callable[[str], None], **__: Any) -> WorkerClient:
        given.append(on_bound)
        return WorkerClient()

    monkeypatch.setattr(attachment_module, "CacheManagerClient", connect)
    monkeypatch.setattr(session_module, "CacheManagerClient", connect)
    settings, stats, tensors = read_settings({}, {}), Stats(), FakeTensors(1, 2, 4096)
    SchedulerSession.connect(settings, "engine-1", Epoch(), lambda: None, None, stats.count)
    layers = EngineLayers(tensors.layout, tensors, {})
    worker = WorkerSide(settings, RankPlace("engine-1", 0, 1), layers, {}, Timeline("test", False))
    worker.begin()
    worker.close()
    for count in given:
        count("messages_refused")
    assert [stats.take(), worker.stats.take()] == [{"messages_refused": 1.0}] * 2


def test_kept_reports_are_bounded(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(reports_module, "OPEN_MAX", 2)
    told: list[str] = []
    reports, client = Reports(told.append), WorkerClient()
    for number in (1, 2, 3, 4):
        reports.tell(Report(lambda c, n=number: c.committed(n, 0, []), reservation=number))  # type: ignore[misc]
    assert (len(reports), reports.forgotten) == (2, 2)
    assert told == ["reports_forgotten"] * 2
    assert len(caplog.records) == 1
    reports.bind(cast(CacheManagerClient, client))
    assert client.told == [("committed", 3), ("committed", 4)]


def test_the_epoch_is_read_at_each_attempt_to_attach(make: Make) -> None:
    """A channel may break after a reset and before the step that brings the new epoch to the worker."""
    epoch = [0]
    first, second = WorkerClient(), WorkerClient()
    old = make(first)
    assert old.advance()
    first.alive = False
    second.instance_epoch = 9
    new = make(second, old, epoch=lambda: epoch[0])
    with pytest.raises(Refused):
        new.advance()
    epoch[0] = 9
    assert new.advance()


def test_a_take_over_that_fails_leaves_no_session_behind(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = WorkerClient(), WorkerClient()
    second.fault = ChannelClosed("closed by the test")
    old = make(first)
    with pytest.raises(ChannelClosed):
        make(second, old)
    assert not second.alive
    scheduler = WorkerClient()
    scheduler.fault = CallTimeout("no answer")
    monkeypatch.setattr(session_module, "CacheManagerClient", lambda *_, **__: scheduler)
    earlier = SchedulerSession(cast(CacheManagerClient, first), "engine-1", Epoch(), lambda: None)
    with pytest.raises(CallTimeout):
        SchedulerSession.connect(read_settings({}, {}), "engine-1", Epoch(), lambda: None, earlier)
    assert not scheduler.alive
