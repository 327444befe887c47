"""The guard between a pass's promises and the exchange of a session: each keeps the other out, and neither starves."""

from __future__ import annotations

import threading

import pytest

from orbitkv.sglang.rank import PassGuard

WAIT_SECONDS = 60.0


class Exchange(threading.Thread):
    """A link's thread that exchanges its session and stays in the middle of it until it is told to go on."""

    def __init__(self, guard: PassGuard) -> None:
        super().__init__(daemon=True)
        self.guard = guard
        self.inside = threading.Event()
        self.go_on = threading.Event()

    def run(self) -> None:
        with self.guard.exchange():
            self.inside.set()
            assert self.go_on.wait(WAIT_SECONDS)

    def end(self) -> None:
        """Let it go on and wait for its end."""
        self.go_on.set()
        self.join(WAIT_SECONDS)
        assert not self.is_alive()


@pytest.fixture
def guard() -> PassGuard:
    """Return a guard."""
    return PassGuard()


def wait_until_it_waits(guard: PassGuard, exchanges: int = 1) -> None:
    """Return when so many exchanges wait or run."""
    while guard._exchanges < exchanges:
        threading.Event().wait(0.001)


def test_an_exchange_waits_for_the_end_of_the_pass(guard: PassGuard) -> None:
    assert guard.enter()
    exchange = Exchange(guard)
    exchange.start()
    wait_until_it_waits(guard)
    assert guard.enter(), "the pass goes on: it may promise more"
    assert not exchange.inside.is_set()
    guard.leave()
    assert exchange.inside.wait(WAIT_SECONDS)
    exchange.end()


def test_nothing_is_promised_while_a_session_is_exchanged(guard: PassGuard) -> None:
    exchange = Exchange(guard)
    exchange.start()
    assert exchange.inside.wait(WAIT_SECONDS)
    assert not guard.enter()
    guard.leave()  # The end of a pass that promised nothing.
    assert not guard.enter()
    exchange.end()
    assert guard.enter()


def test_a_pass_that_ends_twice_is_no_fault(guard: PassGuard) -> None:
    guard.leave()
    assert guard.enter()
    guard.leave()
    guard.leave()
    assert guard.enter()


def test_a_busy_scheduler_lets_an_exchange_in(guard: PassGuard) -> None:
    """Its passes follow each other at once, and every one promises."""
    assert guard.enter()
    exchange = Exchange(guard)
    exchange.start()
    wait_until_it_waits(guard)
    guard.leave()
    assert not guard.enter(), "the next pass does not overtake what waits"
    assert exchange.inside.wait(WAIT_SECONDS)
    exchange.end()


def test_two_links_exchange_one_after_the_other_and_the_pass_comes_after_both(guard: PassGuard) -> None:
    assert guard.enter()
    exchanges = [Exchange(guard), Exchange(guard)]
    for exchange in exchanges:
        exchange.start()
    wait_until_it_waits(guard, 2)
    guard.leave()
    for exchange in exchanges:
        exchange.go_on.set()
    for exchange in exchanges:
        exchange.end()
        assert exchange.inside.is_set()
    assert guard.enter()


def test_an_exchange_that_fails_leaves_the_guard_open(guard: PassGuard) -> None:
    with pytest.raises(OSError, match="no descriptor"), guard.exchange():
        raise OSError("no descriptor")
    assert guard.enter()


def test_passes_and_exchanges_at_random_exclude_each_other_and_both_go_on() -> None:
    guard, inside, done = PassGuard(), threading.Lock(), threading.Event()
    exchanged = [0, 0]

    def link(number: int) -> None:
        while not done.is_set():
            with guard.exchange():
                assert inside.acquire(blocking=False), "a promise is open"
                exchanged[number] += 1
                inside.release()
            done.wait(0.0005)

    links = [threading.Thread(target=link, args=(number,), daemon=True) for number in range(2)]
    for each in links:
        each.start()
    promised = 0
    while promised < 200 or min(exchanged) < 50:
        if guard.enter():
            assert inside.acquire(blocking=False), "an exchange runs"
            promised += 1
            inside.release()
        guard.leave()
    done.set()
    for each in links:
        each.join(WAIT_SECONDS)
        assert not each.is_alive()
