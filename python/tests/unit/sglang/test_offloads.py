"""Saves of one rank: order, every way in which one fails, and pages that stay locked while a copy reads them."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from python.tests.unit.sglang.offload_rig import LAYERS, OffloadRig, granted, pages_of

from harness.fakes import PAGE_BYTES, keys_of
from orbitkv._arenas import Arena
from orbitkv.adapter.publishing import COPY_PAGES, PRESSED_SECONDS, RESERVE_PAGES_MAX, RESERVES_MAX
from orbitkv.client import Grant, Status
from orbitkv.errors import TransferStalled
from orbitkv.sglang import offloads as offloads_module
from orbitkv.sglang import waits
from orbitkv.sglang.offloads import COPIES_MAX, OFFERS_MAX, Chunk, Offer, State
from orbitkv.transfer import HostBackend
from orbitkv.transfer._bounds import QUEUE_MAX

WAIT_SECONDS = 30.0


@pytest.fixture
def rig() -> OffloadRig:
    """Return the saves of a rank that has a session."""
    return OffloadRig()


def test_results_come_in_the_order_of_the_offers_although_the_answers_do_not(rig: OffloadRig) -> None:
    first, second, third = rig.ask(2, 3, 1)
    third.answer([Grant.PRESENT])
    second.answer(granted(3))
    rig.pump()
    rig.held.end()
    rig.pump()
    assert rig.offloads.completed == 0, "the engine takes the oldest first"
    first.answer([Grant.NO_ROOM] * 2)
    rig.pump()
    assert rig.results() == [False, True, True]


@pytest.mark.parametrize(
    ("grants", "copied", "ok"),
    [
        ([Grant.PRESENT] * 3, [], True),
        ([Grant.GRANTED, Grant.PRESENT, Grant.GRANTED], [0, 2], True),
        ([Grant.NO_ROOM] * 3, [], False),
        ([Grant.BEING_WRITTEN] * 3, [], False),
        ([Grant.GRANTED, Grant.NO_ROOM, Grant.PRESENT], [0], False),
        ([Grant.BEING_WRITTEN, Grant.GRANTED, Grant.GRANTED], [1, 2], False),
    ],
)
def test_what_is_granted_is_copied_and_all_must_be_stored(
    rig: OffloadRig, grants: list[Grant], copied: list[int], ok: bool
) -> None:
    (reserve,) = rig.ask(3)
    reserve.answer(grants)
    rig.pump()
    assert rig.held.submitted == ([copied] if copied else [])
    rig.held.end_all()
    rig.pump()
    assert rig.results() == [ok]
    committed = [("committed", reserve.reservation, [(0, len(copied))])] if copied else []
    assert rig.attachment.told == committed
    assert rig.session.reservations == set()


def test_a_reservation_is_named_until_its_last_copy_ended(rig: OffloadRig) -> None:
    """A later session claims what is written into; without it the Manager would give the extents to others."""
    (reserve,) = rig.ask(COPY_PAGES + 1)
    reserve.answer(granted(COPY_PAGES + 1))
    rig.pump()
    assert [len(pages) for pages in rig.held.submitted] == [COPY_PAGES, 1]
    rig.held.end()
    rig.pump()
    assert rig.session.reservations == {reserve.reservation}
    assert rig.offloads.completed == 0
    rig.held.end()
    rig.pump()
    assert rig.session.reservations == set()
    assert rig.results() == [True]
    assert [ranges for _, _, ranges in rig.attachment.told] == [[(0, COPY_PAGES)], [(COPY_PAGES, 1)]]


@pytest.mark.parametrize("why", ["never", "lost", "no attachment", "another life"])
def test_without_anybody_to_publish_to_an_offer_fails_at_once(rig: OffloadRig, why: str) -> None:
    if why != "never":
        rig.pump()
    if why == "lost":
        rig.client.alive = False
        rig.pump()
    if why == "no attachment":
        rig.offloads.pump(rig.session, None)
    if why == "another life":
        rig.attachment.incarnation = b"life-2".ljust(16)
        rig.pump()
    rig.offer("a", 0, 3)
    assert rig.results() == [False]
    assert rig.counted("save_skipped") == 3
    assert rig.reserves == []
    assert rig.numbers == [1]


@pytest.mark.parametrize(
    ("status", "alive", "counter"),
    [
        (Status.BUSY, True, "save_skipped"),
        (Status.STALE, True, "save_skipped"),
        (Status.CONFLICT, False, "save_failure"),
    ],
)
def test_a_refused_reserve_fails_the_offer(rig: OffloadRig, status: Status, alive: bool, counter: str) -> None:
    (reserve,) = rig.ask(2)
    reserve.refuse(status)
    rig.pump()
    assert rig.results() == [False]
    assert rig.session.alive is alive
    assert rig.counted(counter) == 2


def test_an_overdue_reserve_is_given_up_and_its_late_grant_abandoned(rig: OffloadRig) -> None:
    (reserve,) = rig.ask(2)
    rig.clock.now += 4.9
    rig.pump()
    assert rig.offloads.completed == 0
    rig.clock.now += 0.2
    rig.pump()
    assert rig.results() == [False]
    assert rig.counted("save_failure") == 2
    reserve.answer(granted(2))
    assert rig.abandoned() == [(reserve.reservation, 2)]
    rig.pump()
    assert rig.held.submitted == []


def test_a_silent_manager_is_probed_with_one_reserve(rig: OffloadRig) -> None:
    rig.ask(*[1] * (RESERVES_MAX + 3))
    rig.clock.now += 5.0
    rig.pump()
    assert rig.results() == [False] * (RESERVES_MAX + 3), "nor does what is queued keep its pages"
    assert rig.counted("save_skipped") == 3
    (probe,) = rig.ask(1, 1, 1)
    probe.answer([Grant.PRESENT])
    rig.pump()
    assert rig.results() == [True]
    assert len(rig.reserves) == RESERVES_MAX + 3, "it answers: the rest is asked for"


def test_one_late_answer_among_others_makes_no_silence(rig: OffloadRig) -> None:
    rig.ask(*[1] * (RESERVES_MAX + 3))
    rig.clock.now += 5.0
    for reserve in rig.reserves[1:]:
        reserve.answer([Grant.PRESENT])
    rig.pump()
    assert rig.results() == [False] + [True] * (RESERVES_MAX - 1)
    assert len(rig.reserves) == RESERVES_MAX + 3


def test_an_engine_without_pages_gets_them_back_soon(rig: OffloadRig) -> None:
    rig.ask(*[1] * (RESERVES_MAX + 1))
    rig.clock.now += PRESSED_SECONDS / 2
    rig.offloads.pressed = lambda: True
    rig.pump()
    assert rig.offloads.completed == 0
    rig.clock.now += PRESSED_SECONDS
    rig.pump()
    assert rig.results() == [False] * (RESERVES_MAX + 1)
    assert len(rig.reserves) == RESERVES_MAX


def test_an_engine_without_pages_does_not_wait_for_copies_either(
    rig: OffloadRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offloads_module, "COPIES_MAX", 1)
    (reserve,) = rig.ask(1, 1)
    reserve.answer(granted(1))
    rig.pump()
    rig.offloads.pressed = lambda: True
    rig.clock.now += 2 * PRESSED_SECONDS
    rig.pump()
    assert rig.counted("save_skipped") == 1
    assert rig.held.reading() == {0}, "what is read stays locked however short pages are (I1)"
    rig.held.end()
    rig.pump()
    assert rig.results() == [True, False]


def test_the_deadline_of_a_reserve_begins_when_it_is_sent(rig: OffloadRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offloads_module, "COPIES_MAX", 1)
    (first,) = rig.ask(1, 1)
    first.answer(granted(1))
    rig.pump()
    rig.clock.now += 4.9
    rig.held.end()
    rig.pump()
    rig.clock.now += 4.9
    rig.pump()
    rig.reserves[1].answer([Grant.PRESENT])
    rig.pump()
    assert rig.results() == [True, True]


def test_a_lost_session_fails_what_no_copy_reads_yet(rig: OffloadRig) -> None:
    asked = rig.ask(*[1] * (RESERVES_MAX + 1))
    asked[0].answer(granted(1))
    rig.pump()
    rig.client.alive = False
    rig.pump()
    assert rig.offloads.completed == 0, "the first one is being copied"
    assert all(reserve.dropped for reserve in rig.reserves[1:])
    assert rig.held.reading() == {0}
    rig.held.end()
    rig.pump()
    assert rig.results() == [True] + [False] * RESERVES_MAX, "the copy's end is reported without the session"


def test_a_new_session_does_not_ask_for_what_another_was_offered(rig: OffloadRig) -> None:
    """What the engine holds may have been marked anew for another life of the Manager."""
    (reserve,) = rig.ask(2)
    rig.connect()
    rig.pump()
    assert reserve.dropped
    assert rig.reserves == []
    assert rig.results() == [False]


def test_a_grant_that_a_take_over_did_not_name_is_not_copied(rig: OffloadRig) -> None:
    (reserve,) = rig.ask(2)
    reserve.answer(granted(2))
    rig.session.leave()
    rig.pump()
    assert rig.held.submitted == []
    assert rig.results() == [False]
    assert rig.counted("save_failure") == 2


def test_pages_of_an_old_epoch_are_not_published_under_a_new_one(rig: OffloadRig) -> None:
    """They hold the KV of other weights. Fails when a chunk does not keep to its namespace."""
    (asked,) = rig.ask(1)
    rig.offer("queued", 1, 1)
    asked.answer(granted(1))
    rig.epoch.move(77)
    assert rig.session.advance()
    rig.pump()
    assert rig.results() == [False, False]
    assert rig.held.submitted == []
    assert len(rig.reserves) == 1
    assert rig.abandoned() == [(asked.reservation, 1)]


def test_a_failed_copy_fails_its_offer_alone(rig: OffloadRig) -> None:
    first, second = rig.ask(COPY_PAGES * 2, 1)
    first.answer(granted(COPY_PAGES * 2))
    second.answer(granted(1))
    rig.pump()
    rig.held.end(ok=False)
    rig.held.end_all()
    rig.pump()
    assert rig.results() == [False, True]
    assert rig.attachment.told[0] == ("abandoned", first.reservation, [(0, COPY_PAGES)])
    assert rig.attachment.told[1] == ("committed", first.reservation, [(COPY_PAGES, COPY_PAGES)])


def test_a_copy_that_cannot_be_submitted_fails_its_offer(rig: OffloadRig) -> None:
    (reserve,) = rig.ask(2)
    reserve.answer(granted(2))
    rig.held.refusing = True
    rig.pump()
    assert rig.results() == [False]
    assert rig.attachment.told == [("abandoned", reserve.reservation, [(0, 2)])]
    assert rig.session.reservations == set()


def test_forgetting_fails_in_turn_what_no_copy_reads_yet(rig: OffloadRig) -> None:
    first, second = rig.ask(1, 1)
    first.answer(granted(1))
    rig.pump()
    rig.offer("queued", 2, 1)
    rig.offloads.forget()
    assert second.dropped
    rig.offer("after", 3, 1)
    assert rig.offloads.completed == 0
    rig.held.end()
    rig.pump()
    assert rig.results() == [True, False, False, False]
    assert len(rig.reserves) == 2


def test_a_reset_drops_what_was_asked_for_and_empties_the_order(rig: OffloadRig) -> None:
    (reserve,) = rig.ask(2)
    rig.offer("done", 4, 0)
    rig.offer("queued", 2, 1)
    rig.offloads.quiesce()
    assert rig.offloads.completed == 0
    reserve.answer(granted(2))
    assert rig.abandoned() == [(reserve.reservation, 2)]
    rig.pump()
    assert rig.offloads.completed == 0
    assert len(rig.reserves) == 1
    assert rig.ask(1)[0].operation == 3, "the numbers go on"


def test_a_reset_waits_for_the_copies_that_run(rig: OffloadRig) -> None:
    """I2: the engine writes the pages again right after. Fails when `quiesce` does not wait."""
    (reserve,) = rig.ask(COPY_PAGES * 3)
    reserve.answer(granted(COPY_PAGES * 3))
    rig.pump()
    at_return: list[set[int]] = []

    def quiesce() -> None:
        rig.offloads.quiesce()
        at_return.append(rig.held.reading())

    resetting = threading.Thread(target=quiesce)
    resetting.start()
    while rig.held.jobs:
        assert resetting.is_alive()
        rig.held.end()
    resetting.join(WAIT_SECONDS)
    assert at_return == [set()]
    assert rig.offloads.completed == 0
    assert rig.session.reservations == set()


def test_a_copy_that_hangs_stops_a_reset(rig: OffloadRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "STALL_SECONDS", 0.0)
    monkeypatch.setattr(waits, "CHECK_SECONDS", 0.001)
    (reserve,) = rig.ask(1)
    reserve.answer(granted(1))
    rig.pump()
    with pytest.raises(TransferStalled, match="1 publishes did not end"):
        rig.offloads.quiesce()
    rig.held.end()
    rig.offloads.quiesce()


def test_the_numbers_are_drawn_alike_whatever_happens() -> None:
    """Fails when a number is drawn only for a reserve that is sent."""
    sizes = [1, RESERVE_PAGES_MAX + 1, 0, 2, 2 * RESERVE_PAGES_MAX]
    lucky, lonely, reader = OffloadRig(), OffloadRig(), OffloadRig(storage=False)
    lucky.pump()
    reader.pump()
    for rig in (lucky, lonely, reader):
        for index, size in enumerate(sizes):
            rig.offer(f"n{index}", 0, size)
    lucky.pump()
    assert lucky.numbers == lonely.numbers == reader.numbers == [1, 2, 3, 4, 5, 6]
    assert [reserve.operation for reserve in lucky.reserves] == lucky.numbers


def test_a_rank_that_stores_nothing_completes_every_offer() -> None:
    rig = OffloadRig(storage=False)
    rig.offer("a", 0, 2)
    rig.pump()
    rig.offer("b", 0, 2)
    assert rig.results() == [True, True]
    assert rig.reserves == []
    assert rig.counted("save_skipped") == 0


def test_an_offer_without_pages_is_stored(rig: OffloadRig) -> None:
    rig.offer("a", 0, 0)
    assert rig.results() == [True]
    assert rig.numbers == []


def test_a_long_offer_is_one_result_of_several_reserves(rig: OffloadRig) -> None:
    count = 2 * RESERVE_PAGES_MAX + 452
    rig.pump()
    rig.offer("a", 100, count)
    rig.pump()
    keys = keys_of("a", count)
    assert [len(reserve.keys) for reserve in rig.reserves] == [RESERVE_PAGES_MAX, RESERVE_PAGES_MAX, 452]
    assert [key for reserve in rig.reserves for key in reserve.keys] == keys
    assert [reserve.operation for reserve in rig.reserves] == [1, 2, 3]
    for reserve in reversed(rig.reserves):
        assert rig.offloads.completed == 0
        reserve.answer(granted(len(reserve.keys)))
        rig.pump()
        rig.held.end_all()
        rig.pump()
    assert rig.results() == [True]
    assert sorted(page for pages in rig.held.submitted for page in pages) == list(range(100, 100 + count))


def test_a_long_offer_fails_with_any_of_its_reserves(rig: OffloadRig) -> None:
    rig.pump()
    rig.offer("a", 0, RESERVE_PAGES_MAX + 1)
    rig.pump()
    rig.reserves[0].answer([Grant.NO_ROOM] * RESERVE_PAGES_MAX)
    rig.reserves[1].answer(granted(1))
    rig.pump()
    assert rig.offloads.completed == 0, "its last page is being read"
    rig.held.end()
    rig.pump()
    assert rig.results() == [False]


def test_ten_thousand_offers_stay_bounded(rig: OffloadRig) -> None:
    rig.pump()
    for index in range(10_000):
        rig.offer(f"n{index}", index % 4000, 1)
    assert rig.counted("save_skipped") == 10_000 - OFFERS_MAX
    rig.pump()
    assert len(rig.reserves) == RESERVES_MAX
    assert rig.offloads.completed == 0
    answered = 0
    while answered < OFFERS_MAX:
        for reserve in rig.reserves[answered:]:
            reserve.answer([Grant.PRESENT])
            answered += 1
        rig.pump()
        assert len(rig.reserves) - answered <= RESERVES_MAX
    assert rig.results() == [True] * OFFERS_MAX + [False] * (10_000 - OFFERS_MAX)
    assert len(rig.numbers) == 10_000
    assert [reserve.operation for reserve in rig.reserves] == rig.numbers[:OFFERS_MAX]


def test_copies_that_run_hold_further_reserves_back(rig: OffloadRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The backend's queue would refuse them, and the pages would stay unpublished."""
    assert COPIES_MAX + RESERVE_PAGES_MAX // COPY_PAGES < QUEUE_MAX
    monkeypatch.setattr(offloads_module, "COPIES_MAX", 4)
    reserves = rig.ask(1, COPY_PAGES + 1, 1, 1, 1)
    assert len(reserves) == 3, "the second one is two batches"
    for reserve in reserves:
        reserve.answer(granted(len(reserve.keys)))
    rig.pump()
    assert len(rig.held.jobs) == 4
    assert len(rig.reserves) == 3
    rig.held.end()
    rig.pump()
    assert len(rig.reserves) == 4


