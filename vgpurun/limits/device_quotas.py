"""Turns a launch's limits into quotas for each GPU, and into the files and variables that the library reads."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from vgpurun import abi
from vgpurun.errors import GpuError
from vgpurun.host.drivers import DriverPlan
from vgpurun.host.gpus import Gpu
from vgpurun.limits import limits_file, quota
from vgpurun.limits.model import DeviceQuota, Limits
from vgpurun.limits.oversubscription import oversubscribe
from vgpurun.limits.policies import choose_policy, choose_priority


def device_quotas(
    gpus: Sequence[Gpu], limits: Limits, environment: Mapping[str, str], indexes: Sequence[int]
) -> tuple[DeviceQuota, ...]:
    """Return what limits come to on these GPUs, whose indexes the program sees so.

    Raises LimitError, and GpuError for more GPUs than one container can have.
    """
    if len(gpus) > abi.MAX_DEVICES:
        raise GpuError(
            f"{len(gpus)} GPUs are more than the {abi.MAX_DEVICES} of one container; choose some with --gpus"
        )
    resolved = quota.resolve(gpus, limits.memory, limits.sm, environment, indexes)
    resolved = oversubscribe(gpus, resolved, limits.oversubscribe)
    policy = choose_policy(limits.sm_policy, environment)
    priority = choose_priority(limits.priority, environment)
    if limits.swap:  # its first call asks for its first turn
        resolved = [replace(each, takes_turns=True, suspended=abi.SWAPPED) for each in resolved]
    if limits.together:
        resolved = [replace(each, together=True, sm_percent=None, sms_percent=each.sm_percent) for each in resolved]
    return tuple(
        DeviceQuota(gpu, replace(each, sm_policy=policy, priority=priority))
        for gpu, each in zip(gpus, resolved, strict=True)
    )


def quotas_of(gpus: Sequence[Gpu], limits: Limits) -> tuple[DeviceQuota, ...]:
    """Return what limits come to on these GPUs, for what no environment has a say in. Raises LimitError."""
    return device_quotas(gpus, limits, {}, range(len(gpus)))


def shared_files(
    quotas: Sequence[DeviceQuota], driver: DriverPlan, has_parent: bool = False, is_movable: bool = False
) -> dict[str, bytes]:
    """Return the files, by relative path, of a state folder that containers share with the host; usage comes beside."""
    return {
        "etc/limits": limits_content(quotas, has_parent, is_movable),
        "etc/ld.so.preload": f"{abi.CONTAINER_LIBRARY}\n".encode(),
        **driver.state_files,
    }


def limits_content(quotas: Sequence[DeviceQuota], has_parent: bool = False, is_movable: bool = False) -> bytes:
    """Return the content of the limits file of these quotas, which may be a part of another share's."""
    limits = [(each.gpu.uuid, each.quota) for each in quotas]
    return limits_file.limits_bytes(limits, has_parent=has_parent, movable=is_movable)


def toolkit_variables(quotas: Sequence[DeviceQuota]) -> dict[str, str]:
    """Return the limits as NVIDIA's container toolkit has them for a hook of its own, one for all GPUs of a container.

    There are none where a GPU has no limit. Where limits differ it is the largest: the rest is the library's.
    """
    most = [each.quota.memory_bytes for each in quotas]
    if not quotas or None in most:
        return {}
    variables = {quota.ENV_TOOLKIT_LIMIT: str(max(filter(None, most)) >> 20)}
    guaranteed = [each.quota.guaranteed_bytes for each in quotas]
    if None not in guaranteed:
        variables[quota.ENV_TOOLKIT_REQUEST] = str(max(filter(None, guaranteed)) >> 20)
    return variables


def taken_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that tells the library which limits of an environment the limits file has already.

    Such a variable that a program is started with later is a limit of its own.
    """
    names = (abi.ENV_MEMORY_LIMIT, abi.ENV_SM_LIMIT, abi.ENV_WRAPPER_MEMORY, abi.ENV_ALNAIR_SM)
    taken = ";".join(f"{name}={environment[name]}" for name in names if environment.get(name, "").strip())
    return {abi.ENV_LIMITS_TAKEN: taken} if taken else {}


def limit_variables(quotas: Sequence[DeviceQuota], indexes: Sequence[int] | None = None) -> dict[str, str]:
    """Return the limits as variables, by the index that each GPU has there (None: as in a container, from 0)."""
    variables = {}
    for index, each in zip(range(len(quotas)) if indexes is None else indexes, quotas, strict=True):
        if each.quota.memory_bytes is not None:
            variables[f"{abi.ENV_MEMORY_LIMIT}_{index}"] = str(each.quota.memory_bytes)
        if each.quota.sm_percent is not None:
            variables[f"{abi.ENV_SM_LIMIT}_{index}"] = str(each.quota.sm_percent)
    return variables
