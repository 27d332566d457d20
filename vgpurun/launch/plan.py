"""The plan of a launch, as plain data: nothing here touches the engine, the GPU or the disk.

`--dry-run` prints the plan; container.py and process.py carry it out.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vgpurun import __version__, abi
from vgpurun.admission.placement import Placement
from vgpurun.engine.labels import LABEL_HOLDS, LABEL_STATE, holds_label, state_label
from vgpurun.errors import OptionError
from vgpurun.host.drivers import DeviceRequest, DriverPlan
from vgpurun.host.gpus import Gpu
from vgpurun.host.mps import CONTAINER_PIPES
from vgpurun.launch.committed import healing, own_variables
from vgpurun.launch.driver_mounts import DRIVER_FOLDER, driver_mounts
from vgpurun.limits import quota
from vgpurun.limits.device_quotas import (
    device_quotas,
    limit_variables,
    limits_content,
    shared_files,
    taken_variables,
    toolkit_variables,
)
from vgpurun.limits.model import DeviceQuota, quotas_to_json
from vgpurun.limits.nested import PARENT
from vgpurun.limits.quota import Quota
from vgpurun.options import ContainerOptions, Mount, mount_targets
from vgpurun.storage import state, tenants
from vgpurun.util.users import current_user

if TYPE_CHECKING:
    from vgpurun.engine.image_libc import Libc
    from vgpurun.host.program import Doubts
    from vgpurun.launch.profiling import Profiling
    from vgpurun.together.joining import Membership

_LINKS = "driver"  # in the state folder


@dataclass(frozen=True)
class LaunchPlan:
    """A container to be made: the user's options, and what vgpurun adds to them. `environment` holds both.

    `slice_folder` has the limits and the usage of a slice that it joins; else the state folder has its own. `parents`
    are the folders of the shares that it is a part of, the next one first. `membership` is that of a group which works
    on the GPUs at the same time.
    """

    options: ContainerOptions
    quotas: tuple[DeviceQuota, ...]
    driver: str
    environment: Mapping[str, str | None]
    mounts: tuple[Mount, ...]
    devices: tuple[str, ...]
    device_requests: tuple[DeviceRequest, ...]
    runtime: str | None
    labels: Mapping[str, str]
    state_folder: Path
    owner: Mapping[str, Any]
    state_files: Mapping[str, bytes]
    state_links: Mapping[str, str]
    warnings: tuple[str, ...] = ()
    slice_folder: Path | None = None
    profiling: "Profiling | None" = None
    parents: tuple[Path, ...] = ()
    membership: "Membership | None" = None


@dataclass(frozen=True)
class ProcessPlan:
    """A process on this host to be started. `environment` is what changes in this process's own.

    `membership` is that of a group which works on the GPUs at the same time.
    """

    command: tuple[str, ...]
    quotas: tuple[DeviceQuota, ...]
    driver: str
    environment: Mapping[str, str]
    state_folder: Path
    state_files: Mapping[str, bytes]
    slice_folder: Path | None = None
    profiling: "Profiling | None" = None
    is_driver_held: bool = False
    parents: tuple[Path, ...] = ()
    membership: "Membership | None" = None

    @property
    def quota_json(self) -> str:
        """The quotas as the label of a container would have them."""
        return quotas_to_json(self.quotas)


@dataclass(frozen=True)
class ImageFacts:
    """An image's variables, and what is known of its C library and of the command in it, if anything is."""

    environment: Mapping[str, str] = field(default_factory=dict)
    libc: "Libc | None" = None
    doubts: "Doubts | None" = None


@dataclass(frozen=True)
class HostFacts:
    """This host's variables; whether a path is there, and whether all users could read a folder that is to be made."""

    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    exists: Callable[[str], bool] = os.path.exists
    is_readable: Callable[[Path], bool] = state.is_readable_by_all


