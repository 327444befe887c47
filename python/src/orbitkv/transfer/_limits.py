"""Which limits of this process may keep host memory from being locked, as text with what to change."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

NO_LIMIT = 1 << 60  # at least this much is no limit: version 1 of control groups writes a huge number for none
# Where the hierarchies of control groups are by convention: version 2, and the memory controller of version 1.
V2_MOUNT, V2_LIMIT = "sys/fs/cgroup", "memory.max"
V1_MOUNT, V1_LIMIT = "sys/fs/cgroup/memory", "memory.limit_in_bytes"


def limits_text(root: Path = Path("/")) -> str:
    """Return sentences about this process's limit of locked memory and its control groups' limit of memory."""
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if soft == resource.RLIM_INFINITY:
        locked = "RLIMIT_MEMLOCK is unlimited."
    else:
        locked = (
            f"RLIMIT_MEMLOCK is {size_text(soft)}: raise it for the engine (`ulimit -l unlimited`, "
            "`LimitMEMLOCK=infinity` in its unit, `--ulimit memlock=-1` for its container)."
        )
    group = group_limit(root)
    if group is None:
        return f"{locked} No control group limits the engine's memory; a smaller `--pool-size` locks less."
    return (
        f"{locked} The engine's control group may use {size_text(group[0])} of memory ({group[1]}): "
        "raise that limit, or lock less with a smaller `--pool-size`."
    )


def group_limit(root: Path = Path("/")) -> tuple[int, Path] | None:
    """Return the smallest memory limit of this process's control groups in bytes with its file, None without one."""
    found = [(limit, path) for path in limit_files(root) if (limit := read_limit(path)) is not None]
    return min(found, default=None)


def limit_files(root: Path) -> Iterator[Path]:
    """Yield the limit's file of this process's groups, from its own to the root; a container hides the outer ones."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, inside = rest.partition(":")
        if "memory" in controllers.split(","):
            mount, name = V1_MOUNT, V1_LIMIT
        elif number == "0" and not controllers:
            mount, name = V2_MOUNT, V2_LIMIT
        else:
            continue
        group = PurePosixPath(inside.lstrip("/"))
        for folder in (group, *group.parents):
            yield root / mount / folder / name


def read_limit(path: Path) -> int | None:
    """Return a limit in bytes, None when the file is missing or names none."""
    try:
        limit = int(path.read_text())
    except (OSError, ValueError):
        return None
    return limit if limit < NO_LIMIT else None


def size_text(size: int) -> str:
    """Return bytes for people: 64 KiB, 8.0 GiB."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size >> 10} KiB"
