"""`vgpurun config`: every configured value and where it comes from."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from vgpurun.cli.common import GroupedCommand, format_option
from vgpurun.config import values as configuration
from vgpurun.config.file import ConfigFile, Setting, read_config
from vgpurun.config.schema import DEFAULTS, UNLIMITED
from vgpurun.console.messages import warn
from vgpurun.errors import ConfigError, OptionError
from vgpurun.limits.quota import MemorySize
from vgpurun.util.users import current_user, is_group, is_user


@click.command(cls=GroupedCommand, name="config", on_broken_config=warn, options_metavar="[OPTIONS]")
@format_option("Display", "How to print the values.")
@click.argument("arguments", metavar="[check FILE...]", nargs=-1)
def config(arguments: tuple[str, ...], output_format: str) -> None:
    """Show the default of every option on this host, your quotas, and the line that sets each.

    `vgpurun config check FILE` says whether a file can be used as /etc/vgpurun/config.yaml.
    """
    if arguments:
        _check(arguments)
        return
    found, user = configuration.readable(), current_user()
    defaults = {key.name: found.default(key.name, os.environ) for key in DEFAULTS}
    quotas = None if configuration.ADMIN_FILE in found.mistakes else configuration.own_quotas(found)
    if output_format == "json":
        shown = None if quotas is None else _json(quotas)
        click.echo(json.dumps({"defaults": _json(defaults), "user": user, "quotas": shown}))
        return
    click.echo("For options that are not given:")
    _print((f"--{name.replace('_', '-')}", setting) for name, setting in defaults.items())
    if quotas is None:
        click.echo(f"\nWhat user {user} may have at most is not known: {configuration.ADMIN_FILE} is broken.")
    else:
        click.echo(f"\nAt most, for user {user}:" if quotas else f"\nNo quotas for user {user}.")
        _print(quotas.items(), UNLIMITED)


def _check(arguments: tuple[str, ...]) -> None:
    if arguments[0] != "check" or len(arguments) < 2:
        raise OptionError(f"'{' '.join(arguments)}' is not 'check FILE'; use vgpurun config check FILE")
    for name in arguments[1:]:
        if not os.path.lexists(name):
            raise ConfigError(f"{name}: no such file")
        found = read_config(Path(name), is_admins=True)
        click.echo(f"{name}: valid")
        groups = dict.fromkeys([*found.groups, *found.group_defaults])
        for kind, names, is_known in (("user", found.users, is_user), ("group", groups, is_group)):
            if unknown := [who for who in names if not is_known(who)]:
                warn(f"{name}: this host knows no {kind} {', '.join(unknown)}, whose values apply to nobody")
        for each in _refusals(found):
            warn(f"{name}: {each}")


def _refusals(found: ConfigFile) -> Iterator[str]:
    """Yield what lets no launch of somebody pass: a maximum without a default, or one of nothing at all."""
    layers = {"any user": found.everybody}
    layers |= {f"group {group}": settings for group, settings in found.groups.items()}
    layers |= {f"user {user}": settings for user, settings in found.users.items()}
    for whose, settings in layers.items():
        maxima = {**found.everybody, **settings}
        defaults = {**found.defaults, **found.group_defaults.get(whose.removeprefix("group "), {})}
        for key in ("containers", "gpus"):
            if key in settings and settings[key].value in (0, ()):
                yield f"no launch of {whose} is admitted ({key}, {settings[key].origin})"
        for name, key, whole in (("mem", "memory_per_gpu", "100%"), ("sm", "sm_per_gpu", 100)):
            most = maxima[key].value if key in maxima else None
            is_less = most is not None and (most.text if isinstance(most, MemorySize) else most) != whole
            if key in settings and is_less and name not in defaults:
                yield (
                    f"without --{name} a launch of {whose} counts as the whole GPU and is refused "
                    f"({key}, {settings[key].origin}); give {name} under defaults"
                )


def _print(settings: Iterable[tuple[str, Setting]], none: str = "-") -> None:
    rows = [(name, _show(_plain(setting.value), none), setting.origin) for name, setting in settings]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  " + "  ".join(map(str.ljust, row, widths)).rstrip())


def _show(value: Any, none: str) -> str:
    if isinstance(value, list):
        return ",".join(value) or "none"
    return none if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _json(settings: Mapping[str, Setting]) -> dict[str, Any]:
    return {name: {"value": _plain(each.value), "origin": each.origin} for name, each in settings.items()}


def _plain(value: Any) -> Any:
    """A value as a file would have it; None is no limit, or none that is built in."""
    if isinstance(value, MemorySize):
        return value.text
    return list(value) if isinstance(value, tuple) else value
