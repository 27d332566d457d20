"""Who holds what, as lines for the terminal."""

from collections.abc import Sequence

from vgpurun.admission.rooms import Room
from vgpurun.limits.quota import show_size

_TITLES = ("GPU", "HOLDER", "USER", "MEMORY", "SM")


def room_table(rooms: Sequence[Room]) -> str:
    """Return a table of the shares of each GPU, what is used beside them, and what is left."""
    rows = [_TITLES, *(row for room in rooms for row in _rows(room))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _rows(room: Room) -> list[tuple[str, str, str, str, str]]:
    index = room.gpu.number
    rows = []
    for share in room.shares:
        memory, sm = share.quota.memory_bytes, share.quota.sm_percent
        rows.append(
            (
                index,
                share.holder.name,
                share.holder.user,
                "no limit" if memory is None else show_size(memory),
                "no limit" if sm is None else f"{sm} %",
            )
        )
    if room.outside_bytes:
        rows.append((index, "(in use without a limit)", "", show_size(room.outside_bytes), ""))
    left_percent = max(0, 100 - room.promised_sm_percent)
    rows.append((index, "(left)", "", show_size(room.left_bytes), f"{left_percent} %"))
    return rows
