"""vgpurun's command line in a process of its own, forked from one that has loaded it, which is much faster."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from support import WITH_ADMIN_FILE

_context = multiprocessing.get_context("forkserver")
# Nothing that looks at the environment when it is imported, as vgpurun.engine.docker_py does.
_context.set_forkserver_preload(
    [
        "vgpurun.cli.commands.run",
        "vgpurun.host.simulation",
        "yaml",
        "matplotlib.figure",
        __name__,
    ]
)


def _at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(("LD_", "PYTHON"))}


def run(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    folder: Path = Path(),
    *,
    admin_file: Path | None = None,
    timeout_s: float = 60,
) -> subprocess.CompletedProcess[str]:
    """`vgpurun ARGUMENTS` in a folder, without input, waited for; with another file in place of the administrator's.

    It is started as usual where variables differ that take effect at a start alone. One thread may call this:
    multiprocessing looks at all of its processes whenever it starts one.
    """
    if _at_start(os.environ) != _at_start(environment):
        command = ["-m", "vgpurun"] if admin_file is None else ["-c", WITH_ADMIN_FILE, str(admin_file)]
        return subprocess.run(
            [sys.executable, *command, *arguments], env=environment, cwd=folder, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=timeout_s,
        )  # fmt: skip
    with tempfile.TemporaryDirectory() as outputs:
        process = _context.Process(
            target=_child, args=(arguments, dict(environment), folder.absolute(), outputs, admin_file)
        )
        process.start()
        process.join(timeout_s)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired(["vgpurun", *arguments], timeout_s)
        stdout, stderr = (Path(outputs, name).read_text() for name in ("stdout", "stderr"))
        return subprocess.CompletedProcess(["vgpurun", *arguments], process.exitcode, stdout, stderr)


def _child(
    arguments: Sequence[str], environment: Mapping[str, str], folder: Path, outputs: str, admin_file: Path | None
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(f"{outputs}/{name}", os.O_WRONLY | os.O_CREAT), number)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
    from vgpurun.cli import main
    from vgpurun.config import values

    values.ADMIN_FILE = admin_file or values.ADMIN_FILE
    exit_code = main(arguments)
    sys.stderr.flush()
    os._exit(exit_code)
