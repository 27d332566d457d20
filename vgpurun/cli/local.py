"""`vgpurun local`: a process of this host under limits, without a container."""

import os

import click

from vgpurun import gpus, library, simulation, state
from vgpurun.cli.common import (
    GroupedCommand,
    find_library,
    host_driver_option,
    limit_options,
    option,
    say,
    visible_gpus,
)
from vgpurun.describe import to_yaml
from vgpurun.options import parse_environment
from vgpurun.plan import Limits, ProcessPlan, plan_process
from vgpurun.process import run_process

_GROUP = "Process"


@click.command(
    cls=GroupedCommand,
    name="local",
    options_metavar="[OPTIONS] [--]",
    context_settings={"allow_interspersed_args": False},
)
@limit_options
@option("-e", "--env", "environment", metavar="NAME[=VALUE]", multiple=True, group=_GROUP, help="Set a variable.")
@host_driver_option(_GROUP)
@option("--dry-run", is_flag=True, group=_GROUP, help="Print what would be done as YAML, and do nothing.")
@click.argument("command", metavar="COMMAND [ARG...]", nargs=-1, required=True, type=click.UNPROCESSED)
def local(
    command: tuple[str, ...],
    mem: str | None,
    sm: str | None,
    gpus: str,
    environment: tuple[str, ...],
    driver: str,
    dry_run: bool,
) -> int:
    """Run COMMAND on this host with the given GPU memory and the given share of each GPU's time.

    It is a preload: a program that clears LD_PRELOAD, or is linked statically, is not limited.
    """
    plan = plan_local(command, Limits(mem, sm), gpus, driver, parse_environment(environment, ()), dry_run)
    if dry_run:
        click.echo(to_yaml(plan), nl=False)
        return 0
    return run_process(plan)


def plan_local(
    command: tuple[str, ...],
    limits: Limits,
    gpu_text: str,
    driver: str,
    given: dict[str, str],
    is_dry_run: bool = False,
) -> ProcessPlan:
    """Return the plan of a local process, with the library built if need be. Raises VgpurunError."""
    is_simulated = driver == "sim"
    host_environment = {**os.environ, **given}
    all_gpus = visible_gpus(is_simulated)
    chosen = gpus.select_gpus(gpu_text, all_gpus)
    driver_environment = dict(given)
    if is_simulated:
        driver_environment |= simulation.local_environment(library.find_simulated_driver(say), host_environment)
    found = find_library(is_dry_run)
    library.check_host(found)
    return plan_process(
        command,
        limits,
        chosen,
        all_gpus,
        driver,
        driver_environment,
        found.path,
        state.new_folder_path("local"),
        host_environment,
    )
