"""The channel to the Cache Manager: one Unix stream socket, many callers.

Reading: whoever waits for an answer reads the socket itself, so that no answer passes through another thread. At most
one thread has the *reader role* at a time. A waiter that finds it taken sleeps until its own answer was read or the
role is offered to it. The channel's own thread takes the role only while nobody waits; it is disarmed (not woken) when
a waiter takes it.

Writing never blocks: what the socket's buffer does not take goes to a bounded queue that is flushed by whoever waits
and by the channel's own thread. A call or a begin that would pass the bound raises ChannelFull and nothing is sent. A
terminal report may use a second span of the same size, since losing one would leak bytes at the Manager; a peer that
reads nothing for that long ends the channel.

Locks: `_lock` guards everything but the receive buffer, which belongs to the holder of the reader role. Pushes and
answer hooks are called by that holder without `_lock`. Nothing is called under `_lock` but the socket calls.
"""

from __future__ import annotations

import itertools
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from orbitkv import _syscalls, _wire
from orbitkv._reply import Message, Reply
from orbitkv.errors import CallTimeout, ChannelClosed, ChannelFull, ProtocolError, Refused

PENDING_MAX = 1024  # calls without an answer
QUEUE_BYTES_MAX = 8 << 20  # unsent bytes past which calls are refused; reports have as much again
QUEUE_CHUNK_BYTES = 128 << 10  # pieces in which unsent bytes are kept
RECEIVE_BYTES = 4 * _wire.FRAME_BYTES_MAX
SPIN_SECONDS = 200e-6  # how long a waiter looks at the socket before it sleeps: most answers come within it
DESCRIPTORS_MAX = 256  # received descriptors whose frames have not been read

Push = Callable[[Message, int | None], None]  # a message and, for an arena, the descriptor, which the callee owns


