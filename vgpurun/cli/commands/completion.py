"""`vgpurun completion SHELL`."""

import click
from click.shell_completion import get_completion_class

from vgpurun.cli.common import GroupedCommand
from vgpurun.cli.completing import PROGRAM, VARIABLE

_INSTALL = """To have it in every new shell:

\b
  bash  vgpurun completion bash \\
          > ~/.local/share/bash-completion/completions/vgpurun
  zsh   vgpurun completion zsh > FOLDER/_vgpurun, where $fpath has FOLDER
  fish  vgpurun completion fish > ~/.config/fish/completions/vgpurun.fish
"""


@click.command(
    cls=GroupedCommand,
    name="completion",
    help=f"Print the script by which a shell completes verbs, options and containers' names.\n\n{_INSTALL}",
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), metavar="SHELL")
def completion(shell: str) -> None:
    """Print click's script."""
    from vgpurun.cli import cli

    made = get_completion_class(shell)
    assert made is not None  # click knows these three
    click.echo(made(cli, {}, PROGRAM, VARIABLE).source())
