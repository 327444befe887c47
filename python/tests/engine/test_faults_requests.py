"""Requests and engines that stop in awkward places: preempted, left by their clients, or standing still."""

from __future__ import annotations

import os
import signal

from harness.base import words
from harness.engine import Engine
from harness.gate import PUBLISH, RESTORE
from harness.manager import eventually, tasks
from harness.replica import Replica
from harness.rig import DEVICE_PAGES, PAGE_TOKENS, Client, Rig, counted, pages_below_last_token


def test_a_request_that_is_preempted_resumes_with_the_right_tokens(rig: Rig) -> None:
    engine = rig.begin()
    half = DEVICE_PAGES // 2 * PAGE_TOKENS  # Two such prompts fit, but not the pages that decoding then needs.
    prompts = [words(300, half), words(301, half)]
    alone = [rig.store(engine, prompt).tokens for prompt in prompts]
    rig.reset_device(engine)
    before, preempted = counted(engine), engine.counter("vllm:num_preemptions_total")
    running = [rig.start(engine, prompt) for prompt in prompts]
    assert [answer.result().tokens for answer in running] == alone
    assert engine.counter("vllm:num_preemptions_total") > preempted
    assert counted(engine).since(before).external >= 2 * pages_below_last_token(half) * PAGE_TOKENS
    rig.reset_device(engine)
    rig.quiet()


def test_a_preempted_request_gives_up_nothing_that_is_still_copied(rig: Rig) -> None:
    engine = rig.begin()
    half = DEVICE_PAGES // 2 * PAGE_TOKENS
    prompts = [words(310, half), words(311, half)]
    alone = [engine.complete(prompt).tokens for prompt in prompts]
    rig.serve()  # It knows neither: their pages are published while they run.
    rig.connected(engine)
    rig.reset_device(engine)
    preempted = engine.counter("vllm:num_preemptions_total")
    rig.gate.hold(PUBLISH, 1)
    running = [rig.start(engine, prompt) for prompt in prompts]
    rig.gate.wait_held(PUBLISH)
    eventually(lambda: engine.counter("vllm:num_preemptions_total") > preempted, "one of two is preempted")
    rig.gate.open()
    assert [answer.result().tokens for answer in running] == alone
    rig.reset_device(engine)
    assert [engine.complete(prompt).tokens for prompt in prompts] == alone, "what was published is right"
    rig.quiet()


def test_a_waiting_request_whose_client_leaves_gives_its_lease_back(rig: Rig) -> None:
    engine = rig.begin()
    prompt = words(320, (DEVICE_PAGES - 15) * PAGE_TOKENS)
    cold = rig.store(engine, prompt)
    rig.reset_device(engine)
    long = Client(engine, words(321, 20 * PAGE_TOKENS), 5500)
    eventually(lambda: running(engine) == 1, "the long request runs")
    waiting = Client(engine, prompt)
    eventually(lambda: rig.stats()["leases"] > 0, "the waiting request has a lease")
    # The engine's gauge follows a step behind the lease.
    eventually(lambda: engine.counter("vllm:num_requests_waiting") == 1, "the engine says that it waits")
    waiting.leave()
    eventually(lambda: engine.counter("vllm:num_requests_waiting") == 0, "the engine drops it")
    eventually(lambda: rig.stats()["leases"] == 0, "its lease is given back")
    assert running(engine) == 1, "the long request runs still"
    long.leave()
    eventually(lambda: running(engine) == 0, "the running request is dropped")
    rig.reset_device(engine)
    rig.quiet()
    assert engine.complete(prompt).tokens == cold.tokens


def test_a_client_that_leaves_in_mid_restore_leaks_nothing(rig: Rig) -> None:
    engine = rig.begin()
    prompt = words(330, 1500)
    cold = rig.store(engine, prompt)
    rig.reset_device(engine)
    rig.gate.hold(RESTORE, 2)
    client = Client(engine, prompt, 500)
    rig.gate.wait_held(RESTORE)
    client.leave()
    assert rig.stats()["leases"] == 1, "no lease ends while its copy runs"
    rig.gate.open()
    eventually(lambda: running(engine) == 0, "the request is dropped")
    rig.reset_device(engine)
    rig.quiet()
    answer, counts = rig.ask(engine, prompt)
    assert counts.external == pages_below_last_token(1500) * PAGE_TOKENS
    assert answer.tokens == cold.tokens


def test_an_engine_that_stands_still_in_mid_restore_keeps_its_lease(rig: Rig) -> None:
    engine = rig.begin()
    prompt = words(340, 1500)
    cold = rig.store(engine, prompt)
    rig.reset_device(engine)
    rig.gate.hold(RESTORE, 2)
    answer = rig.start(engine, prompt)
    rig.gate.wait_held(RESTORE)
    charged = rig.stats()["query_reserved_bytes"]
    assert charged > 0
    stopped = stop(engine)
    try:
        eventually(lambda: rig.stats()["sessions_stalled"] == 2, "the Manager sees that neither side answers")
        stats = rig.stats()
        assert stats["leases"] == 1, "time ends no lease"
        assert stats["stalled_bytes"] == charged
        assert stats["query_reserved_bytes"] == 0, "what stands still does not count against others"
        rig.verify()
        with Replica(rig.socket, "another") as another:
            keys = bytes(range(32))
            assert another.publish(keys) == 1
            assert another.restore(keys, expect=1) == 1
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    rig.gate.open()
    assert answer.result().tokens == cold.tokens
    eventually(lambda: rig.stats()["sessions_stalled"] == 0, "the Manager sees that it goes on")
    rig.quiet()


def running(engine: Engine) -> float:
    """Return how many requests the engine computes."""
    return engine.counter("vllm:num_requests_running")


def stop(engine: Engine) -> list[int]:
    """Stop every process of the engine and return them once each thread of them stands still."""
    processes = engine.processes()
    for pid in processes:
        os.kill(pid, signal.SIGSTOP)
    eventually(
        lambda: all({task.state for task in tasks(pid)} == {"T"} for pid in processes), "the engine stands still"
    )
    return processes