class Channel:
    """See the module's text. Thread-safe. It owns the socket from the start."""

    def __init__(self, connection: socket.socket, on_push: Push, on_full: Callable[[], None] | None = None) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._descriptor = connection.fileno()
        self._owner = os.getpid()
        self._on_push = on_push
        self._lock = threading.Lock()
        self._ids = itertools.count(1)
        self._pending: dict[int, Reply] = {}
        self._waiting: dict[Reply, None] = {}
        self._reading = False
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._closed: str | None = None
        self._receiver = _syscalls.Receiver(self._descriptor, RECEIVE_BYTES)
        self._descriptors: deque[int] = deque()
        self._poll = select.poll()
        self._epoll = select.epoll()
        self._epoll.register(self._descriptor, select.EPOLLIN | select.EPOLLONESHOT)
        self._spin = SPIN_SECONDS if len(os.sched_getaffinity(0)) > 1 else 0.0
        self.farewell: Refused | None = None  # why the Manager closed the session, when it said so
        self.refused_full = 0  # messages refused at a bound
        self._on_full = on_full
        self._thread = threading.Thread(target=self._run, name="orbitkv-channel", daemon=True)
        self._thread.start()

    @property
    def closed(self) -> str | None:
        """Return why the channel closed, or None while it is open."""
        return self._closed

    def close(self, reason: str = "closed by this client") -> None:
        """Close; calls that wait raise ChannelClosed. The first reason stays."""
        self._fail(reason)
        if self._thread is not threading.current_thread():
            self._thread.join()

    def call(self, message: Message, timeout: float) -> list[Message]:
        """Send one call and wait for its whole answer.

        Refused, ChannelClosed, ChannelFull, CallTimeout or ProtocolError.
        """
        reply = self.submit([message], Reply())
        if not self.wait(reply, timeout):
            raise CallTimeout(f"the Cache Manager did not answer {type(message).__name__.lower()} within {timeout:g} s")
        return self.value(reply)

    def value(self, reply: Reply) -> list[Message]:
        """Return the parts of a complete answer; Refused when it is an error, ChannelClosed when none will come."""
        if not reply.parts:
            raise ChannelClosed(f"the channel closed before the answer came: {self._closed}")
        head = reply.parts[0]
        if isinstance(head, _wire.Error):
            raise Refused(head.status, head.text)
        return reply.parts

    def submit(self, messages: Sequence[Message], reply: Reply) -> Reply:
        """Send the parts of one call, the last of which is answered.

        ChannelClosed, ChannelFull or ProtocolError: nothing was sent.
        """
        reply.id = next(self._ids)
        frames = b"".join([*map(encode, messages[:-1]), encode(messages[-1], reply.id)])
        with self._lock:
            self._check_open()
            if len(self._pending) >= PENDING_MAX:
                self._count_full()
                raise ChannelFull(f"{PENDING_MAX} calls wait for an answer; nothing was sent")
            self._put(frames, QUEUE_BYTES_MAX)
            self._pending[reply.id] = reply
        return reply

    def send(self, message: Message) -> None:
        """Send a one-way frame that may be refused: ChannelClosed or ChannelFull mean that it was not sent."""
        frame = encode(message)
        with self._lock:
            self._check_open()
            self._put(frame, QUEUE_BYTES_MAX)

    def report(self, message: Message) -> None:
        """Send a one-way frame that must not be lost. A peer that cannot take it ends the channel: ChannelClosed."""
        frame = encode(message)
        with self._lock:
            self._check_open()
            try:
                self._put(frame, 2 * QUEUE_BYTES_MAX)
            except ChannelFull as fault:
                reason = f"the Cache Manager has stopped reading: {fault}"
            else:
                return
        self._fail(reason)
        raise ChannelClosed(reason)

    def wait(self, reply: Reply, timeout: float | None) -> bool:
        """Wait for an answer at most `timeout` seconds (None: without bound) and return whether it is complete.

        A closed channel completes every submitted answer; `value` then tells. A reply that was never submitted is
        completed by `complete` alone.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not reply.complete and self._closed is None:
            gate = self._enter(reply)
            if gate is None:
                try:
                    self._read_until(reply, deadline)
                finally:
                    self._leave()
            else:
                gate.wait(remaining(deadline))
            if deadline is not None and time.monotonic() >= deadline:
                break
        if reply.gate is not None:
            with self._lock:
                self._waiting.pop(reply, None)
            self._offer()
        return reply.complete

    def complete(self, reply: Reply) -> None:
        """Complete a reply that was never submitted, and wake who waits for it."""
        with self._lock:
            reply.complete = True
            if reply.gate is not None:
                reply.gate.set()

    def drain(self) -> None:
        """Read what has arrived without waiting, unless another thread reads."""
        with self._lock:
            if self._reading or self._closed is not None:
                return
            self._reading = True
        try:
            self._read()
        finally:
            self._leave()

    def _enter(self, reply: Reply) -> threading.Event | None:
        """Take the reader role, or return the event to sleep on while another thread has it."""
        with self._lock:
            if not self._reading:
                self._reading = True
                self._arm()
                return None
            if reply.gate is None:
                reply.gate = threading.Event()
            reply.gate.clear()
            self._waiting[reply] = None
            if reply.complete:
                reply.gate.set()
            return reply.gate

    def _leave(self) -> None:
        with self._lock:
            self._reading = False
            self._arm()
        self._offer()

    def _offer(self) -> None:
        """Wake one waiter when nobody reads: it takes the role."""
        with self._lock:
            if self._reading:
                return
            for reply in self._waiting:
                if reply.gate is not None:
                    reply.gate.set()
                    return

    def _read_until(self, reply: Reply, deadline: float | None) -> None:
        """Read as the holder of the role until the answer is complete, the deadline or the end."""
        spin_until = time.monotonic() + self._spin
        while not reply.complete and self._closed is None:
            if self._read():
                continue
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                return
            if now < spin_until and not self._queue:
                continue
            with self._lock:
                events = select.POLLIN | (select.POLLOUT if self._queue else 0)
            self._poll.register(self._descriptor, events)
            left = remaining(deadline)
            ready = self._poll.poll(None if left is None else left * 1000)
            if ready and ready[0][1] & select.POLLOUT:
                self._flush()

    def _read(self) -> bool:
        """Read once and hand on every whole frame, as the holder of the role; return whether bytes came."""
        try:
            count, descriptors = self._receiver.receive()
            self._descriptors.extend(descriptors)
            if count < 0:
                return False
            if count == 0:
                self._fail("the Cache Manager closed the connection")
                return False
            self._hand_on()
        except OSError as fault:
            self._fail(f"the connection to the Cache Manager broke: {fault}")
            return False
        except (ProtocolError, _wire.ProtocolError) as fault:
            self._fail(f"the Cache Manager sent what ABI {_wire.ABI} does not allow: {fault}")
            return False
        return True

    def _hand_on(self) -> None:
        if len(self._descriptors) > DESCRIPTORS_MAX:
            raise ProtocolError(f"more than {DESCRIPTORS_MAX} descriptors came without their frames")
        while len(data := self._receiver.data) >= _wire.HEADER_BYTES:
            size = _wire.frame_bytes(data[: _wire.HEADER_BYTES])
            if len(data) < size:
                return
            request, message = _wire.decode(data[:size])
            self._receiver.consume(size)
            if request == 0:
                self._push(message)
            else:
                self._answer(request, message)

    def _push(self, message: Message) -> None:
        if isinstance(message, _wire.Error):
            self.farewell = Refused(message.status, message.text)
            self._fail(f"the Cache Manager closes the session ({message.status.name.lower()}): {message.text}")
            return
        descriptor = None
        if isinstance(message, _wire.Arena):
            if not self._descriptors:
                raise ProtocolError(f"arena {message.arena} came without its descriptor")
            descriptor = self._descriptors.popleft()
        self._on_push(message, descriptor)

    def _answer(self, request: int, message: Message) -> None:
        with self._lock:
            reply = self._pending.get(request)
        if reply is None:
            raise ProtocolError(f"an answer names call {request}, which waits for none")
        if not reply.take(message):
            return
        if reply.hook is not None:
            reply.hook(reply.parts)
        with self._lock:
            self._pending.pop(request, None)
            reply.complete = True
            if reply.gate is not None:
                reply.gate.set()

    def _put(self, frames: bytes, bound: int) -> None:
        """Send or queue whole frames; with `_lock`."""
        if self._queued_bytes + len(frames) > bound and self._queue:
            self._count_full()
            raise ChannelFull(f"{self._queued_bytes} bytes are unsent, the bound is {bound}")
        sent = 0
        if not self._queue:
            try:
                sent = _syscalls.send(self._descriptor, frames)
            except OSError as fault:
                raise ChannelClosed(f"the connection to the Cache Manager broke: {fault}") from fault
        if sent < len(frames):
            chunks = range(sent, len(frames), QUEUE_CHUNK_BYTES)
            self._queue.extend(frames[at : at + QUEUE_CHUNK_BYTES] for at in chunks)
            self._queued_bytes += len(frames) - sent
            self._arm()

    def _count_full(self) -> None:
        """Count a message that found a bound reached; with `_lock`."""
        self.refused_full += 1
        if self._on_full is not None:
            self._on_full()

    def _flush(self) -> None:
        """Send queued bytes as far as the socket takes them."""
        with self._lock:
            try:
                while self._queue and self._closed is None:
                    sent = _syscalls.send(self._descriptor, self._queue[0])
                    self._queued_bytes -= sent
                    if sent < len(self._queue[0]):
                        self._queue[0] = self._queue[0][sent:]
                        return
                    self._queue.popleft()
            except OSError:
                self._queue.clear()  # The reader finds the broken connection and says why.
                self._queued_bytes = 0

    def _arm(self) -> None:
        """Say what may wake the channel's own thread; with `_lock`."""
        events = select.EPOLLONESHOT | (0 if self._reading else select.EPOLLIN)
        _syscalls.rearm(self._epoll, self._descriptor, events | (select.EPOLLOUT if self._queue else 0))

    def _run(self) -> None:
        """Read while nobody waits, flush what is queued, and close the descriptors at the end."""
        while True:
            for _, events in self._epoll.poll():
                if events & select.EPOLLOUT:
                    self._flush()
            with self._lock:
                mine = not self._reading
                self._reading = True
            if not mine:
                with self._lock:
                    self._arm()
                continue
            if self._closed is None:
                try:
                    self._read()
                finally:
                    if self._closed is None:
                        self._leave()
            if self._closed is not None:
                break
        self._epoll.close()
        self._socket.close()
        while self._descriptors:
            os.close(self._descriptors.popleft())

    def _fail(self, reason: str) -> None:
        """Close with the first reason and complete every pending answer. The own thread closes the descriptors."""
        with self._lock:
            if self._closed is not None:
                return
            self._closed = reason
            pending = [*self._pending.values(), *self._waiting]
            self._pending = {}
            self._queue.clear()
            self._queued_bytes = 0
            for reply in pending:
                if not reply.complete:
                    reply.parts.clear()
                    reply.complete = True
                if reply.gate is not None:
                    reply.gate.set()
            if os.getpid() != self._owner:
                return  # A forked child that cleans up must not end its parent's session.
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # The peer is gone already; the own thread sees that too.

    def _check_open(self) -> None:
        if self._closed is not None:
            raise ChannelClosed(f"the channel is closed: {self._closed}")


def encode(message: Message, request: int = 0) -> bytes:
    """Encode a frame; ProtocolError names the field that breaks a bound."""
    try:
        return _wire.encode(message, request)
    except _wire.ProtocolError as fault:
        raise ProtocolError(f"{type(message).__name__.lower()} cannot be sent: {fault}") from fault


def remaining(deadline: float | None) -> float | None:
    """Return the seconds until a deadline, at least zero."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())
