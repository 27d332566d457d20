"""`vgpurun defrag`: running programs make room for a launch by going to other GPUs."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from vgpurun.cli.common import EngineCommand, GpuNames, format_option, host_driver_option, option
from vgpurun.cli.placing import engine_if_any
from vgpurun.console.messages import say, warn
from vgpurun.console.signals import Signals
from vgpurun.errors import OptionError
from vgpurun.host.gpu_names import GPUS_HELP
from vgpurun.host.visible import libcuda, visible_gpus
from vgpurun.limits.quota import show_size
from vgpurun.util.threads import ENDING

if TYPE_CHECKING:
    from vgpurun.suspend.defragment import Move

_GROUP = "Launch"


@click.command(cls=EngineCommand, name="defrag", on_broken_config=warn, options_metavar="[OPTIONS]")
@option("--mem", metavar="SIZE", group=_GROUP, help="The memory limit of the launch that is to fit, as for run.")
@option("--sm", metavar="PERCENT", group=_GROUP, help="Its compute limit.")
@option("--gpus", metavar="GPUS", type=GpuNames(), group=_GROUP, help=f"Its GPUs: {GPUS_HELP.removeprefix('use ')}.")
@option("--dry-run", is_flag=True, group="Moves", help="Print the moves, and do nothing.")
@format_option("Moves", "How to print them.", "text", "json")
@host_driver_option("Moves")
def defrag(mem: str | None, sm: str | None, gpus: str | None, dry_run: bool, output_format: str, driver: str) -> None:
    """Move running programs to other GPUs so that a launch fits, with the fewest bytes to copy.

    It moves what vgpurun move can move, one after the other. It reserves nothing for the launch.
    """
    from vgpurun.host.checkpoints import Checkpoints
    from vgpurun.suspend.making_room import RoomFor

    if mem is None and sm is None:
        raise OptionError("give the limits of the launch that should fit: --mem, --sm or both")
    click.get_current_context().ensure_object(Signals).take(ENDING)  # a move that is ended is undone
    found, library = visible_gpus(driver == "sim"), libcuda(driver == "sim")
    room = RoomFor(mem, sm, gpus, found, engine_if_any())
    with Checkpoints(library) as checkpoints:
        moves = room.moves(checkpoints)
        if output_format == "json":
            click.echo(json.dumps(_to_json(moves)))
        for move in moves:
            if not dry_run and not room.move(move, checkpoints):
                say(f"{move.holder.name} has ended, and so makes room as well")
            elif output_format == "text":
                line = f"{move.holder.name}: GPU {move.old.number} -> GPU {move.new.number}"
                click.echo(f"{line}, {show_size(move.held_bytes)}{'' if dry_run else ' moved'}")
    numbers = ",".join(gpu.number for gpu in room.gpus_after(moves))
    fits = "would fit" if dry_run and moves else "fits"
    say(f"{room.asked} {fits} on GPU {numbers}{'' if moves else ' as it is'}")


def _to_json(moves: "Sequence[Move]") -> Mapping[str, Any]:
    return {
        "moves": [
            {
                "id": each.holder.id,
                "name": each.holder.name,
                "from_gpu": each.old.number,
                "from_uuid": each.old.uuid,
                "to_gpu": each.new.number,
                "to_uuid": each.new.uuid,
                "memory_bytes": each.held_bytes,
            }
            for each in moves
        ],
        "memory_bytes": sum(each.held_bytes for each in moves),
    }
