"""How `vgpurun free` prints GPUs: a table, or plain data."""

from collections.abc import Sequence
from typing import Any

from vgpurun.admission.capacity import GpuCapacity
from vgpurun.cli.views.columns import Column, lines
from vgpurun.limits.quota import Quota, shortest_size, show_size

_COLUMNS = (
    Column("GPU", is_right=True),
    Column("NAME", can_shrink=True, leaves=1),
    Column("MEMORY", is_right=True, leaves=4),
    Column("RESERVED", is_right=True, leaves=3),
    Column("USED", is_right=True, leaves=2),
    Column("FREE", is_right=True),
    Column("SM FREE", is_right=True),
    Column("LARGEST LAUNCH NOW"),
)


def table(found: Sequence[GpuCapacity], launches: Sequence[Quota | str], width: int | None) -> list[str]:
    """Return the titles and a line for each GPU."""
    rows = [
        (
            each.gpu.number,
            each.gpu.name,
            show_size(each.gpu.memory_bytes),
            "all" if each.unlimited else show_size(each.reserved_bytes),
            show_size(each.used_bytes),
            "none" if each.unlimited else show_size(each.free_bytes),
            f"{max(0, 100 - each.reserved_sm_percent)} %",
            _asked(launch),
        )
        for each, launch in zip(found, launches, strict=True)
    ]
    return lines(_COLUMNS, rows, width)


def _asked(launch: Quota | str) -> str:
    if isinstance(launch, str):
        return f"none: {launch}"
    assert launch.memory_bytes is not None
    sm = f" --sm {launch.sm_percent}" if launch.sm_percent else ""
    return f"--mem {shortest_size(launch.memory_bytes)}{sm}"


def to_json(capacity: GpuCapacity, launch: Quota | str) -> dict[str, Any]:
    """Return a GPU as plain data. Sizes are in bytes; where no launch would start, it is said why."""
    return {
        "index": capacity.gpu.index,
        "mig_index": capacity.gpu.mig_index,
        "uuid": capacity.gpu.uuid,
        "name": capacity.gpu.name,
        "memory_total_bytes": capacity.gpu.memory_bytes,
        "memory_reserved_bytes": capacity.reserved_bytes,
        "memory_used_bytes": capacity.used_bytes,
        "memory_free_bytes": 0 if capacity.unlimited else capacity.free_bytes,
        "sm_reserved_percent": capacity.reserved_sm_percent,
        "sm_free_percent": max(0, 100 - capacity.reserved_sm_percent),
        "has_unlimited": bool(capacity.unlimited),
        "largest_launch": None
        if isinstance(launch, str)
        else {"memory_bytes": launch.memory_bytes, "sm_percent": launch.sm_percent},
        "no_launch": launch if isinstance(launch, str) else None,
    }


def show_free(capacity: GpuCapacity) -> str:
    """Return in a few words what may still be asked for of a GPU."""
    if capacity.unlimited:
        return "free: none, for one without --mem"
    return f"free: {show_size(capacity.free_bytes)}, {max(0, 100 - capacity.reserved_sm_percent)} %"
