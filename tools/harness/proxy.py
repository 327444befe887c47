"""A Unix socket in front of the Manager's that hands every reply on late, by delays that a seed gives.

It passes descriptors on as well, and it runs in the client's process, so that the Manager sees the client's own
credentials. Frames keep their order, as in any stream.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
import time
from pathlib import Path

CHUNK_BYTES = 1 << 16
DESCRIPTORS_MAX = 64  # of one read
BACKLOG = 16


class DelayProxy:
    """Listens at `path`. Each read of what the Manager sent is handed on after 0 to `most_s` seconds."""

    def __init__(self, path: Path, manager: str, seed: int, most_s: float) -> None:
        self.path = str(path)
        self._manager = manager
        self._most_s = most_s
        self._order = random.Random(seed)
        self._lock = threading.Lock()
        self._ends: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen(BACKLOG)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections and break those that there are."""
        with self._lock:
            ends, self._ends = [self._listener, *self._ends], []
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            manager = socket.socket(socket.AF_UNIX)
            try:
                manager.connect(self._manager)
            except OSError:
                client.close()
                manager.close()
                continue
            with self._lock:
                self._ends += [client, manager]
            for source, target, late in ((client, manager, False), (manager, client, True)):
                threading.Thread(target=self._pass_on, args=(source, target, late), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, late: bool) -> None:
        """Copy one direction until either end closes."""
        with contextlib.suppress(OSError):
            while True:
                data, descriptors, _, _ = socket.recv_fds(source, CHUNK_BYTES, DESCRIPTORS_MAX)
                try:
                    if not data:
                        break
                    if late:
                        with self._lock:
                            delay = self._order.random() * self._most_s
                        time.sleep(delay)
                    sent = socket.send_fds(target, [data], descriptors)
                    target.sendall(data[sent:])
                finally:
                    for descriptor in descriptors:
                        os.close(descriptor)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
