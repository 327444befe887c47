"""What an engine's limits of locked memory and of memory are, read from a fake tree, and the text about them."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from orbitkv.transfer._limits import group_limit, limits_text, size_text


def tree(root: Path, membership: str, files: dict[str, str]) -> Path:
    for name, text in {"proc/self/cgroup": membership, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("membership", "files", "limit", "where"),
    [
        ("0::/a/b\n", {"sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/memory.max": "4096\n"}, 4096, "a"),
        ("0::/a/b\n", {"sys/fs/cgroup/a/b/memory.max": "512\n", "sys/fs/cgroup/a/memory.max": "4096\n"}, 512, "a/b"),
        ("0::/\n", {"sys/fs/cgroup/memory.max": "8192\n"}, 8192, ""),
        ("0::/hidden/group\n", {"sys/fs/cgroup/memory.max": "8192\n"}, 8192, ""),
        ("5:cpu,memory:/x\n0::/\n", {"sys/fs/cgroup/memory/x/memory.limit_in_bytes": "77\n"}, 77, "memory/x"),
    ],
)
def test_the_smallest_limit_on_the_way_up_counts(
    tmp_path: Path, membership: str, files: dict[str, str], limit: int, where: str
) -> None:
    found = group_limit(tree(tmp_path, membership, files))
    assert found is not None
    assert (found[0], found[1].parent) == (limit, tmp_path / "sys/fs/cgroup" / where)


@pytest.mark.parametrize(
    ("membership", "files"),
    [
        ("0::/a\n", {"sys/fs/cgroup/a/memory.max": "max\n"}),
        ("4:memory:/x\n", {"sys/fs/cgroup/memory/x/memory.limit_in_bytes": "9223372036854771712\n"}),
        ("no line of this kind\n4:cpu:/x\n", {"sys/fs/cgroup/x/memory.max": "1\n"}),
    ],
)
def test_no_limit_is_named_where_there_is_none(tmp_path: Path, membership: str, files: dict[str, str]) -> None:
    assert group_limit(tree(tmp_path, membership, files)) is None
    assert group_limit(tmp_path / "absent") is None


def test_the_text_gives_each_limit_with_its_value_and_what_to_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tree(tmp_path, "0::/a\n", {"sys/fs/cgroup/a/memory.max": str(3 << 30)})
    monkeypatch.setattr(resource, "getrlimit", lambda _: (8 << 20, 8 << 20))
    assert limits_text(root) == (
        "RLIMIT_MEMLOCK is 8.0 MiB: raise it for the engine (`ulimit -l unlimited`, `LimitMEMLOCK=infinity` in its "
        "unit, `--ulimit memlock=-1` for its container). The engine's control group may use 3.0 GiB of memory "
        f"({root}/sys/fs/cgroup/a/memory.max): raise that limit, or lock less with a smaller `--pool-size`."
    )
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert limits_text(tmp_path / "absent") == (
        "RLIMIT_MEMLOCK is unlimited. No control group limits the engine's memory; a smaller `--pool-size` locks less."
    )


def test_sizes_are_written_for_people() -> None:
    assert [size_text(size) for size in (0, 65536, 8 << 20, 3 << 29)] == ["0 KiB", "64 KiB", "8.0 MiB", "1.5 GiB"]
