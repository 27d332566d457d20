"""A cgroup of its own for a process of `vgpurun local` by root, which the driver itself holds to the memory limit.

    /sys/fs/cgroup/vgpurun/<name of the state folder>

The launching process is in there too until the command has ended. A cgroup in which nothing is left, as after a kill,
is removed by the next such launch.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from vgpurun.errors import EnforceError, GpuError
from vgpurun.host import memory_limits
from vgpurun.limits.model import DeviceQuota

_PATIENCE = 100  # times that another launch may have taken the new one for one that is left over


def lacking_for_process(mode: str, quotas: Sequence[DeviceQuota]) -> str:
    """Return why the driver cannot hold a local process to its memory limit, or nothing. Raises EnforceError.

    It is an error where `mode` is driver.
    """
    missing = (
        "the library was asked for" if mode == "library"
        else "there is no memory limit" if all(each.quota.memory_bytes is None for each in quotas)
        else memory_limits.lacking([each.gpu for each in quotas])
        or ("" if os.geteuid() == 0 else "only root may set limits of the driver's own")
    )  # fmt: skip
    if missing and mode == "driver":
        raise EnforceError(f"--enforce driver: {missing}; use auto, which takes what this host supports, or library")
    return missing


@contextmanager
def own_cgroup(name: str, quotas: Sequence[DeviceQuota]) -> Iterator[None]:
    """Be in a cgroup that the driver holds to these limits, and with this process what it starts.

    Raises EnforceError, and GpuError.
    """
    parent = memory_limits.CGROUPS / "vgpurun"
    before = memory_limits.cgroup_of(os.getpid())
    if before is None:
        raise EnforceError("the cgroup of this process is out of sight")
    try:
        parent.mkdir(exist_ok=True)
        for folder in (memory_limits.CGROUPS, parent):
            _offer_dmem(folder)
        sweep(parent, quotas)
        own = _entered(parent / name)
    except OSError as error:
        raise EnforceError(f"no cgroup can be made in {parent}: {error.strerror}") from None
    try:
        for gpu, quota in quotas:
            if quota.memory_bytes is not None:
                memory_limits.write(gpu, own, quota.memory_bytes, quota.guaranteed_bytes or 0)
        yield
    finally:
        with suppress(OSError):
            (before / "cgroup.procs").write_text(str(os.getpid()))
        sweep(parent, quotas)


def sweep(parent: Path, quotas: Sequence[DeviceQuota]) -> None:
    """Remove the cgroups that nothing is in, what was guaranteed to them before. Raises nothing."""
    with suppress(OSError):
        for cgroup in [each for each in parent.iterdir() if each.is_dir()]:
            with suppress(OSError, EnforceError, GpuError):
                if "populated 0" not in (cgroup / "cgroup.events").read_text():
                    continue
                for each in quotas:
                    if memory_limits.read(each.gpu, cgroup).guaranteed_bytes:
                        memory_limits.write(each.gpu, cgroup, None)
                cgroup.rmdir()


def _entered(cgroup: Path) -> Path:
    """Make a cgroup and enter it; another launch may remove it in between."""
    for _ in range(_PATIENCE):
        cgroup.mkdir(exist_ok=True)
        with suppress(FileNotFoundError):
            (cgroup / "cgroup.procs").write_text(str(os.getpid()))
            return cgroup
    raise EnforceError(f"{cgroup} is removed again and again by others")


def _offer_dmem(folder: Path) -> None:
    """Let cgroups below have the kernel's controller of device memory, where there is one."""
    if "dmem" in (folder / "cgroup.controllers").read_text().split():
        (folder / "cgroup.subtree_control").write_text("+dmem")
