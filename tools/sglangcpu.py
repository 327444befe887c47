#!/usr/bin/env python3
"""What SGLang needs to run on a CPU besides its packages: environment variables, a stand-in, its page hash compiled.

SGLang hashes pages with C++ that it compiles when it first looks a prefix up, in the middle of a request, and again in
each place that it is told to compile in. So the hash is compiled when the environment is made, into the environment,
by this file as a program of that environment's Python; engines then find it there.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

STANDINS = Path(__file__).resolve().parent / "standins"
HASH_MODULE = "hicache_hash_cpp"  # The name that SGLang compiles its hash under.


def variables(prefix: Path) -> dict[str, str]:
    """Return what an engine's environment must hold beside PYTHONPATH; `prefix` is the folder of its packages."""
    return {
        "SGLANG_USE_CPU_ENGINE": "1",
        "TRITON_INTERPRET": "1",
        "TORCH_EXTENSIONS_DIR": str(native_folder(prefix)),
        # The compiled hash is checked against its source by ninja, which is one of the packages.
        "PATH": os.pathsep.join((str(prefix / "bin"), os.environ.get("PATH", os.defpath))),
    }


def native_folder(prefix: Path) -> Path:
    """Return the folder of everything that SGLang compiled."""
    return prefix / "native"


def remove_abandoned_lock(prefix: Path) -> bool:
    """Remove the lock of a process that was killed while it loaded the hash; return whether there was one.

    Whoever loads the hash waits for that file to go, without a limit; its maker holds it open, so one that nobody
    holds open has no maker any more.
    """
    lock = native_folder(prefix) / HASH_MODULE / "lock"
    if not lock.exists() or any(held == lock for held in _open_files()):
        return False
    lock.unlink(missing_ok=True)
    return True


def _open_files() -> Iterator[Path]:
    """Yield what this user's processes have open; a process that ends meanwhile is left out."""
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                for link in (process / "fd").iterdir():
                    with contextlib.suppress(OSError):
                        yield link.readlink()


def compile_hash() -> None:
    """Compile the page hash into this Python's environment."""
    prefix = Path(sys.prefix)
    os.environ.update(variables(prefix))
    native_folder(prefix).mkdir(exist_ok=True)
    sys.path.insert(0, str(STANDINS))
    from sglang.srt.mem_cache.cpp_utils.native_hash import get_native_hash

    pages = get_native_hash(list(range(4)), None, 2)
    if len(pages) != 2:
        raise RuntimeError(f"SGLang's compiled page hash gave {len(pages)} hashes for two pages: {pages}")


if __name__ == "__main__":
    compile_hash()
