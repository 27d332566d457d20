"""Whether a launch works on the GPUs at the same time as others, and whether it can."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from vgpurun.admission.placement import Placement
from vgpurun.console.messages import say
from vgpurun.errors import OptionError, TogetherError
from vgpurun.host import library, mps
from vgpurun.host.drivers import EngineFacts
from vgpurun.host.gpus import Gpu, read_driver
from vgpurun.launch.container_user import ContainerUser
from vgpurun.limits.device_quotas import device_quotas
from vgpurun.limits.model import DeviceQuota, Joined, Limits, Part
from vgpurun.limits.policies import SmPolicy
from vgpurun.options import ContainerOptions
from vgpurun.slices import store
from vgpurun.slices.quotas import quotas_on
from vgpurun.slices.store import Slice
from vgpurun.together.group import Group
from vgpurun.together.joining import Membership
from vgpurun.util.kernel_text import read_text
from vgpurun.util.users import name_of

CONTROL_DEVICE = Path("/dev/nvidiactl")
YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")  # not 0: a process may look into what it has started alone
_FIRST_DRIVER = 580
_ALONE = "do without --together"


def membership_of(
    placement: Placement, driver: str, given: Mapping[str, str], indexes: Sequence[int]
) -> Membership | None:
    """Return how a launch joins a group, that of its slice or of its GPUs, or None where it works alone.

    `given` are the variables that its limits may be in, and `indexes` those of its GPUs there. Raises TogetherError,
    and OptionError for limits that it cannot have so.
    """
    uuids = tuple(gpu.uuid for gpu in placement.gpus)
    if placement.limits.together:
        quotas = device_quotas(placement.gpus, placement.limits, given, indexes)
        check_quotas(quotas)
        group = Group.of_gpus(uuids)
    else:
        share, folder = _share_of(placement)
        if share is None:
            return None
        check_slice(store.find(folder.name), os.geteuid(), name_of(os.geteuid()))
        quotas, group = share.quotas, Group.of(folder)
    program, libcuda = server_program(placement.gpus, driver)
    return Membership(group, program, uuids, next((each.quota.sms_percent for each in quotas), None), libcuda)


def membership_in(found: Slice, gpus: Sequence[Gpu]) -> Membership:
    """Return how a container of this user's joins a slice by its CDI device. Raises TogetherError and SliceError."""
    check_slice(found, os.geteuid(), name_of(os.geteuid()))
    chosen = [each.gpu for each in quotas_on(found, gpus)]
    program, libcuda = server_program(chosen, found.driver)
    return Membership(Group.of(found.folder), program, tuple(gpu.uuid for gpu in chosen), libcuda=libcuda)


def user_of(found: Slice) -> str:
    """Return whose programs the server of a slice serves."""
    return found.users[0] if found.users else found.user


def check_slice(found: Slice, uid: int, name: str) -> None:
    """Raise TogetherError for a slice of another user, since a server is of one, and where no time can be limited."""
    if name != (user := user_of(found)):
        raise TogetherError(
            f"slice {found.name} was made with --together, and its MPS server is for programs of user {user} alone; as "
            f"root: sudo -u {user} vgpurun local --slice {found.name}"
        )
    if uid and any(quota.sm_percent for _, quota in found.quotas) and _is_kept_from_others():
        raise TogetherError(
            f"the time of slice {found.name} cannot be limited: this kernel keeps processes of one user from each "
            "other (Yama); make the slice for root, or without --sm, or as root: sysctl kernel.yama.ptrace_scope=0"
        )


def _is_kept_from_others() -> bool:
    with suppress(OSError):
        return read_text(YAMA).strip() != "0"
    return False


def check_users(users: Sequence[str]) -> None:
    """Raise OptionError for users whose programs cannot work at the same time."""
    if len(users) > 1 or any(each == store.ALL_USERS or each.startswith("@") for each in users):
        raise OptionError(
            f"--users {','.join(users)} beside --together: an MPS server is for the programs of one user; name one, "
            "and make a slice for each of the others"
        )


def check_limits(limits: Limits) -> None:
    """Raise OptionError for new limits of a slice that its programs cannot have at the same time."""
    if limits.oversubscribe is not None:
        raise OptionError("--oversubscribe beside --together has not been tried; leave it out")
    if limits.sm_policy not in (None, SmPolicy.HARD):
        raise OptionError("--sm-policy beside --together: the time of all together is always limited; leave it out")


