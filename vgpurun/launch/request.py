"""A planned container as the engine's API has it: what docker run would send, and what the plan adds."""

from collections.abc import Mapping
from typing import Any

from vgpurun.engine.request import device_json, mount_json, options_body, request_json
from vgpurun.launch.plan import LaunchPlan


def plan_body(plan: LaunchPlan, proxies: Mapping[str, str], terminal_size: tuple[int, int] | None) -> dict[str, Any]:
    """Return the request for a planned container: the user's options, and what vgpurun adds to them.

    `proxies` are the variables of docker's own configuration, which the user's variables come before.
    `terminal_size` is that of this process's terminal, in columns and rows.
    """
    options = plan.options
    body = options_body(options, terminal_size)
    host = body["HostConfig"]
    body["Env"] = [
        name if value is None else f"{name}={value}" for name, value in {**proxies, **plan.environment}.items()
    ]
    body["Labels"] = dict(plan.labels)
    host["Mounts"] = [mount_json(mount) for mount in (*options.mounts, *plan.mounts)]
    host["Devices"] = [*host["Devices"], *map(device_json, plan.devices)]
    host["DeviceRequests"] = [*(host["DeviceRequests"] or ()), *map(request_json, plan.device_requests)] or None
    if plan.membership:
        host["IpcMode"] = "host"  # clients of MPS and its server have shared memory in common
    if plan.runtime:
        host["Runtime"] = plan.runtime
    return body
