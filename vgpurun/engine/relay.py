"""Relays between a connection to the engine and a pair of local sockets.

Over TLS this process's threads cannot share the connection: a reader and a writer would be inside OpenSSL at the same
time. So a single thread has it.
"""

import os
import select
import socket
import ssl
from contextlib import suppress

from vgpurun.util.threads import Helper

_CHUNK_BYTES = 64 << 10
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


def relayed(engine: ssl.SSLSocket) -> socket.socket:
    """Return a socket that stands for the engine's."""
    engine.setblocking(False)
    near, far = socket.socketpair()
    _Relay(engine, far).start()
    return near


class _Relay(Helper):
    """Copies both ways between a connection and a socket, until the engine has ended its side."""

    def __init__(self, engine: ssl.SSLSocket, ours: socket.socket) -> None:
        super().__init__()
        self._engine = engine
        self._ours = ours
        self._to_engine = b""
        self._notice = b""  # the notice of the end, to be sent unchanged
        self._has_input = True  # ours may still send
        self._is_told = False  # the engine knows that it does not

    def run(self) -> None:
        """Copy, then close our side: what was received lies in it until it is read."""
        with suppress(OSError):
            while self._receive():
                self._send()
                self._wait()
        with suppress(OSError):
            self._ours.shutdown(socket.SHUT_WR)

    def _wait(self) -> None:
        """Until one side has something. Input is taken when what was taken before is gone."""
        wants_input = self._has_input and not self._to_engine
        readable = [self._engine, self._ours] if wants_input else [self._engine]
        ready, _, _ = select.select(readable, [self._engine] if self._to_engine or self._notice else [], [])
        if self._ours in ready:
            self._to_engine = self._ours.recv(_CHUNK_BYTES)
            self._has_input = bool(self._to_engine)

    def _receive(self) -> bool:
        """Pass on all that has come from the engine; false at its end."""
        while True:
            try:
                data = self._engine.recv(_CHUNK_BYTES)
            except _NOT_NOW:
                return True
            if not data:
                return False
            self._ours.sendall(data)

    def _send(self) -> None:
        """Pass on what was taken; at the end of our input, say so and go on reading."""
        with suppress(*_NOT_NOW):
            while self._to_engine:
                self._to_engine = self._to_engine[self._engine.send(self._to_engine) :]
            if not self._has_input and not self._is_told:
                self._is_told = True
                self._notice = close_notify(self._engine)
            while self._notice:
                self._notice = self._notice[os.write(self._engine.fileno(), self._notice) :]


def close_notify(engine: ssl.SSLSocket) -> bytes:
    """Return TLS's notice that nothing more is sent.

    unwrap() would also look for the engine's own notice, and fail, with the connection lost, where it finds output
    instead. So for this call the connection is another socket, from which nothing comes.
    """
    connection, (near, far) = os.dup(engine.fileno()), socket.socketpair()
    with near, far:
        near.setblocking(False)
        far.setblocking(False)
        try:
            os.dup2(near.fileno(), engine.fileno(), inheritable=False)
            with suppress(ssl.SSLWantReadError):
                engine.unwrap()
        finally:
            os.dup2(connection, engine.fileno(), inheritable=False)
            os.close(connection)
        return far.recv(_CHUNK_BYTES)
