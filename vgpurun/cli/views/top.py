"""What `vgpurun top` shows: a line for each GPU, and one for each container on it, with bars."""

from collections.abc import Callable
from dataclasses import dataclass

from rich.text import Text

from vgpurun.host.gpus import Gpu, GpuUse
from vgpurun.inventory.listing import PAUSED
from vgpurun.inventory.usage import Report, Tenant, TenantDevice
from vgpurun.limits.quota import show_size
from vgpurun.limits.wait_times import WaitTimes

SORTS = ("gpu", "memory", "compute")
KEYS = "q quit   m by memory   c by compute   g by GPU   arrows scroll   + - faster, slower"

_MEMORY_TEXT = 19  # columns of "1023.99 MiB / 80 GiB"
_SHARE_TEXT = 10  # columns of "100 / 100%"
_WAIT_TEXT = 15  # columns of "TURN P50 / P99", and of "100.1 / 1000 ms"
_LEAST_WIDTH_FOR_WAITS = 80
_USER_TEXT = 8
_LEAST_WIDTH_FOR_USERS = 100
_GAPS = 5
_FULL, _HIGH = 0.95, 0.8  # parts of a limit from which a bar is red, or yellow


@dataclass(frozen=True)
class _Row:
    """A line to be: sizes are in bytes, shares in percent; None is unknown, or no limit."""

    name: str
    memory_used: int | None
    memory_of: int
    has_memory_limit: bool
    share_used: float | None
    share_of: int
    has_share_limit: bool
    style: str = ""
    is_paused: bool = False
    turn_waits: WaitTimes | None = None
    user: str = ""


def lines(report: Report, width: int, sort: str, ascii_only: bool = False) -> list[Text]:
    """Return the screen's lines for a terminal of this width, without head and foot.

    Where one of the containers has waited for its turn in the last minute, it is shown for how long.
    """
    if sort == "gpu":
        rows = [row for gpu, use in report.gpus for row in _of_gpu(gpu, use, report)]
    else:
        rows = [_gpu_row(gpu, use) for gpu, use in report.gpus]
        found = [(tenant, device) for tenant in report.tenants for device in tenant.devices]
        several = len(report.gpus) > 1
        rows += [_tenant_row(*each, with_gpu=several) for each in sorted(found, key=_ORDERS[sort], reverse=True)]
    has_waits = any(row.turn_waits for row in rows) and width >= _LEAST_WIDTH_FOR_WAITS
    draw = _Drawing(width, ascii_only, has_waits)
    return [draw.titles(), *map(draw.line, rows)]


_ORDERS: dict[str, Callable[[tuple[Tenant, TenantDevice]], float]] = {
    "memory": lambda each: each[1].memory_used_bytes or 0,
    "compute": lambda each: each[1].utilization.last_1s if each[1].utilization else 0.0,
}


def _of_gpu(gpu: Gpu, use: GpuUse, report: Report) -> list[_Row]:
    held = [(tenant, device) for tenant in report.tenants for device in tenant.devices if device.gpu.uuid == gpu.uuid]
    rows = [_gpu_row(gpu, use), *(_tenant_row(tenant, device) for tenant, device in held)]
    if outside := report.outside_bytes(gpu, use):
        users = ",".join(dict.fromkeys(each.user for each in report.outside.get(gpu.uuid, ()) if each.user))
        row = _Row("  outside vgpurun", outside, gpu.memory_bytes, False, None, 100, False, "dim", user=users)
        rows.append(row)
    return rows


def _gpu_row(gpu: Gpu, use: GpuUse) -> _Row:
    share = None if use.utilization_percent is None else float(use.utilization_percent)
    return _Row(f"{gpu.number}: {gpu.name}", use.memory_used_bytes, gpu.memory_bytes, True, share, 100, False, "bold")


