"""Programs with less than the machine offers: without io_uring, with few descriptors, or held to the modes of files."""

from __future__ import annotations

import sys
from pathlib import Path

# The script confines itself and becomes the program: limits and filters are inherited by what is executed.
SCRIPT = """#!{python}
import ctypes
import os
import resource
import struct
import sys

LOAD_NUMBER, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06  # of classic BPF, words and constants
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | 1  # SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO with EPERM
IO_URING_SETUP = 425  # on every machine
NO_NEW_PRIVILEGES, SET_SECCOMP, FILTER = 38, 22, 2
DROP_FROM_BOUNDING_SET, OVERRIDE_MODES, OVERRIDE_READING = 24, 1, 2

files, ring, modes = {files}, {ring}, {modes}
libc = ctypes.CDLL(None, use_errno=True)
if files:
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
if not ring:
    program = (
        (LOAD_NUMBER, 0, 0, 0),
        (JUMP_IF_EQUAL, 0, 1, IO_URING_SETUP),
        (RETURN, 0, 0, REFUSE),
        (RETURN, 0, 0, ALLOW),
    )
    steps = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in program))
    about = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(steps)))
    if libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) or libc.prctl(SET_SECCOMP, FILTER, about, 0, 0):
        sys.exit(os.strerror(ctypes.get_errno()))
if modes and os.geteuid() == 0:
    for capability in (OVERRIDE_MODES, OVERRIDE_READING):
        if libc.prctl(DROP_FROM_BOUNDING_SET, capability, 0, 0, 0):
            sys.exit(os.strerror(ctypes.get_errno()))
os.execv({binary!r}, [{binary!r}, *sys.argv[1:]])
"""


def confined(binary: Path, folder: Path, *, files: int = 0, ring: bool = True, modes: bool = False) -> Path:
    """Return a program in `folder` that is `binary` with less.

    It has at most `files` descriptors (0: no limit of ours) and io_uring only with `ring`. With `modes` root is held
    to the modes of files as every user is.
    """
    program = folder / f"confined-{files}-{ring}-{modes}"
    script = SCRIPT.format(python=sys.executable, binary=str(binary), files=files, ring=ring, modes=modes)
    program.write_text(script, encoding="utf-8")
    program.chmod(0o755)
    return program
