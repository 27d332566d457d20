"""A socket in front of the engine's, which can hold one request up, so that a test acts at a moment that it chooses; or
which writes down what is asked."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_CHUNK_BYTES = 1 << 16
_HEAD = re.compile(rb"[A-Z]+ (?:/v[0-9.]+)?(/\S*) HTTP/1\.1\r\n")


class Held:
    """The first request whose path ends with this, held up before the engine has it, or when it has answered."""

    def __init__(self, path: str, is_answered: bool) -> None:
        self._path = path.encode()
        self._is_answered = is_answered
        self._reached = threading.Event()
        self._released = threading.Event()
        self._is_dropped = False
        self._connection: socket.socket | None = None  # the one to the engine, with the request on its way

    def wait(self, timeout_s: float = 60) -> None:
        """Return when the request is held up."""
        assert self._reached.wait(timeout_s), f"no request for {self._path!r} within {timeout_s} s"

    def release(self) -> None:
        """Let it go on."""
        self._released.set()

    def drop(self) -> None:
        """Let it go no further."""
        self._is_dropped = not self._released.is_set()
        self._released.set()

    def asked(self, engine: socket.socket, data: bytes) -> None:
        """Called with what is about to be sent to the engine."""
        head = _HEAD.match(data)
        if self._connection is None and head and head[1].partition(b"?")[0].endswith(self._path):
            self._connection = engine
            if not self._is_answered:
                self._hold()

    def answered(self, engine: socket.socket) -> None:
        """Called when the engine has answered something."""
        if self._is_answered and self._connection is engine and not self._reached.is_set():
            self._hold()

    def _hold(self) -> None:
        self._reached.set()
        self._released.wait()
        if self._is_dropped:
            raise ConnectionAbortedError


class Asked(Held):
    """All requests, in their order, as METHOD and path without the version and without ids."""

    def __init__(self) -> None:
        super().__init__("", is_answered=False)
        self.requests: list[str] = []

    def asked(self, engine: socket.socket, data: bytes) -> None:  # noqa: ARG002
        """Called with what is about to be sent to the engine."""
        if head := _HEAD.match(data):
            path = re.sub(r"[0-9a-f]{64}", "ID", head[1].partition(b"?")[0].decode())
            self.requests.append(f"{data.split(b' ')[0].decode()} {path}")


class _Relay:
    def __init__(self, engine_path: str, held: Held | None) -> None:
        self._engine_path = engine_path
        self._held = held

    def serve(self, listener: socket.socket) -> None:
        with suppress(OSError):  # closed at the end
            while True:
                near, _ = listener.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect(self._engine_path)
                _in_background(self._ask, near, far)
                _in_background(self._answer, near, far)

    def _ask(self, near: socket.socket, far: socket.socket) -> None:
        _copy(near, far, lambda data: self._held.asked(far, data) if self._held else None)

    def _answer(self, near: socket.socket, far: socket.socket) -> None:
        _copy(far, near, lambda _: self._held.answered(far) if self._held else None)


@contextmanager
def relayed(docker_host: str, listener: socket.socket, held: Held | None = None) -> Iterator[None]:
    """Pass all that comes to this socket on to the engine."""
    _in_background(_Relay(docker_host.removeprefix("unix://"), held).serve, listener)
    try:
        yield
    finally:
        if held:
            held.drop()
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # accept() would not notice a mere close
        listener.close()


@contextmanager
def held_up(docker_host: str, folder: Path, path: str, is_answered: bool = False) -> Iterator[tuple[str, Held]]:
    """An address of the engine by which one request is held up."""
    held = Held(path, is_answered)
    with _at_socket(docker_host, folder, held) as address:
        yield address, held


@contextmanager
def written_down(docker_host: str, folder: Path) -> Iterator[tuple[str, Asked]]:
    """An address of the engine by which all requests are written down."""
    asked = Asked()
    with _at_socket(docker_host, folder, asked) as address:
        yield address, asked


@contextmanager
def _at_socket(docker_host: str, folder: Path, held: Held) -> Iterator[str]:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{folder}/relay.sock")
    listener.listen()
    with relayed(docker_host, listener, held):
        yield f"unix://{folder}/relay.sock"
    Path(folder, "relay.sock").unlink()


def _copy(source: socket.socket, target: socket.socket, look: Callable[[bytes], None]) -> None:
    try:
        while data := source.recv(_CHUNK_BYTES):
            look(data)
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:  # an end is gone: the other must see that too
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def _in_background(work: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=work, args=arguments, daemon=True).start()
