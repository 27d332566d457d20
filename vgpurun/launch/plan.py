"""What a launch will be, as plain data: nothing here touches the engine, the GPU or the disk.

`--dry-run` prints the plan; engine.py and process.py carry it out.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from vgpurun import __version__, abi
from vgpurun.errors import GpuError, OptionError
from vgpurun.host.drivers import DeviceRequest, DriverPlan
from vgpurun.host.gpus import Gpu
from vgpurun.host.users import current_user
from vgpurun.launch import places
from vgpurun.launch.labels import LABEL_QUOTA, LABEL_SLICE, LABEL_STATE, LABEL_USER, LABEL_VERSION, quotas_to_json
from vgpurun.limits import quota, region
from vgpurun.limits.oversubscription import oversubscribe
from vgpurun.limits.policies import choose_policy, choose_priority
from vgpurun.limits.quota import Quota
from vgpurun.options import ContainerOptions, Mount
from vgpurun.profiles.recording import Profiling

_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class DeviceQuota(NamedTuple):
    """One chosen GPU and what the launch may use of it."""

    gpu: Gpu
    quota: Quota


class Joined(NamedTuple):
    """The slice that a launch joins: its folder has the limits and the usage, and these are its quotas."""

    folder: Path
    quotas: tuple[DeviceQuota, ...]


class LaunchPlan(NamedTuple):
    """A container to be made: the user's options, and what vgpurun adds to them. `environment` holds both.

    `slice_folder` has the limits and the usage of a slice that it joins; else the state folder has its own.
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
    state_files: Mapping[str, bytes]
    warnings: tuple[str, ...] = ()
    slice_folder: Path | None = None
    profiling: Profiling | None = None


class ProcessPlan(NamedTuple):
    """A process on this host to be started. `environment` is what changes in this process's own."""

    command: tuple[str, ...]
    quotas: tuple[DeviceQuota, ...]
    driver: str
    environment: Mapping[str, str]
    state_folder: Path
    state_files: Mapping[str, bytes]
    slice_folder: Path | None = None
    profiling: Profiling | None = None

    @property
    def quota_json(self) -> str:
        """The quotas as the label of a container would have them."""
        return quotas_to_json(self.quotas)


class Limits(NamedTuple):
    """--mem, --sm, --sm-policy, --priority and --oversubscribe as they were written."""

    memory: str | None = None
    sm: str | None = None
    sm_policy: str | None = None
    priority: str | None = None
    oversubscribe: str | None = None


def plan_launch(
    options: ContainerOptions,
    limits: Limits,
    gpus: Sequence[Gpu],
    driver: DriverPlan,
    library: Path,
    state_folder: Path,
    image_environment: Mapping[str, str] | None = None,
    host_environment: Mapping[str, str] | None = None,
    host_exists: Callable[[str], bool] = os.path.exists,
    joined: Joined | None = None,
    profiling: Profiling | None = None,
) -> LaunchPlan:
    """Return the plan of a container. `host_exists` tells whether a path is on this host.

    The limits of a slice that is joined take the place of `limits` and of those in the environment.

    Raises LimitError, GpuError, and OptionError for a mount over what is vgpurun's own.
    """
    host_environment = os.environ if host_environment is None else host_environment
    given = options.environment_over(image_environment or {})
    quotas = joined.quotas if joined else _quotas(gpus, limits, given, range(len(gpus)))
    limits_folder = joined.folder if joined else state_folder
    mounts, warnings = _mounts(options, driver, library, limits_folder, host_exists)
    environment = _container_environment(options, quotas, driver, given, host_environment)
    if profiling:
        mounts = (*mounts, Mount(str(profiling.folder), abi.CONTAINER_PROFILE, read_only=False))
        environment |= profiling.variables(abi.CONTAINER_PROFILE)
    return LaunchPlan(
        options=options,
        quotas=quotas,
        driver=driver.mode,
        environment=environment,
        mounts=mounts,
        devices=driver.devices,
        device_requests=driver.device_requests,
        runtime=_runtime(options.runtime, driver),
        labels={
            **options.labels,
            LABEL_VERSION: __version__,
            LABEL_STATE: str(state_folder),
            **({LABEL_SLICE: str(joined.folder)} if joined else {}),
            LABEL_QUOTA: quotas_to_json(quotas),
            LABEL_USER: current_user(),
        },
        state_folder=state_folder,
        state_files={} if joined else shared_files(quotas, driver),
        warnings=(*_warnings_of_instances(gpus), *warnings),
        slice_folder=joined.folder if joined else None,
        profiling=profiling,
    )


