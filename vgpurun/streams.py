"""Copies between this process's standard streams and a container's, over the engine's hijacked connection.

With a terminal the connection carries plain bytes. Without, the engine's output comes in frames: one byte that says
stdout or stderr, three of padding, four of length, then the bytes.
"""

import errno
import os
import select
import socket
import struct
import threading
from contextlib import suppress
from typing import Protocol

_CHUNK_BYTES = 64 << 10
_FRAME = struct.Struct(">BxxxL")
_STDERR = 2
DETACH_KEYS = b"\x10\x11"  # Ctrl-P Ctrl-Q, which the engine answers by ending the connection


class Input(threading.Thread):
    """Copies standard input to the container until either ends. A daemon: a read that waits is left behind."""

    def __init__(self, stream: socket.socket) -> None:
        super().__init__(daemon=True)
        self._stream = stream
        self._last = b""

    @property
    def ended_with_detach_keys(self) -> bool:
        """Whether the last keys typed were those that detach from a container."""
        return self._last == DETACH_KEYS

    def run(self) -> None:
        """Copy, then tell the container that its input is at its end."""
        with suppress(OSError):  # the container reads no further
            while data := os.read(0, _CHUNK_BYTES):
                self._last = (self._last + data)[-len(DETACH_KEYS) :]
                self._stream.sendall(data)
        with suppress(OSError):
            self._stream.shutdown(socket.SHUT_WR)


class Readable(Protocol):
    """What can be received from: a socket, or an answer of the engine's."""

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
