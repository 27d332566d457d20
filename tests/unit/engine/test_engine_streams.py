"""An engine that answers as fast as can be: what comes along with its answer is not lost; and one that is stuck."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from vgpurun.engine import address
from vgpurun.engine.containers import ContainerEngine
from vgpurun.errors import NoEngineError

ANSWER = b"HTTP/1.1 101 UPGRADED\r\nContent-Type: application/vnd.docker.raw-stream\r\nConnection: Upgrade\r\n\r\n"
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


@pytest.fixture
def echoing_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sends output in one piece with its answer, and then back what it gets, in capitals, until that ends."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "engine.sock"))
    listener.listen()
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/engine.sock")

    def serve(stream: socket.socket) -> None:
        with stream:
            while True:
                try:
                    request = read_request(stream)
                except OSError:
                    return
                if b"/exec/" not in request.splitlines()[0]:
                    stream.sendall(PONG)
                    continue
                stream.sendall(ANSWER + b"early ")
                while data := stream.recv(4096):
                    stream.sendall(data.upper())
                stream.sendall(b" late")
                return

    def accept() -> None:
        while True:
            try:
                stream, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=[stream], daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


@pytest.mark.usefixtures("echoing_engine")
def test_output_that_comes_with_the_answer() -> None:
    stream = ContainerEngine.connect().exec_start("some", tty=True)
    stream.settimeout(20)
    stream.sendall(b"more")
    stream.shutdown(socket.SHUT_WR)
    received = b""
    while data := stream.recv(4096):
        received += data
    assert received == b"early MORE late"


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
