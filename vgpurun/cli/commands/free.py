"""`vgpurun free`: what is left of the GPUs."""

import json

import click

from vgpurun.cli.common import EngineCommand, format_option, host_driver_option
from vgpurun.cli.views.columns import terminal_width
from vgpurun.console.messages import say, warn
from vgpurun.errors import ConfigError, EngineError
from vgpurun.host.visible import visible_gpus

_GROUP = "Display"


@click.command(cls=EngineCommand, name="free", on_broken_config=warn)
@format_option(_GROUP, "How to print the GPUs.")
@host_driver_option(_GROUP)
def free(output_format: str, driver: str) -> None:
    """Show what of each GPU is reserved, used and free, and the largest launch that would start now.

    The last column counts your quotas too. No launch with --mem starts on a GPU that a container without --mem uses.
    """
    from vgpurun.admission.capacity import capacities
    from vgpurun.admission.grants import own_grant
    from vgpurun.admission.largest import largest
    from vgpurun.admission.tickets import queue
    from vgpurun.cli.views import free as view
    from vgpurun.engine.client import Engine
    from vgpurun.host.gpus import read_use
    from vgpurun.inventory.reservations import all_holders

    gpus = visible_gpus(driver == "sim")
    try:
        holders = all_holders(Engine.connect())
    except EngineError as error:
        warn(f"containers are not counted: {error}")
        holders = all_holders(None)
    found = capacities(gpus, read_use(gpus), holders)
    try:
        grant = own_grant()
        launches = [largest(each, found, grant) for each in found]
    except ConfigError:  # which has been said: no launch starts until it is corrected
        launches = ["the configuration is broken"] * len(found)
    waiting = len(queue())
    if output_format == "json":
        click.echo(json.dumps({"gpus": list(map(view.to_json, found, launches)), "waiting": waiting}))
        return
    for line in view.table(found, launches, terminal_width()):
        click.echo(line)
    if waiting:
        say(f"{waiting} in the queue: vgpurun queue")
