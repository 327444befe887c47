"""`python -m orbitkv ...` is `orbitkv ...`: the process becomes the packaged executable."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from orbitkv._bin import find_binary
from orbitkv.errors import BinaryNotFound


def main() -> NoReturn:
    """Replace this process by the executable; exit with the places looked at when there is none."""
    try:
        binary = str(find_binary())
    except BinaryNotFound as fault:
        sys.exit(f"orbitkv: {fault}")
    os.execv(binary, [binary, *sys.argv[1:]])


if __name__ == "__main__":
    main()