def plan_launch(
    options: ContainerOptions,
    placement: Placement,
    driver: DriverPlan,
    library: Path,
    state_folder: Path,
    image: ImageFacts,
    host: HostFacts,
    profiling: "Profiling | None" = None,
    limits_device: DeviceRequest | None = None,
    is_movable: bool = False,
    membership: "Membership | None" = None,
) -> LaunchPlan:
    """Return the plan of a container.

    `limits_device` has the driver's own limits set, where there is a memory limit. `is_movable`: the driver's nodes are
    those of more GPUs than the container is to see.

    A slice that is joined, or a part of a share, replaces the launch's own limits and those in the environment.

    Raises LimitError, GpuError, and OptionError for a mount over what is vgpurun's own.
    """
    gpus, joined, part = placement.gpus, placement.joined, placement.part
    given = options.environment_over(own_variables(image.environment))
    of_share = joined or part
    quotas = of_share.quotas if of_share else device_quotas(gpus, placement.limits, given, range(len(gpus)))
    parents = part.parents if part else ()
    mounts = _mounts(options, library, state_folder, joined.folder if joined else state_folder, host.exists, parents)
    of_driver, needs_path = driver_mounts(driver, str(state_folder / _LINKS), options, host.exists, image.libc)
    is_driver_held = limits_device is not None and any(each.quota.memory_bytes is not None for each in quotas)
    environment = {
        **healing(image.environment),
        **options.environment,
        **_container_environment(options, driver, given, host.environment),
        **_loader_variables(mounts, needs_path, given),
        **_toolkit_variables(quotas, given),
        **({} if of_share else taken_variables(given)),
    }
    if membership:
        mounts.append(Mount(str(membership.group.pipes), CONTAINER_PIPES, read_only=False))
        environment |= membership.variables(CONTAINER_PIPES)
    if profiling:
        mounts.append(Mount(str(profiling.folder), abi.CONTAINER_PROFILE, read_only=False))
        environment |= profiling.variables(abi.CONTAINER_PROFILE)
    return LaunchPlan(
        options=options,
        quotas=quotas,
        driver=driver.mode,
        environment=environment,
        mounts=(*mounts, *of_driver),
        devices=driver.devices,
        device_requests=(*driver.device_requests, *((limits_device,) if limits_device and is_driver_held else ())),
        runtime=_runtime(options.runtime, driver),
        labels={
            **options.labels,
            LABEL_STATE: state_label(state_folder, [str(mount.source) for mount in mounts]),
            **({} if host.is_readable(state_folder) else {LABEL_HOLDS: holds_label(current_user(), quotas)}),
        },
        state_folder=state_folder,
        owner={
            "version": __version__,
            "user": current_user(),
            "quota": quotas_to_json(quotas),
            "enforce": "driver" if is_driver_held else "library",
        },
        state_files={
            **({} if joined else shared_files(quotas, driver, bool(parents), is_movable)),
            **_preload_file(image.libc),
        },
        state_links={**_links(driver), **parent_link(parents)},
        warnings=(
            *_warnings_of_instances(gpus),
            *_warnings_of_limits(quotas, mounts, options.fields),
            *(
                warnings_of_program(image.doubts, [each.quota for each in quotas], is_driver_held, given)
                if image.doubts
                else ()
            ),
        ),
        slice_folder=joined.folder if joined else None,
        profiling=profiling,
        parents=parents,
        membership=membership,
    )


