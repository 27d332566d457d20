"""`vgpurun top` in a real terminal: what it shows, its keys, and the terminal afterwards."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from cli import GPU_PROGRAM, PROGRAMS, WITH_PROGRAMS, Cli
from terminal import Terminal

MIB = 1 << 20
ENTER_SCREEN, LEAVE_SCREEN, SHOW_CURSOR = b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25h"
TOP = [sys.executable, "-m", "vgpurun", "top", "--driver", "sim", "--interval", "0.2"]


@pytest.fixture
def holder(vgpurun: Cli, debian: str) -> str:
    options = ("-d", "-i", "--name", "holder", "--mem", "2g", "--sm", "50", *WITH_PROGRAMS)
    assert vgpurun.run(*options, debian, *GPU_PROGRAM, "hold", str(256 * MIB)).exit_code == 0
    vgpurun.wait_for_output("holder", b"holding")
    return "holder"


@pytest.fixture
def open_top(vgpurun: Cli) -> Iterator[Callable[..., Terminal]]:
    terminals: list[Terminal] = []

    def start(rows: int = 24, columns: int = 80) -> Terminal:
        terminals.append(Terminal(TOP, {**vgpurun.environment, "TERM": "xterm-256color"}, rows, columns))
        terminals[-1].read_until(ENTER_SCREEN)
        return terminals[-1]

    yield start
    for terminal in terminals:
        terminal.close()


def test_it_shows_what_containers_hold(open_top: Callable[..., Terminal], holder: str) -> None:
    top = open_top()
    screen = top.read_until(b"q quit").decode()
    assert "holder" in screen and "774 MiB / 2 GiB" in screen and re.search(r"0 / 50%", screen)
    top.type(b"c")
    top.read_until(b" s, by compute")
    top.type(b"+")
    top.read_until(b"every 0.5 s")
    top.type(b"q")
    rest = top.read_until(LEAVE_SCREEN)
    assert top.wait() == 0 and top.is_restored()
    assert b"Traceback" not in rest


def test_keys_act_on_the_chosen_container(open_top: Callable[..., Terminal], vgpurun: Cli, holder: str) -> None:
    top = open_top(40, 120)
    top.read_until(b"holder")
    top.type(b"j\r")
    top.read_until(b"2 GiB, 50 %")
    top.type(b"\rp")
    top.read_until(b"pause the GPU work of holder?")
    top.type(b"y")
    top.read_until(b"--gpu holder: done")
    top.read_until(b"paused")
    top.type(b"u--mem 3g\r")
    top.read_until(b"update --mem 3g holder?")
    top.type(b"y")
    top.read_until(b"3g holder: done")
    top.read_until(b"3 GiB")
    top.type(b"l")
    top.read_until(b"holding")
    top.type(b"qx")
    top.read_until(b"stop container holder?")
    top.type(b"n")
    top.read_until(b"q quit")
    top.type(b"q")
    assert top.wait() == 0 and top.is_restored()
    assert vgpurun.engine.containers.get(holder).status == "running"


@pytest.mark.parametrize(("rows", "columns"), [(6, 30), (3, 10), (24, 200)])
def test_any_size_of_terminal(open_top: Callable[..., Terminal], holder: str, rows: int, columns: int) -> None:
    top = open_top(rows, columns)
    top.read_until(b"GPU")
    top.resize(24, 80)
    top.read_until(b"by gpu")
    top.type(b"q")
    assert top.wait() == 0 and top.is_restored()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_restores_the_terminal(open_top: Callable[..., Terminal], number: signal.Signals) -> None:
    top = open_top()
    top.read_until(b"q quit")
    if number == signal.SIGINT:
        top.type(b"\x03")
    else:
        top.process.send_signal(number)
    left = top.read_until(LEAVE_SCREEN)
    assert SHOW_CURSOR in left or SHOW_CURSOR in top.read_until(SHOW_CURSOR)
    assert top.wait() == 128 + number and top.is_restored()


def test_a_signal_that_comes_while_the_screen_is_drawn(vgpurun: Cli) -> None:
    environment = {**vgpurun.environment, "TERM": "xterm-256color", "DOCKER_HOST": "unix:///none.sock"}
    with closing(Terminal([sys.executable, str(PROGRAMS / "top_interrupted.py")], environment)) as top:
        top.read_until(ENTER_SCREEN)
        top.read_until(LEAVE_SCREEN)
        assert top.wait() == 128 + signal.SIGTERM and top.is_restored()


def test_without_a_terminal_it_prints_once(vgpurun: Cli, holder: str) -> None:
    result = vgpurun("top", "--driver", "sim")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "\x1b" not in result.stdout
    assert "774 MiB / 2 GiB" in result.stdout


def test_without_an_engine_processes_are_shown(vgpurun: Cli) -> None:
    vgpurun.environment["DOCKER_HOST"] = "unix:///none.sock"
    result = vgpurun("top", "--driver", "sim", "--once")
    assert result.exit_code == 0 and "/none.sock" in result.stderr and "Simulated GPU" in result.stdout
