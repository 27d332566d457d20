"""`vgpurun inspect`: all about containers, as JSON."""

import json
from collections.abc import Callable
from typing import Any

import click

from vgpurun.cli.common import ContainerName, EngineCommand, host_driver_option, option
from vgpurun.console.messages import say, warn
from vgpurun.errors import CommandLineError
from vgpurun.host.visible import gpus_if_any

_GROUP, _OF_DOCKER = "Display", "As docker has them"


@click.command(cls=EngineCommand, name="inspect", on_broken_config=warn)
@option("-f", "--format", "template", metavar="TEMPLATE", group=_OF_DOCKER, help="Print docker's fields as this says.")
@option("-s", "--size", is_flag=True, group=_OF_DOCKER, help="Show docker's fields with the sizes of files.")
@option("--type", "kind", metavar="TYPE", group=_OF_DOCKER, help="Only container; docker inspect has the other types.")
@host_driver_option(_GROUP)
@click.argument("containers", metavar="CONTAINER...", nargs=-1, required=True, type=ContainerName())
def inspect(
    containers: tuple[str, ...], driver: str, template: str | None, size: bool, kind: str | None
) -> int | Callable[[], object]:
    """Show limits, use, devices, versions and the state folder of containers, as a JSON list. Sizes are in bytes.

    With --format or --size it runs `docker inspect`, with docker's fields. Otherwise these are under the key "docker".
    """
    from vgpurun.engine.containers import ContainerEngine, each_of

    if kind not in (None, "container"):
        raise CommandLineError(f"--type {kind}: vgpurun has containers alone; use docker inspect")
    engine = ContainerEngine.connect()
    if template is not None or size:
        from vgpurun.cli.commands.docker_verbs import handed_over

        ids = [engine.describe(name)["Id"] for name in containers]
        given = [*(["--format", template] if template is not None else []), *(["--size"] if size else [])]
        return handed_over("inspect", ["--type", "container", *given, *ids])
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
