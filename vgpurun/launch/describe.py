"""A plan as --dry-run shows it: YAML for people, with sizes in both bytes and words."""

from typing import Any

from vgpurun.launch.plan import LaunchPlan, ProcessPlan
from vgpurun.limits.model import DeviceQuota
from vgpurun.limits.quota import show_size
from vgpurun.options import ContainerOptions, Mount


def to_yaml(plan: LaunchPlan | ProcessPlan) -> str:
    """Return the plan as YAML, without what is empty."""
    import yaml  # slow to import, and needed for a dry run only

    return str(yaml.safe_dump(describe(plan), sort_keys=False, allow_unicode=True, width=1000))


def describe(plan: LaunchPlan | ProcessPlan) -> dict[str, Any]:
    """Return a plan as --dry-run shows it, without what is empty."""
    described: dict[str, Any] = {"gpus": [_describe_quota(each) for each in plan.quotas], "driver": plan.driver}
    if isinstance(plan, LaunchPlan):
        described = {**_describe_options(plan.options), **described}
        described["runtime"] = plan.runtime
        described["device_requests"] = [
            {"driver": each.driver, "device_ids": list(each.device_ids), "capabilities": list(each.capabilities)}
            for each in plan.device_requests
        ]
        described["devices"] = list(plan.devices)
        described["mounts"] = [_describe_mount(mount) for mount in plan.mounts]
        described["labels"] = dict(plan.labels)
        described["warnings"] = list(plan.warnings)
    else:
        described["command"] = list(plan.command)
        described["held_by_driver"] = plan.is_driver_held
    described["environment"] = dict(plan.environment)
    described["state_folder"] = str(plan.state_folder)
    described["slice_folder"] = str(plan.slice_folder or "")
    described["part_of"] = [str(parent) for parent in plan.parents]
    return {key: value for key, value in described.items() if value not in (None, [], {}, "", False)}


def _describe_quota(each: DeviceQuota) -> dict[str, Any]:
    memory_bytes, virtual_bytes = each.quota.memory_bytes, each.quota.virtual_bytes
    described = {
        "index": each.gpu.index if each.gpu.mig_index is None else each.gpu.number,
        "uuid": each.gpu.uuid,
        "name": each.gpu.name,
        "memory_limit": "none" if memory_bytes is None else f"{memory_bytes} ({show_size(memory_bytes)})",
        "sm_limit": "none" if each.quota.sm_percent is None else f"{each.quota.sm_percent}%",
    }
    if each.quota.together:
        described["sms"] = f"{each.quota.sms_percent or 100}%"
    if (guaranteed_bytes := each.quota.guaranteed_bytes) is not None:
        described["memory_guaranteed"] = f"{guaranteed_bytes} ({show_size(guaranteed_bytes)})"
    if virtual_bytes is not None:
        described["memory_seen"] = f"{virtual_bytes} ({show_size(virtual_bytes)})"
    return described


def _describe_options(options: ContainerOptions) -> dict[str, Any]:
    return {
        "image": options.image,
        "platform": options.platform,
        "command": list(options.command),
        "entrypoint": options.entrypoint,
        "name": options.name,
        "remove": options.remove,
        "detach": options.detach,
        "interactive": options.interactive,
        "tty": options.tty,
        "volumes": [str(volume) for volume in options.volumes],
        "user_mounts": [f"{mount.type} {_describe_mount(mount)}" for mount in options.mounts],
        "tmpfs": dict(options.tmpfs),
        "networks": [each.name for each in options.networks if each.name != "default"],
        "cdi_devices": list(options.cdi_devices),
        "engine_settings": dict(options.fields),
    }


def _describe_mount(mount: Mount) -> str:
    return f"{mount.source or ''}:{mount.target}:{'ro' if mount.read_only else 'rw'}"
