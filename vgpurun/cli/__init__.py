"""The command line: one short module per verb. This file holds the group and turns an error into an exit code."""

import click

from vgpurun import __version__


@click.group(name="vgpurun")
@click.version_option(__version__, prog_name="vgpurun")
def cli() -> None:
    """Run a container with a GPU memory cap and a compute cap."""


def main() -> None:
    """Run the command line and end the process with its exit code."""
    cli()
