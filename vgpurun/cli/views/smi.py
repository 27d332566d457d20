"""How the report of `vgpurun smi` is printed."""

from collections.abc import Mapping, Sequence

import click

from vgpurun.admission.capacity import GpuCapacity
from vgpurun.cli.views.columns import Column, cut, lines, terminal_width
from vgpurun.cli.views.free import show_free
from vgpurun.host.gpus import Gpu, GpuUse
from vgpurun.host.memory_limits import MemoryLimits
from vgpurun.inventory.listing import held_back, memory_used, sms
from vgpurun.inventory.programs import used_percent
from vgpurun.inventory.swap_counts import read_swaps
from vgpurun.inventory.usage import Report, Tenant, TenantDevice
from vgpurun.limits.quota import show_range, show_size
from vgpurun.limits.usage_file import DeviceReading

_INDENT = 3
_WIDE = 100  # columns; a narrower terminal has no room for images
_USER, _NARROW_USER, _WHAT = 12, 8, 40  # columns that the texts of others are cut to
_LEAST_NAME = len("   free: 100 GiB, 100 %")

_Row = tuple[str, ...]

# By usage_file.NOT_ENFORCED.
_NOT_ENFORCED = {
    "memory": "NOT ENFORCED for contexts and modules: NVML does not tell what they take of the memory",
    "sm": "NOT ENFORCED for some of its work: the GPU time of it could not be measured",
}
_LAUNCHES_HELD = "launches are held: the driver does not let the GPU's own scheduler hold the compute limit"


def print_table(report: Report, free: Mapping[str, GpuCapacity]) -> None:
    """Print each GPU with its tenants below it, what their memory is used for, and what could not be enforced.

    `free` has, by UUID, what may still be asked for of each GPU, as far as that is known.
    """
    width = terminal_width()
    _print(*_use_table(report, free, is_wide=width is None or width >= _WIDE), width)
    readings = [
        (tenant, device, device.reading)
        for tenant in report.tenants
        for device in tenant.devices
        if device.reading and device.reading.processes and not device.is_part
    ]
    if measured := [each for each in readings if each[1].utilization]:
        click.echo()
        _print(*_compute_table(measured), width)
    if readings:
        click.echo()
        _print(*_memory_table(readings), width)
    for tenant in report.tenants:
        if why := _held_up(tenant):
            click.echo(f"{tenant.full_name} waits for its turn: {why}")
        for device in tenant.devices:
            if held := report.driver_limits.get((tenant.id, device.gpu.uuid)):
                click.echo(_driver_line(tenant, device, held))
            for name in device.reading.not_enforced if device.reading else ():
                click.echo(f"{tenant.name}, GPU {device.gpu.number}: {_NOT_ENFORCED[name]}")
            if device.reading and device.reading.limiter == "launches":
                click.echo(f"{tenant.name}, GPU {device.gpu.number}: {_LAUNCHES_HELD}")


def _print(columns: Sequence[Column], rows: Sequence[_Row], width: int | None) -> None:
    for line in lines(columns, rows, width):
        click.echo(line)


def _held_up(tenant: Tenant) -> str:
    """Return why one that waits for its turn waits for longer than turns last, if it does."""
    is_member = tenant.slice_name and not tenant.within  # the slice waits
    waits = not is_member and any(device.quota.is_swapped for device in tenant.devices)
    return read_swaps(tenant.folder).held_up if waits else ""


def _driver_line(tenant: Tenant, device: TenantDevice, held: MemoryLimits) -> str:
    """Say that the driver itself holds a memory limit too, and to what where that is not the limit yet."""
    is_same = held.most_bytes == (device.quota.memory_bytes or device.gpu.memory_bytes)
    most = "" if is_same else f", for now to {show_size(held.most_bytes or 0)}"
    return f"{tenant.name}, GPU {device.gpu.number}: the driver itself holds the memory limit too{most}"


def _use_table(report: Report, free: Mapping[str, GpuCapacity], is_wide: bool) -> tuple[list[Column], list[_Row]]:
    """Return columns and rows. Where there is no room for images, what is free has a row of its own."""
    rows: list[_Row] = []
    for gpu, use in report.gpus:
        memory = f"{show_size(use.memory_used_bytes)} / {show_size(gpu.memory_bytes)}"
        compute = "?" if use.utilization_percent is None else f"{use.utilization_percent} %"
        left = show_free(free[gpu.uuid]) if gpu.uuid in free else ""
        rows.append((f"{gpu.number}: {gpu.name}", "", left, memory, compute, ""))
        if left and not is_wide:
            rows.append((_indented(left, _INDENT), *[""] * 5))
        for tenant in report.tenants:
            rows += [_cells(tenant, device) for device in tenant.devices if device.gpu.uuid == gpu.uuid]
        if report.outside(gpu) or report.outside_bytes(gpu, use):
            rows.append(_outside_cells(report, gpu, use))
    of_limit = " / LIMIT" * is_wide
    columns = [
        Column("GPU / CONTAINER", can_shrink=True, least_width=_LEAST_NAME),
        Column("USER", leaves=1),
        Column("IMAGE / COMMAND", can_shrink=True),
        Column(f"MEMORY{of_limit}", is_right=True),
        Column(f"COMPUTE{of_limit}", is_right=True, leaves=3),
        Column("REFUSED", is_right=True, leaves=2),
    ]
    if is_wide:
        return columns, [(name, cut(user, _USER), cut(what, _WHAT), *rest) for name, user, what, *rest in rows]
    del columns[2]
    return columns, [(name, cut(user, _NARROW_USER), *rest) for name, user, _, *rest in rows]


