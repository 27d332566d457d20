"""The table of `vgpurun top`: a line for each GPU, and one for each container on it, with bars."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from rich.text import Text

from vgpurun.admission.capacity import GpuCapacity
from vgpurun.cli.views.free import show_free
from vgpurun.host.gpus import Gpu, GpuUse
from vgpurun.inventory.listing import NO_LIMIT, held_back
from vgpurun.inventory.programs import Program, used_percent
from vgpurun.inventory.usage import Report, Tenant, TenantDevice
from vgpurun.limits.quota import show_size

SORTS = ("gpu", "memory", "compute")

_MEMORY_TEXT = 19  # columns of "1023.99 MiB / 80 GiB"
_SHARE_TEXT = 10  # columns of "100 / 100%"
_FULL, _HIGH = 0.95, 0.8  # parts of a limit from which a bar is red, or yellow
_LEAST_BAR, _MOST_BAR = 4, 40
_LEAST_NAME, _MOST_NAME = 10, 32  # a quarter of the terminal's width, if that is more
_NAMES = "GPU / CONTAINER"


class Row(NamedTuple):
    """A line to be: sizes are in bytes, shares in percent; None is unknown, or no limit.

    `tenant` and `device` are None in the lines of a GPU and of what is outside vgpurun on it.
    """

    name: str
    gpu: Gpu
    memory_used: int | None
    memory_of: int
    has_memory_limit: bool
    share_used: float | None = None
    share_of: int = 100
    has_share_limit: bool = False
    style: str = ""
    user: str = ""
    what: str = ""
    use: GpuUse | None = None
    tenant: Tenant | None = None
    device: TenantDevice | None = None
    programs: Sequence[Program] = ()

    @property
    def key(self) -> tuple[str, str]:
        """Its identity from one refresh to the next."""
        return self.gpu.uuid, self.tenant.id if self.tenant else self.name

    def has(self, text: str) -> bool:
        """Ask whether a text is in its name, user, image or command, small or capital."""
        words = (self.name, self.user, self.what, *(each.command for each in self.programs))
        return any(text.lower() in each.lower() for each in words)


def rows(report: Report, sort: str, wanted: str = "", capacities: Mapping[str, GpuCapacity] | None = None) -> list[Row]:
    """Return what is to be shown: each GPU with what is on it, or all GPUs and then all tenants by what they use.

    With a filter, the tenants that have that text, and their GPUs. `capacities` are by UUID.
    """
    free = {uuid: show_free(each) for uuid, each in (capacities or {}).items()}
    of_gpus = [(_gpu_row(gpu, use, free), _on_gpu(gpu, use, report)) for gpu, use in report.gpus]
    if wanted:
        kept = [(whole, [row for row in on_it if row.has(wanted)]) for whole, on_it in of_gpus]
        of_gpus = [(whole, on_it) for whole, on_it in kept if on_it]
    if sort == "gpu":
        return [row for whole, on_it in of_gpus for row in (whole, *on_it)]
    several = len(report.gpus) > 1
    tenants = [row for _, on_it in of_gpus for row in on_it if row.tenant]
    named = [row._replace(name=f"  {row.name.strip()}{f' ({row.gpu.number})' * several}") for row in tenants]
    return [*(whole for whole, _ in of_gpus), *sorted(named, key=_ORDERS[sort], reverse=True)]


_ORDERS: dict[str, Callable[[Row], float]] = {
    "memory": lambda row: row.memory_used or 0,
    "compute": lambda row: row.share_used or 0.0,
}


def _on_gpu(gpu: Gpu, use: GpuUse, report: Report) -> list[Row]:
    found = [
        _tenant_row(tenant, device, report.programs_of(gpu, tenant.id) if tenant.id else ())
        for tenant in report.tenants
        for device in tenant.devices
        if device.gpu.uuid == gpu.uuid
    ]
    outside, others = report.outside_bytes(gpu, use), report.outside(gpu)
    if outside or others:
        users = ",".join(dict.fromkeys(each.user for each in others if each.user))
        what = _listed(others)
        row = Row(
            "  outside vgpurun", gpu, outside, gpu.memory_bytes, False, used_percent(others), style="dim", user=users,
            what=what, programs=others,
        )  # fmt: skip
        found.append(row)
    return found


def _listed(programs: Sequence[Program]) -> str:
    return ", ".join(f"{each.command or '?'} ({each.pid})" for each in programs)


def _gpu_row(gpu: Gpu, use: GpuUse, free: Mapping[str, str]) -> Row:
    share = None if use.utilization_percent is None else float(use.utilization_percent)
    return Row(
        f"{gpu.number}: {gpu.name}", gpu, use.memory_used_bytes, gpu.memory_bytes, True, share, style="bold", use=use,
        what=free.get(gpu.uuid, ""),
    )  # fmt: skip


def _tenant_row(tenant: Tenant, device: TenantDevice, programs: Sequence[Program]) -> Row:
    quota, busy = device.quota, device.utilization
    what = f"{tenant.what}  {_listed(programs)}" if programs else tenant.what
    row = Row(
        f"  {tenant.name}", device.gpu, device.memory_used_bytes, quota.memory_bytes or device.gpu.memory_bytes,
        quota.memory_bytes is not None, None if busy is None else busy.last_1s, quota.sm_percent or 100,
        quota.sm_percent is not None, user=tenant.user, what=what, tenant=tenant, device=device, programs=programs,
    )  # fmt: skip
    if tenant.slice_name or tenant.within:
        row = row._replace(name=f"    {tenant.name}")  # shown below its share
    if not device.is_part:
        return row
    return row._replace(
        memory_of=device.gpu.memory_bytes, has_memory_limit=False, share_of=100,
        has_share_limit=False,
    )  # fmt: skip


class _Column(NamedTuple):
    """A column behind the bars or before them: its title, its width, and from which width of a terminal it is there."""

    title: str
    width: int
    least_width: int
    text: Callable[[Row], str]
    is_right: bool = True


def _throttled(row: Row) -> str:
    if row.device is None or row.device.reading is None or row.device.is_part:
        return ""
    return f"{row.device.reading.throttled_ns / 1e9:.1f} s"


def _refused(row: Row) -> str:
    if row.device is None or row.device.reading is None or row.device.is_part:
        return ""
    return str(row.device.reading.refusals)


def _heat(row: Row) -> str:
    if row.use is None:
        return ""
    heat = "" if row.use.temperature_c is None else f"{row.use.temperature_c} C"
    return heat if row.use.power_w is None else f"{heat} {row.use.power_w:.0f} W"


_USER = _Column("USER", 8, 100, lambda row: row.user, is_right=False)
_WHAT = _Column("IMAGE, PROGRAMS", 36, 150, lambda row: row.what, is_right=False)
_BEHIND = (
    _Column("THROTTLED", 9, 110, _throttled),
    _Column("REFUSED", 7, 120, _refused),
    _Column("HEAT, POWER", 11, 125, _heat),
)


class Drawing:
    """The columns for a terminal's width: names have what they need, and the bars the rest."""

    def __init__(self, width: int, ascii_only: bool, shown: Sequence[Row]) -> None:
        """Take the columns for which there is room, and which say something of one of these rows."""
        self._before = [each for each in (_USER, _WHAT) if width >= each.least_width]
        self._behind = [each for each in _BEHIND if width >= each.least_width and any(map(each.text, shown))]
        over = width - _MEMORY_TEXT - _SHARE_TEXT - 5
        over -= sum(each.width + 1 for each in self._before) + sum(each.width + 2 for each in self._behind)
        longest = max((len(each.name) for each in shown), default=0)
        most = max(_MOST_NAME, width // 4)
        self._name = max(_LEAST_NAME, min(most, max(longest, len(_NAMES)), over - 2 * _LEAST_BAR))
        self._bar = max(_LEAST_BAR, min(_MOST_BAR, (over - self._name) // 2))
        self._full, self._empty, self._cut = ("#", ".", "~") if ascii_only else ("█", "░", "…")

    def titles(self) -> Text:
        """Return the head of the columns."""
        names = " ".join([self._fitted(_NAMES, self._name), *(each.title.ljust(each.width) for each in self._before)])
        memory = "MEMORY".ljust(self._bar + 1 + _MEMORY_TEXT + 2)
        compute = "COMPUTE".ljust(self._bar + 1 + _SHARE_TEXT)
        behind = "".join(f"  {each.title.rjust(each.width)}" for each in self._behind)
        return Text(f"{names} {memory}{compute}{behind}".rstrip(), style="bold", no_wrap=True)

    def line(self, row: Row, is_chosen: bool = False) -> Text:
        """Return a row's line; the one that keys are about is shown reversed."""
        names = [
            self._fitted(row.name, self._name),
            *(self._fitted(each.text(row), each.width) for each in self._before),
        ]
        text = Text(f"{' '.join(names)} ", style=row.style, no_wrap=True)
        if is_chosen:
            text.stylize("reverse", 0, self._name)
        text.append_text(self._bar_of(row.memory_used, row.memory_of, row.has_memory_limit))
        text.append(f" {_memory(row).rjust(_MEMORY_TEXT)}  ")
        text.append_text(self._bar_of(row.share_used, row.share_of, False))
        text.append(f" {_share(row).rjust(_SHARE_TEXT)}")
        for column in self._behind:
            text.append(f"  {column.text(row).rjust(column.width)}")
        text.rstrip()
        return text

    def _bar_of(self, used: float | None, limit: float, warns: bool) -> Text:
        part = 0.0 if not used else min(1.0, used / limit)
        cells = min(self._bar, max(round(part * self._bar), 1 if part > 0 else 0))
        colour = "green"
        if warns and part >= _HIGH:
            colour = "red" if part >= _FULL else "yellow"
        bar = Text(self._full * cells, style=colour)
        return bar.append(self._empty * (self._bar - cells), style="dim")

    def _fitted(self, text: str, width: int) -> str:
        return text.ljust(width) if len(text) <= width else f"{text[: width - 1]}{self._cut}"


def _memory(row: Row) -> str:
    used = "?" if row.memory_used is None else show_size(row.memory_used)
    return f"{used} / {show_size(row.memory_of)}" if row.has_memory_limit else used


def _share(row: Row) -> str:
    if row.tenant and row.device and not row.device.is_part and (word := held_back(row.tenant, row.device.quota)):
        return word
    if row.has_share_limit:
        return f"{'?' if row.share_used is None else f'{row.share_used:.0f}'} / {row.share_of}%"
    if row.share_used is not None:
        return f"{row.share_used:.0f}%"
    return NO_LIMIT if row.device is not None and not row.device.is_part else "?"


def lines(report: Report, width: int, sort: str, ascii_only: bool = False) -> list[Text]:
    """Return titles and lines for a terminal of this width.

    Where one of the containers has waited for its turn in the last minute, it is shown for how long.
    """
    shown = rows(report, sort)
    draw = Drawing(width, ascii_only, shown)
    return [draw.titles(), *map(draw.line, shown)]
