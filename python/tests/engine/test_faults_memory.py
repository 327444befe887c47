"""A Manager restarts inside a control group whose memory its old pool still takes, because the engine maps it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.base import words
from harness.manager import eventually
from harness.memory import MemoryGroup, NoControlGroup
from harness.rig import PAGE_TOKENS, Rig, pages_below_last_token

LIMIT_BYTES = 512 << 20
POOL_BYTES = LIMIT_BYTES * 6 // 10


@pytest.fixture
def group() -> Iterator[MemoryGroup]:
    """Return a control group with LIMIT_BYTES; the test is skipped by name where none can be made."""
    try:
        group = MemoryGroup(LIMIT_BYTES)
    except NoControlGroup as reason:
        pytest.skip(f"no writable control group with a memory limit: {reason}")
    yield group
    group.remove()


def test_a_pool_of_60_percent_of_the_limit_survives_a_restart(
    rig: Rig, group: MemoryGroup, orbitkv_binary: Path, tmp_path: Path
) -> None:
    inside = group.wrapped(orbitkv_binary, tmp_path)
    engine = rig.begin()
    prompt = words(700, 1000)
    try:
        rig.serve(pool=str(POOL_BYTES), binary=inside)
        rig.connected(engine)
        assert group.usage_bytes() >= POOL_BYTES, "the pool is charged to the Manager's group"
        for _ in range(2):
            rig.kill_manager()
            assert group.usage_bytes() >= POOL_BYTES, "the engine still maps the old pool"
            rig.serve(pool=str(POOL_BYTES), binary=inside)
            assert rig.manager.status()["pool"]["populated_bytes"] == POOL_BYTES // 4096 * 4096
            rig.connected(engine)
            assert group.kills() == 0
        rig.reset_device(engine)
        cold = rig.store(engine, prompt)
        rig.reset_device(engine)
        answer, counts = rig.ask(engine, prompt)
        assert counts.external == pages_below_last_token(1000) * PAGE_TOKENS
        assert answer.tokens == cold.tokens
        rig.quiet()
    finally:
        rig.kill_manager()
    rig.serve()
    rig.connected(engine)
    eventually(lambda: group.usage_bytes() < POOL_BYTES // 2, "the engine has unmapped the last pool")
