"""A scripted peer: the Manager's end of a connection, frame by frame as a test says."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from orbitkv import _wire
from orbitkv.client import CacheManagerClient

DEADLINE = 60.0


class Peer:
    """The Manager's end of one connection, driven by the test."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(DEADLINE)
        self.socket = connection

    def take(self) -> tuple[int, _wire.Message]:
        """Return the next frame's request id and message."""
        head = self._exactly(_wire.HEADER_BYTES)
        return _wire.decode(head + self._exactly(_wire.frame_bytes(head) - len(head)))

    def expect(self, kind: type) -> tuple[int, _wire.Message]:
        """Return the next frame, which must be of a kind."""
        request, message = self.take()
        assert isinstance(message, kind), message
        return request, message

    def put(self, message: _wire.Message, request: int = 0) -> None:
        """Send a frame; request zero makes it a push."""
        self.socket.sendall(_wire.encode(message, request))

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            assert more, "the client closed"
            data += more
        return data


class Script(threading.Thread):
    """A listening peer that says welcome and then runs a script in its own thread."""

    def __init__(self, path: Path, script: Callable[[Peer], None]) -> None:
        super().__init__(daemon=True)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()
        self.script = script
        self.fault: BaseException | None = None

    def run(self) -> None:
        """Serve one connection."""
        with self.listener, contextlib.closing(self.listener.accept()[0]) as connection:
            peer = Peer(connection)
            try:
                request, _ = peer.expect(_wire.Hello)
                peer.put(_wire.Welcome(5, b"i" * 16, b"t" * 16, 65536, 65536, 128, 1 << 30), request)
                self.script(peer)
            except (AssertionError, OSError) as fault:
                self.fault = fault

    def end(self) -> None:
        """Wait for the script's end and raise what it raised."""
        self.join(DEADLINE)
        assert not self.is_alive()
        if self.fault is not None:
            raise self.fault


@contextlib.contextmanager
def scripted(path: Path, script: Callable[[Peer], None], **options: object) -> Iterator[CacheManagerClient]:
    """Yield a client of a scripted peer; the script must have come to its end when the block ends."""
    thread = Script(path / "s", script)
    thread.start()
    with CacheManagerClient(str(path / "s"), **options) as client:  # type: ignore[arg-type]
        yield client
        thread.join(DEADLINE)
    thread.end()
