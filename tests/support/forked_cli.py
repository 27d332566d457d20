"""vgpurun's command line in a process of its own, forked from one that has loaded it, which is much faster."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

_TIMEOUT_S = 30
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [
        "vgpurun.engine.docker_py",
        "vgpurun.cli.commands.run",
        "vgpurun.launch.container",
        "vgpurun.launch.image_look",
        "vgpurun.host.simulation",
        "yaml",
        "matplotlib.figure",
        __name__,
    ]
)


def run(
    arguments: Sequence[str], environment: Mapping[str, str], folder: Path = Path(), *, admin_file: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """`vgpurun ARGUMENTS` in a folder, without input, waited for; with another file in place of the administrator's.

    Python's own variables have no effect on a process that is forked.
    """
    if any(name.startswith("PYTHON") and os.environ.get(name) != value for name, value in environment.items()):
        raise ValueError("a variable of Python's takes a process that is started: use subprocess")
    with tempfile.TemporaryDirectory() as outputs:
        process = _context.Process(
            target=_child, args=(arguments, dict(environment), folder.absolute(), outputs, admin_file)
        )
        process.start()
        process.join(_TIMEOUT_S)
        if process.exitcode is None:
            process.kill()
            raise TimeoutError(f"vgpurun {' '.join(arguments)} did not end within {_TIMEOUT_S} s")
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
