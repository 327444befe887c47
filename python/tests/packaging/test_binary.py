"""The build hook takes the wheel's machine from the binary, and no binary that would not run elsewhere."""

from __future__ import annotations

import importlib.util
import struct
import sys
from pathlib import Path
from types import ModuleType

import pytest

X86_64, AARCH64, RISCV = 62, 183, 243
LOAD, INTERPRETER = 1, 3


@pytest.fixture(scope="module")
def hook(repository: Path) -> ModuleType:
    """Return the hook's module, which lies outside of the package."""
    spec = importlib.util.spec_from_file_location("hatch_build", repository / "python/hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def elf(machine: int, *segments: int) -> bytes:
    """Return the headers of a 64-bit little-endian ELF binary with these kinds of segments."""
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = struct.pack("<HHIQQQIHHHHHH", 2, machine, 1, 0, 64, 0, 0, 64, 56, len(segments), 0, 0, 0)
    return ident + header + b"".join(struct.pack("<I", kind) + bytes(52) for kind in segments)


def written(folder: Path, image: bytes) -> Path:
    """Return a file with the image."""
    path = folder / "orbitkv"
    path.write_bytes(image)
    return path


@pytest.mark.parametrize("machine", [X86_64, AARCH64])
def test_static_binary_names_its_machine(hook: ModuleType, tmp_path: Path, machine: int) -> None:
    assert hook.static_machine(written(tmp_path, elf(machine, LOAD, LOAD))) == machine
    assert machine in hook.TAGS


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (elf(X86_64, LOAD, INTERPRETER), "dynamically linked"),
        (elf(RISCV, LOAD), "ELF machine 243"),
        (b"#!/bin/sh\n", "no 64-bit little-endian ELF"),
    ],
)
def test_other_binaries_are_refused(hook: ModuleType, tmp_path: Path, image: bytes, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        hook.static_machine(written(tmp_path, image))


@pytest.mark.skipif(sys.platform != "linux", reason="the interpreter of a Linux machine is an ELF binary")
def test_the_interpreter_is_seen_to_be_dynamic(hook: ModuleType) -> None:
    with pytest.raises(RuntimeError, match="dynamically linked"):
        hook.static_machine(Path(sys.executable).resolve())
