"""A connection to a unix socket, without Python's own `socket`: the enums that it makes are a thirtieth of a start."""

import os
from _socket import AF_UNIX, SOCK_STREAM, socket


class Connection(socket):
    """Stands for `socket.socket`, as far as the engine needs it."""

    def __init__(self, descriptor: int | None = None) -> None:
        super().__init__(AF_UNIX, SOCK_STREAM, 0, descriptor)

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def dup(self) -> "Connection":
        """Return another one for the same connection."""
        return Connection(os.dup(self.fileno()))
