"""HTTP over the engine's socket, against a server that answers what a test says, well formed or not."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from vgpurun.engine import unix_http
from vgpurun.engine.hijacked import read_with_answer
from vgpurun.engine.unix_http import RefusedError, Session, TransportError, UnixHTTPAdapter

Ask = Callable[..., Session]


class Server(threading.Thread):
    """Takes one request after the other, keeps them, and sends the same bytes for each."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self.answer = b""
        self.drips_s = 0.0  # between two bytes of it
        self.requests: list[bytes] = []
        self.holds = threading.Event()  # set: the connection is closed behind the answer
        self.holds.set()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen()

    def run(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                with connection, suppress(OSError):
                    request = b""
                    while b"\r\n\r\n" not in request and (more := connection.recv(1 << 16)):
                        request += more
                    self.requests.append(request)
                    for byte in self.answer if self.drips_s else ():
                        connection.sendall(bytes([byte]))
                        time.sleep(self.drips_s)
                    connection.sendall(b"" if self.drips_s else self.answer)
                    self.holds.wait(10)

    def close(self) -> None:
        self.holds.set()
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self.join(10)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    found = Server(tmp_path / "s")
    found.start()
    yield found
    found.close()


@pytest.fixture
def session(server: Server, tmp_path: Path) -> Session:
    found = Session()
    found.mount("http+docker://", UnixHTTPAdapter(f"http+unix://{tmp_path}/s", 5))
    return found


URL = "http+docker://localhost/v1.45/x"
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "content"),
    [
        (OK + b"Content-Length: 5\r\n\r\nhellomore", b"hello"),
        (OK + b"\r\nuntil the end", b"until the end"),
        (CHUNKED + b"3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\nTrailer: 1\r\n\r\n", b"abc0123456789"),
        (CHUNKED + b"0\r\n\r\n", b""),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 2\r\n\r\nok", b"ok"),
        (b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK + b"Content-Length: 2\r\n\r\nok", b"ok"),
        (b"HTTP/1.1 204 No Content\r\n\r\nnothing", b""),
        (b"HTTP/1.0 200\r\n\r\nno reason", b"no reason"),
    ],
)
def test_answers_are_read_as_they_are_framed(server: Server, session: Session, answer: bytes, content: bytes) -> None:
    server.answer = answer
    assert session.get(URL, timeout=5).content == content
    assert session.get(URL, timeout=5, stream=True).raw.read() == content
    assert b"".join(session.get(URL, timeout=5, stream=True).iter_content(2)) == content


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        OK + b"Content-Length: 9\r\n\r\nshort",
        CHUNKED + b"9\r\nshort",
        CHUNKED + b"nonsense\r\n",
        CHUNKED + b"3\r\nabc\r\n",
        CHUNKED + b"-5\r\nabc",
        CHUNKED + b"7fffffffffffffff\r\nshort",
        OK + b"Content-Length: 999999999999999\r\n\r\nshort",
        OK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n",
        OK + b"Content-Length: -1\r\n\r\nx",
        b"HTTP/1.1 " + b"9" * 5000 + b" OK\r\n\r\n",
        b"HTTP/1.1 102 Processing\r\n\r\n" * 100,
        OK + b"A: b\r\n" * 300 + b"\r\n",
        b"H" * 100_000,
    ],
)
def test_what_is_no_answer_is_an_error(server: Server, session: Session, answer: bytes) -> None:
    server.answer = answer
    with pytest.raises(TransportError):
        session.get(URL, timeout=5)


def test_no_answer_is_waited_for_as_long_as_was_said(server: Server, session: Session) -> None:
    server.holds.clear()
    with pytest.raises(TransportError, match=r"no answer within 0\.1 s"):
        session.get(URL, timeout=0.1)


def test_an_answer_that_never_ends_is_an_error(
    server: Server, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unix_http, "_MAX_CONTENT_BYTES", 1 << 20)
    server.answer = OK + b"\r\n" + b"x" * (2 << 20)
    with pytest.raises(TransportError, match="does not end"):
        session.get(URL, timeout=5)


def test_an_answer_that_drips_is_not_waited_for_forever(
    server: Server, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unix_http, "_LONGEST_ANSWER", 0.01)
    server.answer, server.drips_s = CHUNKED + b"1\r\nx\r\n" * 1000, 0.02
    with pytest.raises(TransportError, match="no answer within"):
        session.get(URL, timeout=10)


