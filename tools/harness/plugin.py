"""The checkout's package as an engine finds an installed one, by its metadata: SGLang looks plugins up by entry point.

The entry points are those of python/pyproject.toml, so a test runs what the wheel would bring. `gated` offers one more,
which puts the tests' gate into the engine's copying threads.
"""

from __future__ import annotations

import configparser
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from harness.server import SOURCE

PROJECT = SOURCE.parent / "pyproject.toml"
FOLDER = SOURCE.parents[1] / "build" / "installed"
GATE_FOLDER = FOLDER.with_name("installed-gate")


def installed(folder: Path = FOLDER) -> Path:
    """Return a folder for PYTHONPATH that holds the metadata of the package, made anew by each caller."""
    import tomllib  # of Python 3.11, which every engine's environment has

    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    return _offer(folder, project["name"], project["entry-points"])


def gated(folder: Path = GATE_FOLDER) -> Path:
    """Return a folder for PYTHONPATH that holds the metadata of the tests' gate."""
    return _offer(folder, "orbitkv_gate", {"sglang.srt.plugins": {"gate": "harness.gate:put_into_copies"}})


def _offer(folder: Path, name: str, entry_points: Mapping[str, Mapping[str, str]]) -> Path:
    """Write the metadata of a package with these entry points; return the folder.

    A name may hold no hyphen: what stands before it in the folder's name tells packages from one another.
    """
    table = configparser.ConfigParser()
    table.read_dict(entry_points)
    folder.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(dir=folder))
    try:
        (building / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0\n")
        with (building / "entry_points.txt").open("w", encoding="utf-8") as out:
            table.write(out)
        _replace(building, folder / f"{name}-0.dist-info")
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return folder


def _replace(building: Path, place: Path) -> None:
    """Put the files where engines look, each whole at any moment: another engine may be starting."""
    place.mkdir(exist_ok=True)
    for path in building.iterdir():
        path.rename(place / path.name)
