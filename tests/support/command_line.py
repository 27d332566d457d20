"""vgpurun's command line, waited for."""

from __future__ import annotations

import atexit
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from support import WITH_ADMIN_FILE

# Variables that the loader, Python, or a module that `starter.py` has imported heeds as a process starts; and those of
# them that only count for what the command line starts.
_OF_THE_START = ("LD_", "LC_", "LANG", "PYTHON", "MPL")
_OF_CHILDREN = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
# These many runs import; other verbs are left out: no test of this tier starts each of them by itself, as a user does.
# Other parts of docker-py are imported where an engine is not at a unix socket.
_AT_SOCKET = (
    *("vgpurun.cli.commands.run", "vgpurun.cli.commands.local", "rich.table", "yaml", "vgpurun.engine.client"),
    *("vgpurun.launch.asking", "vgpurun.launch.run", "vgpurun.launch.container", "vgpurun.launch.image_look"),
)
# Half a second of imports, and whatever is forked from that process takes a third longer: for what draws alone.
_OF_PICTURES = ("vgpurun.cli.commands.report", "rich.table", "yaml", "jinja2", "matplotlib.figure")
_WITHOUT_PICTURES = re.compile("(--format=)?(text|json|trace|alnair)")  # reports
# By what they have imported. Each has one process at a time, and threads run several at once.
_idle: dict[tuple[str, ...], list[socket.socket]] = {_AT_SOCKET: [], _OF_PICTURES: []}
_one_at_a_time = threading.Lock()


def run(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    folder: Path = Path(),
    *,
    admin_file: Path | None = None,
    timeout_s: float = 60,
    program: str = "vgpurun",
) -> subprocess.CompletedProcess[str]:
    """`vgpurun ARGUMENTS` in a folder, without input; with another file in place of the administrator's.

    `program` is another name to call it by. A process that has imported vgpurun forks it, which takes a third of the
    work, unless a variable counts before that.
    """
    modules = _OF_PICTURES if _draws(arguments) else _AT_SOCKET
    is_foreseen = modules != _AT_SOCKET or environment.get("DOCKER_HOST", "").startswith("unix:")
    if not is_foreseen or _at_start(environment) != _at_start(os.environ):
        assert program == "vgpurun", "a new process has no other name"
        command = ["-m", "vgpurun"] if admin_file is None else ["-c", WITH_ADMIN_FILE, str(admin_file)]
        return subprocess.run(
            [sys.executable, *command, *arguments], env=environment, cwd=folder, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=timeout_s,
        )  # fmt: skip
    request = [[program, *arguments], {**environment}, str(folder.absolute()), admin_file and str(admin_file)]
    starter = _idle[modules].pop() if _idle[modules] else _new_starter(modules)
    with open(os.devnull) as nothing, tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        socket.send_fds(starter, [json.dumps(request).encode()], [each.fileno() for each in (nothing, out, errors)])
        number = int(starter.recv(20))
        starter.settimeout(timeout_s)
        try:
            exit_code = int(starter.recv(20))
        except BaseException:
            os.kill(number, signal.SIGKILL)
            raise
        starter.settimeout(None)
        _idle[modules].append(starter)
        for stream in (out, errors):
            stream.seek(0)
        return subprocess.CompletedProcess(arguments, exit_code, out.read(), errors.read())


def _draws(arguments: Sequence[str]) -> bool:
    if arguments[:1] == ["report"]:
        return not any(map(_WITHOUT_PICTURES.fullmatch, arguments))
    return "--plot" in arguments


def _at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_OF_THE_START) and name not in _OF_CHILDREN
    }


def _new_starter(modules: tuple[str, ...]) -> socket.socket:
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its, _one_at_a_time:
        socket.send_fds(_forks_starters(modules), [b"1"], [its.fileno()])
    return ours


@cache
def _forks_starters(modules: tuple[str, ...]) -> socket.socket:
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        program = [sys.executable, Path(__file__).with_name("starter.py"), str(its.fileno()), *modules]
        process = subprocess.Popen(program, pass_fds=[its.fileno()], env=os.environ | {"DOCKER_HOST": "unix:"})
    atexit.register(lambda: (ours.close(), process.wait()))
    return ours
