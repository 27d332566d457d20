"""How `vgpurun ps` prints containers: a table, CSV, JSON, or a template."""

import csv
import json
import sys
import time
from collections.abc import Callable, Collection, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from vgpurun.cli.views.columns import Column, cut, lines, terminal_width
from vgpurun.inventory import listing
from vgpurun.limits.quota import Quota, show_range
from vgpurun.util.times import show_age, show_moment

if TYPE_CHECKING:
    from vgpurun.inventory.cgroups import DriverLimits
    from vgpurun.inventory.usage import Tenant

_COLUMNS = (
    Column("CONTAINER ID", leaves=4),
    Column("NAME", can_shrink=True),
    Column("IMAGE / COMMAND", can_shrink=True, leaves=1),
    Column("GPU", is_right=True, leaves=5),
    Column("MEMORY", is_right=True),
    Column("COMPUTE", is_right=True, leaves=6),
    Column("USER", leaves=3),
    Column("AGE", leaves=2),
)
_STATUS = Column("STATUS", can_shrink=True, least_width=len("Exited (0)…"))  # AGE says nearly the rest
_SIZE = Column("SIZE")
_COMMAND = 40  # columns that a command is cut to
_CSV = (
    "id", "name", "image", "state", "user", "created", "gpu_index", "gpu_uuid", "memory_limit_bytes",
    "memory_used_bytes", "sm_limit_percent", "sm_used_percent",
)  # fmt: skip


def show(
    tenants: Sequence["Tenant"], output_format: str, is_short: bool, with_state: bool, with_sizes: bool = False
) -> None:
    """Print containers and local processes in this format. Raises OptionError for a template that cannot be read."""
    if output_format == "table":
        has_ends = any(each.container and each.container.record.ends_s is not None for each in tenants)
        _print_table(tenants, is_short, with_state or has_ends, with_sizes)
    elif output_format == "json":
        for tenant in tenants:
            click.echo(json.dumps(_json(tenant, is_short), ensure_ascii=False))
    elif output_format == "csv":
        writer = csv.DictWriter(sys.stdout, _CSV, lineterminator="\n")
        writer.writeheader()
        writer.writerows(row for tenant in tenants for row in _csv_rows(tenant))
    else:
        _print_template(output_format, tenants, is_short)


def _print_template(text: str, tenants: Sequence["Tenant"], is_short: bool) -> None:
    from vgpurun.cli.views.templates import Template, columns

    template = Template(text, listing.FIELDS)
    rows = [template.render(listing.record(tenant, is_short)) for tenant in tenants]
    for row in columns([template.titles(), *rows]) if template.is_table else rows:
        click.echo(row)


def _json(tenant: "Tenant", is_short: bool) -> dict[str, Any]:
    return {**listing.record(tenant, is_short), "Devices": devices_json(tenant)}


def devices_json(tenant: "Tenant", held: "DriverLimits" = MappingProxyType({})) -> list[dict[str, Any]]:
    """Return all GPUs of a container as plain data; of those that are gone only their limits are known.

    `held`: what the driver itself holds containers to.
    """
    from vgpurun.cli.views.smi_json import device_json

    gone = [
        {
            "gpu_index": None,
            "uuid": uuid,
            "memory_limit_bytes": quota.memory_bytes,
            "sm_limit_percent": quota.sm_percent,
        }
        for uuid, quota in tenant.missing
    ]
    return [*(device_json(each, held.get((tenant.id, each.gpu.uuid))) for each in tenant.devices), *gone]


def _csv_rows(tenant: "Tenant") -> list[dict[str, object]]:
    container = tenant.container
    first = {
        "id": listing.identity(tenant, is_short=False), "name": tenant.name,
        "image": container.image if container else "",
        "state": container.status if container else "running", "user": tenant.user,
        "created": show_moment(tenant.created_s),
    }  # fmt: skip
    rows: list[dict[str, object]] = []
    for device in devices_json(tenant):
        taken = {"gpu_uuid": device["uuid"], **{name: device.get(name) for name in _CSV if name in device}}
        rows.append({**first, **taken})
    return rows or [dict(first)]


def _print_table(tenants: Sequence["Tenant"], is_short: bool, with_state: bool, with_sizes: bool) -> None:
    further = {**({_STATUS: listing.status} if with_state else {}), **({_SIZE: listing.size} if with_sizes else {})}
    rows = [cells for tenant in tenants for cells in _rows(tenant, is_short, further.values())]
    for line in lines((*_COLUMNS, *further), rows, terminal_width()):
        click.echo(line)


def _rows(tenant: "Tenant", is_short: bool, further: Collection[Callable[["Tenant"], str]]) -> list[tuple[str, ...]]:
    """A row for each GPU; what holds for the whole container stands in the first."""
    use = [
        (
            each.gpu.number,
            of_limit(listing.memory_used(each), show_range(each.quota)),
            _compute(tenant, each.quota, listing.sm_used(each)),
        )
        for each in tenant.devices
    ]
    use += [
        (
            listing.UNKNOWN,
            of_limit(listing.UNKNOWN, show_range(quota)),
            _compute(tenant, quota, listing.UNKNOWN),
        )
        for _, quota in tenant.missing
    ]
    command = cut(tenant.what, _COMMAND) if is_short else tenant.what
    image = tenant.container.image if tenant.container else command
    age = short_age(time.time() - tenant.created_s)
    first, *others = use or [("", "", "")]
    state = [text(tenant) for text in further]
    blank = ("",) * len(state)
    return [
        (
            listing.identity(tenant, is_short),
            tenant.name,
            image,
            *first,
            tenant.user,
            age,
            *state,
        ),
        *(("", "", "", *each, "", "", *blank) for each in others),
    ]


def _compute(tenant: "Tenant", quota: Quota, used: str) -> str:
    return listing.held_back(tenant, quota) or listing.sms(quota) or share(used, quota.sm_percent)


def of_limit(used: str, limit: str) -> str:
    """Return what is used of a memory limit, for people."""
    return f"{used} / {limit}"


def share(used: str, limit_percent: int | None) -> str:
    """Return what is used of a compute limit, for people."""
    if limit_percent is None:
        return used if used != listing.UNKNOWN else listing.NO_LIMIT
    return f"{used.removesuffix(' %')} / {limit_percent} %"


def short_age(seconds: float) -> str:
    """Return 5 minutes as 5m: a column in a small terminal."""
    number, unit = show_age(seconds).split()
    return f"{number}{unit[0]}"
