"""The holders of each GPU, as lines for the terminal."""

from collections.abc import Sequence

from vgpurun.admission.capacity import GpuCapacity
from vgpurun.limits.quota import show_size

_TITLES = ("GPU", "HOLDER", "USER", "MEMORY", "SM")


def capacity_table(capacities: Sequence[GpuCapacity]) -> str:
    """Return a table of the shares of each GPU, what is used outside of them, and what is free."""
    rows = [_TITLES, *(row for capacity in capacities for row in _rows(capacity))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _rows(capacity: GpuCapacity) -> list[tuple[str, str, str, str, str]]:
    index = capacity.gpu.number
    rows = []
    for share in capacity.shares:
        memory, sm = share.quota.reserved_bytes, share.quota.sm_percent
        rows.append(
            (
                index,
                share.holder.name,
                share.holder.user,
                "no limit" if memory is None else show_size(memory),
                "no limit" if sm is None else f"{sm} %",
            )
        )
    if capacity.outside_bytes:
        rows.append((index, "(in use without a limit)", "", show_size(capacity.outside_bytes), ""))
    free_percent = max(0, 100 - capacity.reserved_sm_percent)
    free = "none" if capacity.unlimited else show_size(capacity.free_bytes)
    rows.append((index, "(free)", "", free, f"{free_percent} %"))
    return rows
