"""`vgpurun stop|kill|rm|logs|exec|prune` on a real engine: docker's words, outputs and exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from cli import Cli
from support import wait_until
from terminal import Terminal
from vgpurun.cli import cli
from vgpurun.cli.common import ContainerName
from vgpurun.cli.verbs import all_commands
from vgpurun.engine.containers import ContainerEngine

TALK = "echo out; echo err >&2; sleep 600"
# Verbs about a container, with what else each is given: of a name that none has, one that vgpurun did not make, and one
# of another user. The first are of the former two.
OF_BOTH: tuple[tuple[str, ...], ...] = (
    ("stop",),
    ("restart",),
    ("kill",),
    ("logs",),
    ("update", "--driver", "sim", "--mem", "1g"),
    ("suspend", "--driver", "sim"),
    ("resume", "--driver", "sim"),
    ("move", "--driver", "sim", "--gpus", "0"),
    ("thaw",),
    ("pause",),
    ("pause", "--gpu"),
    ("unpause",),
    ("start", "--driver", "sim"),
)
OF_NOBODY = (*OF_BOTH, ("rm",), ("exec", "nobody", "true"), ("smi",), ("advise", "nobody", "nobody"))
OF_DOCKERS = (*OF_BOTH, ("rm", "-f"), ("exec", "foreign", "true"), ("advise", "foreign", "foreign"))
OF_ANOTHER_USERS: tuple[tuple[str, ...], ...] = (
    ("pause",),
    ("pause", "--gpu"),
    ("unpause",),
    ("update", "--driver", "sim", "--sm", "10"),
    ("suspend", "--driver", "sim"),
    ("resume", "--driver", "sim"),
    ("move", "--driver", "sim", "--gpus", "0"),
    ("exec", "tended", "true"),
    ("start", "--driver", "sim"),
    ("restart",),
    ("kill",),
    ("stop",),
    ("rm",),
    ("rm", "-f"),
)


@pytest.fixture
def container(vgpurun: Cli, debian: str) -> str:
    """A container that has written a line to each of its streams, and ends at once when it is told to."""
    result = vgpurun.run(
        "-d", "--name", "tended", "--mem", "1g", debian, "sh", "-c", f"trap 'exit 3' TERM; {TALK} & wait"
    )
    assert result.exit_code == 0, result
    wait_until(lambda: vgpurun.engine.containers.get("tended").logs().count(b"\n") == 2, "output")
    return result.stdout.strip()


@pytest.fixture
def foreign(vgpurun: Cli, debian: str) -> Iterator[str]:
    """A container that docker made."""
    made = vgpurun.engine.containers.run(debian, ["sleep", "600"], detach=True, name="foreign", network_mode="none")
    yield "foreign"
    made.remove(force=True)


def exit_code_of(vgpurun: Cli, name: str) -> int:
    return int(vgpurun.engine.containers.get(name).attrs["State"]["ExitCode"])


def test_every_verb_about_a_container_is_asked_here() -> None:
    """`top` hands over to docker, and `inspect` prints an empty list besides, as docker's does."""
    commands = dict(all_commands(cli))
    about = {words for words, each in commands.items() if any(type(one.type) is ContainerName for one in each.params)}
    changing = {words for words, each in commands.items() if any("--others" in one.opts for one in each.params)}
    assert about - {each[0] for each in OF_NOBODY} == about - {each[0] for each in OF_DOCKERS} == {"top", "inspect"}
    assert changing == {each[0] for each in OF_ANOTHER_USERS}


@pytest.mark.parametrize("arguments", OF_NOBODY, ids=lambda arguments: arguments[0])
def test_an_unknown_container_is_docker_s_error(vgpurun: Cli, arguments: tuple[str, ...]) -> None:
    given = arguments if "nobody" in arguments else (*arguments, "nobody")
    result = vgpurun(*given)
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "vgpurun: No such container: nobody\n")


@pytest.mark.parametrize("arguments", OF_DOCKERS)
def test_containers_of_others_are_left_alone(vgpurun: Cli, foreign: str, arguments: tuple[str, ...]) -> None:
    given = arguments if foreign in arguments else (*arguments, foreign)
    result = vgpurun(*given)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "foreign was not made by vgpurun" in result.stderr
    assert vgpurun.engine.containers.get(foreign).status == "running"


