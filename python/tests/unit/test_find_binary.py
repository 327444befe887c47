"""The search for the executable: the order, what counts as one, and the list of places when there is none."""

from __future__ import annotations

import shutil
import sys
import sysconfig
from pathlib import Path

import pytest

from orbitkv import _bin
from orbitkv.errors import BinaryNotFound


def executable(path: Path, image: bytes = b"\x7fELF") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(image)
    path.chmod(0o755)
    return path


def test_a_named_binary_is_the_only_one_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORBITKV_BINARY", str(executable(tmp_path / "x")))
    assert _bin.find_binary() == tmp_path / "x"
    monkeypatch.setenv("ORBITKV_BINARY", str(tmp_path / "absent"))
    with pytest.raises(BinaryNotFound) as caught:
        _bin.find_binary()
    assert len(caught.value.looked_at) == 1


def test_every_place_is_named_when_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ORBITKV_BINARY", raising=False)
    places = [tmp_path / "a", tmp_path / "b"]
    monkeypatch.setattr(_bin, "candidates", lambda: iter(places))
    executable(places[0], b"#!/usr/bin/env python3")
    with pytest.raises(BinaryNotFound, match="make build") as caught:
        _bin.find_binary()
    assert caught.value.looked_at == tuple(map(str, places))
    executable(places[1])
    assert _bin.find_binary() == places[1]


def test_the_environment_comes_before_the_checkout_and_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: "/somewhere/orbitkv")
    places = list(_bin.candidates())
    assert places[0] == Path(sysconfig.get_path("scripts")) / "orbitkv"
    assert places[1] == Path(sys.prefix) / "bin" / "orbitkv"
    assert places[-2] == Path(__file__).resolve().parents[3] / "bin" / "orbitkv"
    assert places[-1] == Path("/somewhere/orbitkv")
