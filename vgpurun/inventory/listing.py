"""Which containers `vgpurun ps` shows, and what it says of each."""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vgpurun.errors import CommandLineError, OptionError
from vgpurun.host.gpu_names import match_gpu
from vgpurun.inventory import guarded
from vgpurun.limits.quota import Quota, show_range, show_size
from vgpurun.util.times import boot_s, show_age, show_left, show_moment

if TYPE_CHECKING:
    from vgpurun.engine.client import VgpurunContainer
    from vgpurun.inventory.usage import Tenant, TenantDevice

SHORT_ID = 12  # characters of an id, as docker shows it
NO_LIMIT = "no limit"
UNKNOWN = "?"
PAUSED = "paused"
SUSPENDED = "suspended"
SWAPPED = "swapped"
FROZEN = guarded.STOPPING[guarded.FREEZE]

# The fields of a template. The first ones are docker's.
FIELDS = (
    "ID", "Names", "Image", "Command", "CreatedAt", "RunningFor", "State", "Status", "Labels",
    "User", "GPUs", "Memory", "MemoryLimit", "SM", "SMLimit", "Slice", "Size",
)  # fmt: skip
_COMMAND_WIDTH = 20
_STATES = ("created", "restarting", "running", "removing", "paused", "exited", "dead")  # docker's


def parse_filters(texts: Sequence[str]) -> list[Callable[["Tenant"], bool]]:
    """Read all --filter KEY=VALUE. Any value of a key is enough, as in docker. Raises OptionError."""
    by_key: dict[str, list[str]] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or key not in _TESTS:
            raise (CommandLineError if equals else OptionError)(
                f"--filter '{text}' is not KEY=VALUE with a KEY of {', '.join(_TESTS)}"
            )
        if key == "status" and value not in _STATES:
            raise CommandLineError(f"--filter '{text}': no such status; use one of {', '.join(_STATES)}")
        if key == "exited" and not re.fullmatch(r"(?a)[0-9]+", value):
            raise CommandLineError(f"--filter '{text}': an exit code is a number")
        by_key.setdefault(key, []).append(value)
    return [_any_of(_TESTS[key], values) for key, values in by_key.items()]


def _any_of(test: Callable[["Tenant", str], bool], values: Sequence[str]) -> Callable[["Tenant"], bool]:
    return lambda tenant: any(test(tenant, value) for value in values)


def _has_name(tenant: "Tenant", value: str) -> bool:
    try:
        return re.search(value, tenant.name) is not None  # docker takes it as a pattern too
    except re.error:
        raise CommandLineError(f"--filter 'name={value}' is not a regular expression") from None


def _has_gpu(tenant: "Tenant", value: str) -> bool:
    if match_gpu(value, [device.gpu for device in tenant.devices]):
        return True
    return any(uuid.lower().startswith(value.lower()) for uuid, _ in tenant.missing) and len(value) > len("GPU-")


def _has_label(tenant: "Tenant", value: str) -> bool:
    name, equals, wanted = value.partition("=")
    labels = tenant.container.labels if tenant.container else {}
    return name in labels and (not equals or labels[name] == wanted)


def _has_exit_code(tenant: "Tenant", value: str) -> bool:
    return tenant.container is not None and tenant.container.described.startswith(f"Exited ({value})")


_TESTS: Mapping[str, Callable[["Tenant", str], bool]] = {
    "name": _has_name,
    "id": lambda tenant, value: tenant.container is not None and tenant.id.startswith(value),
    "gpu": _has_gpu,
    "user": lambda tenant, value: tenant.user == value,
    "label": _has_label,
    "slice": lambda tenant, value: tenant.slice_name == value,
    "exited": _has_exit_code,
    "status": lambda tenant, value: (tenant.container.status if tenant.container else "running") == value,
}


def identity(tenant: "Tenant", is_short: bool) -> str:
    """Return a container's id; a process of `vgpurun local` has none that a verb for containers would take."""
    container_id = tenant.container.id if tenant.container else ""
    return container_id[:SHORT_ID] if is_short else container_id


