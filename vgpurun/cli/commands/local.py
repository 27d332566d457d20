"""`vgpurun local`: a process of this host under limits, without a container."""

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
from vgpurun.launch.describe import to_yaml
from vgpurun.launch.local import LocalLaunch
from vgpurun.launch.profiling import Profiling
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
    command: tuple[str, ...],
    environment: tuple[str, ...],
    profile: str | None,
    profile_size: str | None,
    driver: str,
    enforce: str,
    dry_run: bool,
    **given: Any,
) -> int:
    """Run COMMAND on this host with the given GPU memory and the given share of each GPU's time.

    LD_PRELOAD loads the library: a program that clears it, or is statically linked, has no limits, unless root starts
    it on a driver that limits memory itself (--enforce).
    """
    variables = given_environment(environment, ())
    wanted = Wanted.take(given, is_local=True, share=placed_share())
    profiling = Profiling.read(profile, profile_size)
    launch = LocalLaunch(command, variables, wanted, profiling, driver, enforce)
    if dry_run:
        click.echo(to_yaml(launch.plan_without_effect(engine_if_any())), nl=False)
        return 0
    return launch.run(engine_if_any())
