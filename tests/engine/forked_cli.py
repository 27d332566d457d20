"""vgpurun's command line in a process of its own, forked from one that has loaded it, which is much faster."""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from cli import Result

_TIMEOUT_S = 30
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [
        "vgpurun.engine.without_tls",
        "vgpurun.cli.commands.run",
        "vgpurun.launch.container",
        "vgpurun.launch.image_look",
        "vgpurun.host.simulation",
        __name__,
    ]
)


def run(arguments: Sequence[str], environment: Mapping[str, str], folder: Path) -> Result:
    """`vgpurun ARGUMENTS` in a folder, without input, waited for."""
    with tempfile.TemporaryDirectory() as outputs:
        process = _context.Process(target=_child, args=(list(arguments), dict(environment), folder, Path(outputs)))
        process.start()
        process.join(_TIMEOUT_S)
        if process.exitcode is None:
            process.kill()
            raise TimeoutError(f"vgpurun {' '.join(arguments)} did not end within {_TIMEOUT_S} s")
        stdout, stderr = (Path(outputs, name).read_text() for name in ("stdout", "stderr"))
        return Result(process.exitcode, stdout, stderr)


def _child(arguments: list[str], environment: dict[str, str], folder: Path, outputs: Path) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(outputs / name, os.O_WRONLY | os.O_CREAT), number)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
    from vgpurun.cli import main

    exit_code = main(arguments)
    sys.stderr.flush()
    os._exit(exit_code)
