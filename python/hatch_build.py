"""Put the Go binary into the wheel as the command `orbitkv` and name the wheel by the binary's machine.

One wheel serves every Python 3, since nothing in it is compiled against an interpreter; the platform tag is the
binary's alone. It is read from the binary itself, so that a wheel can never claim another machine than it carries.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# ELF machine number to the platform tags that a static Linux binary satisfies.
TAGS = {
    62: "manylinux_2_17_x86_64.manylinux2014_x86_64",
    183: "manylinux_2_17_aarch64.manylinux2014_aarch64",
}
PROGRAM_HEADER_INTERPRETER = 3


class BinaryHook(BuildHookInterface):  # type: ignore[type-arg,unused-ignore]
    """Adds the binary named by ORBITKV_BINARY, or bin/orbitkv of the checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Check the binary and describe it to the wheel builder. An editable install carries no binary."""
        if version == "editable":
            return
        default = Path(self.root).parent / "bin" / "orbitkv"
        binary = Path(os.environ.get("ORBITKV_BINARY", default)).absolute()
        if not binary.is_file():
            raise RuntimeError(f"no binary at {binary}: run `make build` first, or name one in ORBITKV_BINARY")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{TAGS[static_machine(binary)]}"
        build_data["shared_scripts"][str(binary)] = "orbitkv"


def static_machine(binary: Path) -> int:
    """Return the ELF machine number of a static 64-bit little-endian binary of a known machine; refuse any other."""
    image = binary.read_bytes()
    if image[:6] != b"\x7fELF\x02\x01":
        raise RuntimeError(f"{binary} is no 64-bit little-endian ELF binary: build it with `make build` on Linux")
    machine: int = struct.unpack_from("<H", image, 18)[0]
    if machine not in TAGS:
        raise RuntimeError(f"{binary} is for ELF machine {machine}; wheels are made for amd64 and arm64")
    table, size, count = (struct.unpack_from(f, image, at)[0] for f, at in (("<Q", 32), ("<H", 54), ("<H", 56)))
    kinds = {struct.unpack_from("<I", image, table + size * i)[0] for i in range(count)}
    if PROGRAM_HEADER_INTERPRETER in kinds:
        raise RuntimeError(f"{binary} is dynamically linked: build it with CGO_ENABLED=0 (`make build` does)")
    return machine
