"""Restores and publishes on the scheduler side: begin before the plan, confirmed blocks only, held until copied."""

from __future__ import annotations

import random

import numpy as np
import pytest
from python.tests.unit.vllm.conftest import PAGE, Rig, make_rig

from harness.fakes import FakeClient, FakeReserve, keys_of
from orbitkv.adapter.plans import Locations
from orbitkv.adapter.publishing import COPY_PAGES, RESERVES_MAX
from orbitkv.client import Grant, State, Status
from orbitkv.errors import ProtocolError
from orbitkv.timeline import Timeline, parse
from orbitkv.vllm.plans import StepReport


def restore(rig: Rig, name: str = "a", found: int = 3) -> None:
    """Let a request of 1,000 tokens be admitted with restored pages into blocks 11, 12, ..."""
    rig.client.script = [(State.READY, found)]
    assert rig.match(name, 1000) == found * PAGE
    rig.admit(name, found * PAGE, list(range(11, 19)))


def test_begin_is_written_before_the_plan_leaves(rig: Rig) -> None:
    restore(rig)
    assert rig.sent("begin") == [("begin", 10, 3)]
    plan = rig.side.build_plan([], {}, [])
    assert [r.blocks.tolist() for r in plan.restores] == [[11, 12, 13]]
    assert plan.restores[0].locations[0].tolist() == [0, 4096, 8192]
    assert plan.incarnation == rig.client.incarnation
    assert rig.side.build_plan([], {}, []).restores == [], "a plan is handed out once"


def test_the_engines_figure_counts_not_the_earlier_answer(rig: Rig) -> None:
    rig.client.script = [(State.READY, 5)]
    rig.match("a", 1000, 256)
    rig.admit("a", 2 * PAGE, list(range(11, 19)))
    assert rig.sent("begin") == [("begin", 10, 2)]
    assert rig.side.build_plan([], {}, []).restores[0].blocks.tolist() == [13, 14]


def test_an_admission_without_restore_gives_the_lease_back(rig: Rig) -> None:
    rig.client.script = [(State.READY, 5)]
    rig.match("a", 1000)
    rig.admit("a", 0, list(range(11, 19)))
    assert rig.sent("release") == [("release", 10)]
    assert rig.side.build_plan([], {}, []).restores == []


@pytest.mark.parametrize("lost", ["revoked", "closed"])
def test_what_cannot_be_begun_is_recomputed_and_never_submitted(rig: Rig, lost: str) -> None:
    rig.client.script = [(State.READY, 3)]
    rig.match("a", 1000)
    lease = rig.client.queries[0].lease
    assert lease is not None
    if lost == "revoked":
        lease.alive = False
    else:
        rig.client.alive = False
    rig.admit("a", 3 * PAGE, list(range(11, 19)))
    plan = rig.side.build_plan([], {}, [])
    assert plan.restores == []
    assert plan.lost == [11, 12, 13]


def test_a_promise_that_nobody_made_loses_every_block(rig: Rig) -> None:
    rig.admit("a", 3 * PAGE, [11, 12, 13, 14])
    assert rig.side.build_plan([], {}, []).lost == [11, 12, 13, 14]


def test_a_request_whose_restore_failed_is_promised_nothing_more(rig: Rig) -> None:
    restore(rig)
    rig.side.failed(["a"])
    rig.client.script = [(State.READY, 3)] * 2
    assert rig.match("a", 1000) == 0
    assert rig.match("b", 1000) == 3 * PAGE
    rig.side.finished(rig.progress("a", 1000))
    assert rig.match("a", 1000) == 3 * PAGE, "another request may have its name"


def test_a_begun_restore_leaves_although_the_channel_closed_since(rig: Rig) -> None:
    restore(rig)
    rig.client.alive = False
    plan = rig.side.build_plan([], {}, [])
    assert len(plan.restores) == 1
    assert plan.incarnation == rig.client.incarnation
    assert plan.slices


