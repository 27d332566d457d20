"""`vgpurun prune`: removes what dead containers and processes have left."""

import click

from vgpurun.admission import tickets
from vgpurun.cli.common import EngineCommand, option
from vgpurun.console.messages import warn
from vgpurun.errors import EngineError
from vgpurun.limits.quota import show_size
from vgpurun.slices import store
from vgpurun.storage import state
from vgpurun.util.background import Background


@click.command(cls=EngineCommand, name="prune")
@option("--dry-run", is_flag=True, group="Prune", help="Show what would be removed, and remove nothing.")
def prune(dry_run: bool) -> None:
    """Remove the state folders of containers and local processes that are gone, and what is left of slices and waiting.

    Stopped containers keep theirs. Every launch does the same; this verb is for a host where no more
    comes.
    """
    from vgpurun.engine.client import Engine
    from vgpurun.launch.container import sweep

    try:
        engine = Engine.connect()
        removed = sweep(engine, Background(engine.facts), dry_run)
    except EngineError as error:
        warn(f"the state of containers is left alone: {error}")
        removed = state.sweep(is_dry_run=dry_run)
    removed += store.sweep(dry_run)
    if not dry_run:
        tickets.sweep()
    for folder, size_bytes in removed:
        click.echo(f"{folder} ({show_size(size_bytes)})")
    total = show_size(sum(size_bytes for _, size_bytes in removed))
    count = f"{len(removed)} state folder{'s' * (len(removed) != 1)}"
    click.echo(f"{'Would remove' if dry_run else 'Removed'} {count}, {total}")
