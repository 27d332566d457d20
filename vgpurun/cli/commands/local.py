"""`vgpurun local`: a process of this host under limits, without a container."""

import os
from contextlib import ExitStack
from typing import Any

import click

from vgpurun.admission.nesting import placed_share
from vgpurun.admission.wanted import Wanted
from vgpurun.cli.common import (
    GroupedCommand,
    enforce_option,
    host_driver_option,
    limit_options,
    option,
    oversubscribe_option,
    policy_options,
    profile_options,
)
from vgpurun.cli.placing import engine_if_any, placement_options
from vgpurun.host.library import find_library
from vgpurun.host.visible import survey_gpus, warned_of
from vgpurun.launch.describe import to_yaml
from vgpurun.launch.local import plan_local
from vgpurun.launch.process import prepare_process, run_process
from vgpurun.launch.profiling import Profiling
from vgpurun.limits.idle import idle_files
from vgpurun.options.files import given_environment

_GROUP = "Process"


@click.command(
    cls=GroupedCommand,
    name="local",
    options_metavar="[OPTIONS] [--]",
    context_settings={"allow_interspersed_args": False},
)
@limit_options()
@oversubscribe_option
@policy_options()
@placement_options
@profile_options
@enforce_option
@option("-e", "--env", "environment", metavar="NAME[=VALUE]", multiple=True, group=_GROUP, help="Set a variable.")
@host_driver_option(_GROUP)
@option("--dry-run", is_flag=True, group=_GROUP, help="Print what would be done as YAML, and do nothing.")
@click.argument("command", metavar="COMMAND [ARG...]", nargs=-1, required=True, type=click.UNPROCESSED)
def local(
    command: tuple[str, ...], environment: tuple[str, ...], driver: str, enforce: str, dry_run: bool, **given: Any
) -> int:
    """Run COMMAND on this host with the given GPU memory and the given share of each GPU's time.

    It is a preload: a program that clears LD_PRELOAD, or is linked statically, is not limited, unless it is root's and
    the driver has memory limits of its own (--enforce).
    """
    variables = given_environment(environment, ())
    host_environment = {**os.environ, **variables}
    wanted = Wanted.take(given, is_local=True, share=placed_share())
    profiling = Profiling.read(given["profile"], given["profile_size"])
    if isinstance(wanted, Wanted) and wanted.gpus is None and host_environment.get("CUDA_VISIBLE_DEVICES"):
        wanted = wanted._replace(gpus="all")  # the user's own choice; its numbers are CUDA's, which need not be NVML's
    found = warned_of(survey_gpus(driver == "sim"))
    wanted.check(host_environment, found.gpus)
    find_library(dry_run)  # is built before others have to wait for this launch
    admission = wanted.admission(host_environment, found.gpus, engine_if_any())
    if dry_run:
        plan = plan_local(command, admission.look(), found, driver, variables, dry_run, profiling, enforce)
        click.echo(to_yaml(plan), nl=False)
        return 0
    with ExitStack() as undo:
        with admission.granted() as placement:
            plan = plan_local(command, placement, found, driver, variables, profiling=profiling, enforce=enforce)
            plan = plan._replace(state_files={**plan.state_files, **idle_files(wanted.idle)})
            folder = prepare_process(plan)
            undo.callback(folder.remove)
            admission.confirm(str(os.getpid()))
        undo.pop_all()
    return run_process(plan, folder)
