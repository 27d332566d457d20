"""Copies between our streams and a container's, on real sockets and pipes."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from vgpurun.console.streams import Input, copy_output


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, engines = socket.socketpair()
    with ours, engines:
        yield ours, engines


def frame(kind: int, data: bytes) -> bytes:
    return struct.pack(">BxxxL", kind, len(data)) + data


def feed(stream: socket.socket, *pieces: bytes) -> None:
    def send() -> None:
        for piece in pieces:
            stream.sendall(piece)
        stream.close()

    threading.Thread(target=send, daemon=True).start()


def test_frames_go_to_their_streams(
    ends: tuple[socket.socket, socket.socket], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    large = os.urandom(300_000)
    feed(ends[1], frame(1, b"out"), frame(2, b"err"), frame(1, b""), frame(1, large), frame(2, b"\xff\x00"))
    copy_output(ends[0], is_terminal=False)
    assert capfdbinary.readouterr() == (b"out" + large, b"err\xff\x00")


def test_frames_may_come_in_any_pieces(
    ends: tuple[socket.socket, socket.socket], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    whole = frame(1, b"hello ") + frame(2, b"error") + frame(1, b"world")
    feed(ends[1], *(whole[i : i + 1] for i in range(len(whole))))
    copy_output(ends[0], is_terminal=False)
    assert capfdbinary.readouterr() == (b"hello world", b"error")


@pytest.mark.parametrize("cut", [3, 8, 10])
def test_a_stream_that_breaks_off_ends_the_copy(
    ends: tuple[socket.socket, socket.socket], capfdbinary: pytest.CaptureFixture[bytes], cut: int
) -> None:
    feed(ends[1], frame(1, b"hello")[:cut])
    copy_output(ends[0], is_terminal=False)
    assert capfdbinary.readouterr().out == b"hello"[: max(0, cut - 8)]


def test_a_terminals_bytes_are_copied_as_they_are(
    ends: tuple[socket.socket, socket.socket], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    feed(ends[1], b"\x01\x00", b"\x1b[31m")
    copy_output(ends[0], is_terminal=True)
    assert capfdbinary.readouterr().out == b"\x01\x00\x1b[31m"


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The writing end of a pipe that is this process's standard input."""
    reading, writing = os.pipe()
    saved = os.dup(0)
    os.dup2(reading, 0)
    os.close(reading)
    yield writing
    os.dup2(saved, 0)
    os.close(saved)


def test_input_is_copied_and_its_end_is_told(ends: tuple[socket.socket, socket.socket], typed: int) -> None:
    keys = Input(ends[0])
    keys.start()
    os.write(typed, b"hello")
    os.close(typed)
    received = b""
    while data := ends[1].recv(100):
        received += data
    keys.join(timeout=60)
    assert received == b"hello"
    assert not keys.is_detached
    ends[1].sendall(b"output still flows")
    assert ends[0].recv(100) == b"output still flows"


def test_input_may_be_shared_without_blocking(ends: tuple[socket.socket, socket.socket], typed: int) -> None:
    """Nothing typed yet is no end: with -it the container would be ended with it."""
    os.set_blocking(0, False)
    keys = Input(ends[0])
    keys.start()
    for text in (b"one", b"two"):
        keys.join(timeout=0.1)
        os.write(typed, text)
        assert ends[1].recv(100) == text
    assert not keys.is_at_end
    os.close(typed)
    keys.join(timeout=60)
    assert keys.is_at_end


def test_detach_keys_are_seen_in_one_piece_or_two(ends: tuple[socket.socket, socket.socket], typed: int) -> None:
    keys = Input(ends[0], b"\x10\x11")
    keys.start()
    os.write(typed, b"x\x10")
    assert ends[1].recv(100) == b"x"
    os.write(typed, b"\x10y")
    assert ends[1].recv(100) == b"\x10\x10y"  # no detaching after all
    assert not keys.is_detached
    os.write(typed, b"z\x10\x11never")
    assert ends[1].recv(100) == b"z"
    assert ends[1].recv(100) == b""
    keys.join(timeout=60)
    assert keys.is_detached
    os.close(typed)


def test_what_was_held_back_at_the_end_is_sent(ends: tuple[socket.socket, socket.socket], typed: int) -> None:
    keys = Input(ends[0], b"ab")
    keys.start()
    os.write(typed, b"a")
    os.close(typed)
    keys.join(timeout=60)
    assert ends[1].recv(100) == b"a"
    assert not keys.is_detached


def test_without_detach_keys_none_are_looked_for(ends: tuple[socket.socket, socket.socket], typed: int) -> None:
    keys = Input(ends[0])
    keys.start()
    os.write(typed, b"\x10\x11")
    assert ends[1].recv(100) == b"\x10\x11"
    assert not keys.is_detached
    os.close(typed)


def test_input_for_a_container_that_is_gone_is_no_error(ends: tuple[socket.socket, socket.socket], typed: int) -> None:
    ends[1].close()
    keys = Input(ends[0])
    keys.start()
    os.write(typed, b"x" * 1000)
    os.close(typed)
    keys.join(timeout=60)
    assert not keys.is_alive()
