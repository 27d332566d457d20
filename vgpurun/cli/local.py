"""`vgpurun local`: a process of this host under limits, without a container."""

import os
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import click

from vgpurun.admission.placement import Placement
from vgpurun.cli.common import (
    GroupedCommand,
    find_library,
    host_driver_option,
    limit_options,
    option,
    oversubscribe_option,
    policy_options,
    profile_options,
    say,
    survey_gpus,
    warn,
    warned_of,
)
from vgpurun.cli.placing import Wanted, engine_if_any, placement_options
from vgpurun.host import library, mps, simulation
from vgpurun.host.gpus import Survey
from vgpurun.launch.describe import to_yaml
from vgpurun.launch.plan import ProcessPlan, plan_process
from vgpurun.launch.process import prepare_process, run_process
from vgpurun.launch.profiling import Profiling
from vgpurun.options.files import given_environment
from vgpurun.storage import state

_GROUP = "Process"


@click.command(
    cls=GroupedCommand,
    name="local",
    options_metavar="[OPTIONS] [--]",
    context_settings={"allow_interspersed_args": False},
)
@limit_options
@oversubscribe_option
@policy_options()
@placement_options
@profile_options
@option("-e", "--env", "environment", metavar="NAME[=VALUE]", multiple=True, group=_GROUP, help="Set a variable.")
@host_driver_option(_GROUP)
@option("--dry-run", is_flag=True, group=_GROUP, help="Print what would be done as YAML, and do nothing.")
@click.argument("command", metavar="COMMAND [ARG...]", nargs=-1, required=True, type=click.UNPROCESSED)
def local(command: tuple[str, ...], environment: tuple[str, ...], driver: str, dry_run: bool, **given: Any) -> int:
    """Run COMMAND on this host with the given GPU memory and the given share of each GPU's time.

    It is a preload: a program that clears LD_PRELOAD, or is linked statically, is not limited.
    """
    variables = given_environment(environment, ())
    host_environment = {**os.environ, **variables}
    wanted = Wanted.take(given, is_local=True)
    profiling = Profiling.read(given["profile"], given["profile_size"])
    if isinstance(wanted, Wanted) and wanted.gpus is None and host_environment.get("CUDA_VISIBLE_DEVICES"):
        wanted = wanted._replace(gpus="all")  # the user's own choice; its numbers are CUDA's, which need not be NVML's
    found = warned_of(survey_gpus(driver == "sim"))
    wanted.check(host_environment, found.gpus)
    find_library(dry_run)  # is built before others have to wait for this launch
    admission = wanted.admission(host_environment, found.gpus, engine_if_any())
    if dry_run:
        plan = plan_local(command, admission.look(), found, driver, variables, dry_run, profiling)
        click.echo(to_yaml(plan), nl=False)
        return 0
    with ExitStack() as undo:
        with admission.granted() as placement:
            plan = plan_local(command, placement, found, driver, variables, profiling=profiling)
            folder = prepare_process(plan)
            undo.callback(folder.remove)
            admission.confirm(str(os.getpid()))
        undo.pop_all()
    return run_process(plan, folder)


def plan_local(
    command: tuple[str, ...],
    placement: Placement,
    host: Survey,
    driver: str,
    given: Mapping[str, str],
    is_dry_run: bool = False,
    profiling: Profiling | None = None,
) -> ProcessPlan:
    """Return the plan of a local process, with the library built if need be. Raises VgpurunError."""
    host_environment = {**os.environ, **given}
    driver_environment = dict(given)
    if driver != "sim" and (away := mps.keep_process_out(host_environment)):
        warn("an MPS daemon runs on this host; the program is kept out of it, for no limit would hold there")
        driver_environment |= away
    if driver == "sim":
        driver_environment |= simulation.local_environment(library.find_simulated_driver(say), host_environment)
    found = find_library(is_dry_run)
    library.check_host(found)
    return plan_process(
        command,
        placement.limits,
        placement.gpus,
        len(placement.gpus) < len(host.gpus) or bool(host.lost and not host_environment.get("CUDA_VISIBLE_DEVICES")),
        driver,
        driver_environment,
        found.path,
        state.new_folder_path("local"),
        host_environment,
        placement.joined,
        profiling,
    )
