"""The SSD tier on file systems of its own: a full one, an overlay, and one that turns read-only while it serves."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness import oracle
from harness import ssd as tier
from harness.manager import ManagerFailure, ManagerProcess, eventually
from harness.replica import Replica
from harness.ssd import Volume

Start = Callable[..., ManagerProcess]
PAGES = 20
KEYS = oracle.prefix(1, PAGES)
DISK_BYTES = 400 << 20


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Return a function that mounts something and returns where, as long as the test runs; skips where nobody may."""
    with ExitStack() as undo:

        def mount(*arguments: object) -> Path:
            point = tmp_path / "mounted"
            point.mkdir()
            command = ["mount", *map(str, arguments), str(point)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                pytest.skip(f"needs a process that may mount: {done.stderr.strip()}")
            undo.callback(subprocess.run, ["umount", str(point)], check=True)
            return point

        yield mount


@pytest.fixture
def start(mounted: Callable[..., Path], start_manager: Start) -> Start:
    """Return the function that starts Managers; they end before what is mounted goes away."""
    del mounted
    return start_manager


@pytest.fixture
def disk(mounted: Callable[..., Path], tmp_path: Path) -> Path:
    """Return the mount point of an ext4 of 400 MiB in a file, which turns read-only at an error of its own."""
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(DISK_BYTES)
    try:
        subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("needs mkfs.ext4")
    return mounted("-o", "loop,errors=remount-ro", image)


@pytest.fixture
def overlay(mounted: Callable[..., Path], tmp_path: Path) -> Path:
    """Return the mount point of an overlay, as a container's own layer is one."""
    for folder in ("lower", "upper", "work"):
        (tmp_path / folder).mkdir()
    layers = f"lowerdir={tmp_path / 'lower'},upperdir={tmp_path / 'upper'},workdir={tmp_path / 'work'}"
    return mounted("-t", "overlay", "overlay", "-o", layers)


@pytest.mark.parametrize("where", ["disk", "overlay"])
def test_pages_come_back_and_outlive_the_manager(
    request: pytest.FixtureRequest, start: Start, orbitkv_binary: Path, where: str
) -> None:
    volume = Volume(request.getfixturevalue(where) / "ssd")
    first = start("64mib", *volume.options())
    with Replica(first.socket, "one") as replica:
        tier.wait_stored(first, replica.publish(KEYS))
        tier.empty_memory(first)
        assert replica.restore(KEYS, expect=PAGES) == PAGES
    first.stop()
    command = [str(orbitkv_binary), "doctor", "--json", "--ssd-cache-path", str(volume.folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={"PATH": os.environ["PATH"]})
    lines = {line["name"]: line for line in json.loads(done.stdout)}
    assert {"disk": "ext4", "overlay": "overlay"}[where] in lines[f"SSD {volume.folder}"]["found"]
    assert lines[f"SSD {volume.folder} direct I/O"]["verdict"] == "good"
    second = start("64mib", *volume.options())
    with Replica(second.socket, "one") as replica:
        assert replica.restore(KEYS, expect=PAGES) == PAGES


def test_a_disk_with_less_room_than_the_capacity_is_refused(start: Start, disk: Path) -> None:
    with pytest.raises(ManagerFailure, match="lower the capacity or make room"):
        start("64mib", *Volume(disk / "ssd").options(capacity="1gib"))
    volume = Volume(disk / "ssd")
    manager = start("64mib", *volume.options())
    assert manager.status()["health"] == "ok", "what was refused leaves nothing that stops the next start"


def test_a_disk_that_turns_read_only_degrades_and_requests_go_on(start: Start, disk: Path) -> None:
    manager = start("64mib", *Volume(disk / "ssd").options())
    with Replica(manager.socket, "one") as replica:
        tier.wait_stored(manager, replica.publish(KEYS))
        fail(disk)
        for seed in range(2, 12):
            keys = oracle.prefix(seed, PAGES)
            assert replica.publish(keys) == PAGES
            assert replica.restore(keys, expect=PAGES) == PAGES
        eventually(lambda: manager.status()["health"] == "degraded", "the folder takes no writes")
        (folder,) = manager.status()["ssd"]["volumes"]
        assert folder["state"] == "read_only"
        assert "read-only file system" in folder["reason"]
        tier.empty_memory(manager)
        assert replica.restore(KEYS, expect=PAGES) == PAGES, "what was stored is read"
        assert replica.restore(oracle.prefix(11, PAGES)) == 0, "what came later is not stored"


def fail(disk: Path) -> None:
    """Let the file system find an error of its own: it turns read-only, as after a fault of its disk."""
    for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines():
        device, point, *_ = line.split()
        if point == str(disk):
            trigger = Path("/sys/fs/ext4") / Path(device).name / "trigger_fs_error"
            trigger.write_text("orbitkv test", encoding="ascii")
            return
    raise AssertionError(f"{disk} is not mounted")