@pytest.mark.parametrize(
    "arguments", OF_ANOTHER_USERS, ids=lambda arguments: "-".join(arguments[:2]).replace("--", "-")
)
def test_another_user_s_container_takes_others(
    vgpurun: Cli, container: str, as_nobody: tuple[str, ...], arguments: tuple[str, ...]
) -> None:
    """All users of an engine may do all to it: so this keeps them from accidents."""
    socket = Path(vgpurun.environment["DOCKER_HOST"].removeprefix("unix://"))
    given = arguments if "tended" in arguments else (*arguments, "tended")
    with TemporaryDirectory(prefix="vgpurun-nobody-", dir="/tmp") as folder:
        Path(folder).chmod(0o777)
        environment = {**vgpurun.environment, "HOME": folder, "VGPURUN_STATE_DIR": folder}
        nobody = replace(vgpurun, command=as_nobody, environment=environment)
        socket.chmod(0o660)
        refusal = nobody(*given)
        assert (refusal.exit_code, refusal.stdout) == (1, "")
        assert refusal.stderr == "vgpurun: container tended belongs to user root; give --others to act on it\n"
        assert vgpurun.engine.containers.get("tended").status == "running"
        if arguments[0] in ("exec", "stop", "kill", "restart", "start") or "-f" in arguments:
            assert nobody(given[0], "--others", *given[1:]).exit_code == 0
        elif arguments == ("rm",):
            assert nobody("rm", "--others", "tended").exit_code == 1
            assert vgpurun.engine.containers.get("tended").status == "running", "it takes --force besides"
        elif arguments[0] in ("pause", "update"):
            assert vgpurun(*given).exit_code == 0, "root needs no word"


def test_stop_sends_the_stop_signal_and_goes_on_after_an_error(vgpurun: Cli, container: str) -> None:
    result = vgpurun("stop", "nobody", "tended")
    assert (result.exit_code, result.stdout) == (1, "tended\n")
    assert exit_code_of(vgpurun, "tended") == 3
    again = vgpurun("stop", container[:12])
    assert (again.exit_code, again.stdout, again.stderr) == (0, f"{container[:12]}\n", "")


