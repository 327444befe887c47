"""The node of a process and of a device, read from a fake tree of sysfs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from orbitkv._numa import NO_NODE, node_of_cpus, node_of_device, node_of_process

TWO_NODES = {"node0": "0-3,8-11\n", "node1": "4-7,12-15\n"}


def tree(root: Path, nodes: dict[str, str]) -> Path:
    """Write what the kernel shows; `online` and `power` are there too."""
    (root / "online").write_text("0-1\n")
    (root / "power").mkdir()
    for name, cpus in nodes.items():
        (root / name).mkdir()
        (root / name / "cpulist").write_text(cpus)
    return root


@pytest.mark.parametrize(
    ("cpus", "node"),
    [
        ([0], 0),
        ([3, 8, 11], 0),
        ([4, 15], 1),
        ([3, 4], NO_NODE),
        (range(16), NO_NODE),
        ([16], NO_NODE),
        ([], NO_NODE),
    ],
)
def test_only_processors_of_one_node_name_it(tmp_path: Path, cpus: Iterable[int], node: int) -> None:
    assert node_of_cpus(cpus, tree(tmp_path, TWO_NODES)) == node


def test_a_node_without_processors_and_numbers_with_gaps_are_read(tmp_path: Path) -> None:
    nodes = tree(tmp_path, {"node0": "\n", "node2": "0-1", "node10": "2"})
    assert [node_of_cpus([cpu], nodes) for cpu in (0, 1, 2)] == [2, 2, 10]


def test_a_kernel_that_does_not_tell_names_no_node(tmp_path: Path) -> None:
    assert node_of_cpus([0], tmp_path / "absent") == NO_NODE
    (tmp_path / "node0").mkdir()
    assert node_of_cpus([0], tmp_path) == NO_NODE, "a node without a list of its processors"


def test_the_process_counts_by_its_affinity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5, 6})
    assert node_of_process(tree(tmp_path, TWO_NODES)) == 1


@pytest.mark.parametrize(
    ("text", "node"), [("0\n", 0), ("3\n", 3), ("-1\n", NO_NODE), ("\n", NO_NODE), ("-7\n", NO_NODE)]
)
def test_a_device_names_its_node_or_none(tmp_path: Path, text: str, node: int) -> None:
    folder = tmp_path / "0000:1b:00.0"
    folder.mkdir()
    (folder / "numa_node").write_text(text)
    assert node_of_device("0000:1b:00.0", tmp_path) == node
    assert node_of_device("0000:2a:00.0", tmp_path) == NO_NODE
