"""The details of one line in `vgpurun top`: limits, use, programs, and graphs of the last minutes."""

from collections.abc import Sequence

from rich.text import Text

from vgpurun.cli.views.columns import cut
from vgpurun.cli.views.top import Row
from vgpurun.cli.views.top_graph import History, graph
from vgpurun.inventory.listing import sm_limit, status
from vgpurun.inventory.programs import Program
from vgpurun.limits.quota import show_range, show_size
from vgpurun.util.times import show_age

_GAP = 2
_MEMORY = ": memory"
_LEAST_HEIGHT = 4

_LAUNCHES_HELD = "launches are held: the driver does not let the GPU's own scheduler do it"


def graphs(row: Row, history: History, width: int, height: int, interval_s: float, ascii_only: bool) -> list[Text]:
    """Return a row's memory and compute over time, side by side; nothing where there is no room for them."""
    if height < _LEAST_HEIGHT:
        return []
    half = (width - _GAP) // 2
    title = cut(row.name.strip(), max(1, half - len(_MEMORY))) + _MEMORY
    titles = title.ljust(half + _GAP) + f"compute, {show_age(interval_s * half)}"
    memory = graph(history.memory(row), half, height - 2, ascii_only)
    compute = graph(history.compute(row), half, height - 2, ascii_only)
    drawn = [
        Text.assemble((left, "green"), " " * _GAP, (right, "cyan")) for left, right in zip(memory, compute, strict=True)
    ]
    return [Text(), Text(titles, style="bold"), *drawn]


def details(row: Row) -> list[str]:
    """Return all that is known of a row, a line for each thing."""
    found = _of_gpu(row) if row.use else _of_tenant(row) if row.tenant else [("outside vgpurun", row.user)]
    lines = [f"{name:<12} {text}" for name, text in found if text]
    return [*lines, "", *_programs(row.programs)] if row.programs else lines


def _of_gpu(row: Row) -> list[tuple[str, str]]:
    use = row.use
    assert use is not None
    share = "unknown" if use.utilization_percent is None else f"{use.utilization_percent} %"
    return [
        ("GPU", row.name),
        ("UUID", row.gpu.uuid),
        ("PCI", row.gpu.pci_bus_id),
        ("memory", f"{show_size(use.memory_used_bytes)} of {show_size(row.gpu.memory_bytes)}"),
        ("compute", share),
        ("to ask for", row.what.removeprefix("free: ")),
        ("temperature", "not told by NVML" if use.temperature_c is None else f"{use.temperature_c} C"),
        ("power", "not told by NVML" if use.power_w is None else f"{use.power_w:.0f} W"),
    ]


def _of_tenant(row: Row) -> list[tuple[str, str]]:
    tenant, device = row.tenant, row.device
    assert tenant is not None
    assert device is not None
    container, reading, quota = tenant.container, device.reading, device.quota
    found = [
        (tenant.kind, tenant.name),
        ("user", tenant.user),
        ("image" if container else "what", tenant.what),
        ("command", container.command if container else ""),
        ("status", status(tenant) if container else ""),
        ("GPU", f"{device.gpu.number}: {device.gpu.name}"),
        ("in slice", tenant.slice_name),
        ("a part of", tenant.within),
        ("limits", f"{show_range(quota)}, {sm_limit(quota)}"),
    ]
    if reading is None:
        return [*found, ("use", "this user may not read it")]
    found += [
        (
            "memory",
            f"{show_size(reading.allocated_bytes)} allocated, {show_size(reading.context_bytes)} contexts, "
            f"{show_size(reading.other_bytes)} other",
        ),
        ("on the host", show_size(reading.host_bytes) if reading.host_bytes else ""),
    ]
    if device.is_part:
        return found
    busy = reading.utilization
    return [
        *found,
        ("compute", f"{busy.last_1s:.0f} % in the last second, {busy.last_10s:.0f} in 10, {busy.last_60s:.0f} in 60"),
        ("throttled", f"{reading.throttled_ns / 1e9:.1f} s"),
        ("launches", str(reading.launches)),
        ("refused", f"{reading.refusals} allocations"),
        ("not enforced", ", ".join(reading.not_enforced)),
        ("limiter", _LAUNCHES_HELD if reading.limiter == "launches" else ""),
    ]


def _programs(programs: Sequence[Program]) -> list[str]:
    titles = f"{'PID':>9}  {'USER':<12}  {'MEMORY':>12}  {'COMPUTE':>7}  COMMAND"
    return [titles, *map(_program, programs)]


def _program(program: Program) -> str:
    used = "" if program.used_percent is None else f"{program.used_percent:.0f} %"
    return f"{program.pid:>9}  {program.user:<12}  {show_size(program.held_bytes):>12}  {used:>7}  {program.command}"