def test_what_has_ended_is_listed_as_ended_at_once(
    vgpurun: Cli, container: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine answers a stop before its list has it: who wants the room would be refused."""
    monkeypatch.setenv("DOCKER_HOST", vgpurun.environment["DOCKER_HOST"])
    engine = ContainerEngine.connect()
    ends: tuple[Callable[[], None], ...] = (
        lambda: engine.stop_in_time(container, 0, None),
        lambda: engine.send_signal(container, "KILL"),
    )
    for end in ends * 3:
        engine.start_again(container)
        end()
        assert [each.status for each in engine.containers() if each.id == container] == ["exited"]


def test_kill_sends_the_signal_that_is_named(vgpurun: Cli, container: str) -> None:
    assert vgpurun("kill", "-s", "TERM", "tended").stdout == "tended\n"
    wait_until(lambda: vgpurun.engine.containers.get("tended").status == "exited", "end")
    assert exit_code_of(vgpurun, "tended") == 3
    result = vgpurun("kill", "tended")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "is not running" in result.stderr


def test_rm_takes_the_state_folder_along(vgpurun: Cli, container: str) -> None:
    refused = vgpurun("rm", "tended")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "running" in refused.stderr and len(vgpurun.states()) == 1
    assert vgpurun("rm", "-f", "tended").stdout == "tended\n"
    vgpurun.assert_nothing_left()
    assert vgpurun("rm", "-f", "tended").exit_code == 0


def test_logs_keep_the_streams_apart(vgpurun: Cli, container: str) -> None:
    result = vgpurun("logs", "tended")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "out\n", "err\n")
    assert vgpurun("logs", "--tail", "0", "tended").stdout == ""
    assert vgpurun("logs", "--since", "0.000001s", "tended").stdout == ""
    assert vgpurun("logs", "--since", "1h", "--until", "2222-01-01T00:00:00Z", "tended").stdout == "out\n"
    assert vgpurun("logs", "--until", "1h", "tended").stdout == ""
    assert vgpurun("logs", "-t", "tended").stdout.endswith("Z out\n")


def test_logs_follow_until_the_container_ends(vgpurun: Cli, container: str) -> None:
    with vgpurun.started("logs", "--follow", "tended") as following:
        assert following.stdout is not None and following.stdout.readline() == "out\n"
        assert following.poll() is None
        vgpurun("stop", "tended")
        assert following.wait(60) == 0


def test_logs_of_a_terminal_are_plain_bytes(vgpurun: Cli, debian: str) -> None:
    assert vgpurun.run("-d", "-t", "--name", "tended", debian, "echo", "hello").exit_code == 0
    wait_until(lambda: vgpurun.engine.containers.get("tended").status == "exited", "end")
    assert vgpurun("logs", "tended").stdout == "hello\n"


def test_exec_has_streams_environment_and_exit_code(vgpurun: Cli, container: str) -> None:
    code = (
        "import os, sys; data = sys.stdin.buffer.read(); sys.stdout.buffer.write(data[::-1]); sys.exit(len(data) % 100)"
    )
    data = bytes(range(256)) * 1000
    result = vgpurun("exec", "-i", "tended", "python3", "-c", code, stdin=data)
    assert (result.exit_code, result.stdout.encode("latin-1")) == (len(data) % 100, data[::-1])
    shown = vgpurun("exec", "-e", "A=1", "-w", "/tmp", "-u", "65534", "tended", "sh", "-c", "echo $A $PWD; id -u")
    assert shown.stdout == "1 /tmp\n65534\n"


def test_exec_is_limited_too(vgpurun: Cli, container: str) -> None:
    result = vgpurun("exec", "tended", "env", "-i", "nvidia-smi")
    assert result.exit_code == 0 and "1024MiB" in result.stdout.replace(" ", ""), result


def test_exec_needs_a_container_that_runs(vgpurun: Cli, container: str) -> None:
    vgpurun("kill", "tended")
    result = vgpurun("exec", "tended", "true")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "is not running" in result.stderr
    assert vgpurun("exec", "-it", "tended", "true").exit_code == 1  # no terminal


def test_exec_in_a_terminal(vgpurun: Cli, container: str) -> None:
    shell = [sys.executable, "-m", "vgpurun", "exec", "-it", "tended", "sh"]
    terminal = Terminal(shell, vgpurun.environment, rows=30, columns=90)
    try:
        terminal.read_until(b"# ")
        # The size arrives a moment after the start, as with docker.
        wait_until(lambda: terminal.type(b"stty size\r") or b"30 90" in terminal.read_until(b"# "), "its size")
        terminal.type(b"tty\r")
        terminal.read_until(b"/dev/pts/")
        terminal.resize(20, 70)
        wait_until(lambda: terminal.type(b"stty size\r") or b"20 70" in terminal.read_until(b"# "), "new size")
        terminal.type(b"exit 9\r")
        assert terminal.wait() == 9
        assert terminal.is_restored()
    finally:
        terminal.close()


def test_exec_restores_the_terminal_when_it_is_ended(vgpurun: Cli, container: str) -> None:
    terminal = Terminal([sys.executable, "-m", "vgpurun", "exec", "-it", "tended", "sh"], vgpurun.environment)
    try:
        terminal.read_until(b"# ")
        terminal.process.terminate()
        assert terminal.wait() == 143
        assert terminal.is_restored()
    finally:
        terminal.close()


def test_prune_removes_what_docker_rm_has_left(vgpurun: Cli, container: str) -> None:
    assert vgpurun("prune").stdout == "Removed 0 state folders, 0 bytes\n"
    vgpurun.engine.containers.get("tended").remove(force=True)
    (folder,) = vgpurun.states()
    dry = vgpurun("prune", "--dry-run").stdout.splitlines()
    assert folder in dry[0] and dry[1].startswith("Would remove 1 state folder, ")
    assert vgpurun.states() == [folder]
    lines = vgpurun("prune").stdout.splitlines()
    assert folder in lines[0] and lines[1].startswith("Removed 1 state folder, ")
    vgpurun.assert_nothing_left()


def test_prune_without_an_engine_leaves_containers_alone(vgpurun: Cli, container: str, tmp_path: Path) -> None:
    vgpurun.engine.containers.get("tended").remove(force=True)
    vgpurun.environment["DOCKER_HOST"] = f"unix://{tmp_path}/none.sock"
    result = vgpurun("prune")
    assert (result.exit_code, result.stdout) == (0, "Removed 0 state folders, 0 bytes\n")
    assert "left alone" in result.stderr and len(vgpurun.states()) == 1


def test_logs_into_a_closed_pipe_are_quiet(vgpurun: Cli, container: str) -> None:
    command = f"{sys.executable} -m vgpurun logs tended | true"
    done = subprocess.run(["bash", "-c", command], env=os.environ | vgpurun.environment, capture_output=True, text=True)
    assert done.stderr in ("", "err\n")
