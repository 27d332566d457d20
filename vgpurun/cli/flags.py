"""Options in the syntax that docker's own command line takes, which is that of Go's programs.

Beyond what click reads: `--rm=false`, `-m=2g`, `--sig-proxy` alone for true, and `--wait` alone or with a time behind
it. And docker's words for what is wrong.
"""

from collections.abc import Mapping, Sequence

import click

from vgpurun.errors import OptionError
from vgpurun.options.values import FALSE, TRUE
from vgpurun.util.times import parse_span


def canonical(
    command: click.Command, ctx: click.Context, arguments: Sequence[str], elsewhere: Mapping[str, str]
) -> list[str]:
    """Return the arguments as `--name=value` and switches that are on, then all others.

    `elsewhere` has the way out for options that the command lacks. Raises click.UsageError for an option that there is
    not, or that lacks its value, and OptionError for a value.
    """
    return _Reader(command, ctx, elsewhere).read(arguments)


class _Reader:
    def __init__(self, command: click.Command, ctx: click.Context, elsewhere: Mapping[str, str]) -> None:
        self._ctx = ctx
        self._elsewhere = elsewhere
        options = [each for each in command.get_params(ctx) if isinstance(each, click.Option)]
        self._options = {name: option for option in options for name in option.opts}
        self._switches: dict[str, bool] = {}
        self._read: list[str] = []

    def read(self, arguments: Sequence[str]) -> list[str]:
        rest, others = list(arguments), []
        while rest and rest[0] != "--":
            argument = rest.pop(0)
            if argument.startswith("--"):
                self._long(argument, rest)
            elif argument.startswith("-") and argument != "-":
                self._short(argument, rest)
            else:
                others.append(argument)
                if not self._ctx.allow_interspersed_args:
                    break
        if not others or self._ctx.allow_interspersed_args:
            rest = rest[1:]  # the "--"
        switches = [name for name, is_on in self._switches.items() if is_on]
        return [*self._read, *switches, "--", *others, *rest]  # whatever the others look like, they are no options

    def _long(self, argument: str, rest: list[str]) -> None:
        name, equals, value = argument.partition("=")
        if name == "--" or name.startswith("---"):
            raise click.UsageError(f"bad flag syntax: {argument}.", self._ctx)
        option = self._options.get(name)
        if option is None and name in self._elsewhere:
            raise click.UsageError(f"unknown flag: {name}; {self._elsewhere[name]}.", self._ctx)
        if option is None:
            raise click.NoSuchOption(name, f"unknown flag: {name}.", self._near(name), self._ctx)
        if equals:
            self._take(option, value)
        elif alone := _value_alone(option):
            takes_next = bool(rest) and not _is_switch(option) and _is_time(rest[0])
            self._take(option, rest.pop(0) if takes_next else alone)
        elif rest:
            self._take(option, rest.pop(0))
        else:
            raise click.UsageError(f"flag needs an argument: {name}.", self._ctx)

    def _short(self, argument: str, rest: list[str]) -> None:
        letters = argument[1:]
        while letters:
            argument, letter, letters = f"-{letters}", letters[0], letters[1:]
            option = self._options.get(f"-{letter}")
            if option is None:
                way_out = self._elsewhere.get(f"-{letter}")
                words = f"unknown shorthand flag: '{letter}' in {argument}{f'; {way_out}' if way_out else ''}."
                raise click.UsageError(words, self._ctx)
            if letters.startswith("="):
                self._take(option, letters[1:])
                return
            if _is_switch(option):
                self._take(option, "true")
                continue
            if not letters and not rest:
                raise click.UsageError(f"flag needs an argument: '{letter}' in {argument}.", self._ctx)
            self._take(option, letters or rest.pop(0))
            return

    def _take(self, option: click.Option, value: str) -> None:
        if not _is_switch(option):
            self._read.append(f"{_long_name(option)}={value}")
            return
        if value not in (*TRUE, *FALSE):
            names = ", ".join(sorted(option.opts, key=len))
            raise OptionError(f'invalid argument "{value}" for "{names}" flag: parsing "{value}": use true or false')
        is_on = value in TRUE
        if option.is_flag:
            self._switches[_long_name(option)] = is_on
        else:
            self._read.append(f"{_long_name(option)}={str(is_on).lower()}")

    def _near(self, name: str) -> list[str]:
        from difflib import get_close_matches  # slow to import

        return get_close_matches(name, self._options, n=2)


def _is_switch(option: click.Option) -> bool:
    return option.is_flag or option.type is click.BOOL


def _value_alone(option: click.Option) -> str | None:
    """The value of an option that stands without one; None where it needs one."""
    return "true" if _is_switch(option) else getattr(option, "optional_value", None)


def _is_time(text: str) -> bool:
    """Whether the word behind an option that may stand alone is its time, and neither an image nor a container."""
    return text.isdecimal() or parse_span(text) is not None


def _long_name(option: click.Option) -> str:
    return max(option.opts, key=len)
