"""The link: refusals stop the start, an absent Manager is a warning, and it connects anew by itself."""

from __future__ import annotations

import logging
import threading

import pytest

from orbitkv.adapter import link as link_module
from orbitkv.adapter.link import Link
from orbitkv.client import Status
from orbitkv.errors import DeviceError, ManagerUnavailable, Refused

WAIT_SECONDS = 30.0


class FakeSession:
    """A session that completes after some steps and that a test can end."""

    def __init__(self, life: bytes = b"one", steps: int = 1) -> None:
        self.incarnation = life
        self.alive = True
        self.closed = False
        self.detached = False
        self.steps = steps
        self.complete = threading.Event()

    def advance(self) -> bool:
        self.steps -= 1
        if self.steps <= 0:
            self.complete.set()
        return self.steps <= 0

    def detach(self) -> None:
        assert not self.closed
        self.detached = True

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the link look often."""
    for name in ("RETRY_SECONDS", "TICK_SECONDS", "WATCH_SECONDS"):
        monkeypatch.setattr(link_module, name, 0.001)


@pytest.mark.parametrize("status", [Status.WRONG_ABI, Status.WRONG_USER, Status.CONFLICT])
def test_a_refusal_stops_the_start(status: Status) -> None:
    def refuse(_: FakeSession | None) -> FakeSession:
        raise Refused(status, "no")

    with pytest.raises(Refused):
        Link("test", refuse).start()


def test_a_full_table_is_tried_again() -> None:
    session, tries = FakeSession(), []

    def connect(_: FakeSession | None) -> FakeSession:
        tries.append(1)
        if len(tries) == 1:
            raise Refused(Status.BUSY, "1024 sessions exist")
        return session

    link = Link("test", connect)
    link.start()
    assert session.complete.wait(WAIT_SECONDS)
    link.stop()


@pytest.mark.parametrize("fault", [OSError(24, "Too many open files"), RuntimeError("can't start new thread")])
def test_a_process_without_descriptors_or_threads_is_tried_again(fault: Exception) -> None:
    session, tries = FakeSession(), []

    def connect(_: FakeSession | None) -> FakeSession:
        tries.append(1)
        if len(tries) <= 2:  # At the start, and in the link's own thread.
            raise fault
        return session

    link = Link("test", connect)
    link.start()
    assert session.complete.wait(WAIT_SECONDS)
    link.stop()


def test_an_absent_manager_is_one_warning_and_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    present, thrice, tries, there = threading.Event(), threading.Event(), [], FakeSession(steps=3)

    def connect(_: FakeSession | None) -> FakeSession:
        tries.append(1)
        if len(tries) >= 3:
            thrice.set()
        if not present.is_set():
            raise ManagerUnavailable([("/no/socket", "no such file")])
        return there

    link = Link("test", connect)
    with caplog.at_level(logging.WARNING, "vllm.orbitkv"):
        link.start()
        assert thrice.wait(WAIT_SECONDS)
        assert link.session is None
        present.set()
        assert there.complete.wait(WAIT_SECONDS)
    link.stop()
    assert there.closed
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "/no/socket" in caplog.text


def test_a_dead_session_is_replaced_and_closed_after_its_successor_stands() -> None:
    first, second = FakeSession(b"one"), FakeSession(b"two")
    sessions: list[FakeSession] = []

    def connect(previous: FakeSession | None) -> FakeSession:
        assert previous is (sessions[-1] if sessions else None)
        assert previous is None or not previous.closed, "its mappings stand until there is another"
        sessions.append(second if sessions else first)
        return sessions[-1]

    link = Link("test", connect)
    link.start()
    assert link.session is first
    first.alive = False
    assert link.session is None
    assert link.session_of(b"one") in (first, None)
    link.wake()
    assert second.complete.wait(WAIT_SECONDS)
    link.stop()
    assert first.closed
    assert second.closed
    assert (first.detached, second.detached) == (False, True), "only the last one leaves for good"


def test_a_trouble_is_told_once_until_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    """A device without room is tried each second: three attempts fail, two go well, and one fails again."""
    outcomes = [False, False, False, True, True, False, True]

    class Troubled(FakeSession):
        def advance(self) -> bool:
            if outcomes and not outcomes.pop(0):
                raise DeviceError("cuStreamCreateWithPriority", 2, "out of memory")
            if not outcomes:
                self.complete.set()
            return True

    session = Troubled()
    link = Link("test", lambda _: session)
    with caplog.at_level(logging.WARNING, "vllm.orbitkv"):
        link.start()  # tells of its own attempt, the first of them
        assert session.complete.wait(WAIT_SECONDS)
    link.stop()
    told = [record for record in caplog.records if "tried again each second" in record.getMessage()]
    assert [record.levelname for record in told] == ["WARNING", "WARNING"]


def test_a_refusal_after_the_start_is_told_once_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    class Disagreeing(FakeSession):
        """Ranks that agree at the fourth attempt."""

        def advance(self) -> bool:
            if self.steps > 1:
                self.steps -= 1
                raise Refused(Status.CONFLICT, "the ranks differ")
            return super().advance()

    session, tries = Disagreeing(steps=4), []

    def connect(_: FakeSession | None) -> FakeSession:
        tries.append(1)
        if len(tries) == 1:
            raise ManagerUnavailable([("/no/socket", "no such file")])
        return session

    link = Link("test", connect)
    with caplog.at_level(logging.ERROR, "vllm.orbitkv"):
        link.start()
        assert session.complete.wait(WAIT_SECONDS)
    link.stop()
    assert len(caplog.records) == 1
    assert "the ranks differ" in caplog.text
