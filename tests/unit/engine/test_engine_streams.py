"""An engine that answers as fast as can be: what comes along with its answer is not lost; and one that is stuck."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from vgpurun.engine import address
from vgpurun.engine.containers import ContainerEngine
from vgpurun.errors import ContainerError, EngineError, NoEngineError

ANSWER = b"HTTP/1.1 101 UPGRADED\r\nContent-Type: application/vnd.docker.raw-stream\r\nConnection: Upgrade\r\n\r\n"
REFUSAL = b"HTTP/1.1 409 Conflict\r\nContent-Length: %d\r\n\r\n"
PONG = b"HTTP/1.1 200 OK\r\nApi-Version: 1.45\r\nContent-Length: 2\r\n\r\nOK"


def read_request(stream: socket.socket) -> bytes:
    """A request with its body, if it has one."""
    request = b""
    while b"\r\n\r\n" not in request:
        data = stream.recv(4096)
        if not data:
            raise OSError
        request += data
    head, _, body = request.partition(b"\r\n\r\n")
    lengths = [line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    while lengths and len(body) < int(lengths[0]):
        body += stream.recv(4096)
    return head


Serve = Callable[[socket.socket], object]


@pytest.fixture
def engine_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Serve], None]]:
    """Starts an engine that answers pings itself, and has a function answer each command that is started in one."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "engine.sock"))
    listener.listen()
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/engine.sock")

    def serve(stream: socket.socket, answer: Serve) -> None:
        with stream, contextlib.suppress(OSError):
            while b"/exec/" not in read_request(stream).splitlines()[0]:
                stream.sendall(PONG)
            answer(stream)

    def accept(answer: Serve) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=[listener.accept()[0], answer], daemon=True).start()

    yield lambda answer: threading.Thread(target=accept, args=[answer], daemon=True).start()
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def echo(stream: socket.socket) -> None:
    """Send output in one piece with the answer, and then back what comes, in capitals, until that ends."""
    stream.sendall(ANSWER + b"early ")
    while data := stream.recv(4096):
        stream.sendall(data.upper())
    stream.sendall(b" late")


def test_output_that_comes_with_the_answer(engine_that: Callable[[Serve], None]) -> None:
    engine_that(echo)
    stream = ContainerEngine.connect().exec_start("some", tty=True)
    stream.settimeout(20)
    stream.sendall(b"more")
    stream.shutdown(socket.SHUT_WR)
    received = b""
    while data := stream.recv(4096):
        received += data
    assert received == b"early MORE late"


def test_a_refusal_that_comes_in_pieces(engine_that: Callable[[Serve], None]) -> None:
    words = json.dumps({"message": "the container\nis paused"}).encode()

    def refuse(stream: socket.socket) -> None:
        for byte in REFUSAL % len(words) + words:
            stream.sendall(bytes([byte]))

    engine_that(refuse)
    with pytest.raises(ContainerError, match=r"^the container is paused$"):
        ContainerEngine.connect().exec_start("some", tty=True)


@pytest.mark.parametrize(
    "answer", [b"", b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 409 Conflict\r\nContent-Length: 9\r\n\r\n{"]
)
def test_what_is_no_answer(engine_that: Callable[[Serve], None], answer: bytes) -> None:
    engine_that(lambda stream: stream.sendall(answer))
    with pytest.raises((EngineError, ContainerError)) as raised:
        ContainerEngine.connect().exec_start("some", tty=True)
    assert len(str(raised.value).splitlines()) == 1


def test_an_engine_that_takes_no_connection_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address, "_CONNECT_S", 1)
    with contextlib.ExitStack() as sockets:
        listener = sockets.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(tmp_path / "engine.sock"))
        listener.listen(0)
        sockets.enter_context(socket.socket(socket.AF_UNIX)).connect(str(tmp_path / "engine.sock"))  # its queue is full
        began = time.monotonic()
        with pytest.raises(NoEngineError, match=r"engine\.sock"):
            address.check_address(address.Address(f"unix://{tmp_path}/engine.sock", "here"))
        assert 1 <= time.monotonic() - began < 30
