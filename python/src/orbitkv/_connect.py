"""Where the Cache Manager's socket is looked for, and the connection to it.

The order is that of `orbitkv serve`: a named path, then ORBITKV_SOCKET, then the user's runtime folder, then /run. A
path that somebody named is the only one tried, since another Manager would be a surprise.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
from pathlib import Path

from orbitkv.errors import ManagerUnavailable

VARIABLE = "ORBITKV_SOCKET"
SYSTEM_PATH = "/run/orbitkv/orbitkv.sock"
CREDENTIALS = struct.Struct("=iII")  # struct ucred: process, user, group


def socket_paths(named: str | None) -> list[str]:
    """Return the paths to try, in order."""
    chosen = named or os.environ.get(VARIABLE)
    if chosen:
        return [chosen]
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    own = [str(Path(runtime) / "orbitkv" / "orbitkv.sock")] if runtime else []
    return [*own, SYSTEM_PATH]


def connect(named: str | None) -> tuple[socket.socket, str]:
    """Return a connected socket and its path without ever blocking. ManagerUnavailable lists every path tried."""
    tried: list[tuple[str, str]] = []
    for path in socket_paths(named):
        try:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as fault:
            tried.append((path, reason_of(path, fault)))
            continue
        connection.setblocking(False)
        try:
            connection.connect(path)
        except OSError as fault:
            reason = reason_of(path, fault)
        else:
            # Whoever listens there gives bytes that the engine computes with, so it must be the same user.
            _, user, _ = CREDENTIALS.unpack(
                connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
            )
            if user == os.geteuid():
                return connection, path
            reason = f"its Manager runs as user {user} and this process as user {os.geteuid()}: they must be one"
        connection.close()
        tried.append((path, reason))
    raise ManagerUnavailable(tried)


def reason_of(path: str, fault: OSError) -> str:
    """Return why a path did not connect, in words that name the remedy."""
    if fault.errno == errno.ENOENT:
        return "no such file"
    if fault.errno == errno.ECONNREFUSED:
        kind = "a socket that nobody listens on" if stat.S_ISSOCK(mode_of(path)) else "not a socket"
        return f"{kind}: its Manager is gone"
    if fault.errno == errno.EAGAIN:
        return "its Manager accepts no connections: is it stopped?"
    if fault.errno in (errno.EACCES, errno.EPERM):
        return "permission denied: the engine and the Manager must run as one user"
    return os.strerror(fault.errno) if fault.errno else str(fault)


def mode_of(path: str) -> int:
    """Return the file's mode, zero when it has gone."""
    try:
        return Path(path).stat().st_mode
    except OSError:
        return 0