def check_options(options: ContainerOptions) -> None:
    """Raise OptionError for options of a container that is to join and could not, or not again."""
    if (ipc := options.fields.get("HostConfig.IpcMode")) not in (None, "", "host"):
        raise OptionError(f"--ipc {ipc} beside --together: MPS needs the host's, which it gets; leave it out")
    if options.fields.get("HostConfig.RestartPolicy", {}).get("Name", "no") not in ("", "no"):
        raise OptionError("--restart beside --together: its MPS server may have ended by then; leave it out")


def check_container_user(user: ContainerUser | None, facts: EngineFacts) -> None:
    """Raise TogetherError for a container whose programs are not this user's on the host, whom the server serves."""
    if facts.is_rootless:
        raise TogetherError(f"containers of a rootless engine cannot work at the same time as others; {_ALONE}")
    if user is None or user.uid != os.geteuid():
        whose = "a user that its image does not tell" if user is None else f"user {user.name or user.uid}"
        raise TogetherError(
            f"the container's programs would be {whose}'s, and the MPS server of the slice is for user {os.geteuid()}; "
            f"add --user {os.geteuid()}"
        )


def _share_of(placement: Placement) -> tuple[Joined | Part | None, Path]:
    """Return what it has of a slice that works at the same time, if of one, and that slice's folder."""
    share = placement.joined or placement.part
    if share is None or not any(each.quota.together for each in share.quotas):
        return None, Path()
    return share, share.folder if isinstance(share, Joined) else share.parents[-1]


def for_together(
    quotas: Sequence[DeviceQuota], driver: str, is_movable: bool, users: Sequence[str]
) -> tuple[DeviceQuota, ...]:
    """Return quotas as those of programs that work at the same time.

    Raises TogetherError and OptionError where they cannot do so.
    """
    check_users(users)
    check_stays(any(each.quota.takes_turns for each in quotas), is_movable)
    check_quotas(quotas)
    server_program([each.gpu for each in quotas], driver)
    return tuple(DeviceQuota(gpu, replace(quota, together=True)) for gpu, quota in quotas)


def check_stays(takes_turns: bool, is_movable: bool) -> None:
    """Raise OptionError for options by which programs leave their GPUs."""
    for option, is_given in (("--swap", takes_turns), ("--movable", is_movable)):
        if is_given:
            raise OptionError(
                f"{option} beside --together: a program of an MPS server stays where it is; leave one out"
            )


def check_quotas(quotas: Sequence[DeviceQuota]) -> None:
    """Raise OptionError for limits that programs which work at the same time cannot have."""
    if any(each.quota.virtual_bytes for each in quotas):
        raise OptionError("--oversubscribe beside --together has not been tried; leave one out")
    if any(each.quota.sm_policy is not SmPolicy.HARD for each in quotas):
        raise OptionError("--sm-policy beside --together: the time of all together is always limited; leave it out")
    if len({(each.quota.sm_percent, each.quota.sms_percent) for each in quotas}) > 1:
        raise OptionError("--together has one --sm for all its GPUs: one server's work stops on all of them")


def server_program(gpus: Sequence[Gpu], driver: str) -> tuple[Path, str]:
    """Return the program that starts MPS servers for these GPUs, and the driver's library. Raises TogetherError."""
    if instance := next((gpu for gpu in gpus if gpu.mig_index is not None), None):
        raise TogetherError(f"GPU {instance.number} is a MIG instance, for which there is no MPS server here; {_ALONE}")
    if driver == "sim":
        folder = library.find_simulated_driver(say)
        return folder / mps.CONTROL, str(folder / "libcuda.so.1")
    if not CONTROL_DEVICE.exists():
        raise TogetherError(f"this host has no /dev/nvidiactl, as WSL2, and so no MPS; {_ALONE}")
    version = read_driver(gpus).version
    if int(version.partition(".")[0]) < _FIRST_DRIVER:
        raise TogetherError(
            f"the driver {version} is too old to work at the same time: {_FIRST_DRIVER} or newer; {_ALONE}"
        )
    for folder in map(Path, os.environ.get("PATH", os.defpath).split(":")):
        if (folder / mps.CONTROL).is_file():
            return folder / mps.CONTROL, "libcuda.so.1"
    raise TogetherError(
        f"{mps.CONTROL} is not on the PATH; it comes with the driver, on Debian and Ubuntu in the package "
        f"nvidia-compute-utils; {_ALONE}"
    )