def record(tenant: "Tenant", is_short: bool) -> dict[str, Any]:
    """Return a container's or local process's fields as text for people, by the names in FIELDS."""
    container = tenant.container
    command = container.command if container else tenant.what
    is_long = is_short and len(command) > _COMMAND_WIDTH
    return {
        "ID": identity(tenant, is_short),
        "Names": tenant.name,
        "Image": container.image if container else "",
        "Command": f'"{command[: _COMMAND_WIDTH - 1]}…"' if is_long else f'"{command}"',
        "CreatedAt": show_moment(tenant.created_s),
        "RunningFor": f"{show_age(time.time() - tenant.created_s)} ago",
        "State": container.status if container else "running",
        "Status": status(tenant),
        "Labels": dict(container.labels) if container else {},
        "User": tenant.user,
        "GPUs": _joined([each.gpu.number for each in tenant.devices] + [UNKNOWN for _ in tenant.missing]),
        "Memory": _joined([memory_used(each) for each in tenant.devices] + [UNKNOWN for _ in tenant.missing]),
        "MemoryLimit": _joined([show_range(quota) for quota in _quotas(tenant)]),
        "SM": _joined([sm_used(each) for each in tenant.devices] + [UNKNOWN for _ in tenant.missing]),
        "SMLimit": _joined([sm_limit(quota) for quota in _quotas(tenant)]),
        "Slice": tenant.slice_name,
        "Size": size(tenant),
    }


def size(tenant: "Tenant") -> str:
    """Return the sizes of a container's own files and of all, as docker shows them, or nothing where none was asked."""
    sizes = tenant.container.sizes if tenant.container else None
    return f"{_decimal_size(sizes[0])} (virtual {_decimal_size(sizes[1])})" if sizes else ""


def _decimal_size(size_bytes: float) -> str:
    units = ["B", "kB", "MB", "GB", "TB"]
    while size_bytes >= 1000 and len(units) > 1:
        size_bytes /= 1000
        del units[0]
    return f"{size_bytes:.3g}{units[0]}"


def status(tenant: "Tenant") -> str:
    """Return what docker says of a container, and what docker does not know: its GPU's doing, and the guard's."""
    container = tenant.container
    is_running = container is None or container.status == "running"
    if is_running and any(quota.is_away for quota in _quotas(tenant)):
        is_swapped = any(quota.is_swapped for quota in _quotas(tenant))
        size = show_size(sum(device.suspended_bytes for device in tenant.devices))
        from vgpurun.inventory.swap_counts import read_swaps

        held_up = read_swaps(tenant.folder).held_up if is_swapped else ""
        what = "Waits for its turn" if is_swapped else "Suspended"
        return f"{what}, {size} in host memory{held_up and f' ({held_up})'}"
    is_paused = any(quota.paused for quota in _quotas(tenant))
    stopped = f" ({tenant.stopped})" if tenant.stopped else ""
    has_turn = is_running and any(quota.takes_turns for quota in _quotas(tenant))
    own = " (has its turn)" * has_turn + f" (GPU {PAUSED})" * is_paused
    if container is None:
        return f"Up {show_age(time.time() - tenant.created_s)}{own}{stopped}"
    return (container.described or container.status) + own + stopped + _end(container)


def _end(container: "VgpurunContainer") -> str:
    """Say when a container that runs is to end, where it is."""
    if container.status != "running" or (ends_s := container.record.ends_s) is None:
        return ""
    left_s = ends_s - boot_s()
    return f", ends in {show_left(left_s)}" if left_s > 0 else ", past its --for limit"


def held_back(tenant: "Tenant", quota: Quota) -> str:
    """Return in a word why no GPU work begins, or nothing."""
    if tenant.stopped.startswith(FROZEN):
        return FROZEN
    is_paused = quota.paused or (tenant.container is not None and tenant.container.status == "paused")
    return SWAPPED if quota.is_swapped else SUSPENDED if quota.is_suspended else PAUSED if is_paused else ""


def _quotas(tenant: "Tenant") -> list[Any]:
    return [*(each.quota for each in tenant.devices), *(quota for _, quota in tenant.missing)]


def _joined(texts: Sequence[str]) -> str:
    return ",".join(texts)


def memory_used(device: "TenantDevice") -> str:
    """Return what a container uses of a GPU's memory, for people."""
    return UNKNOWN if device.memory_used_bytes is None else show_size(device.memory_used_bytes)


def sm_used(device: "TenantDevice") -> str:
    """Return the share of the last whole second that a container used, for people."""
    return UNKNOWN if device.utilization is None else f"{device.utilization.last_1s:.0f} %"


def sm_limit(quota: Quota) -> str:
    """Return a compute limit for people."""
    return sms(quota) or (NO_LIMIT if quota.sm_percent is None else f"{quota.sm_percent} %")


def sms(quota: Quota) -> str:
    """Return which part of the SMs it has that works at the same time as others, or nothing where time is limited."""
    if not quota.together or quota.sm_percent is not None:
        return ""
    return "all SMs" if quota.sms_percent is None else f"{quota.sms_percent} % of the SMs"
