"""Which NUMA node a process computes on and a device is next to, as the kernel's sysfs tells it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

SYSFS = Path("/sys/devices/system/node")
PCI = Path("/sys/bus/pci/devices")
NO_NODE = -1
NODE = re.compile(r"node(\d{1,4})")
RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def node_of_process(root: Path = SYSFS) -> int:
    """Return the node of the calling thread's processors; see `node_of_cpus`."""
    return node_of_cpus(os.sched_getaffinity(0), root)


def node_of_cpus(cpus: Iterable[int], root: Path = SYSFS) -> int:
    """Return the node that all of these processors belong to, or NO_NODE when they are on several or nobody tells."""
    wanted = set(cpus)
    try:
        nodes = [(int(match[1]), path) for path in root.iterdir() if (match := NODE.fullmatch(path.name))]
        for number, path in sorted(nodes):
            if wanted and wanted <= cpu_list((path / "cpulist").read_text()):
                return number
    except (OSError, UnicodeDecodeError):
        return NO_NODE
    return NO_NODE


def node_of_device(bus_id: str, root: Path = PCI) -> int:
    """Return the node that a PCI device (0000:1b:00.0) is next to, or NO_NODE when the machine does not say."""
    try:
        node = int((root / bus_id / "numa_node").read_text())
    except (OSError, ValueError):
        return NO_NODE
    return max(node, NO_NODE)


def cpu_list(text: str) -> set[int]:
    """Return the numbers of the kernel's form "0-3,8"; what is no number is left out."""
    cpus: set[int] = set()
    for item in text.split(","):
        if match := RANGE.fullmatch(item.strip()):
            cpus.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return cpus