def test_bytes_that_are_copied_hold_further_reserves_back(rig: OffloadRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offloads_module, "COPYING_BYTES_MAX", 4 * PAGE_BYTES)
    reserves = rig.ask(2, 2, 2)
    assert len(reserves) == 2
    reserves[0].answer([Grant.PRESENT] * 2)
    rig.pump()
    assert len(rig.reserves) == 3


def test_reservations_of_the_session_hold_further_reserves_back(rig: OffloadRig) -> None:
    rig.session.reservations.update(range(1000, 1000 + rig.session.reservations_max - 1))
    assert len(rig.ask(1, 1)) == 1


def test_what_is_pending_is_a_gauge(rig: OffloadRig) -> None:
    first, _ = rig.ask(1, 1)
    first.answer(granted(1))
    rig.pump()
    assert rig.counted("pending_save_requests") == 2
    rig.held.end()
    rig.pump()
    assert rig.counted("pending_save_requests") == 1


def test_a_chunk_makes_no_other_moves(rig: OffloadRig) -> None:
    legal = {(a, b) for a, nexts in offloads_module.MOVES.items() for b in nexts}
    assert len(legal) == 7
    for before in State:
        for after in State:
            offer = Offer(1)
            chunk = Chunk(offer, 9, b"", pages_of(0, 1), rig.session, rig.session.namespace, 0.0, before)
            if (before, after) in legal:
                chunk.move(after)
                assert offer.unfinished == (0 if after in (State.STORED, State.FAILED) else 1)
            else:
                with pytest.raises(RuntimeError, match=f"reserve 9 cannot go from {before.value}"):
                    chunk.move(after)


def test_the_host_backend_copies_what_was_offered() -> None:
    with HostBackend() as backend:
        rig = OffloadRig(backend=backend)
        rig.tensors.scramble()
        memory = np.full(4 * PAGE_BYTES, 0xEE, np.uint8)
        backend.register_arena(Arena(0, -1, len(memory), memory))
        pages = np.array([9, 4, 7], dtype=np.int64)
        rig.pump()
        rig.offloads.offer(b"".join(keys_of("a", 3)), pages)
        rig.pump()
        rig.reserves[0].answer([Grant.GRANTED, Grant.PRESENT, Grant.GRANTED])
        while not rig.offloads.completed:
            rig.pump()
        assert rig.results() == [True]
        expected = b"".join(rig.tensors.read(layer, page).tobytes() for page in (9, 7) for layer in range(LAYERS))
        assert memory.tobytes() == expected + b"\xee" * 2 * PAGE_BYTES
        assert rig.attachment.told == [("committed", 1, [(0, 2)])]