def _tenant_row(tenant: Tenant, device: TenantDevice, with_gpu: bool = False) -> _Row:
    quota, busy = device.quota, device.utilization
    if device.is_part:
        memory = device.memory_used_bytes, device.gpu.memory_bytes, False
        return _Row(f"    {tenant.name}", *memory, None, 100, False, user=tenant.user)
    return _Row(
        name=f"  {tenant.name}{f' ({device.gpu.number})' if with_gpu else ''}",
        memory_used=device.memory_used_bytes,
        memory_of=quota.memory_bytes or device.gpu.memory_bytes,
        has_memory_limit=quota.memory_bytes is not None,
        share_used=None if busy is None else busy.last_1s,
        share_of=quota.sm_percent or 100,
        has_share_limit=quota.sm_percent is not None,
        is_paused=quota.paused,
        turn_waits=device.reading.turn_waits if device.reading else None,
        user=tenant.user,
    )


class _Drawing:
    """The columns for a terminal's width: what is over goes to the names first, then to the bars."""

    def __init__(self, width: int, ascii_only: bool, has_waits: bool) -> None:
        self._has_waits = has_waits
        self._user = _USER_TEXT if width >= _LEAST_WIDTH_FOR_USERS else 0
        over = width - _MEMORY_TEXT - _SHARE_TEXT - _GAPS - (_WAIT_TEXT + 2 if has_waits else 0)
        over -= self._user + 1 if self._user else 0
        self._name = max(10, min(32, over // 2))
        self._bar = max(4, min(40, (over - self._name) // 2))
        self._full, self._empty = ("#", ".") if ascii_only else ("█", "░")

    def titles(self) -> Text:
        """The head of the columns."""
        memory = "MEMORY".ljust(self._bar + 1 + _MEMORY_TEXT + 2)
        compute = f"{'COMPUTE'.ljust(self._bar + 1 + _SHARE_TEXT + 2)}TURN P50 / P99" if self._has_waits else "COMPUTE"
        names = f"{_fitted('GPU / CONTAINER', self._name)} {self._user_column('USER')}"
        return Text(f"{names}{memory}{compute}", style="bold", no_wrap=True)

    def _user_column(self, text: str) -> str:
        return f"{_fitted(text, self._user)} " if self._user else ""

    def line(self, row: _Row) -> Text:
        used = "?" if row.memory_used is None else show_size(row.memory_used)
        memory = f"{used} / {show_size(row.memory_of)}" if row.has_memory_limit else used
        share = "?" if row.share_used is None else f"{row.share_used:.0f}"
        if row.is_paused:
            share = PAUSED
        elif row.has_share_limit:
            share = f"{share} / {row.share_of}%"
        elif row.share_used is not None:
            share = f"{share}%"
        names = f"{_fitted(row.name, self._name)} {self._user_column(row.user)}"
        text = Text(names, style=row.style, no_wrap=True)
        text.append_text(self._bar_of(row.memory_used, row.memory_of, row.has_memory_limit))
        text.append(f" {memory.rjust(_MEMORY_TEXT)}  ")
        text.append_text(self._bar_of(row.share_used, row.share_of, False))
        text.append(f" {share.rjust(_SHARE_TEXT)}")
        if self._has_waits and row.turn_waits:
            waited = f"{1000 * row.turn_waits.median_s:.1f} / {1000 * row.turn_waits.p99_s:.0f} ms"
            text.append(f"  {waited.rjust(_WAIT_TEXT)}")
        return text

    def _bar_of(self, used: float | None, limit: float, warns: bool) -> Text:
        part = 0.0 if not used else min(1.0, used / limit)
        cells = min(self._bar, max(round(part * self._bar), 1 if part > 0 else 0))
        colour = "green"
        if warns and part >= _HIGH:
            colour = "red" if part >= _FULL else "yellow"
        bar = Text(self._full * cells, style=colour)
        return bar.append(self._empty * (self._bar - cells), style="dim")


def _fitted(text: str, width: int) -> str:
    return text.ljust(width) if len(text) <= width else f"{text[: width - 1]}…"