def plan_process(
    command: Sequence[str],
    placement: Placement,
    hides_others: bool,
    driver: str,
    driver_environment: Mapping[str, str],
    library: Path,
    state_folder: Path,
    host_environment: Mapping[str, str],
    profiling: "Profiling | None" = None,
    membership: "Membership | None" = None,
) -> ProcessPlan:
    """Return the plan of a process on this host. Raises LimitError and GpuError.

    NVML shows the process all GPUs of the host; those that were not chosen are not in its limits file, which grants
    nothing of them. `hides_others`: there are such, and CUDA is not to see them.
    """
    gpus, joined, part = placement.gpus, placement.joined, placement.part
    of_share = joined or part
    indexes = [gpu.index for gpu in gpus]
    quotas = of_share.quotas if of_share else device_quotas(gpus, placement.limits, host_environment, indexes)
    parents = part.parents if part else ()
    limits_folder = joined.folder if joined else state_folder
    environment = {
        **driver_environment,
        **(membership.variables() if membership else {}),
        **limit_variables(quotas, indexes),
        **({} if of_share else taken_variables(host_environment)),
        "LD_PRELOAD": _joined(str(library), host_environment.get("LD_PRELOAD")),
        abi.ENV_LIMITS_FILE: str(limits_folder / "etc/limits"),
        abi.ENV_USAGE_FILE: str(limits_folder / "run/usage"),
        abi.ENV_PRESENCE_FILE: str(tenants.presence_file(tenant_folder(limits_folder, parents))),
        **(profiling.variables(str(profiling.folder)) if profiling else {}),
    }
    if hides_others:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.uuid for gpu in gpus)
    return ProcessPlan(
        tuple(command),
        quotas,
        driver,
        environment,
        state_folder,
        {} if joined else {"etc/limits": limits_content(quotas, bool(parents))},
        slice_folder=joined.folder if joined else None,
        profiling=profiling,
        parents=parents,
        membership=membership,
    )


def _warnings_of_instances(gpus: Sequence[Gpu]) -> list[str]:
    instances = [gpu for gpu in gpus if gpu.mig_index is not None]
    if len(gpus) < 2 or not instances:
        return []
    return [
        f"a CUDA program uses one MIG instance and no GPU beside it: here {instances[0].number}, unless "
        "CUDA_VISIBLE_DEVICES names another"
    ]


def _runtime(given: str | None, driver: DriverPlan) -> str | None:
    if given and driver.runtime and given != driver.runtime:
        raise OptionError(
            f"--runtime {given}: --driver {driver.mode} needs the runtime {driver.runtime}; "
            "choose --driver mount or cdi beside a runtime of your own"
        )
    return driver.runtime or given


def _container_environment(
    options: ContainerOptions, driver: DriverPlan, given: Mapping[str, str], host_environment: Mapping[str, str]
) -> dict[str, str]:
    """Return what the driver needs, and what the host says for containers too.

    Limits are not among them: the limits file has those, and a variable would stay in a committed image.
    """
    environment = {}
    if abi.ENV_LOG_LEVEL in host_environment and abi.ENV_LOG_LEVEL not in options.environment:
        environment[abi.ENV_LOG_LEVEL] = host_environment[abi.ENV_LOG_LEVEL]
    for name, value in driver.environment.items():
        # Which GPUs there are is decided by --gpus alone; other variables of the driver are the user's to change.
        environment[name] = value if name == "NVIDIA_VISIBLE_DEVICES" else given.get(name, value)
    return environment


def _toolkit_variables(quotas: Sequence[DeviceQuota], given: Mapping[str, str]) -> dict[str, str | None]:
    """Return NVIDIA's variables of limits where the container has any: they say what it is held to."""
    ours = toolkit_variables(quotas)
    names = (quota.ENV_TOOLKIT_LIMIT, quota.ENV_TOOLKIT_REQUEST)
    return {name: ours.get(name) for name in names if name in given}


def _joined(ours: str, given: str | None) -> str:
    return f"{ours}:{given}" if given else ours


def _preload_file(libc: "Libc | None") -> dict[str, bytes]:
    """Return the container's /etc/ld.so.preload: what an image has in its own comes after ours."""
    return {"etc/ld.so.preload": f"{abi.CONTAINER_LIBRARY}\n{libc.preload if libc else ''}".encode()}


