"""The layers of the Python package: who may import whom, read from the source."""

from __future__ import annotations

import ast
from pathlib import Path

import orbitkv

ROOT = Path(orbitkv.__file__).parent
ENGINES = {"vllm": {"vllm", "torch"}, "sglang": {"sglang", "torch"}}
KERNEL = "kernel"  # code for the device, which `orbitkv.transfer` imports by name when a rank needs it
MAY_IMPORT = {**ENGINES, KERNEL: {"torch", "triton"}}
FOREIGN = {"vllm", "sglang", "torch", "triton"}


def imports_of(file: Path) -> set[str]:
    """Return the full names of the modules that a file imports, inside functions too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def own_packages(names: set[str]) -> set[str]:
    """Return the packages of the product that are imported."""
    parts = [name.split(".") for name in names]
    return {each[1] for each in parts if each[0] == "orbitkv" and len(each) > 1}


def test_each_layer_imports_only_what_is_below_it() -> None:
    for file in sorted(ROOT.rglob("*.py")):
        layer = file.relative_to(ROOT).parts[0] if file.parent != ROOT else ""
        names = imports_of(file)
        roots = {name.split(".")[0] for name in names}
        assert roots & FOREIGN <= MAY_IMPORT.get(layer, set()), f"{file} imports {roots & FOREIGN}"
        above = {KERNEL} - {layer} if layer in ENGINES else {"adapter", KERNEL} - {layer}
        forbidden = (set(ENGINES) - {layer}) | above
        assert not own_packages(names) & forbidden, f"{file} imports {own_packages(names) & forbidden}"


def test_an_import_of_an_engine_would_be_seen(tmp_path: Path) -> None:
    file = tmp_path / "late.py"
    file.write_text(
        "def f():\n    from orbitkv.vllm.plans import StepPlan\n    import torch\n    return StepPlan, torch\n"
    )
    names = imports_of(file)
    assert own_packages(names) == {"vllm"}
    assert {name.split(".")[0] for name in names} & FOREIGN == {"torch"}
