"""`vgpurun queue`: the launches that wait for room."""

import json

import click

from vgpurun.admission import tickets
from vgpurun.cli.common import GroupedCommand, format_option, host_driver_option
from vgpurun.cli.views.columns import Column, lines, terminal_width
from vgpurun.console.messages import warn
from vgpurun.host.visible import gpus_if_any
from vgpurun.util.times import show_age

_GROUP = "Display"
_COLUMNS = (
    Column("PLACE", is_right=True),
    Column("USER"),
    Column("WAITING"),
    Column("GPUS", can_shrink=True),
    Column("FOR", can_shrink=True),
)


@click.command(cls=GroupedCommand, name="queue", on_broken_config=warn)
@format_option(_GROUP, "How to print the launches.")
@host_driver_option(_GROUP)
def queue(output_format: str, driver: str) -> None:
    """Show the launches that wait for room (--wait), in the order in which they get it.

    A launch overtakes those that wait for other GPUs than it does. Ctrl-C in its terminal ends the wait.
    """
    waiting = tickets.queue()
    numbers = {gpu.uuid: gpu.number for gpu in gpus_if_any(driver == "sim")} if waiting else {}
    gpus = [sorted(numbers.get(uuid, uuid) for uuid in each.uuids) for each in waiting]
    if output_format == "json":
        found = [
            {"user": each.user, "waited_seconds": round(each.waited_s, 1), "gpus": of_each, "asked": each.asked}
            for each, of_each in zip(waiting, gpus, strict=True)
        ]
        click.echo(json.dumps(found))
        return
    rows = [
        (str(place), each.user, show_age(each.waited_s), ",".join(of_each), each.asked)
        for place, (each, of_each) in enumerate(zip(waiting, gpus, strict=True), 1)
    ]
    for line in lines(_COLUMNS, rows, terminal_width()):
        click.echo(line)
