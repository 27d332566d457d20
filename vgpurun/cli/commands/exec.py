"""`vgpurun exec`: runs a further command in a running container, under the same limits."""

import click

from vgpurun.cli.common import NO_FORCE, ContainerName, EngineCommand, option, others_option
from vgpurun.console import terminal
from vgpurun.errors import CommandLineError
from vgpurun.options.files import given_environment

_GROUP = "Command"


@click.command(
    cls=EngineCommand,
    name="exec",
    elsewhere=NO_FORCE,
    options_metavar="[OPTIONS]",
    context_settings={"allow_interspersed_args": False},
)
@option("-d", "--detach", is_flag=True, group=_GROUP, help="Run it in the background.")
@option("--detach-keys", metavar="KEYS", group=_GROUP, help="Keys that detach from it, instead of ctrl-p,ctrl-q.")
@option("-e", "--env", "environment", metavar="NAME[=VALUE]", multiple=True, group=_GROUP, help="Set a variable.")
@option("--env-file", "env_files", metavar="FILE", multiple=True, group=_GROUP, help="Read variables from a file.")
@option("-i", "--interactive", is_flag=True, group=_GROUP, help="Pass standard input on to the command.")
@option("--privileged", is_flag=True, group=_GROUP, help="Give the command extended privileges.")
@option("-t", "--tty", is_flag=True, group=_GROUP, help="Give the command a terminal.")
@option("-u", "--user", metavar="USER[:GROUP]", default="", group=_GROUP, help="User, by name or number.")
@option("-w", "--workdir", "working_dir", metavar="FOLDER", group=_GROUP, help="Working directory.")
@others_option(_GROUP)
@click.argument("container", type=ContainerName(everything=False))
@click.argument("command", metavar="COMMAND [ARG...]", nargs=-1, required=True, type=click.UNPROCESSED)
def exec_command(
    container: str,
    command: tuple[str, ...],
    environment: tuple[str, ...],
    env_files: tuple[str, ...],
    detach: bool,
    detach_keys: str | None,
    interactive: bool,
    privileged: bool,
    tty: bool,
    user: str,
    working_dir: str | None,
    others: bool,
) -> int:
    """Run another command in a running container, under the same limits. Its exit code is the command's."""
    from vgpurun.engine.containers import ContainerEngine, ExecOptions
    from vgpurun.launch.execution import execute

    if tty and interactive and not detach and not terminal.is_terminal(0):
        raise CommandLineError("the input device is not a TTY; leave out -t to read from a pipe or file")
    options = ExecOptions(
        command, given_environment(environment, env_files), user, working_dir, interactive, tty, detach, privileged,
        detach_keys,
    )  # fmt: skip
    return execute(ContainerEngine.connect(), container, options, others)
