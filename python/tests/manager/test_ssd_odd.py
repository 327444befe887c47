"""The SSD tier met by odd hands: races at the start, other sizes of folder and pages, links, many engines at once."""

from __future__ import annotations

import contextlib
import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from python.tests.manager.conftest import Start

from harness import oracle
from harness import ssd as tier
from harness.manager import ManagerFailure, ManagerProcess
from harness.replica import Replica, Shape
from harness.ssd import Volume
from harness.ssd_kills import disk_bytes

PAGES = 60
RACERS, RACES = 3, 2
MIB = 1 << 20
NUMBERS = itertools.count()  # of instances: a name is free again only when the Manager has seen the end of its last one


def store(manager: ManagerProcess, keys: bytes, shape: Shape | None = None) -> None:
    """Publish pages and return when they are on the SSD alone."""
    before = tier.stored(manager)
    with Replica(manager.socket, f"writer {next(NUMBERS)}", shape) as replica:
        pages = replica.publish(keys)
        tier.wait_stored(manager, before + pages)
    tier.empty_memory(manager)


def found(manager: ManagerProcess, keys: bytes, shape: Shape | None = None) -> int:
    """Return how many leading pages come back; their bytes are compared."""
    with Replica(manager.socket, f"reader {next(NUMBERS)}", shape) as replica:
        return replica.restore(keys)


def why_not(racer: ManagerProcess) -> str:
    """Start a Manager; return why it did not start, or nothing."""
    try:
        racer.start()
    except ManagerFailure as failure:
        return str(failure)
    return ""


def test_of_managers_that_race_for_a_folder_one_gets_it(
    orbitkv_binary: Path, tmp_path: Path, volume: Volume, start_manager: Start
) -> None:
    keys = oracle.prefix(1, PAGES)
    for number in range(RACES):
        racers = [
            ManagerProcess(orbitkv_binary, tmp_path / f"racer-{number}-{one}", "16mib", *volume.options())
            for one in range(RACERS)
        ]

        with ThreadPoolExecutor(RACERS) as pool, contextlib.ExitStack() as ends:
            for racer in racers:
                ends.callback(racer.stop)
            said = list(pool.map(why_not, racers))
            won = [racer for racer, failure in zip(racers, said, strict=True) if not failure]
            assert len(won) == 1
            assert sum("another process has the folder" in failure for failure in said) == RACERS - 1
            if number == 0:
                store(won[0], keys)
            assert found(won[0], keys) == PAGES
    assert found(start_manager("16mib", *volume.options()), keys) == PAGES


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_capacity_that_changes_between_starts_is_kept_to(start_manager: Start, volume: Volume, end: str) -> None:
    shape = Shape(blocks=PAGES)
    prefixes = [oracle.prefix(seed, PAGES) for seed in range(24)]
    for capacity in (64, 24, 96, 32):
        manager = start_manager("64mib", *volume.options(capacity=f"{capacity}mib"))
        assert disk_bytes(volume.folder) <= capacity * MIB
        for keys in prefixes:
            found(manager, keys, shape)
        with Replica(manager.socket, "one", shape) as replica:
            for keys in prefixes:
                replica.publish(keys)
        tier.wait_stored(manager, 1)
        tier.empty_memory(manager)
        assert disk_bytes(volume.folder) <= capacity * MIB
        assert sum(found(manager, keys, shape) for keys in prefixes) > 0
        assert tier.unreadable(manager) == 0
        if end == "kill":
            manager.kill()
        else:
            manager.stop()


def test_an_engine_whose_pages_have_another_size_finds_none_and_the_first_finds_its_own(
    start_manager: Start, volume: Volume
) -> None:
    manager = start_manager("64mib", *volume.options())
    keys = oracle.prefix(1, PAGES)
    shapes = [Shape(layer_bytes=size) for size in (512, 4096, 8192, 12_288)]
    for shape in shapes:
        assert found(manager, keys, shape) == 0
        store(manager, keys, shape)
    manager.kill()
    manager.start()
    for shape in shapes:
        assert found(manager, keys, shape) == PAGES