def _outside_cells(report: Report, gpu: Gpu, use: GpuUse) -> _Row:
    """All programs outside vgpurun together."""
    others = report.outside(gpu)
    users = ",".join(dict.fromkeys(each.user for each in others if each.user))
    commands = ", ".join(f"{each.command or '?'} ({each.pid})" for each in others)
    percent = used_percent(others)
    compute = "" if percent is None else f"{percent:.0f} %"
    memory = show_size(report.outside_bytes(gpu, use))
    return _indented("outside vgpurun", _INDENT), users, commands, memory, compute, ""


def _cells(tenant: Tenant, device: TenantDevice) -> _Row:
    quota, reading, busy = device.quota, device.reading, device.utilization
    if tenant.slice_name and not tenant.within:
        name = _indented(tenant.name, 2 * _INDENT)
        return name, tenant.user, tenant.what, memory_used(device), "", ""
    used = memory_used(device)
    memory_limit = show_range(quota)
    if quota.virtual_bytes is not None:
        memory_limit += f", seen as {show_size(quota.virtual_bytes)}"
    memory_limit += ", in turns" * quota.takes_turns
    share = "?" if busy is None else f"{busy.last_1s:.0f} %"
    compute = "no limit" if quota.sm_percent is None else f"{share} / {quota.sm_percent} %"
    compute = held_back(tenant, quota) or sms(quota) or compute
    refused = "?" if reading is None else str(reading.refusals)
    name = tenant.name if tenant.slice_name else tenant.full_name  # shown below its slice
    name = _indented(name, 2 * _INDENT if tenant.within else _INDENT)
    return name, tenant.user, tenant.what, f"{used} / {memory_limit}", compute, refused


def _indented(text: str, columns: int) -> str:
    return f"{' ' * columns}{text}"


def _memory_table(
    readings: Sequence[tuple[Tenant, TenantDevice, DeviceReading]],
) -> tuple[list[Column], list[_Row]]:
    """Return each tenant's memory by its use. The last column counts against no limit of a GPU."""
    has_host_memory = any(reading.host_bytes for _, _, reading in readings)
    titles = ["ALLOCATED", "CONTEXTS", "MODULES, OTHER", *(["IN HOST MEMORY"] if has_host_memory else [])]
    rows: list[_Row] = []
    for tenant, device, reading in readings:
        on_device = (reading.allocated_bytes, reading.context_bytes, reading.other_bytes)
        sizes = [*(min(size, device.gpu.memory_bytes) for size in on_device), reading.host_bytes]
        rows.append((tenant.full_name, device.gpu.number, *map(show_size, sizes[: len(titles)])))
    return _columns("MEMORY OF", ("GPU", *titles), leaving=("MODULES, OTHER", "CONTEXTS")), rows


def _compute_table(
    readings: Sequence[tuple[Tenant, TenantDevice, DeviceReading]],
) -> tuple[list[Column], list[_Row]]:
    """Return shares of the GPU's time over whole seconds, and for how long work was throttled."""
    rows: list[_Row] = []
    for tenant, device, reading in readings:
        shares = [f"{share:.0f} %" for share in reading.utilization]
        throttled = f"{reading.throttled_ns / 1e9:.1f} s"
        rows.append((tenant.name, device.gpu.number, *shares, str(reading.launches), throttled))
    titles = ("GPU", "LAST 1 S", "10 S", "60 S", "LAUNCHES", "THROTTLED")
    return _columns("COMPUTE OF", titles, leaving=("LAUNCHES", "10 S", "60 S", "THROTTLED")), rows


def _columns(names: str, numbers: Sequence[str], leaving: Sequence[str]) -> list[Column]:
    leaves = {title: place for place, title in enumerate(leaving, 1)}
    figures = [Column(title, is_right=True, leaves=leaves.get(title, 0)) for title in numbers]
    return [Column(names, can_shrink=True, least_width=len(names)), *figures]
