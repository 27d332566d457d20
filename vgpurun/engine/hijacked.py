"""A container's standard streams, over a connection that the engine has taken over: one plain socket."""

import socket
from typing import Any


def plain_socket(wrapped: Any) -> socket.socket:
    """Return the socket itself: docker-py wraps it for reading only, and leaves a timeout on it.

    Where that will not do, one end of a relay: over TLS, and where the engine was so fast that the first output came
    along with its answer, and was read with it.
    """
    plain: socket.socket = getattr(wrapped, "_sock", wrapped)
    plain.setblocking(False)
    if type(plain) is not socket.socket or read_with_answer(wrapped):
        from vgpurun.engine.relay import relayed  # with ssl, which takes a while to import

        return relayed(plain, wrapped)
    plain.settimeout(None)
    return plain.dup()  # the wrapper closes its own when it is collected


def read_with_answer(wrapped: Any) -> bytes:
    """Return what lies in the buffer through which the engine's answer was read. The socket does not block."""
    return bytes(wrapped._response.raw._fp.fp.peek())
