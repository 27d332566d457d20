"""Declares docker run's options, from their table, for a verb of ours."""

from collections.abc import Callable
from typing import Any

import click

from vgpurun.cli.common import Function, option
from vgpurun.console.messages import warn
from vgpurun.errors import CommandLineError
from vgpurun.options.table import DEPRECATED, GROUPS, LEFT_OUT, Flag


def docker_options(function: Function) -> Function:
    """Add every option of docker run; each comes as a text, several texts, or True and False for a switch."""
    for title, flags in reversed(GROUPS.items()):
        for flag in reversed(flags):
            function = _declared(flag, title)(function)
    for flag in LEFT_OUT:
        function = _refused(flag)(function)
    for flag in DEPRECATED:
        function = _ignored(flag)(function)
    return function


def _declared(flag: Flag, title: str) -> Callable[[Function], Function]:
    settings: dict[str, Any] = {"group": title, "help": flag.help}
    if flag.variable:
        settings |= {"envvar": flag.variable}
    if flag.is_on:
        settings |= {"type": bool, "metavar": flag.value}
    elif not flag.value:
        settings |= {"is_flag": True}
    else:
        settings |= {"metavar": flag.value, "multiple": flag.repeats}
    return option(*flag.names.split(", "), *flag.aliases, flag.key, **settings)


def _refused(flag: Flag) -> Callable[[Function], Function]:
    def refuse(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
        del ctx, parameter
        if value:
            raise CommandLineError(f'"{flag.names}" {flag.help}')

    return _hidden(flag, refuse)


def _ignored(flag: Flag) -> Callable[[Function], Function]:
    def read(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
        del ctx, parameter
        if value is not None:
            flag.read((value,))
            warn(f"Flag {flag.names} has been deprecated, {flag.help}")

    return _hidden(flag, read)


def _hidden(flag: Flag, callback: Callable[..., None]) -> Callable[[Function], Function]:
    return option(
        flag.names, is_flag=not flag.value, hidden=True, expose_value=False, callback=callback, group="Left out"
    )
