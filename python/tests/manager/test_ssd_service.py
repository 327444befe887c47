"""The SSD tier as an operator meets it: starts and refusals, status, verification, repair, emptying, odd machines."""

from __future__ import annotations

import contextlib
import json
import socket
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import oracle
from harness import ssd as tier
from harness.confined import confined
from harness.manager import ManagerFailure, ManagerProcess, eventually
from harness.replica import Replica, Shape
from harness.ssd import Volume

Start = Callable[..., ManagerProcess]
PAGES = 20
KEYS = oracle.prefix(1, PAGES)
LIMIT_S = 120.0


@pytest.fixture
def start(start_manager: Start, volume: Volume) -> Start:
    """Return a function that starts a Manager with a pool of 64 MiB and the tier."""
    return lambda *options: start_manager("64mib", *volume.options(), *options)


@pytest.fixture
def program(orbitkv_binary: Path, tmp_path: Path) -> Iterator[Callable[..., ManagerProcess]]:
    """Return a function that starts a Manager of another program than the built one; the fixture ends every one."""
    with contextlib.ExitStack() as ends:

        def begin(of: Path, *options: str) -> ManagerProcess:
            manager = ManagerProcess(of, tmp_path / "confined", "64mib", *options)
            ends.callback(manager.stop)
            return manager.start()

        yield begin


