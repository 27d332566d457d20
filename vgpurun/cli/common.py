"""Options that several verbs have, and how help shows options in groups."""

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from vgpurun import library, simulation
from vgpurun.errors import LibraryError
from vgpurun.gpus import GPUS_HELP, Gpu, list_gpus
from vgpurun.library import Library

Function = TypeVar("Function", bound=Callable[..., Any])

LIMITS = "Limits"


class GroupedOption(click.Option):
    """An option with the title under which help lists it."""

    def __init__(self, *args: Any, group: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.group = group


class GroupedCommand(click.Command):
    """A command whose help lists the options under titles; options after the first argument are not its own."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each group of options in the order in which the first of each was declared."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                groups.setdefault(getattr(parameter, "group", "Other options"), []).append(record)
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)


def option(*names: str, group: str, **settings: Any) -> Callable[[Function], Function]:
    """Declare an option in a group."""
    return click.option(*names, cls=GroupedOption, group=group, **settings)


def limit_options(function: Function) -> Function:
    """Add --mem, --sm and --gpus."""
    for decorate in reversed(
        (
            option(
                "--mem",
                metavar="SIZE",
                group=LIMITS,
                help="GPU memory for each GPU: 2g, 1.5GiB, 1024m, 50%; or by GPU: 0=2g,1=4g, where the number is the "
                "GPU's index in this host's nvidia-smi, or a UUID or its beginning.",
            ),
            option(
                "--sm",
                metavar="PERCENT",
                group=LIMITS,
                help="Share of each GPU's time: 1 to 100 (100 or 0: no limit); or by GPU: 0=50,1=20.",
            ),
            option(
                "--gpus",
                metavar="GPUS",
                default="all",
                show_default=True,
                group=LIMITS,
                help=f"Which GPUs: {GPUS_HELP.removeprefix('use ')}.",
            ),
        )
    ):
        function = decorate(function)
    return function


def say(message: str) -> None:
    """Tell the user what happens, on stderr."""
    print(f"vgpurun: {message}", file=sys.stderr, flush=True)


def warn(message: str) -> None:
    """Tell the user what does not hold, on stderr."""
    say(f"warning: {message}")


def visible_gpus(is_simulated: bool) -> list[Gpu]:
    """Return the GPUs of this host, or the simulated ones. Raises GpuError, DriverError and LibraryError."""
    if is_simulated:
        simulation.activate(library.find_simulated_driver(say))
    return list_gpus()


def find_library(is_dry_run: bool) -> Library:
    """Return the library, built first if need be; a dry run builds nothing and shows where it will be."""
    if not is_dry_run:
        return library.find_or_build(say)
    try:
        return library.find()
    except LibraryError:
        return Library(library.build_folder() / "libvgpu.so", "", "", ())
