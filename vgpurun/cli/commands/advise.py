"""`vgpurun advise`: whether containers would gain from working at the same time."""

import json
from typing import TYPE_CHECKING, Any

import click

from vgpurun.cli.common import ContainerName, EngineCommand, format_option
from vgpurun.cli.views.columns import Column, lines, terminal_width
from vgpurun.console.messages import say
from vgpurun.errors import CommandLineError

if TYPE_CHECKING:
    from vgpurun.profiles.advice import Use

_COLUMNS = (
    Column("CONTAINER", can_shrink=True),
    Column("GPU", can_shrink=True),
    Column("BUSY", is_right=True),
    Column("FILLED", is_right=True),
)


@click.command(cls=EngineCommand, name="advise")
@format_option("Display", "How to print the advice.")
@click.argument("containers", metavar="CONTAINER...", nargs=-1, required=True, type=ContainerName())
def advise(containers: tuple[str, ...], output_format: str) -> None:
    """Estimate what containers would gain from working at the same time (--together), from the profile of each.

    BUSY is the part of its time for which a container had work on the GPU, FILLED how much of the GPU that work filled
    meanwhile. Start each by `vgpurun run --profile DIR`, best alone on the GPU; it may still run, or have ended.
    """
    from vgpurun.engine.containers import ContainerEngine, from_description
    from vgpurun.profiles import advice

    if len(containers) < 2:
        raise CommandLineError("advise compares containers: name two or more")
    engine = ContainerEngine.connect()
    described = [engine.describe(name) for name in containers]
    if len({each["Id"] for each in described}) < len(described):
        raise CommandLineError("advise compares containers: one is named twice")
    uses = [
        advice.read_use(each, any(quota.together for _, quota in from_description(each).quotas), say)
        for each in described
    ]
    advice.check(uses)
    found, notes = advice.estimate(uses), list(advice.notes(uses))
    if output_format == "json":
        paces = {"together_percent": _percent(found.together), "in_turns_percent": _percent(found.in_turns)}
        click.echo(json.dumps({"containers": list(map(_to_json, uses)), **paces, "notes": notes}))
        return
    rows = [(each.name, each.gpu, f"{each.busy:.0%}", f"{each.fill:.0%}") for each in uses]
    for line in (*lines(_COLUMNS, rows, terminal_width()), found.sentence, *notes):
        click.echo(line)


def _to_json(use: "Use") -> dict[str, Any]:
    return {
        "name": use.name,
        "gpu_uuid": use.gpu,
        "busy_percent": _percent(use.busy),
        "filled_percent": _percent(use.fill),
        "filled_known_percent": _percent(use.known),
        "together": use.is_member,
    }


def _percent(part: float) -> float:
    return round(100 * part, 2)
