"""NVIDIA's Multi-Process Service: whether it runs here, and how limited programs are kept out of it.

Programs under MPS share one context of the daemon's. Their parts of the memory and of the time cannot be told apart
there as elsewhere, so limits are for programs outside of it. A program finds the daemon through a folder of
pipes: without it the program uses the GPU by itself. A container does not have the folder, unless it is mounted.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from vgpurun import abi
from vgpurun.errors import OptionError
from vgpurun.options import ContainerOptions, mount_targets
from vgpurun.storage import state
from vgpurun.util.kernel_text import read_text
from vgpurun.util.locking import locked_by
from vgpurun.util.process_identity import read_stat, uid_of

ENV_PIPES = "CUDA_MPS_PIPE_DIRECTORY"
CONTAINER_PIPES = f"{abi.CONTAINER_DIR}/mps"  # of what works at the same time as others
DEFAULT_PIPES = "/tmp/nvidia-mps"
NO_PIPES = "/dev/null/no-mps"  # a folder that cannot be
CONTROL = "nvidia-cuda-mps-control"
_COMM_LENGTH = 15  # a process's name in /proc
STOP = "stop it with: echo quit | nvidia-cuda-mps-control"


def find_daemon(proc: Path = Path("/proc")) -> int | None:
    """Return the process number of an MPS daemon that runs on this host, or None; of a group's own nothing is said."""
    for folder in sorted(proc.glob("[0-9]*")):
        with suppress(OSError):
            if read_text(folder / "comm").strip() != CONTROL[:_COMM_LENGTH]:
                continue
            program = (folder / "cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
            if os.path.basename(program) == CONTROL and not _is_kept(folder):  # noqa: PTH119 (not a path of ours)
                return int(folder.name)
    return None


def _is_kept(daemon: Path) -> bool:
    """Whether a keeper of ours has started it (together/keeper.py).

    The kernel says so: its parent is the owner of a group's folder, which nobody else can open, and has locked that.
    """
    with suppress(OSError, ValueError):
        parent = read_stat(int(daemon.name)).parent
        inodes = locked_by(parent)
        return any(each.st_ino in inodes and each.st_uid == uid_of(parent) for each in _groups())
    return False


def _groups() -> Iterator[os.stat_result]:
    """Yield what there is of folders of groups, root's and this user's."""
    for root in {state.ROOT_FOLDER, state.root_folder()}:
        with suppress(OSError), os.scandir(root / state.TOGETHER) as folders:
            yield from [each.stat(follow_symlinks=False) for each in folders if each.is_dir(follow_symlinks=False)]


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