@pytest.mark.parametrize("content", [b"<html>", b"", b"[" * 100_000, b"\xff"])
def test_an_answer_that_is_not_json_is_an_error(server: Server, session: Session, content: bytes) -> None:
    server.answer = OK + b"\r\n" + content
    with pytest.raises(TransportError, match="not JSON") as caught:
        session.get(URL, timeout=5).json()
    assert isinstance(caught.value, ValueError), "docker-py looks for it"


def refusal_of_ps(folder: Path, **variables: str) -> str:
    """Return what `vgpurun ps` says of this engine, as a program of its own: here docker-py may have been imported."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("DOCKER_", "VGPURUN_"))}
    environment = {**own, "DOCKER_HOST": f"unix://{folder}/s", "VGPURUN_STATE_DIR": str(folder / "state"), **variables}
    command = [sys.executable, "-m", "vgpurun", "ps"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.count("\n")) in ((125, 1), (1, 1)), done
    return done.stderr


@pytest.mark.parametrize("content", [b"[]", b"{}", b"out of order"])
def test_a_refusal_without_a_message_is_shown_as_it_is(server: Server, tmp_path: Path, content: bytes) -> None:
    server.answer = b"HTTP/1.1 500 Internal Server Error\r\n\r\n" + content
    assert f"does not answer: {content.decode()}\n" in refusal_of_ps(tmp_path)


@pytest.mark.parametrize(
    ("variables", "answered", "says"),
    [({}, "x.y", "the engine says 'x.y'"), ({"DOCKER_API_VERSION": "new"}, "1.45", "DOCKER_API_VERSION says 'new'")],
)
def test_a_version_that_is_none_is_an_error(
    server: Server, tmp_path: Path, variables: dict[str, str], answered: str, says: str
) -> None:
    server.answer = OK + f"Api-Version: {answered}\r\n\r\nOK".encode()
    assert f"vgpurun: {says}, which is not a version of Docker's API; use e.g. 1.45\n" == refusal_of_ps(
        tmp_path, **variables
    )


def test_no_engine_is_an_error(tmp_path: Path) -> None:
    session = Session()
    session.mount("http+docker://", UnixHTTPAdapter(f"http+unix://{tmp_path}/none"))
    with pytest.raises(TransportError, match="No such file"):
        session.get(URL)


def test_a_request_says_what_was_given(server: Server, session: Session) -> None:
    server.answer = OK + b"Content-Length: 0\r\n\r\n"
    session.headers["User-Agent"] = "me"
    session.post(URL, data='{"a": 1}', params={"all": 1, "left out": None, "filter": "ä b&c"}, headers={"X-Y": "z"})
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    first, *fields = head.decode().split("\r\n")
    assert (first, body) == ("POST /v1.45/x?all=1&filter=%C3%A4+b%26c HTTP/1.1", b'{"a": 1}')
    assert {"User-Agent: me", "X-Y: z", "Content-Length: 8", "Connection: close"} <= set(fields)
    with pytest.raises(TransportError, match="more than one line"):
        session.get(URL, headers={"X-Y": "z\r\nX-Z: smuggled"})


def test_a_refusal_is_raised_when_it_is_asked_for(server: Server, session: Session) -> None:
    server.answer = b'HTTP/1.1 404 Not Found\r\nContent-Length: 18\r\n\r\n{"message": "no"}\n'
    answer = session.get(URL, timeout=5)
    with pytest.raises(RefusedError) as caught:
        answer.raise_for_status()
    assert caught.value.response is answer
    assert answer.json() == {"message": "no"}


def test_headers_are_found_in_any_case(server: Server, session: Session) -> None:
    server.answer = OK + b"API-Version: 1.45\r\nContent-Length: 0\r\n\r\n"
    headers = session.get(URL).headers
    assert (headers["Api-Version"], headers.get("api-version"), "aPi-version" in headers) == ("1.45", "1.45", True)


def test_a_stream_comes_piece_by_piece(server: Server, session: Session) -> None:
    server.answer = CHUNKED + b"5\r\nearly\r\n"  # and the rest never
    server.holds.clear()
    answer = session.get(URL, timeout=5, stream=True)
    assert next(answer.raw.stream(1 << 16)) == b"early"
    answer.close()


def test_a_connection_that_is_taken_over_is_a_socket_with_what_came_along(server: Server, session: Session) -> None:
    server.answer = b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\n\r\nfirst"
    server.holds.clear()
    answer = session.post(URL, timeout=5, stream=True)
    wrapped = answer.raw._fp.fp.raw  # as docker-py takes it
    wrapped._response = answer
    plain: socket.socket = wrapped._sock
    plain.setblocking(False)
    assert read_with_answer(wrapped) == b"first"
    with pytest.raises(BlockingIOError):
        plain.recv(1)
