"""`vgpurun prune`: removes what dead containers and processes have left."""

import os
from typing import TYPE_CHECKING

import click

from vgpurun import abi
from vgpurun.admission import tickets
from vgpurun.cli.common import EngineCommand, host_driver_option, option
from vgpurun.console.messages import warn
from vgpurun.errors import EngineError, VgpurunError
from vgpurun.limits.quota import show_size
from vgpurun.slices import store
from vgpurun.storage import state, tenants
from vgpurun.together import server
from vgpurun.util.background import Background

if TYPE_CHECKING:
    from vgpurun.engine.client import Engine

_MOST_SWEEPS = 100  # each removes up to a thousand folders: another user may make them as fast as they go


@click.command(cls=EngineCommand, name="prune", on_broken_config=warn)
@host_driver_option("Prune")
@option("--dry-run", is_flag=True, group="Prune", help="Show what would be removed, and remove nothing.")
@option("-f", "--force", is_flag=True, expose_value=False, group="Prune", help="Does nothing: prune never asks.")
def prune(dry_run: bool, driver: str) -> None:
    """Remove the state folders of containers and local processes that are gone, and leftovers of slices and queues.

    Stopped containers keep theirs. Every launch prunes, too; this verb is for a host without further launches. Run by
    root, it also removes other users' leftovers in /var/tmp/vgpulock, and lowers the driver's limits where `update`
    could not.
    """
    from vgpurun.admission.overdue import end_overdue
    from vgpurun.engine.client import Engine
    from vgpurun.launch.container import sweep

    try:
        engine = Engine.connect()
        if not dry_run:
            for ended in end_overdue(engine):
                click.echo(f"Stopped {ended}: it reached its --for limit")
        removed = sweep(engine, Background(engine.facts), dry_run)
        if not dry_run and os.geteuid() == 0:
            _settle(engine, driver == "sim")
    except EngineError as error:
        warn(f"the state of containers is left alone: {error}")
        removed = state.sweep(is_dry_run=dry_run)
    removed += store.sweep(dry_run)
    removed += server.sweep(dry_run)
    if not dry_run:
        tickets.sweep()
        if os.geteuid() == 0:
            sweep_others()
    for folder, size_bytes in removed:
        click.echo(f"{folder} ({show_size(size_bytes)})")
    total = show_size(sum(size_bytes for _, size_bytes in removed))
    count = f"{len(removed)} state folder{'s' * (len(removed) != 1)}"
    click.echo(f"{'Would remove' if dry_run else 'Removed'} {count}, {total}")


def sweep_others() -> None:
    """Remove what other users have left, with a bounded number of sweeps."""
    for _ in range(_MOST_SWEEPS):
        if not tenants.sweep_others():
            return
    warn(f"other users have left more in {abi.LOCK_DIR}, or are making it now; prune again")


def _settle(engine: "Engine", is_simulated: bool) -> None:
    from vgpurun.host.visible import survey_gpus
    from vgpurun.inventory.cgroups import settle_all
    from vgpurun.inventory.reservations import of_container

    try:
        gpus = survey_gpus(is_simulated).gpus
    except VgpurunError:
        return  # without a driver there is nothing to be set
    for left in settle_all(map(of_container, engine.containers(everything=False)), gpus):
        warn(left)
