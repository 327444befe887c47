"""The wheel that `make wheel` left in dist/: one for every Python, with the binary as a command."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def wheel(repository: Path) -> Path:
    """Return the only wheel."""
    wheels = list((repository / "dist").glob("*.whl"))
    assert len(wheels) == 1, f"run `make wheel` first; dist/ holds {wheels}"
    return wheels[0]


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a fresh environment with the wheel alone; its dependencies are this environment's, by path."""
    folder = tmp_path_factory.mktemp("wheel") / "environment"
    venv.create(folder, with_pip=True)
    install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--no-deps", "--no-index", "--quiet"]
    subprocess.run([*install, str(wheel)], check=True)
    return folder


def test_name_promises_every_python_and_this_machine(wheel: Path) -> None:
    machine = platform.machine()
    assert wheel.name.endswith(f"-py3-none-manylinux_2_17_{machine}.manylinux2014_{machine}.whl")


def test_holds_the_package_its_types_and_one_command(wheel: Path, repository: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    sources = {str(path.relative_to(repository / "python/src")) for path in (repository / "python/src").rglob("*.py")}
    assert sources <= set(names)
    assert "orbitkv/py.typed" in names
    assert [name for name in names if ".data/" in name] == [f"orbitkv-{version(repository)}.data/scripts/orbitkv"]
    assert not [name for name in names if name.startswith(("tests", "harness"))]


def test_requires_numpy_alone(wheel: Path, repository: Path) -> None:
    metadata = zipfile.ZipFile(wheel).read(f"orbitkv-{version(repository)}.dist-info/METADATA").decode()
    required = [line.split(": ")[1] for line in metadata.splitlines() if line.startswith("Requires-Dist")]
    assert [name.partition(">")[0] for name in required] == ["numpy"]


def test_sglang_finds_the_plugin(installed: Path, repository: Path) -> None:
    code = "from importlib.metadata import entry_points as e; print([p.value for p in e(group='sglang.srt.plugins')])"
    done = subprocess.run([str(installed / "bin/python"), "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['orbitkv.sglang.plugin:register']"
    module, _, name = "orbitkv.sglang.plugin:register".partition(":")
    source = (repository / "python/src" / f"{module.replace('.', '/')}.py").read_text()
    assert f"def {name}() -> None:" in source, "what the wheel names is in the package"


def test_command_runs_and_says_the_version(installed: Path, repository: Path) -> None:
    done = subprocess.run([str(installed / "bin" / "orbitkv"), "version"], capture_output=True, text=True, check=True)
    assert version(repository) in done.stdout


def test_module_finds_the_command_of_its_own_environment(installed: Path, repository: Path) -> None:
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": os.pathsep.join(dependencies())}
    command = [str(installed / "bin" / "python"), "-m", "orbitkv", "version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert version(repository) in done.stdout


def dependencies() -> list[str]:
    """Return the folders that this interpreter finds numpy in."""
    return [path for path in sys.path if path.endswith("site-packages")]


def version(repository: Path) -> str:
    """Return the version that the source states."""
    text = (repository / "python/src/orbitkv/__init__.py").read_text()
    return text.partition('__version__ = "')[2].partition('"')[0]
