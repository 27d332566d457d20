"""Refuses --swap on a host where no turns would be given."""

from collections.abc import Sequence

from vgpurun.errors import GpuError, GuardError
from vgpurun.host import gpus as devices
from vgpurun.host.checkpoints import FIRST_DRIVER
from vgpurun.host.gpus import Gpu
from vgpurun.inventory import guarded
from vgpurun.storage import state


def check_turns(gpus: Sequence[Gpu], is_local: bool = False) -> None:
    """Raise GuardError where no guard gives turns, or does not see a local process, GpuError for an old driver."""
    if not guarded.is_running():
        raise GuardError("--swap needs vgpurun guard, which does not run on this host; start it as root: vgpurun guard")
    if is_local and state.root_folder() != state.host_root():
        raise GuardError("--swap: the guard sees no local process of a user; use sudo, or a slice (--slice)")
    version = devices.read_driver(gpus).version
    major = version.partition(".")[0]
    if major.isdecimal() and int(major) < FIRST_DRIVER:
        raise GpuError(
            f"--swap: driver {version} takes no program off a GPU; use {FIRST_DRIVER} or newer, or leave --swap out"
        )
