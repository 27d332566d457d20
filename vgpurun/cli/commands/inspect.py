"""`vgpurun inspect`: all about containers, as JSON."""

import json
from typing import Any

import click

from vgpurun.cli.common import ContainerName, EngineCommand, host_driver_option
from vgpurun.console.messages import say, warn
from vgpurun.host.visible import gpus_if_any

_GROUP = "Display"


@click.command(cls=EngineCommand, name="inspect", on_broken_config=warn)
@host_driver_option(_GROUP)
@click.argument("containers", metavar="CONTAINER...", nargs=-1, required=True, type=ContainerName())
def inspect(containers: tuple[str, ...], driver: str) -> int:
    """Show limits, use, devices, versions and the state folder of containers, as a JSON list. Sizes are in bytes."""
    from vgpurun.engine.containers import ContainerEngine, each_of

    engine = ContainerEngine.connect()
    all_gpus = gpus_if_any(driver == "sim")
    found: list[dict[str, Any]] = []
    exit_code = each_of(containers, lambda name: found.append(_describe(engine.describe(name), all_gpus)), say)
    click.echo(json.dumps(found, indent=4, ensure_ascii=False))
    return exit_code


def _describe(described: dict[str, Any], all_gpus: Any) -> dict[str, Any]:
    from vgpurun.cli.views.ps import devices_json
    from vgpurun.engine.containers import from_description
    from vgpurun.inventory import usage as smi
    from vgpurun.inventory.cgroups import driver_limits

    (tenant,) = smi.read_containers([from_description(described)], all_gpus)
    container = tenant.container
    assert container is not None
    return {
        "id": container.id,
        "name": container.name,
        "image": container.image,
        "command": container.command,
        "status": container.status,
        "created": described["Created"],
        "user": container.user,
        "devices": devices_json(tenant, driver_limits({container.id}, all_gpus)),
        "state_folder": container.state_folder,
        "version": container.record.version,
        "labels": dict(container.labels),
        "docker": described,
    }
