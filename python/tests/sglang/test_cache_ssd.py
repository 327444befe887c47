"""SGLang's own tree and pool while a prefix is read from the SSD: it alone is held, and what came is restored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from harness import sglang_modules  # noqa: F401

# isort: split
import pytest

from harness import ssd as tier
from harness.base import words
from harness.manager import ManagerProcess, eventually
from harness.sglang_cache import PAGE, CacheRig
from harness.ssd import STALLING, Volume

pytestmark = pytest.mark.usefixtures("configured")

PAGES = 12
Make = Callable[..., CacheRig]


@pytest.fixture
def manager(orbitkv_binary: Path, tmp_path: Path, volume: Volume) -> Iterator[ManagerProcess]:
    """Return a Manager of the test's own with a tier that can be stalled; it must end in order."""
    process = ManagerProcess(orbitkv_binary, tmp_path / "manager", "64mib", *volume.options(STALLING)).start()
    yield process
    volume.resume()
    process.stop()


@pytest.fixture
def make(manager: ManagerProcess) -> Iterator[Make]:
    """Return a function that makes a cache that may use the Manager."""
    made: list[CacheRig] = []

    def rig(load_wait_ms: int) -> CacheRig:
        made.append(CacheRig(manager, "cache", query_wait_us=200_000, load_wait_ms=load_wait_ms))
        made[-1].connected()
        return made[-1]

    yield rig
    for each in made:
        each.close()


def put_away(rig: CacheRig, manager: ManagerProcess, prompt: list[int], there: int = 0) -> None:
    """Publish a prompt; its first pages are in the pool then, all others on the SSD alone, and none on the device."""
    before = tier.stored(manager)
    rig.publish(prompt)
    tier.wait_stored(manager, before + len(prompt) // PAGE)
    rig.flush()
    tier.empty_memory(manager)
    if there:
        serve(rig, "first", prompt[: there * PAGE])
        rig.flush()


def serve(rig: CacheRig, request: str, prompt: list[int]) -> int:
    """Serve a request of whole pages as soon as it has an answer; return how many pages were restored and compared."""
    req = rig.promised(request, prompt)
    restored = int(req.host_hit_length) // PAGE
    if restored:
        slots = rig.admit(req)
        rig.forward(rig.start(), prompt[: restored * PAGE], slots)
        rig.settle()
    return restored


def preparing(manager: ManagerProcess) -> int:
    """Return how many queries read from the SSD."""
    return int(manager.status()["cache"]["stats"]["operations_preparing"])


def nothing_left(manager: ManagerProcess) -> bool:
    """Return whether the Manager reads and leases nothing."""
    stats = manager.status()["cache"]["stats"]
    return not any(stats[name] for name in ("operations_preparing", "operations_draining", "reading_pages", "leases"))


def test_a_prefix_that_is_read_is_held_while_others_go_first_and_then_restored(
    make: Make, manager: ManagerProcess, volume: Volume
) -> None:
    rig = make(load_wait_ms=600_000)
    prompt, other = words(1, PAGES * PAGE), words(2, 3 * PAGE)
    put_away(rig, manager, prompt)
    rig.publish(other)
    rig.flush()
    volume.stall()
    rig.step()
    rig.match("slow", prompt)
    for _ in range(3):
        assert rig.cache.holds("slow")
        rig.side.keep_waiting("slow")
        assert serve(rig, "quick", other) == 3
        rig.flush()
        rig.step()
        rig.match("slow", prompt)
    assert tier.read(manager) == 0
    volume.resume()
    assert serve(rig, "slow", prompt) == PAGES
    assert tier.read(manager) == PAGES
    eventually(lambda: nothing_left(manager), "nothing is read or leased")


@pytest.mark.parametrize("there", [0, 5])
def test_what_is_there_when_the_patience_ends_is_restored(
    make: Make, manager: ManagerProcess, volume: Volume, there: int
) -> None:
    rig = make(load_wait_ms=200)
    prompt = words(3, PAGES * PAGE)
    put_away(rig, manager, prompt, there)
    volume.stall()
    rig.step()
    rig.match("a", prompt)
    assert rig.cache.holds("a")
    rig.side.keep_waiting("a")
    assert serve(rig, "a", prompt) == there
    values = rig.side.stats.take()
    assert (values["prefetch_stopped"], values["prefetch_stopped_blocks"]) == (1, [there])
    volume.resume()
    eventually(lambda: nothing_left(manager), "nothing is read or leased")


@pytest.mark.parametrize("end", ["abort", "flush"])
def test_who_leaves_while_its_prefix_is_read_leaves_nothing_behind(
    make: Make, manager: ManagerProcess, volume: Volume, end: str
) -> None:
    rig = make(load_wait_ms=600_000)
    prompt = words(4, PAGES * PAGE)
    put_away(rig, manager, prompt)
    volume.stall()
    rig.step()
    rig.match("a", prompt)
    eventually(lambda: preparing(manager) == 1, "it is read")
    if end == "abort":
        rig.abort("a")
    else:
        rig.flush()
    eventually(lambda: preparing(manager) == 0, "nobody wants it any more")
    volume.resume()
    eventually(lambda: nothing_left(manager), "nothing is read or leased")
    assert serve(rig, "again", prompt) == PAGES
