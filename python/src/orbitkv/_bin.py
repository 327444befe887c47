"""Finds the `orbitkv` executable that the wheel installs beside Python's own scripts."""

from __future__ import annotations

import os
import shutil
import site
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from orbitkv.errors import BinaryNotFound

NAME = "orbitkv"
OVERRIDE = "ORBITKV_BINARY"


def find_binary() -> Path:
    """Return the executable; BinaryNotFound lists every place looked at."""
    named = os.environ.get(OVERRIDE)
    if named:
        if is_binary(Path(named)):
            return Path(named)
        raise BinaryNotFound([f"{named} (named by {OVERRIDE})"])
    places = list(dict.fromkeys(candidates()))
    for place in places:
        if is_binary(place):
            return place
    raise BinaryNotFound([str(place) for place in places])


def candidates() -> Iterator[Path]:
    """Yield the places in order: this environment, the user's scheme, a --target folder, a checkout, PATH."""
    yield Path(sysconfig.get_path("scripts")) / NAME
    yield Path(sys.prefix) / "bin" / NAME
    if site.ENABLE_USER_SITE:
        yield Path(sysconfig.get_path("scripts", f"{os.name}_user")) / NAME
    package = Path(__file__).resolve().parent
    yield package.parent / "bin" / NAME
    yield package.parents[2] / "bin" / NAME
    on_path = shutil.which(NAME)
    if on_path:
        yield Path(on_path)


def is_binary(place: Path) -> bool:
    """Return whether the place is an executable ELF file: a Python script of that name would call itself."""
    if not (place.is_file() and os.access(place, os.X_OK)):
        return False
    with place.open("rb") as image:
        return image.read(4) == b"\x7fELF"
