"""Copies between this process's standard streams and a container's, over the engine's hijacked connection.

With a terminal the connection carries plain bytes. Without, the engine's output comes in frames: one byte that says
stdout or stderr, three of padding, four of length, then the bytes.
"""

import errno
import os
import select
import socket
import struct
from contextlib import suppress
from typing import Protocol

from vgpurun.util.threads import Helper

_CHUNK_BYTES = 64 << 10
_FRAME = struct.Struct(">BxxxL")
_STDERR = 2


class Input(Helper):
    """Copies standard input to the container until either ends; a read that waits is left behind."""

    def __init__(self, stream: socket.socket, detach_keys: bytes = b"") -> None:
        super().__init__()
        self._stream = stream
        self._detach_keys = detach_keys
        self._held_back = b""
        self.is_at_end = False  # a terminal only where it was closed
        self.is_detached = False  # by the keys for that

    def run(self) -> None:
        """Copy, then tell the container that its input is at its end; the detach keys end the connection."""
        with suppress(OSError):  # the container reads no further
            while data := _read():
                self._stream.sendall(self._without_detach_keys(data) if self._detach_keys else data)
                if self.is_detached:
                    self._stream.shutdown(socket.SHUT_RDWR)
                    return
            self.is_at_end = True
            self._stream.sendall(self._held_back)
        with suppress(OSError):
            self._stream.shutdown(socket.SHUT_WR)

    def _without_detach_keys(self, data: bytes) -> bytes:
        """Hold back what may become the detach keys, until it is clear."""
        passed = b""
        for number in range(len(data)):
            self._held_back += data[number : number + 1]
            while not self._detach_keys.startswith(self._held_back):
                passed, self._held_back = passed + self._held_back[:1], self._held_back[1:]
            if self._held_back == self._detach_keys:
                self.is_detached = True
                break
        return passed


class Readable(Protocol):
    """A source of bytes: a socket, or an answer of the engine's."""

    def recv(self, count: int, /) -> bytes:
        """Return up to that many bytes, none at the end."""
        ...


def copy_output(stream: Readable, is_terminal: bool) -> None:
    """Copy the container's output until it ends. Raises OSError: BrokenPipeError when nobody reads ours."""
    if is_terminal:
        while data := _receive(stream, _CHUNK_BYTES):
            _write(1, data)
        return
    while header := _receive_exactly(stream, _FRAME.size):
        kind, left = _FRAME.unpack(header)
        while left:
            data = _receive(stream, min(left, _CHUNK_BYTES))
            if not data:
                return
            _write(2 if kind == _STDERR else 1, data)
            left -= len(data)


def _read() -> bytes:
    """Return what comes next on standard input, nothing at its end."""
    while True:
        try:
            return os.read(0, _CHUNK_BYTES)
        except BlockingIOError:  # the caller shares a non-blocking terminal with us
            select.select([0], [], [])
        except OSError:  # a terminal that was closed
            return b""


def _receive(stream: Readable, count: int) -> bytes:
    try:
        return stream.recv(count)
    except ConnectionResetError:
        return b""


def _receive_exactly(stream: Readable, count: int) -> bytes:
    """Return that many bytes, or none at the stream's end."""
    data = b""
    while len(data) < count:
        more = _receive(stream, count - len(data))
        if not more:
            return b""
        data += more
    return data


def _write(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(file, view) :]
        except BlockingIOError:  # the caller shares a non-blocking pipe with us
            select.select([], [file], [])
        except OSError as error:
            if error.errno == errno.EIO:  # a terminal that was closed
                raise BrokenPipeError from None
            raise