def plan_process(
    command: Sequence[str],
    limits: Limits,
    gpus: Sequence[Gpu],
    all_gpus: Sequence[Gpu],
    driver: str,
    driver_environment: Mapping[str, str],
    library: Path,
    state_folder: Path,
    host_environment: Mapping[str, str],
    joined: Joined | None = None,
    profiling: Profiling | None = None,
) -> ProcessPlan:
    """Return the plan of a process on this host. Raises LimitError and GpuError.

    NVML shows the process all GPUs of the host; those that were not chosen are not in its limits file, which grants
    nothing of them, and CUDA does not see them.
    """
    quotas = joined.quotas if joined else _quotas(gpus, limits, host_environment, [gpu.index for gpu in gpus])
    limits_folder = joined.folder if joined else state_folder
    environment = {
        **driver_environment,
        **limit_variables(quotas, [gpu.index for gpu in gpus]),
        "LD_PRELOAD": _joined(str(library), host_environment.get("LD_PRELOAD")),
        abi.ENV_LIMITS_FILE: str(limits_folder / "etc/limits"),
        abi.ENV_USAGE_FILE: str(limits_folder / "run/usage"),
        **(profiling.variables(str(profiling.folder)) if profiling else {}),
    }
    if len(gpus) < len(all_gpus):
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.uuid for gpu in gpus)
    return ProcessPlan(
        tuple(command),
        quotas,
        driver,
        environment,
        state_folder,
        {} if joined else {"etc/limits": _limits_file(quotas)},
        slice_folder=joined.folder if joined else None,
        profiling=profiling,
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


def _quotas(
    gpus: Sequence[Gpu], limits: Limits, environment: Mapping[str, str], indexes: Sequence[int]
) -> tuple[DeviceQuota, ...]:
    if len(gpus) > abi.MAX_DEVICES:
        raise GpuError(
            f"{len(gpus)} GPUs are more than the {abi.MAX_DEVICES} of one container; choose some with --gpus"
        )
    resolved = quota.resolve(gpus, limits.memory, limits.sm, environment, indexes)
    resolved = oversubscribe(gpus, resolved, limits.oversubscribe)
    policy = choose_policy(limits.sm_policy, environment)
    priority = choose_priority(limits.priority, environment)
    return tuple(
        DeviceQuota(gpu, each._replace(sm_policy=policy, priority=priority))
        for gpu, each in zip(gpus, resolved, strict=True)
    )


def quotas_of(gpus: Sequence[Gpu], limits: Limits) -> tuple[DeviceQuota, ...]:
    """Return what limits come to on these GPUs, for what no environment has a say in. Raises LimitError."""
    return _quotas(gpus, limits, {}, range(len(gpus)))


def shared_files(quotas: Sequence[DeviceQuota], driver: DriverPlan) -> dict[str, bytes]:
    """Return the files, by relative path, of a state folder that containers share with the host; usage comes beside."""
    return {
        "etc/limits": _limits_file(quotas),
        "etc/ld.so.preload": f"{abi.CONTAINER_LIBRARY}\n".encode(),
        **driver.state_files,
    }


def _limits_file(quotas: Sequence[DeviceQuota]) -> bytes:
    return region.limits_bytes([(each.gpu.uuid, each.quota) for each in quotas])


def limit_variables(quotas: Sequence[DeviceQuota], indexes: Sequence[int] | None = None) -> dict[str, str]:
    """Return the limits as variables, by the index that each GPU has there (None: as in a container, from 0)."""
    variables = {}
    for index, each in zip(range(len(quotas)) if indexes is None else indexes, quotas, strict=True):
        if each.quota.memory_bytes is not None:
            variables[f"{abi.ENV_MEMORY_LIMIT}_{index}"] = str(each.quota.memory_bytes)
        if each.quota.sm_percent is not None:
            variables[f"{abi.ENV_SM_LIMIT}_{index}"] = str(each.quota.sm_percent)
    return variables


def _container_environment(
    options: ContainerOptions,
    quotas: Sequence[DeviceQuota],
    driver: DriverPlan,
    given: Mapping[str, str],
    host_environment: Mapping[str, str],
) -> dict[str, str | None]:
    """The user's variables and ours. What the image sets by itself is only repeated where something joins it."""
    environment = dict(options.environment)
    if abi.ENV_LOG_LEVEL in host_environment:
        environment.setdefault(abi.ENV_LOG_LEVEL, host_environment[abi.ENV_LOG_LEVEL])
    for name, value in driver.environment.items():
        # Which GPUs there are is decided by --gpus alone; other variables of the driver are the user's to change.
        environment[name] = value if name == "NVIDIA_VISIBLE_DEVICES" else given.get(name, value)
    environment |= limit_variables(quotas)
    environment[abi.ENV_USAGE_FILE] = abi.CONTAINER_USAGE
    environment["LD_PRELOAD"] = _joined(abi.CONTAINER_LIBRARY, given.get("LD_PRELOAD"))
    if driver.library_path:
        environment["LD_LIBRARY_PATH"] = _joined(driver.library_path, given.get("LD_LIBRARY_PATH"))
    if driver.executable_path:
        environment["PATH"] = f"{given.get('PATH') or _DEFAULT_PATH}:{driver.executable_path}"
    return environment


def _joined(ours: str, given: str | None) -> str:
    return f"{ours}:{given}" if given else ours


def _mounts(
    options: ContainerOptions,
    driver: DriverPlan,
    library: Path,
    limits_folder: Path,
    host_exists: Callable[[str], bool],
) -> tuple[tuple[Mount, ...], tuple[str, ...]]:
    """Return our mounts that can be made among the user's, and warnings about those that cannot."""
    places.refuse_mounts_over_ours(options)
    mounts = [
        Mount(str(library), abi.CONTAINER_LIBRARY),
        Mount(str(limits_folder / "etc"), f"{abi.CONTAINER_DIR}/etc"),
        Mount(str(limits_folder / "run/usage"), abi.CONTAINER_USAGE, read_only=False),
    ]
    warnings = []
    if places.has_place(places.PRELOAD_FILE, options, host_exists):
        mounts.append(Mount(str(limits_folder / "etc/ld.so.preload"), places.PRELOAD_FILE))
    else:
        warnings.append(
            f"{places.PRELOAD_FILE} has no place in your own mount of /etc: a program that clears LD_PRELOAD (env -i, "
            "su, ssh) is not limited; an empty file of that name in the mounted folder makes the place"
        )
    if places.has_place(abi.LOCK_DIR, options, host_exists):
        mounts.append(Mount(abi.LOCK_DIR, abi.LOCK_DIR, read_only=False))
    elif not places.shows_host(abi.LOCK_DIR, options):
        warnings.append(
            f"{abi.LOCK_DIR} has no place in your own mount of /tmp: this container and others on its GPUs do not know "
            "of each other; an empty folder vgpulock in the mounted folder makes the place"
        )
    mounts += [mount for mount in driver.mounts if places.has_place(mount.target, options, host_exists)]
    return tuple(mounts), tuple(warnings)
