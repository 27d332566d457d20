"""How the report of `vgpurun smi` is printed."""

import shutil
import sys
from collections.abc import Mapping, Sequence

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from vgpurun.abi import LOCK_DIR
from vgpurun.admission.capacity import GpuCapacity
from vgpurun.cli.views.free import show_free
from vgpurun.host.gpus import Gpu, GpuUse
from vgpurun.host.memory_limits import MemoryLimits
from vgpurun.inventory.listing import held_back
from vgpurun.inventory.swap_counts import read_swaps
from vgpurun.inventory.usage import Report, Tenant, TenantDevice
from vgpurun.limits.quota import show_range, show_size
from vgpurun.limits.usage_file import DeviceReading

_INDENT = 3
_LEAST_WIDTH = 80  # columns; a narrower terminal breaks the lines
_WIDE = 100  # columns; in a narrower terminal titles have two lines, so that names have more room
_PIPE_WIDTH = 160  # columns, where there is no terminal to ask

# By usage_file.NOT_ENFORCED.
_NOT_ENFORCED = {
    "memory": "NOT ENFORCED for contexts and modules: NVML does not tell what they take of the memory",
    "sm": "NOT ENFORCED for some of its work: the GPU time of it could not be measured",
    "turns": f"takes no turns with others, who may get the GPU's time: {LOCK_DIR} cannot be used",
}


def print_table(report: Report, free: Mapping[str, GpuCapacity]) -> None:
    """Print each GPU with its tenants below it, what their memory is used for, and what could not be enforced.

    `free` has, by UUID, what may still be asked for of each GPU, as far as that is known.
    """
    terminal_width = max(shutil.get_terminal_size().columns, _LEAST_WIDTH)
    width = terminal_width if sys.stdout.isatty() else _PIPE_WIDTH
    console = Console(highlight=False, markup=False, width=width)
    console.print(_use_table(report, free, width >= _WIDE))
    readings = [
        (tenant, device, device.reading)
        for tenant in report.tenants
        for device in tenant.devices
        if device.reading and device.reading.processes and not device.is_part
    ]
    if measured := [each for each in readings if each[1].utilization]:
        console.print()
        console.print(_compute_table(measured))
    if readings:
        console.print()
        console.print(_memory_table(readings))
    for tenant in report.tenants:
        if why := _held_up(tenant):
            console.print(f"{tenant.full_name} waits for its turn: {why}", soft_wrap=True)
        for device in tenant.devices:
            if held := report.driver_limits.get((tenant.id, device.gpu.uuid)):
                console.print(_driver_line(tenant, device, held), soft_wrap=True)
            for name in device.reading.not_enforced if device.reading else ():
                console.print(f"{tenant.name}, GPU {device.gpu.number}: {_NOT_ENFORCED[name]}", soft_wrap=True)


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


def _use_table(report: Report, free: Mapping[str, GpuCapacity], is_wide: bool) -> Table:
    gap = " " if is_wide else "\n"
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("GPU / CONTAINER", overflow="fold", min_width=12)
    table.add_column("USER", overflow="ellipsis", no_wrap=True, max_width=12 if is_wide else 8)
    table.add_column("IMAGE / COMMAND", overflow="ellipsis", max_width=40)
    for title in (f"MEMORY{gap}/ LIMIT", f"COMPUTE{gap}/ LIMIT", "REFUSED"):
        table.add_column(title, justify="right", no_wrap=True)
    for gpu, use in report.gpus:
        memory = f"{show_size(use.memory_used_bytes)} / {show_size(gpu.memory_bytes)}"
        compute = "?" if use.utilization_percent is None else f"{use.utilization_percent} %"
        left = show_free(free[gpu.uuid]) if gpu.uuid in free else ""
        table.add_row(f"{gpu.number}: {gpu.name}", "", left, memory, compute, "", style="bold")
        for tenant in report.tenants:
            for device in tenant.devices:
                if device.gpu.uuid == gpu.uuid:
                    table.add_row(*_cells(tenant, device))
        if report.outside(gpu) or report.outside_bytes(gpu, use):
            table.add_row(*_outside_cells(report, gpu, use))
    return table


def _outside_cells(report: Report, gpu: Gpu, use: GpuUse) -> tuple[RenderableType, ...]:
    """All programs outside vgpurun together."""
    others = report.outside(gpu)
    users = ",".join(dict.fromkeys(each.user for each in others if each.user))
    commands = ", ".join(f"{each.command or '?'} ({each.pid})" for each in others)
    name, what = _named("outside vgpurun", commands, _INDENT)
    return name, users, what, show_size(report.outside_bytes(gpu, use)), "", ""


def _cells(tenant: Tenant, device: TenantDevice) -> tuple[RenderableType, ...]:
    quota, reading, busy = device.quota, device.reading, device.utilization
    if tenant.slice_name and not tenant.within:
        name, what = _named(tenant.name, tenant.what, 2 * _INDENT)
        return name, tenant.user, what, "?" if reading is None else show_size(reading.memory_used_bytes), "", ""
    used = "?" if device.memory_used_bytes is None else show_size(device.memory_used_bytes)
    memory_limit = show_range(quota)
    if quota.virtual_bytes is not None:
        memory_limit += f", seen as {show_size(quota.virtual_bytes)}"
    memory_limit += ", in turns" * quota.takes_turns
    share = "?" if busy is None else f"{busy.last_1s:.0f} %"
    compute = "no limit" if quota.sm_percent is None else f"{share} / {quota.sm_percent} %"
    compute = held_back(quota) or compute
    refused = "?" if reading is None else str(reading.refusals)
    name, what = _named(tenant.full_name, tenant.what, 2 * _INDENT if tenant.within else _INDENT)
    return name, tenant.user, what, f"{used} / {memory_limit}", compute, refused


def _named(name: str, what: str, indent: int) -> tuple[RenderableType, RenderableType]:
    """A name that does not fit goes on below itself."""
    return Padding(name, (0, 0, 0, indent)), Text(what, no_wrap=True, overflow="ellipsis")


def _memory_table(readings: Sequence[tuple[Tenant, TenantDevice, DeviceReading]]) -> Table:
    """Print each tenant's memory by its use. The last column counts against no limit of a GPU."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("MEMORY OF", overflow="fold", min_width=12)
    table.add_column("GPU", justify="right")
    has_host_memory = any(reading.host_bytes for _, _, reading in readings)
    titles = ["ALLOCATED", "CONTEXTS", "MODULES, OTHER", *(["IN HOST MEMORY"] if has_host_memory else [])]
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    for tenant, device, reading in readings:
        on_device = (reading.allocated_bytes, reading.context_bytes, reading.other_bytes)
        sizes = [*(min(size, device.gpu.memory_bytes) for size in on_device), reading.host_bytes]
        table.add_row(tenant.full_name, device.gpu.number, *map(show_size, sizes[: len(titles)]))
    return table


def _compute_table(readings: Sequence[tuple[Tenant, TenantDevice, DeviceReading]]) -> Table:
    """Shares of the GPU's time over whole seconds, and for how long launches were throttled."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("COMPUTE OF", overflow="fold", min_width=12)
    for title in ("GPU", "LAST 1 S", "10 S", "60 S", "LAUNCHES", "THROTTLED"):
        table.add_column(title, justify="right", no_wrap=True)
    for tenant, device, reading in readings:
        shares = [f"{share:.0f} %" for share in reading.utilization]
        throttled = f"{reading.throttled_ns / 1e9:.1f} s"
        table.add_row(tenant.name, device.gpu.number, *shares, str(reading.launches), throttled)
    return table