def run(binary: Path, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a verb to its end, in an environment without variables of ours."""
    command = [str(binary), *map(str, arguments)]
    environment = {"PATH": "/usr/bin:/bin"}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT_S, **options
    )


def refused(binary: Path, folder: Path, *options: object) -> str:
    """Return what `serve` says when it does not start; AssertionError when it does, by the limit."""
    done = run(
        binary,
        "serve",
        "--socket",
        folder / "refused.sock",
        "--pool-size",
        "16mib",
        "--http-addr",
        "off",
        *options,
    )
    assert done.returncode == 1, done.stderr
    assert not (folder / "refused.sock").exists(), "the tier opens before the socket"
    return done.stderr


def fill(manager: ManagerProcess, keys: bytes = KEYS, shape: Shape | None = None) -> None:
    """Publish pages and return when they are on the SSD."""
    with Replica(manager.socket, "one", shape) as replica:
        pages = replica.publish(keys)
        tier.wait_stored(manager, pages)


def verify(manager: ManagerProcess, binary: Path) -> subprocess.CompletedProcess[str]:
    """Let the running Manager verify its SSD."""
    return run(binary, "verify", "--ssd", "--socket", manager.socket, "--http-addr", f"127.0.0.1:{manager.port}")


# Starts.


def test_status_shows_the_folder_and_who_does_its_io(start: Start, orbitkv_binary: Path, volume: Volume) -> None:
    manager = start()
    fill(manager)
    status = manager.status()
    (folder,) = status["ssd"]["volumes"]
    assert status["health"] == "ok"
    assert (folder["name"], folder["state"], folder["pages"]) == (str(volume.folder), "on", PAGES)
    assert folder["engine"] in ("uring", "pool")
    assert folder["engine_reason"]
    assert stat.S_IMODE(volume.folder.stat().st_mode) == 0o700
    on_disk = sum(file.stat().st_blocks * 512 for file in volume.folder.iterdir())
    assert on_disk <= folder["capacity_bytes"] == status["ssd"]["stats"]["capacity_bytes"]
    text = run(orbitkv_binary, "status", "--http-addr", f"127.0.0.1:{manager.port}").stdout
    for part in ("ssd reads", "ssd writes", f"{PAGES} pages", str(volume.folder)):
        assert part in text


def test_a_second_manager_on_the_folder_is_refused(
    start: Start, orbitkv_binary: Path, volume: Volume, tmp_path: Path
) -> None:
    start()
    assert "another process has the folder" in refused(orbitkv_binary, tmp_path, *volume.options())


def test_a_restart_finds_the_pages_and_tells_of_them(start: Start) -> None:
    first = start()
    fill(first)
    first.stop()
    second = start()
    assert f"recovered_pages={PAGES}" in second.log_tail()
    assert second.status()["ssd"]["stats"]["recovered_pages"] == PAGES
    with Replica(second.socket, "one") as replica:
        assert replica.restore(KEYS, expect=PAGES) == PAGES
        eventually(lambda: tier.read(second) == PAGES, "every page came from the SSD")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("file", ["is no folder"]),
        ("none/below", ["mount the device", "none)"]),
        ("foreign", ["not OrbitKV's", "name an empty folder"]),
        ("locked", ["permission denied", "chown"]),
    ],
)
def test_a_folder_that_cannot_be_used_is_refused_with_what_to_do(
    orbitkv_binary: Path, tmp_path: Path, path: str, words: list[str]
) -> None:
    (tmp_path / "file").write_text("not a folder", encoding="ascii")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "payload").write_text("somebody's", encoding="ascii")
    (tmp_path / "locked").mkdir(mode=0o500)
    program = confined(orbitkv_binary, tmp_path, modes=True)
    said = refused(program, tmp_path, "--ssd-cache-path", tmp_path / path, "--ssd-cache-capacity", "64mib")
    for word in ["--ssd-cache-path", *words]:
        assert word in said
    assert (tmp_path / "foreign" / "payload").read_text(encoding="ascii") == "somebody's"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--ssd-cache-capacity", "900tb"], ["reserving", "GiB more are needed", "lower the capacity"]),
        (["--ssd-cache-capacity", "1mib"], ["--ssd-cache-capacity", "below the least of 24 MiB"]),
        (["--ssd-cache-capacity", "64mib", "--ssd-fault-injection", "write-einval"], ["invalid argument"]),
        (
            ["--ssd-cache-capacity", "64mib", "--ssd-fault-injection", "sink-ships"],
            ["--ssd-fault-injection", "sink-ships"],
        ),
        (["--ssd-cache-capacity", "64mib", "--ssd-backend", "tape"], ["--ssd-backend", "auto, uring, pool"]),
    ],
)
def test_a_tier_that_cannot_be_is_refused_with_what_to_do(
    orbitkv_binary: Path, tmp_path: Path, options: list[str], words: list[str]
) -> None:
    said = refused(orbitkv_binary, tmp_path, "--ssd-cache-path", tmp_path / "ssd", *options)
    for word in words:
        assert word in said


def test_two_folders_share_the_capacity_and_the_pages(start_manager: Start, tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    paths = [word for folder in folders for word in ("--ssd-cache-path", str(folder))]
    manager = start_manager("64mib", *paths, "--ssd-cache-capacity", tier.CAPACITY)
    fill(manager)
    volumes = manager.status()["ssd"]["volumes"]
    assert [volume["name"] for volume in volumes] == [str(folder) for folder in folders]
    assert sum(volume["pages"] for volume in volumes) == PAGES
    assert all(volume["pages"] > 0 for volume in volumes), "volumes are chosen by what is free"
    tier.empty_memory(manager)
    with Replica(manager.socket, "one") as replica:
        assert replica.restore(KEYS, expect=PAGES) == PAGES


def test_a_capacity_below_one_page_stores_nothing_and_serves(start_manager: Start, tmp_path: Path) -> None:
    manager = start_manager("256mib", "--ssd-cache-path", str(tmp_path / "ssd"), "--ssd-cache-capacity", "64mib")
    shape = Shape(layers=2, layer_bytes=32 << 20, blocks=2)
    with Replica(manager.socket, "one", shape) as replica:
        assert replica.publish(oracle.prefix(1, 2)) == 2
        assert replica.restore(oracle.prefix(1, 2), expect=2) == 2
        assert manager.metrics("orbitkv_ssd_write_admission_skips_total")['reason="too_large"'] >= 2
        assert tier.stored(manager) == 0
        assert manager.status()["health"] == "ok"


# Verbs.


def test_clear_empties_the_ssd_for_good_and_cleanup_does_not(start: Start) -> None:
    manager = start()
    fill(manager)
    assert manager.verb("/cache/memory/cleanup")["ssd_pages"] == 0
    assert tier.stored(manager) == PAGES
    cleared = manager.verb("/cache/clear")
    assert cleared["ssd_pages"] == PAGES
    assert cleared["ssd_bytes"] >= PAGES
    assert tier.stored(manager) == 0
    with Replica(manager.socket, "one") as replica:
        assert replica.restore(KEYS) == 0
    manager.kill()
    again = start()
    assert tier.stored(again) == 0, "cleared pages do not come back after a kill"


def test_the_doctor_looks_at_the_folder(orbitkv_binary: Path, tmp_path: Path) -> None:
    done = run(
        orbitkv_binary,
        "doctor",
        "--json",
        "--ssd-cache-path",
        tmp_path / "ssd",
        "--ssd-cache-capacity",
        "64mib",
        "--pool-size",
        "16mib",
    )
    found = {line["name"]: line for line in json.loads(done.stdout)}
    for name in ("", " space", " direct I/O"):
        line = found[f"SSD {tmp_path / 'ssd'}{name}"]
        assert line["verdict"] in ("good", "note"), line
    assert not (tmp_path / "ssd").exists(), "the doctor makes nothing"


def test_verification_of_a_running_manager_names_each_bad_page(
    start: Start, orbitkv_binary: Path, volume: Volume
) -> None:
    manager = start("--ssd-scrub-rate", "0")
    fill(manager)
    good = verify(manager, orbitkv_binary)
    assert (good.returncode, good.stderr) == (0, "")
    assert f"{PAGES} pages" in good.stdout
    spoilt = volume.spoil()
    assert spoilt > 0
    bad = verify(manager, orbitkv_binary)
    assert bad.returncode == 1
    for key in oracle.split(KEYS):
        assert f"page {key.hex()}" in bad.stdout
    assert bad.stdout.count(": digest") == PAGES
    assert tier.stored(manager) == 0, "a page with other bytes is a miss from then on"
    assert verify(manager, orbitkv_binary).returncode == 0


def test_verification_needs_the_token(start: Start, orbitkv_binary: Path, tmp_path: Path) -> None:
    manager = start()
    other = run(
        orbitkv_binary, "verify", "--ssd", "--socket", tmp_path / "none", "--http-addr", f"127.0.0.1:{manager.port}"
    )
    assert other.returncode == 1
    assert "--admin-token-file" in other.stderr


def test_the_folder_of_a_stopped_manager_is_verified(start: Start, orbitkv_binary: Path, volume: Volume) -> None:
    manager = start()
    fill(manager)
    busy = run(orbitkv_binary, "verify", "--ssd-cache-path", volume.folder)
    assert busy.returncode == 1
    assert "another process has the folder" in busy.stderr
    assert "verify --ssd`" in busy.stderr
    manager.stop()
    good = run(orbitkv_binary, "verify", "--ssd-cache-path", volume.folder)
    assert (good.returncode, good.stderr) == (0, "")
    assert f"{PAGES} pages" in good.stdout
    volume.spoil()
    bad = run(orbitkv_binary, "verify", "--ssd-cache-path", volume.folder)
    assert bad.returncode == 1
    assert bad.stdout.count(": digest") == PAGES
    again = start()
    assert tier.stored(again) == 0
    with Replica(again.socket, "one") as replica:
        assert replica.restore(KEYS) == 0


@pytest.mark.parametrize("loss", ["removed", "overwritten"])
def test_a_lost_index_is_made_anew_from_the_pages(
    start: Start, orbitkv_binary: Path, volume: Volume, loss: str
) -> None:
    manager = start()
    fill(manager)
    manager.stop()
    index = volume.folder / "index"
    if loss == "removed":
        index.unlink()
    else:
        index.write_bytes(b"\xff" * index.stat().st_size)
    done = run(orbitkv_binary, "verify", "--ssd-cache-path", volume.folder, "--rebuild-index")
    assert done.returncode == 0, done.stderr
    assert f"made anew with {PAGES} pages" in done.stdout
    again = start()
    with Replica(again.socket, "one") as replica:
        assert replica.restore(KEYS, expect=PAGES) == PAGES


def test_an_index_that_is_made_anew_brings_back_nothing_that_was_cleared(
    start: Start, orbitkv_binary: Path, volume: Volume
) -> None:
    manager = start()
    fill(manager)
    manager.verb("/cache/clear")
    later = oracle.prefix(2, PAGES)
    fill(manager, later)
    manager.kill()
    (volume.folder / "index").unlink()
    done = run(orbitkv_binary, "verify", "--ssd-cache-path", volume.folder, "--rebuild-index")
    assert done.returncode == 0, done.stderr
    again = start()
    with Replica(again.socket, "one") as replica:
        assert replica.restore(KEYS) == 0
        assert replica.restore(later, expect=PAGES) == PAGES


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--ssd-cache-path", ""], "the path is empty"),
        (["--ssd-cache-path", "/none/such"], "is no folder"),
        (["--ssd", "--ssd-cache-path", "/tmp"], "name one of them"),
        (["--rebuild-index"], "--ssd-cache-path"),
        (["--ssd", "--rate", "fast"], "--rate"),
        (["--ssd-cache-path", "."], "no volume of OrbitKV"),
    ],
)
def test_a_verification_that_makes_no_sense_is_refused(
    orbitkv_binary: Path, tmp_path: Path, arguments: list[str], word: str
) -> None:
    done = run(orbitkv_binary, "verify", *arguments, cwd=tmp_path)
    assert done.returncode == 1
    assert word in done.stderr
    assert list(tmp_path.iterdir()) == []


# Odd machines.


def test_a_failing_disk_degrades_and_requests_go_on(start: Start) -> None:
    manager = start("--ssd-fault-injection", "payload:write-enospc-after=256kb")
    with Replica(manager.socket, "one") as replica:
        for seed in range(10):
            keys = oracle.prefix(seed, PAGES)
            assert replica.publish(keys) == PAGES
            assert replica.restore(keys, expect=PAGES) == PAGES
        eventually(lambda: manager.status()["health"] == "degraded", "the folder takes no writes")
        status = manager.status()
        (reason,) = status["reasons"]
        assert "is read-only" in reason
        assert "no space left" in reason
        assert status["ssd"]["volumes"][0]["state"] == "read_only"
        assert manager.metrics("orbitkv_ssd_volumes")['state="read_only"'] == 1
        assert replica.restore(oracle.prefix(9, PAGES), expect=PAGES) == PAGES
    manager.stop()
    assert start().status()["health"] == "ok", "a restart tries the disk again"


def test_without_io_uring_threads_do_the_io(
    program: Callable[..., ManagerProcess], orbitkv_binary: Path, tmp_path: Path, volume: Volume
) -> None:
    without = confined(orbitkv_binary, tmp_path, ring=False)
    manager = program(without, *volume.options())
    (folder,) = manager.status()["ssd"]["volumes"]
    assert folder["engine"] == "pool"
    assert "EPERM" in folder["engine_reason"]
    fill(manager)
    tier.empty_memory(manager)
    with Replica(manager.socket, "one") as replica:
        assert replica.restore(KEYS, expect=PAGES) == PAGES
    said = refused(
        without,
        tmp_path,
        "--ssd-cache-path",
        tmp_path / "other",
        "--ssd-cache-capacity",
        "64mib",
        "--ssd-backend",
        "uring",
    )
    assert "ask for auto" in said


def test_with_few_descriptors_the_tier_goes_on(
    program: Callable[..., ManagerProcess], orbitkv_binary: Path, tmp_path: Path, volume: Volume
) -> None:
    manager = program(confined(orbitkv_binary, tmp_path, files=48), *volume.options())
    with Replica(manager.socket, "one") as replica, contextlib.ExitStack() as held:
        while not manager.descriptors() >= 48:
            one = held.enter_context(socket.socket(socket.AF_UNIX))
            one.connect(manager.socket)
        assert replica.publish(KEYS) == PAGES
        held.close()
        tier.wait_stored(manager, PAGES)
        tier.empty_memory(manager)
        assert replica.restore(KEYS, expect=PAGES) == PAGES
        assert manager.status()["health"] == "ok"


def test_too_few_descriptors_to_start_say_so(orbitkv_binary: Path, tmp_path: Path, volume: Volume) -> None:
    with pytest.raises(ManagerFailure, match="too many open files"):
        ManagerProcess(confined(orbitkv_binary, tmp_path, files=8), tmp_path / "m", "16mib", *volume.options()).start()


@pytest.fixture
def slow_verification(orbitkv_binary: Path) -> Iterator[Callable[[ManagerProcess], subprocess.Popen[str]]]:
    """Return a function that begins a verification that takes minutes and returns once it runs; the fixture ends it."""
    with contextlib.ExitStack() as ends:

        def begin(manager: ManagerProcess) -> subprocess.Popen[str]:
            where = ("--socket", manager.socket, "--http-addr", f"127.0.0.1:{manager.port}")
            command = [str(orbitkv_binary), "verify", "--ssd", "--rate", "32kib", *where]
            process = ends.enter_context(
                subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            )
            ends.callback(process.kill)
            assert process.stderr is not None
            assert f"of {PAGES} pages" in process.stderr.readline()
            return process

        yield begin


def test_a_manager_that_stops_ends_its_verification(
    start: Start, slow_verification: Callable[[ManagerProcess], subprocess.Popen[str]]
) -> None:
    manager = start()
    fill(manager)
    process = slow_verification(manager)
    manager.stop()
    _, told = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    assert "broke off" in told or "not every page was read" in told


def test_the_end_of_who_asked_ends_a_verification(
    start: Start, orbitkv_binary: Path, slow_verification: Callable[[ManagerProcess], subprocess.Popen[str]]
) -> None:
    manager = start()
    fill(manager)
    process = slow_verification(manager)
    second = verify(manager, orbitkv_binary)
    assert second.returncode == 1
    assert "only one may" in second.stderr
    process.kill()
    eventually(lambda: verify(manager, orbitkv_binary).returncode == 0, "the next verification has its turn")
