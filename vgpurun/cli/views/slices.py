"""How `vgpurun slice ls` and `inspect` print slices."""

import json
import time
from collections.abc import Sequence
from typing import Any

import click

from vgpurun.cdi.of_slices import has_device
from vgpurun.cdi.specification import KIND
from vgpurun.cli.views.columns import Column, lines, terminal_width
from vgpurun.cli.views.ps import devices_json, of_limit, share, short_age
from vgpurun.console.messages import warn
from vgpurun.engine.client import Engine
from vgpurun.errors import EngineError, NoEngineError
from vgpurun.host.gpus import Gpu
from vgpurun.host.visible import gpus_if_any
from vgpurun.inventory import listing
from vgpurun.inventory import usage as smi
from vgpurun.inventory.usage import Tenant
from vgpurun.limits.quota import show_range
from vgpurun.slices.store import Slice
from vgpurun.together.group import Group
from vgpurun.util.times import show_moment

_COLUMNS = (
    Column("SLICE", can_shrink=True),
    Column("GPU", is_right=True),
    Column("MEMORY", is_right=True),
    Column("COMPUTE", is_right=True),
    Column("MEMBERS", is_right=True, leaves=4),
    Column("USER", leaves=3),
    Column("FOR", can_shrink=True, leaves=2),
    Column("AGE", leaves=1),
)


def _read(is_simulated: bool, slices: Sequence[Slice]) -> list[tuple[Slice, Tenant, list[Tenant]]]:
    """Read what slices use, and who has joined them."""
    all_gpus: Sequence[Gpu] = gpus_if_any(is_simulated) if slices else []
    tenants = smi.read_slices(_containers(all_gpus), all_gpus) if slices else []
    by_id = {tenant.id: tenant for tenant in tenants}
    return [
        (each, by_id[each.id], [tenant for tenant in tenants if tenant.slice_name == each.name])
        for each in slices
        if each.id in by_id
    ]


def _containers(all_gpus: Sequence[Gpu]) -> list[Tenant]:
    containers = []
    try:
        containers = Engine.connect().containers(everything=False)
    except NoEngineError:
        pass
    except EngineError as error:
        warn(f"containers are not shown by their names: {error}")
    return smi.read_joined(containers, all_gpus)


def print_table(slices: Sequence[Slice], is_simulated: bool) -> None:
    """Print a row for each GPU of each slice."""
    rows = [row for each in _read(is_simulated, slices) for row in _rows(*each)]
    for line in lines(_COLUMNS, rows, terminal_width()):
        click.echo(line)


def _rows(each: Slice, tenant: Tenant, members: Sequence[Tenant]) -> list[tuple[str, ...]]:
    use = [
        (
            device.gpu.number,
            of_limit(listing.memory_used(device), show_range(device.quota)),
            share(listing.sm_used(device), device.quota.sm_percent),
        )
        for device in tenant.devices
    ]
    use += [
        (
            listing.UNKNOWN,
            of_limit(listing.UNKNOWN, show_range(quota)),
            share(listing.UNKNOWN, quota.sm_percent),
        )
        for _, quota in tenant.missing
    ]
    first, *others = use
    age = short_age(time.time() - each.created_s)
    return [
        (each.name, *first, str(len(members)), each.user, ",".join(each.users), age),
        *(("", *other, "", "", "", "") for other in others),
    ]


def print_json(slices: Sequence[Slice], is_simulated: bool) -> None:
    """Print slices with all that is known of them."""
    described = [_json(*each) for each in _read(is_simulated, slices)]
    click.echo(json.dumps(described, indent=4, ensure_ascii=False))


def _json(each: Slice, tenant: Tenant, members: Sequence[Tenant]) -> dict[str, Any]:
    return {
        "name": each.name,
        "user": each.user,
        "users": list(each.users),
        "created": show_moment(each.created_s),
        "driver": each.driver,
        "devices": devices_json(tenant),
        "members": [
            {
                "kind": member.kind,
                "id": member.id,
                "name": member.name,
                "what": member.what,
                "limits": devices_json(member) if member.within else None,
                "memory_used_bytes": [device.memory_used_bytes for device in member.devices],
            }
            for member in members
        ],
        "together": _server(each) if each.together else None,
        "folder": str(each.folder),
        "cdi_device": f"{KIND}={each.name}" if has_device(each) else None,
    }


def _server(each: Slice) -> dict[str, Any]:
    """Return what is known of this user's MPS server for a slice."""
    group = Group.of_slice(each.folder, each.inode)
    record = group.record()
    return {
        "runs": group.is_kept(),
        "server_pid": record.get("server"),
        "incidents": [
            {"at": show_moment(float(incident["at_s"])), "what": str(incident["what"])}
            for incident in record.get("incidents") or ()
        ],
    }