def _mounts(
    options: ContainerOptions,
    library: Path,
    state_folder: Path,
    limits_folder: Path,
    host_exists: Callable[[str], bool],
    parents: Sequence[Path],
) -> list[Mount]:
    """Return those of our mounts, but for the driver's, that can be made among the user's."""
    mount_targets.refuse_mounts_over_ours(options)
    mounts = [
        Mount(str(library), abi.CONTAINER_LIBRARY),
        *_share_mounts([limits_folder, *parents]),
        *(Mount(str(state_folder / "etc/ld.so.preload"), target) for target in mount_targets.PRELOAD_FILES),
        Mount(abi.LOCK_DIR, abi.CONTAINER_TENANTS),
        Mount(
            str(tenants.presence_file(tenant_folder(limits_folder, parents))), abi.CONTAINER_PRESENCE, read_only=False
        ),
    ]
    return [mount for mount in mounts if mount_targets.has_place(mount.target, options, host_exists)]


def tenant_folder(limits_folder: Path, parents: Sequence[Path]) -> Path:
    """Return the folder of the tenant that others on the GPU see: that of the outermost share."""
    return parents[-1] if parents else limits_folder


def parent_link(parents: Sequence[Path]) -> dict[str, str]:
    """Return the link by which a state folder names the share that it is a part of."""
    return {PARENT: str(parents[0])} if parents else {}


def _share_mounts(folders: Sequence[Path]) -> Iterator[Mount]:
    """Mount limits and usage of a share and of the shares around it, each in the one before."""
    target = abi.CONTAINER_DIR
    for folder in folders:
        yield Mount(str(folder / "etc"), f"{target}/etc")
        yield Mount(str(folder / "run/usage"), f"{target}/run/usage", read_only=False)
        target += f"/{PARENT}"


def _loader_variables(mounts: Sequence[Mount], needs_path: bool, given: Mapping[str, str]) -> dict[str, str]:
    """Return variables for the loader, where none of our files can be where it looks by itself.

    The user's mounts may prevent our files, and in images of Nix no glibc is in a known place for the driver's. The
    variables stay in a committed image, and the next launch removes them.
    """
    variables = {}
    if not {mount.target for mount in mounts}.issuperset(mount_targets.PRELOAD_FILES):
        variables["LD_PRELOAD"] = _joined(abi.CONTAINER_LIBRARY, given.get("LD_PRELOAD"))
    if needs_path:
        variables["LD_LIBRARY_PATH"] = _joined(DRIVER_FOLDER, given.get("LD_LIBRARY_PATH"))
    return variables


def _links(driver: DriverPlan) -> dict[str, str]:
    """Return links for a driver's libraries that have no folder of their own."""
    return {} if driver.folder else {f"{_LINKS}/{name}": f"{DRIVER_FOLDER}/{name}" for name in driver.libraries}


def warnings_of_program(
    doubts: "Doubts", quotas: Sequence[Quota], is_driver_held: bool, given: Mapping[str, str]
) -> Iterator[str]:
    """Yield which limits do not hold for the first program, and why it does not start."""
    holds_memory = is_driver_held or not any(each.memory_bytes for each in quotas)
    if doubts.without and not (holds_memory and all(each.sm_percent is None for each in quotas)):
        yield (
            f"{doubts.without}: libvgpu.so is not loaded into it, and no {'compute ' * is_driver_held}limit holds for "
            "it, only for what it starts by glibc's loader; `vgpurun guard` and --enforce driver hold any program"
        )
    if doubts.refuses and "verify_asan_link_order" not in given.get("ASAN_OPTIONS", ""):
        yield f"{doubts.refuses}; with -e ASAN_OPTIONS=verify_asan_link_order=0 it starts"


def _warnings_of_limits(quotas: Sequence[DeviceQuota], mounts: Sequence[Mount], fields: Mapping[str, Any]) -> list[str]:
    """Return why a limit may not hold; without one, that docker's --memory does not limit the GPU."""
    if not any(each.quota.memory_bytes or each.quota.sm_percent for each in quotas):
        is_mixed_up = "HostConfig.Memory" in fields
        return ["--memory limits the host's memory, and nothing limits the GPU's; that takes --mem"] * is_mixed_up
    targets = {mount.target for mount in mounts}
    return mount_targets.doubts_of_preload(targets)
