"""`vgpurun completion SHELL`, and what the shell is told when it asks."""

import os

import click
from click.shell_completion import get_completion_class, shell_complete

from vgpurun.cli.common import GroupedCommand

VARIABLE = "_VGPURUN_COMPLETE"  # by which click's scripts ask
_PROGRAM = "vgpurun"
_INSTALL = """To have it in every new shell:

\b
  bash   vgpurun completion bash > ~/.local/share/bash-completion/completions/vgpurun
  zsh    vgpurun completion zsh > a folder of $fpath, as _vgpurun
  fish   vgpurun completion fish > ~/.config/fish/completions/vgpurun.fish
"""


@click.command(
    cls=GroupedCommand,
    name="completion",
    help=f"Print the script by which a shell completes verbs, options and containers' names.\n\n{_INSTALL}",
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print click's script."""
    from vgpurun.cli import cli

    made = get_completion_class(shell)
    assert made is not None  # click knows these three
    click.echo(made(cli, {}, _PROGRAM, VARIABLE).source())


def answer(command: click.Command) -> int:
    """Answer a shell's question, which VARIABLE holds; return the exit code."""
    return shell_complete(command, {}, _PROGRAM, VARIABLE, os.environ[VARIABLE])
