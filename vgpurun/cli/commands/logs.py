"""`vgpurun logs`: what a container has written."""

import re
from contextlib import suppress

import click

from vgpurun.cli.common import ContainerName, EngineCommand, option
from vgpurun.console.signals import Signals
from vgpurun.errors import CommandLineError, OptionError

_GROUP = "Output"


@click.command(cls=EngineCommand, name="logs")
@option("-f", "--follow", is_flag=True, group=_GROUP, help="Follow what it writes from now on.")
@option(
    "-n", "--tail", metavar="NUMBER", default="all", show_default=True, group=_GROUP, help="Show only the last lines.",
)  # fmt: skip
@option(
    "--since", metavar="TIME", group=_GROUP,
    help="Show lines since then: 10m (ago), 2025-01-31T12:00:00, or a timestamp.",
)  # fmt: skip
@option("--until", metavar="TIME", group=_GROUP, help="Show lines until then.")
@option("-t", "--timestamps", is_flag=True, group=_GROUP, help="Show the time of each line.")
@option("--details", is_flag=True, group=_GROUP, help="Show the extra attributes of the log driver.")
@click.argument("container", type=ContainerName())
@click.pass_obj
def logs(
    signals: Signals,
    /,
    container: str,
    follow: bool,
    tail: str,
    since: str | None,
    until: str | None,
    timestamps: bool,
    details: bool,
) -> None:
    """Show what a container has written: its standard output on this command's, its standard error likewise."""
    from vgpurun.console.streams import copy_output
    from vgpurun.engine.containers import ContainerEngine, LogOptions

    if not re.fullmatch(r"all|-?[0-9]+", tail, re.ASCII):
        raise CommandLineError(f"--tail '{tail}' is neither a number of lines nor 'all'")
    options = LogOptions(
        follow=follow,
        tail="all" if tail.startswith("-") else tail,
        since_s=None if since is None else _moment(since, "--since"),
        until_s=None if until is None else _moment(until, "--until"),
        timestamps=timestamps,
        details=details,
    )
    engine = ContainerEngine.connect()
    described = engine.describe(container)
    signals.take()
    with suppress(BrokenPipeError):
        copy_output(engine.logs(described["Id"], options), is_terminal=bool(described["Config"].get("Tty")))


def _moment(text: str, option: str) -> float:
    from vgpurun.util.times import parse_moment

    try:
        return parse_moment(text, option)
    except OptionError as error:
        raise CommandLineError(str(error)) from None
