"""Standard input and terminals."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from cli import Cli
from support import wait_until
from terminal import Terminal


def test_bytes_come_back_as_they_went_in(vgpurun: Cli, debian: str) -> None:
    data = os.urandom(1 << 20)
    assert vgpurun.run("-i", debian, "cat", stdin=data).stdout.encode("latin-1") == data


def test_input_that_the_command_does_not_read_is_no_error(vgpurun: Cli, debian: str) -> None:
    result = vgpurun.run("-i", debian, "true", stdin=b"x" * 4_000_000)
    assert (result.exit_code, result.stderr) == (0, "")


def test_without_i_the_command_has_no_input(vgpurun: Cli, debian: str) -> None:
    assert vgpurun.run(debian, "cat", stdin="not for you").stdout == ""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_standard_stream_is_no_error(vgpurun: Cli, debian: str, closed: str) -> None:
    shell = Cli(vgpurun.engine, vgpurun.environment, vgpurun.state_dir)
    shell.command = ("sh", "-c", f'exec "$@" {closed}', "sh", *vgpurun.command)
    result = shell.run("-i", debian, "sh", "-c", "echo out; echo err >&2; exit 4")
    assert result.exit_code == 4
    assert "Traceback" not in result.stderr
    vgpurun.assert_nothing_left()


@pytest.fixture
def open_program() -> Iterator[Callable[..., Terminal]]:
    with ExitStack() as stack:
        yield lambda *arguments, **size: stack.enter_context(closing(Terminal(*arguments, **size)))


@pytest.fixture
def open_terminal(vgpurun: Cli, open_program: Callable[..., Terminal]) -> Callable[..., Terminal]:
    run = [*vgpurun.command, "run", "--rm", *vgpurun.driver]
    return lambda *arguments: open_program([*run, *arguments], vgpurun.environment)


def test_a_shell_in_a_terminal(vgpurun: Cli, debian: str, open_terminal: Callable[..., Terminal]) -> None:
    terminal = open_terminal("-it", "--mem", "1g", debian, "bash", "--norc")
    terminal.read_until(b"# ")
    terminal.type(b"stty size; test -t 0 && echo it is a'' terminal\r")
    seen = terminal.read_until(b"it is a terminal\r\n")
    assert b"24 80\r\n" in seen
    terminal.type(b"exit 7\r")
    assert terminal.wait() == 7
    assert terminal.is_restored()
    vgpurun.assert_nothing_left()


def test_a_resize_reaches_the_container(debian: str, open_terminal: Callable[..., Terminal]) -> None:
    terminal = open_terminal("-it", debian, "sh", "-c", "echo ready; while sleep 0.1; do stty size; done")
    terminal.read_until(b"24 80")
    terminal.resize(50, 132)
    terminal.read_until(b"50 132")
    terminal.type(b"\x03")
    terminal.wait()
    assert terminal.is_restored()


def test_ctrl_c_reaches_the_command_and_not_vgpurun(debian: str, open_terminal: Callable[..., Terminal]) -> None:
    script = "trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.1; done"
    terminal = open_terminal("-it", debian, "sh", "-c", script)
    terminal.read_until(b"ready")
    terminal.type(b"\x03")
    terminal.read_until(b"caught")
    assert terminal.wait() == 9
    assert terminal.is_restored()


def test_the_terminal_is_restored_after_a_failed_start(
    vgpurun: Cli, debian: str, open_terminal: Callable[..., Terminal]
) -> None:
    terminal = open_terminal("-it", debian, "no-such-command")
    assert terminal.wait() == 127
    assert terminal.is_restored()
    vgpurun.assert_nothing_left()


def test_the_detach_keys_leave_the_container_running(
    vgpurun: Cli, debian: str, open_terminal: Callable[..., Terminal]
) -> None:
    terminal = open_terminal("-it", "--name", "detached", "--mem", "1g", debian, "bash", "--norc")
    terminal.read_until(b"# ")
    terminal.type(b"\x10")
    terminal.type(b"\x11")
    assert terminal.wait() == 0
    assert terminal.is_restored()
    assert vgpurun.engine.containers.get("detached").status == "running"
    wait_until(lambda: len(vgpurun.states()) == 1, "state folder of the running container")


@pytest.mark.parametrize("where", ["option", "configuration"])
def test_other_detach_keys(vgpurun: Cli, debian: str, open_terminal: Callable[..., Terminal], where: str) -> None:
    options = ["--detach-keys", "ctrl-a,d"] if where == "option" else []
    if not options:
        folder = Path(vgpurun.environment["HOME"], ".docker")
        folder.mkdir()
        (folder / "config.json").write_text('{"detachKeys": "ctrl-a,d"}')
    script = "stty raw -echo; echo ready; cat -v"
    terminal = open_terminal("-it", *options, "--name", "detached", debian, "sh", "-c", script)
    terminal.read_until(b"ready")
    terminal.type(b"\x10\x11\x01x")
    terminal.read_until(b"^P^Q^Ax")  # neither docker's own keys nor half of ours detach
    terminal.type(b"\x01")
    terminal.type(b"d")
    assert terminal.wait() == 0
    assert terminal.is_restored()
    assert vgpurun.engine.containers.get("detached").status == "running"


def test_the_size_is_right_from_the_start(vgpurun: Cli, debian: str, open_terminal: Callable[..., Terminal]) -> None:
    if not vgpurun.engine.api.api_version >= "1.42":
        pytest.skip("an older engine is told the size when the command runs already")
    terminal = open_terminal("-it", debian, "stty", "size")
    terminal.read_until(b"24 80\r\n")
    assert terminal.wait() == 0


def test_a_terminal_without_input(debian: str, open_terminal: Callable[..., Terminal]) -> None:
    terminal = open_terminal("-t", debian, "sh", "-c", "test -t 1 && echo it is a'' terminal")
    terminal.read_until(b"it is a terminal\r")
    assert terminal.wait() == 0
    assert terminal.is_restored()


def test_the_terminal_is_restored_when_vgpurun_is_terminated(
    vgpurun: Cli, debian: str, open_terminal: Callable[..., Terminal]
) -> None:
    terminal = open_terminal("-it", debian, "sh", "-c", "trap 'exit 5' TERM; echo ready; while :; do sleep 0.1; done")
    terminal.read_until(b"ready")
    assert not terminal.is_restored()
    terminal.process.send_signal(signal.SIGTERM)
    assert terminal.wait() == 5
    assert terminal.is_restored()
    vgpurun.assert_nothing_left()


def test_three_signals_end_the_client_and_leave_a_command_that_heeds_none(
    vgpurun: Cli, debian: str, open_terminal: Callable[..., Terminal]
) -> None:
    script = "trap '' INT; trap 'echo heard' TERM; echo ready; while :; do sleep 0.1; done"
    terminal = open_terminal("-it", "--name", "deaf", debian, "sh", "-c", script)
    terminal.read_until(b"ready")
    terminal.process.send_signal(signal.SIGINT)
    terminal.process.send_signal(signal.SIGTERM)
    terminal.read_until(b"heard")  # the kernel keeps only a single one of two alike until that is taken
    terminal.process.send_signal(signal.SIGTERM)
    assert terminal.wait() == 1
    assert terminal.is_restored()
    assert vgpurun.engine.containers.get("deaf").status == "running"


def test_a_stopped_vgpurun_lends_its_terminal_back(debian: str, open_terminal: Callable[..., Terminal]) -> None:
    terminal = open_terminal("-it", debian, "bash", "--norc")
    terminal.read_until(b"# ")
    terminal.process.send_signal(signal.SIGTSTP)
    wait_until(lambda: state_of(terminal) == "T", "stopped vgpurun")
    assert terminal.is_restored()
    terminal.process.send_signal(signal.SIGCONT)
    wait_until(lambda: not terminal.is_restored(), "raw terminal")
    terminal.type(b"exit 6\r")
    assert terminal.wait() == 6
    assert terminal.is_restored()


def test_job_control_of_a_run_without_a_terminal(
    vgpurun: Cli, debian: str, open_program: Callable[..., Terminal]
) -> None:
    shell = open_program(["bash", "--norc", "-i"], vgpurun.environment | {"PS1": "$ "}, columns=1000)
    shell.read_until(b"$ ")
    script = "trap 'echo continued' CONT; trap 'exit 9' INT; echo ready; while :; do sleep 0.1; done"
    run = shlex.join([*vgpurun.command, "run", "--rm", *vgpurun.driver, debian, "sh", "-c", script])
    shell.type(f"{run} 2>/dev/null\r".encode())
    shell.read_until(b"ready\r\n")
    shell.type(b"\x1a")  # Ctrl-Z
    shell.read_until(b"Stopped")
    shell.type(b"fg\r")
    shell.read_until(b"continued\r\n")
    shell.type(b"\x03")
    shell.read_until(b"$ ")
    shell.type(b"echo code $?\r")
    shell.read_until(b"code 9")
    wait_until(lambda: not vgpurun.containers(), "end of the container")


def state_of(terminal: Terminal) -> str:
    """The state of the terminal's process in ps's letters."""
    return Path(f"/proc/{terminal.process.pid}/stat").read_text().rpartition(")")[2].split()[0]


# Each line would be a record in the engine's log, which it writes to its end before a container has ended.
WITHOUT_LOG = ("--log-driver", "none")


HANGING_UP = {
    "shell": (("bash",), b"# "),
    "busy": (("yes",), b"y\r\n"),
    "deaf": (("sh", "-c", "echo ready; exec sleep 60"), b"ready\r\n"),  # process 1 heeds no signal without a handler
}


@pytest.mark.parametrize(("command", "text"), HANGING_UP.values(), ids=HANGING_UP)
def test_a_terminal_that_goes_away_ends_the_container(
    open_terminal: Callable[..., Terminal], vgpurun: Cli, debian: str, command: tuple[str, ...], text: bytes
) -> None:
    terminal = open_terminal("-it", *WITHOUT_LOG, debian, *command)
    terminal.read_until(text)
    terminal.hang_up()
    terminal.wait()
    wait_until(lambda: not vgpurun.containers(), "end of the container")
    vgpurun.assert_nothing_left()


def test_output_to_a_full_disk_ends_the_container(vgpurun: Cli, debian: str) -> None:
    shell = Cli(vgpurun.engine, vgpurun.environment, vgpurun.state_dir)
    shell.command = ("sh", "-c", 'exec "$@" >/dev/full', "sh", *vgpurun.command)
    shell.run(*WITHOUT_LOG, debian, "yes").assert_refused("No space left on device")
    vgpurun.assert_nothing_left()
