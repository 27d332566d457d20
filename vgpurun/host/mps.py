"""NVIDIA's Multi-Process Service: whether it runs here, and how limited programs are kept out of it.

Programs under MPS share one context of the daemon's. Their parts of the memory and of the time cannot be told apart
there as elsewhere, so limits are for programs outside of it. A program finds the daemon through a folder of
pipes: without it the program uses the GPU by itself. A container does not have the folder, unless it is mounted.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from vgpurun.errors import OptionError
from vgpurun.options import ContainerOptions, mount_targets
from vgpurun.util.kernel_text import read_text

ENV_PIPES = "CUDA_MPS_PIPE_DIRECTORY"
DEFAULT_PIPES = "/tmp/nvidia-mps"
NO_PIPES = "/dev/null/no-mps"  # a folder that cannot be
_PROGRAM = "nvidia-cuda-mps-control"
_COMM_LENGTH = 15  # of a process's name in /proc
STOP = "stop it with: echo quit | nvidia-cuda-mps-control"


def find_daemon(proc: Path = Path("/proc")) -> int | None:
    """Return the process number of an MPS daemon that runs on this host, or None."""
    for folder in sorted(proc.glob("[0-9]*")):
        with suppress(OSError):
            if read_text(folder / "comm").strip() != _PROGRAM[:_COMM_LENGTH]:
                continue
            program = (folder / "cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
            if os.path.basename(program) == _PROGRAM:  # noqa: PTH119 (not a path of ours)
                return int(folder.name)
    return None


def refuse_in_container(
    options: ContainerOptions, environment: Mapping[str, str], daemon: Callable[[], int | None] = find_daemon
) -> None:
    """Raise OptionError for a container that could reach the daemon of this host."""
    pipes = environment.get(ENV_PIPES) or DEFAULT_PIPES
    for target in {pipes, DEFAULT_PIPES}:
        if target.startswith("/") and mount_targets.path_on_host(target, options) is not None and (pid := daemon()):
            raise OptionError(
                f"the mount at {target} lets the container use this host's MPS daemon (process {pid}), under which no "
                f"limit holds; leave the mount out, or {STOP}"
            )


def keep_process_out(given: Mapping[str, str], daemon: Callable[[], int | None] = find_daemon) -> dict[str, str]:
    """Return the variables that keep a process of this host out of a daemon that runs; nothing without one."""
    return {ENV_PIPES: NO_PIPES} if given.get(ENV_PIPES) != NO_PIPES and daemon() else {}