def test_pages_of_100_mib_beside_small_ones(start_manager: Start, volume: Volume) -> None:
    manager = start_manager("512mib", *volume.options(capacity="512mib"))
    huge, small = Shape(layers=2, layer_bytes=50 * MIB, blocks=1), Shape(layers=1, layer_bytes=512)
    huge_keys, small_keys = oracle.prefix(1, 2), oracle.prefix(2, 400)
    with Replica(manager.socket, "huge", huge) as one, Replica(manager.socket, "small", small) as other:
        for number, key in enumerate(oracle.split(huge_keys)):  # Two at a time are more than the tier may hold.
            part = small_keys[32 * 200 * number :][: 32 * 200]
            assert (one.publish(key), other.publish(part)) == (1, 200)
            tier.wait_stored(manager, 201 * (number + 1))
        tier.empty_memory(manager)
        assert other.restore(small_keys, expect=400) == 400
        assert one.restore(huge_keys, expect=2) == 2
    assert tier.unreadable(manager) == 0


def test_hundreds_of_namespaces_share_the_tier(start_manager: Start, volume: Volume) -> None:
    manager = start_manager("32mib", *volume.options())
    shapes = [Shape(layers=1, layer_bytes=512, blocks=4, facts=(("tenant", str(number)),)) for number in range(200)]
    keys = oracle.prefix(1, 4)  # the same keys in each: only the namespace tells them apart
    for number, shape in enumerate(shapes):
        with Replica(manager.socket, f"tenant {number}", shape) as replica:
            assert replica.publish(keys) == 4
    tier.wait_stored(manager, 4 * len(shapes))
    manager.kill()
    manager.start()
    assert tier.stored(manager) == 4 * len(shapes)
    assert [found(manager, keys, shape) for shape in shapes[::7]] == [4] * len(shapes[::7])


@pytest.mark.parametrize("name", ["payload", "index", "superblock"])
def test_a_link_in_place_of_a_file_is_refused_and_what_it_names_stays(
    orbitkv_binary: Path, tmp_path: Path, volume: Volume, name: str, start_manager: Start
) -> None:
    manager = start_manager("16mib", *volume.options())
    store(manager, oracle.prefix(1, PAGES))
    manager.stop()
    theirs = tmp_path / "theirs"
    (volume.folder / name).rename(theirs)
    content = theirs.read_bytes()
    (volume.folder / name).symlink_to(theirs)
    other = ManagerProcess(orbitkv_binary, tmp_path / "refused", "16mib", *volume.options())
    with pytest.raises(ManagerFailure, match=name):
        other.start()
    assert theirs.read_bytes() == content
    (volume.folder / name).unlink()
    theirs.rename(volume.folder / name)
    manager.start()
    assert found(manager, oracle.prefix(1, PAGES)) == PAGES


@pytest.mark.parametrize("name", ["index.new", "superblock.new"])
@pytest.mark.parametrize("kind", ["link", "folder", "rubbish"])
def test_what_lies_where_a_new_file_is_made(
    orbitkv_binary: Path, tmp_path: Path, volume: Volume, name: str, kind: str
) -> None:
    """A leftover is replaced; what cannot be is named; what a link names is never written."""
    theirs = tmp_path / "theirs"
    theirs.write_text("theirs", encoding="ascii")
    volume.folder.mkdir()
    if kind == "link":
        (volume.folder / name).symlink_to(theirs)
    elif kind == "folder":
        (volume.folder / name).mkdir()
    else:
        (volume.folder / name).write_bytes(b"\xff" * 100_000)
    manager = ManagerProcess(orbitkv_binary, tmp_path / "m", "16mib", *volume.options())
    if kind == "folder" or (kind, name) == ("link", "superblock.new"):
        with pytest.raises(ManagerFailure, match=name):
            manager.start()
    else:
        manager.start()
        store(manager, oracle.prefix(1, PAGES))
        manager.verb("/cache/clear")
        store(manager, oracle.prefix(2, PAGES))
        assert found(manager, oracle.prefix(2, PAGES)) == PAGES
        manager.stop()
    assert theirs.read_text(encoding="ascii") == "theirs"