def admit_cold(rig: Rig, name: str = "a", tokens: int = 1000, first: int = 11) -> list[int]:
    """Admit a request that computes everything."""
    blocks = list(range(first, first + -(-tokens // PAGE)))
    rig.admit(name, 0, blocks)
    rig.step(name, tokens, 0, blocks=blocks)
    return blocks


def published(rig: Rig) -> list[int]:
    """Return how many pages each reserve asked for."""
    return [int(str(message[2])) for message in rig.sent("reserve")]


def test_only_confirmed_full_blocks_are_published(rig: Rig) -> None:
    admit_cold(rig)
    assert published(rig) == []
    rig.step("a", 1000, 1000, in_flight=1000)
    assert published(rig) == [], "the step that fills them has not been processed"
    rig.step("a", 1001, 1000)
    assert published(rig) == [7], "seven full pages of 1,000 tokens"


def test_tokens_in_flight_are_not_confirmed(rig: Rig) -> None:
    admit_cold(rig)
    rig.step("a", 1000, 1000, in_flight=400)
    assert published(rig) == [4]


def test_a_device_hit_is_published_only_after_its_own_first_step(rig: Rig) -> None:
    """A neighbour of the same pass may still be filling those blocks."""
    rig.admit("a", 0, list(range(11, 19)))
    rig.step("a", 1000, 896, blocks=list(range(11, 19)))
    assert published(rig) == []
    rig.step("a", 1000, 1000, in_flight=104)
    assert published(rig) == []
    rig.step("a", 1001, 1000)
    assert published(rig) == [7], "a hit block that the Manager lost is published again"


def test_blocks_filled_by_decoding_are_published(rig: Rig) -> None:
    blocks = admit_cold(rig, tokens=1000)
    rig.step("a", 1001, 1000)
    for computed in range(1001, 1025):
        rig.step("a", computed + 1, computed)
    assert published(rig) == [7, 1]
    assert rig.client.reserves[1].keys == [keys_of("a", 8)[7]]
    assert rig.pool.held() >= {blocks[7]}


def test_restored_pages_are_not_published_back(rig: Rig) -> None:
    restore(rig, found=3)
    rig.step("a", 1000, 384, blocks=list(range(11, 19)))
    rig.step("a", 1001, 1000)
    assert published(rig) == [4]


def test_sources_are_held_until_every_rank_has_copied() -> None:
    rig = make_rig(world=2)
    blocks = admit_cold(rig)
    rig.step("a", 1001, 1000)
    rig.pool.free_blocks([rig.pool.blocks[block] for block in blocks])  # The engine frees a finished request's blocks.
    assert rig.pool.held() == set(blocks[:7])
    assert rig.side.pending
    rig.client.reserves[0].answer([Grant.GRANTED] * 7)
    rig.step("b", 1, 0)
    plan = rig.plan.publishes[0]
    assert plan.blocks.tolist() == blocks[:7]
    assert plan.ordinals.tolist() == list(range(7))
    rig.side.take_report(StepReport({plan.ticket: 1}))
    assert rig.pool.held() == set(blocks[:7])
    rig.side.take_report(StepReport({plan.ticket: 1}))
    assert rig.pool.held() == set()
    assert not rig.side.pending


def test_the_end_of_a_request_publishes_what_is_left_and_never_waits(rig: Rig) -> None:
    blocks = admit_cold(rig)
    rig.side.finished(rig.progress("a", 1001, 1000))
    rig.pool.free_blocks([rig.pool.blocks[block] for block in blocks])
    assert rig.pool.held() == set(blocks[:7]), "held before the engine gives them away"
    rig.side.build_plan([], {}, [])
    assert published(rig) == [7]


def test_an_aborted_request_publishes_nothing_that_is_not_confirmed(rig: Rig) -> None:
    admit_cold(rig)
    rig.side.finished(rig.progress("a", 1000, 1000, confirmed=0))
    rig.side.build_plan([], {}, [])
    assert published(rig) == []


def test_what_is_present_or_finds_no_room_is_given_back_at_once(rig: Rig) -> None:
    blocks = admit_cold(rig)
    rig.step("a", 1001, 1000)
    rig.client.reserves[0].answer(
        [Grant.PRESENT, Grant.GRANTED, Grant.BEING_WRITTEN, Grant.GRANTED, Grant.NO_ROOM, Grant.NO_ROOM, Grant.GRANTED]
    )
    rig.step("a", 1002, 1001)
    plan = rig.plan.publishes[0]
    assert plan.blocks.tolist() == [blocks[1], blocks[3], blocks[6]]
    assert plan.locations[0].tolist() == [0, 4096, 8192]
    assert [rig.pool.blocks[block].ref_cnt for block in blocks[:7]] == [1, 2, 1, 2, 1, 1, 2]


def test_large_grants_are_copied_and_given_back_in_batches() -> None:
    rig = make_rig(blocks=400)
    pages = 3 * COPY_PAGES // 2
    admit_cold(rig, tokens=pages * PAGE)
    rig.step("a", pages * PAGE + 1, pages * PAGE)
    rig.client.reserves[0].answer([Grant.GRANTED] * pages)
    rig.step("a", pages * PAGE + 2, pages * PAGE + 1)
    plans = rig.plan.publishes
    assert [len(plan.blocks) for plan in plans] == [COPY_PAGES, COPY_PAGES // 2]
    assert np.concatenate([plan.ordinals for plan in plans]).tolist() == list(range(pages))
    assert len({plan.ticket for plan in plans}) == 2


def test_an_unanswered_reserve_holds_its_sources_for_the_call_deadline_only(rig: Rig) -> None:
    blocks = admit_cold(rig)
    rig.side.finished(rig.progress("a", 1001, 1000))
    rig.pool.free_blocks([rig.pool.blocks[block] for block in blocks])
    rig.side.build_plan([], {}, [])
    rig.clock.now += 4.9
    rig.side.build_plan([], {}, [])
    assert rig.side.pending
    rig.clock.now += 0.2
    rig.side.build_plan([], {}, [])
    assert rig.pool.held() == set()
    assert not rig.side.pending
    assert rig.client.reserves[0].dropped, "a grant that still comes must be abandoned"


def test_a_dead_manager_pins_no_block(rig: Rig) -> None:
    blocks = admit_cold(rig)
    rig.side.finished(rig.progress("a", 1001, 1000))
    rig.pool.free_blocks([rig.pool.blocks[block] for block in blocks])
    rig.side.build_plan([], {}, [])
    rig.client.alive = False
    rig.side.build_plan([], {}, [])
    assert rig.pool.held() == set()
    admit_cold(rig, "b", first=31)
    rig.step("b", 1001, 1000)
    assert all(rig.pool.blocks[block].ref_cnt == 1 for block in range(31, 39)), "nothing is held for nobody"


def test_copies_that_run_keep_their_sources_when_the_manager_dies(rig: Rig) -> None:
    blocks = admit_cold(rig)
    rig.step("a", 1001, 1000)
    rig.client.reserves[0].answer([Grant.GRANTED] * 7)
    rig.step("a", 1002, 1001)
    ticket = rig.plan.publishes[0].ticket
    rig.client.alive = False
    rig.side.finished(rig.progress("a", 1002, 1001))
    rig.pool.free_blocks([rig.pool.blocks[block] for block in blocks])
    rig.clock.now += 1000.0
    rig.side.build_plan([], {}, [])
    assert rig.pool.held() == set(blocks[:7]), "time frees nothing (I2)"
    rig.side.take_report(StepReport({ticket: 1}))
    assert rig.pool.held() == set()


def test_two_requests_with_one_prefix_publish_it_once(rig: Rig) -> None:
    rig.admit("a", 0, list(range(11, 19)))
    rig.admit("b", 0, list(range(31, 39)))
    first, second = rig.progress("a", 1000, 0), rig.progress("b", 1000, 0)
    twin = type(second)("b", 1000, 0, 0, first.hashes)
    rig.side.build_plan([first, twin], {"a": list(range(11, 19)), "b": list(range(31, 39))}, [])
    done = rig.progress("a", 1001, 1000)
    rig.side.build_plan([done, type(done)("b", 1001, 1000, 1000, done.hashes)], {}, [])
    assert published(rig) == [7]


def test_every_page_of_a_prompt_as_large_as_the_pool_is_published() -> None:
    rig = make_rig(blocks=64)
    admit_cold(rig, tokens=60 * PAGE, first=2)
    rig.step("a", 60 * PAGE + 1, 60 * PAGE)
    assert published(rig) == [60]


def test_an_engine_without_free_blocks_gets_them_back_soon(rig: Rig) -> None:
    rig = make_rig(blocks=10)
    blocks = admit_cold(rig, first=1)
    rig.side.finished(rig.progress("a", 1001, 1000))
    rig.pool.free_blocks([rig.pool.blocks[block] for block in blocks])
    rig.side.build_plan([], {}, [])
    assert len(rig.pool.held()) == 7
    rig.clock.now += 0.11
    rig.side.build_plan([], {}, [])
    assert rig.pool.held() == set()


def test_a_silent_manager_is_asked_for_little_until_it_answers() -> None:
    rig = make_rig(blocks=400)
    admit_cold(rig, "a")
    rig.step("a", 1001, 1000)
    rig.clock.now += 0.3
    admit_cold(rig, "b", first=31)
    rig.step("b", 1001, 1000)
    assert published(rig) == [7], "one reserve has been unanswered for a quarter of a second"
    rig.clock.now += 5.0
    rig.side.build_plan([], {}, [])
    admit_cold(rig, "c", tokens=100 * PAGE, first=51)
    rig.step("c", 100 * PAGE + 1, 100 * PAGE)
    assert published(rig) == [7, COPY_PAGES], "a probe; what was not collected before follows its request"
    rig.step("c", 100 * PAGE + 2, 100 * PAGE + 1)
    assert published(rig) == [7, COPY_PAGES]
    rig.client.reserves[-1].answer([Grant.PRESENT] * COPY_PAGES)
    rig.step("c", 100 * PAGE + 3, 100 * PAGE + 2)
    rig.step("c", 100 * PAGE + 4, 100 * PAGE + 3)
    assert published(rig) == [7, COPY_PAGES, 100 - COPY_PAGES]


def test_unanswered_reserves_are_bounded(rig: Rig) -> None:
    for number in range(RESERVES_MAX + 4):
        name = f"r{number}"
        rig.admit(name, 0, [20 + number * 2, 21 + number * 2])
        rig.step(name, 200, 0, blocks=[20 + number * 2, 21 + number * 2])
        rig.step(name, 201, 200)
    assert len(rig.client.reserves) == RESERVES_MAX


@pytest.mark.parametrize("status", [Status.BUSY, Status.STALE])
def test_a_full_table_of_the_manager_skips_a_publish_and_nothing_else(rig: Rig, status: Status) -> None:
    blocks = admit_cold(rig)
    rig.step("a", 1001, 1000)
    rig.side.stats.take()
    rig.client.reserves[0].refuse(status)
    rig.step("a", 1002, 1001)
    assert all(rig.pool.blocks[block].ref_cnt == 1 for block in blocks), "its sources went back at once"
    assert rig.side.stats.take()["save_skipped"] == 7
    assert rig.link.session is not None, "the session stays"
    rig.client.script = [(State.READY, 2)]
    assert rig.match("b", 1000) == 2 * PAGE


def test_another_refusal_of_a_reserve_ends_the_session_and_frees_its_sources_once(rig: Rig) -> None:
    blocks = admit_cold(rig)
    rig.step("a", 1001, 1000)
    rig.side.stats.take()
    rig.client.reserves[0].refuse(Status.UNKNOWN)
    rig.step("a", 1002, 1001)
    rig.clock.now += 10.0
    rig.step("a", 1003, 1002)
    assert all(rig.pool.blocks[block].ref_cnt == 1 for block in blocks)
    assert rig.side.stats.take()["save_failure"] == 7
    assert rig.link.session is None


def test_open_reservations_are_bounded_and_nothing_is_held_for_a_later_one(rig: Rig) -> None:
    rig.client.limits = rig.client.limits._replace(session_operations_max=6)
    tickets = []
    for number in range(8):
        name = f"r{number}"
        rig.admit(name, 0, [20 + number * 2, 21 + number * 2])
        rig.step(name, 200, 0, blocks=[20 + number * 2, 21 + number * 2])
        rig.step(name, 201, 200)
        for reserve in rig.client.reserves:
            if not reserve.answered:
                reserve.answer([Grant.GRANTED])
        rig.step("nobody", 1, 0)
        tickets += [plan.ticket for plan in rig.plan.publishes]
    assert published(rig) == [1, 1, 1]
    assert [block for block in range(20, 36) if rig.pool.blocks[block].ref_cnt == 2] == [20, 22, 24]
    rig.side.take_report(StepReport(dict.fromkeys(tickets, 1)))
    rig.step("r7", 202, 201)
    rig.step("r7", 203, 202)
    assert published(rig) == [1, 1, 1, 1], "copies ended, so publishing goes on"


def test_slow_copies_hold_a_share_of_the_engines_blocks_at_most() -> None:
    rig = make_rig(blocks=64)
    admit_cold(rig, tokens=32 * PAGE, first=2)
    rig.step("a", 32 * PAGE + 1, 32 * PAGE)
    rig.client.reserves[0].answer([Grant.GRANTED] * 32)
    rig.step("a", 32 * PAGE + 2, 32 * PAGE + 1)
    ticket = rig.plan.publishes[0].ticket
    admit_cold(rig, "b", first=40)
    rig.step("b", 1001, 1000)
    rig.step("b", 1002, 1001)
    assert published(rig) == [32]
    rig.side.take_report(StepReport({ticket: 1}))
    rig.step("b", 1003, 1002)
    rig.step("b", 1004, 1003)
    assert published(rig) == [32, 7]


def test_a_reserve_of_a_session_that_is_gone_is_dropped(rig: Rig) -> None:
    admit_cold(rig)
    rig.step("a", 1001, 1000)
    session = rig.link.session
    assert session is not None
    session.fail(ProtocolError("broken by the test"))
    rig.step("a", 1002, 1001)
    assert rig.client.reserves[0].dropped, "its channel is still open: a grant that comes must be abandoned"


def test_nothing_is_written_into_a_reservation_that_a_later_session_did_not_claim(rig: Rig) -> None:
    blocks = admit_cold(rig)
    rig.step("a", 1001, 1000)
    session = rig.link.session
    assert session is not None
    assert session.leave() == set()
    rig.client.reserves[0].answer([Grant.GRANTED] * 7)
    assert rig.step("a", 1002, 1001).publishes == []
    assert all(rig.pool.blocks[block].ref_cnt == 1 for block in blocks)
    assert session.reservations == set()


def test_an_answer_without_sense_gives_the_blocks_back_and_the_engine_goes_on(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I10. Fails when the fault leaves the pass, which would end the engine."""

    def locations(_reserve: FakeReserve, _part: int = 0) -> Locations:
        raise ProtocolError("broken by the test")

    blocks = admit_cold(rig)
    rig.step("a", 1001, 1000)
    monkeypatch.setattr(FakeReserve, "locations", locations)
    rig.client.reserves[0].answer([Grant.GRANTED] * 7)
    assert rig.step("a", 1002, 1001).publishes == []
    assert all(rig.pool.blocks[block].ref_cnt == 1 for block in blocks)
    assert rig.link.session is None, "the session ends"


def test_a_publish_is_pending_until_its_last_batch_is_copied() -> None:
    rig = make_rig(blocks=400)
    pages = COPY_PAGES + 1
    admit_cold(rig, tokens=pages * PAGE)
    rig.step("a", pages * PAGE + 1, pages * PAGE)
    rig.client.reserves[0].answer([Grant.GRANTED] * pages)
    first, second = rig.step("a", pages * PAGE + 2, pages * PAGE + 1).publishes
    assert rig.side.stats.take()["pending_save_requests"] == 1, "it is one, however many batches it is copied in"
    session = rig.link.session
    assert session is not None
    for ticket, pending in ((first.ticket, 1), (second.ticket, 0)):
        assert session.reservations == {1}
        rig.side.take_report(StepReport({ticket: 1}))
        rig.step("nobody", 1, 0)
        assert rig.side.stats.take()["pending_save_requests"] == pending
    assert session.reservations == set()


def test_a_preempted_request_is_followed_anew_with_its_new_blocks(rig: Rig) -> None:
    admit_cold(rig)
    rig.side.build_plan([], {}, ["a"])
    rig.step("a", 1001, 1000)
    assert published(rig) == [], "its blocks are no longer its own"
    rig.admit("a", 0, list(range(51, 59)))
    rig.step("a", 1001, 0, blocks=list(range(51, 59)))
    rig.step("a", 1002, 1001)
    assert published(rig) == [7]
    assert rig.pool.blocks[51].ref_cnt == 2


def test_a_request_preempted_and_resumed_in_one_pass_keeps_its_restore(rig: Rig) -> None:
    restore(rig)
    plan = rig.side.build_plan([rig.progress("a", 1000, 384)], {"a": list(range(11, 19))}, ["a"])
    assert len(plan.restores) == 1
    rig.step("a", 1001, 1000)
    assert published(rig) == [4]


def test_a_reset_moves_to_a_random_epoch_and_lets_go_of_the_old_one(rig: Rig) -> None:
    admit_cold(rig)
    rig.step("a", 1001, 1000)
    rig.client.script = [(State.READY, 2)]
    rig.match("b", 1000)
    assert rig.side.reset()
    assert rig.epoch.value > 0
    assert rig.sent("release") == [("release", 10)]
    assert rig.client.reserves[0].dropped
    assert rig.match("c", 1000) == 0, "no hits before the Manager has moved"
    rig.step("a", 1002, 1001)
    assert published(rig) == [7], "blocks computed before the reset are not published after it"
    rig.link.open_once()
    assert rig.sent("epoch") == [("epoch", "engine-1", rig.epoch.value)]
    rig.client.script = [(State.READY, 2)]
    assert rig.match("c", 1000) == 2 * PAGE


def test_blocks_that_are_confirmed_after_a_reset_belong_to_no_epoch(rig: Rig) -> None:
    """Their first tokens were computed with what the reset replaced."""
    admit_cold(rig)
    rig.side.reset()
    rig.link.open_once()
    rig.step("a", 1001, 1000)
    rig.side.finished(rig.progress("a", 1001, 1000))
    rig.side.build_plan([], {}, [])
    assert published(rig) == []


def test_a_new_session_is_asked_anew(rig: Rig) -> None:
    rig.client.script = [(State.READY, 2)]
    assert rig.match("a", 1000) == 2 * PAGE
    rig.side.build_plan([], {}, [])
    old, rig.client = rig.client, FakeClient(b"life-2".ljust(16))
    rig.clients.append(rig.client)
    old.alive = False
    rig.side.golden.proven = rig.client.incarnation
    rig.link.open_once()
    rig.client.script = [(State.READY, 1)]
    assert rig.match("a", 1000) == PAGE
    assert rig.side.build_plan([], {}, []).incarnation == rig.client.incarnation


def test_restores_of_two_lives_do_not_mix(rig: Rig) -> None:
    restore(rig)
    old, rig.client = rig.client, FakeClient(b"life-2".ljust(16))
    rig.clients.append(rig.client)
    old.alive = False
    rig.side.golden.proven = rig.client.incarnation
    rig.link.open_once()
    rig.client.script = [(State.READY, 1)]
    rig.match("b", 1000)
    rig.admit("b", PAGE, list(range(31, 39)))
    plan = rig.side.build_plan([], {}, [])
    assert (plan.incarnation, [r.request for r in plan.restores], plan.lost) == (old.incarnation, ["a"], [31])


@pytest.mark.parametrize("seed", range(20))
def test_no_block_is_lost_or_given_back_twice_in_random_orders(seed: int) -> None:
    """Whatever the Manager answers and whenever, the pool ends as it began."""
    choose = random.Random(seed)
    rig = make_rig(world=2, blocks=200)
    live: dict[str, tuple[list[int], int]] = {}
    tickets: list[int] = []
    for turn in range(200):
        if len(live) < 3:
            name, tokens = f"r{turn}", choose.randrange(100, 1500)
            blocks = [block.block_id for block in rig.pool.get_new_blocks(-(-tokens // PAGE))]
            if len(blocks) == -(-tokens // PAGE):
                rig.side.allocated(name, 0, blocks)
                live[name] = (blocks, tokens)
                rig.step(name, tokens, 0, blocks=blocks)
            else:
                rig.pool.free_blocks([rig.pool.blocks[block] for block in blocks])
        for reserve in rig.client.reserves:
            if not reserve.answered and not reserve.dropped and choose.random() < 0.3:
                reserve.answer([choose.choice(list(Grant)) for _ in reserve.keys])
        plan = rig.side.build_plan([rig.progress(n, t + 1, t) for n, (_, t) in live.items()], {}, [])
        tickets += [p.ticket for p in plan.publishes] * 2
        choose.shuffle(tickets)
        while tickets and choose.random() < 0.5:
            rig.side.take_report(StepReport({tickets.pop(): 1}))
        if live and choose.random() < 0.4:
            name = choose.choice(sorted(live))
            blocks, tokens = live.pop(name)
            rig.side.finished(rig.progress(name, tokens + 1, tokens))
            rig.pool.free_blocks([rig.pool.blocks[block] for block in blocks])
        rig.clock.now += choose.random()
    for name, (blocks, _) in live.items():
        rig.side.finished(rig.progress(name, 1, 0))
        rig.pool.free_blocks([rig.pool.blocks[block] for block in blocks])
    rig.side.publisher.release_unplanned()
    for ticket in tickets:
        rig.side.take_report(StepReport({ticket: 1}))
    assert rig.pool.held() == set()
    assert rig.side.publisher.held == 0


def test_the_first_use_of_a_request_says_how_long_it_took(rig: Rig, timeline_lines: list[str]) -> None:
    rig.side.timeline = Timeline("test", True)
    rig.side.queued("a")
    rig.side.queued("b")
    rig.clock.now += 0.25
    rig.side.finished(rig.progress("b", 1000))
    for computed in (0, 1000):
        rig.step("a", 1001, computed)
        rig.step("b", 1001, computed)
    records = [record for line in timeline_lines if (record := parse(line)) is not None]
    uses = [(r["request_id"], r["elapsed_us"]) for r in records if r["stage"] == "first_use"]
    assert uses == [("a", 250_000)]
