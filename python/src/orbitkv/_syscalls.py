"""Socket calls that keep the interpreter lock.

Python's own socket methods give the lock away around every call, even one that cannot block, and a thread that computes
takes up to the switch interval (5 ms) to hand it back. A query that is answered in tens of microseconds must not pay
that three times, so the calls here never block and never give the lock away. They touch no memory but the buffers
that they are given.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import select
import socket
import struct

FDS_MAX = 16  # descriptors of one read; the Manager sends one per frame
FLAGS_SEND = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
FLAGS_RECEIVE = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
EPOLL_CTL_MOD = 3
CONTROL_HEADER = struct.Struct("@Nii")  # struct cmsghdr: length with header, level, type

_libc = ctypes.PyDLL(None, use_errno=True)
_send = _libc.send
_send.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_send.restype = ctypes.c_ssize_t
_recvmsg = _libc.recvmsg
_recvmsg.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
_recvmsg.restype = ctypes.c_ssize_t
_epoll_ctl = _libc.epoll_ctl
_epoll_ctl.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
_epoll_ctl.restype = ctypes.c_int


class _Vector(ctypes.Structure):
    """struct iovec."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class _Header(ctypes.Structure):
    """struct msghdr."""

    _fields_ = (
        ("name", ctypes.c_void_p),
        ("name_length", ctypes.c_uint32),
        ("vectors", ctypes.c_void_p),
        ("vector_count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    )


class _EpollEvent(ctypes.Structure):
    """struct epoll_event, which is packed on x86-64 alone."""

    if platform.machine() in ("x86_64", "AMD64"):
        _layout_ = "ms"  # What _pack_ implies; newer Pythons want it said.
        _pack_ = 1
    _fields_ = (("events", ctypes.c_uint32), ("data", ctypes.c_uint64))


def send(descriptor: int, data: bytes) -> int:
    """Send what fits into the socket's buffer and return how many bytes that was; OSError when the peer is gone."""
    sent = _send(descriptor, data, len(data), FLAGS_SEND)
    if sent >= 0:
        return int(sent)
    number = ctypes.get_errno()
    if number in (errno.EAGAIN, errno.EINTR, errno.ENOBUFS):
        return 0
    raise OSError(number, os.strerror(number))


class Receiver:
    """Reads into one buffer that it owns; for one thread at a time."""

    def __init__(self, descriptor: int, capacity: int) -> None:
        self._descriptor = descriptor
        self._buffer = bytearray(capacity)
        self._view = memoryview(self._buffer)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._buffer))
        self._control = ctypes.create_string_buffer(socket.CMSG_SPACE(FDS_MAX * 4))
        self._vector = _Vector()
        self._header = _Header()
        self._header.vectors = ctypes.addressof(self._vector)
        self._header.vector_count = 1
        self._header.control = ctypes.addressof(self._control)
        self._header_address = ctypes.addressof(self._header)
        self._start = 0
        self._end = 0

    @property
    def data(self) -> memoryview:
        """Return the bytes that were read and not consumed; valid until the next call."""
        return self._view[self._start : self._end]

    def consume(self, count: int) -> None:
        """Drop the first bytes of `data`."""
        self._start += count
        if self._start == self._end:
            self._start = self._end = 0

    def receive(self) -> tuple[int, list[int]]:
        """Read what is there; return the count and the descriptors that came along. The caller owns those.

        The count is -1 when there is nothing and 0 at the end of the stream. OSError when the peer is gone or when
        the kernel cut the descriptors off.
        """
        if self._start > len(self._buffer) // 2:
            kept = bytes(self.data)
            self._view[: len(kept)] = kept
            self._start, self._end = 0, len(kept)
        self._vector.base = self._address + self._end
        self._vector.length = len(self._buffer) - self._end
        self._header.control_length = len(self._control)
        self._header.flags = 0
        count = int(_recvmsg(self._descriptor, self._header_address, FLAGS_RECEIVE))
        if count < 0:
            number = ctypes.get_errno()
            if number in (errno.EAGAIN, errno.EINTR):
                return -1, []
            raise OSError(number, os.strerror(number))
        self._end += count
        descriptors = self._descriptors() if self._header.control_length else []
        if self._header.flags & socket.MSG_CTRUNC:
            for descriptor in descriptors:
                os.close(descriptor)
            raise OSError(errno.EMFILE, "a descriptor was cut off: this process has too many open files")
        return count, descriptors

    def _descriptors(self) -> list[int]:
        raw = self._control.raw[: self._header.control_length]
        found: list[int] = []
        at = 0
        while at + CONTROL_HEADER.size <= len(raw):
            length, level, kind = CONTROL_HEADER.unpack_from(raw, at)
            if length < CONTROL_HEADER.size:
                break
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                count = (length - CONTROL_HEADER.size) // 4
                found.extend(struct.unpack_from(f"@{count}i", raw, at + CONTROL_HEADER.size))
            at += socket.CMSG_SPACE(length - CONTROL_HEADER.size)
        return found


def rearm(epoll: select.epoll, descriptor: int, events: int) -> None:
    """Change the events that `epoll` watches a descriptor for, also while another thread waits in it."""
    event = _EpollEvent(events, descriptor)
    if _epoll_ctl(epoll.fileno(), EPOLL_CTL_MOD, descriptor, ctypes.addressof(event)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
