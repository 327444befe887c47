"""The layers of the Python package: who may import whom, read from the source."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import orbitkv

ROOT = Path(orbitkv.__file__).parent
ENGINES = {"vllm": {"vllm", "torch"}, "sglang": {"sglang", "torch"}}
KERNEL = "kernel"  # code for the device, which `orbitkv.transfer` imports by name when a rank needs it
MAY_IMPORT = {**ENGINES, KERNEL: {"torch", "triton"}}
FOREIGN = {"vllm", "sglang", "torch", "triton"}
LOADER = ROOT / "transfer" / "__init__.py"


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


def loaded_by_name(file: Path) -> set[str]:
    """Return the modules of the package that runs on a device which a file names in a text."""
    texts = {node.value for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Constant)}
    return {text for text in texts if isinstance(text, str) and re.fullmatch(r"orbitkv\.kernel(\.\w+)*", text)}


def test_only_the_factory_of_backends_loads_what_runs_on_a_device() -> None:
    loaders = {file for file in ROOT.rglob("*.py") if loaded_by_name(file)}
    assert loaders == {LOADER}


def test_planning_for_a_device_needs_none() -> None:
    script = "import sys, orbitkv.kernel.geometry, orbitkv.kernel.tables; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], env={"PYTHONPATH": str(ROOT.parent)}, check=False)
    assert done.returncode == 0


def test_an_import_of_an_engine_would_be_seen(tmp_path: Path) -> None:
    file = tmp_path / "late.py"
    file.write_text(
        "def f():\n    from orbitkv.vllm.plans import StepPlan\n    import torch\n    return StepPlan, torch\n"
    )
    names = imports_of(file)
    assert own_packages(names) == {"vllm"}
    assert {name.split(".")[0] for name in names} & FOREIGN == {"torch"}
