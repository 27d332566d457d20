"""The man page, from the same declarations as --help."""

import re
from collections.abc import Iterable
from inspect import cleandoc

import click

from vgpurun import __version__
from vgpurun.cli import cli
from vgpurun.cli.verbs import all_commands
from vgpurun.docs.variables import VARIABLES

_EXIT_CODES = (
    ("125", "vgpurun itself failed; the reason is one line on standard error"),
    ("126", "the command exists but cannot be executed"),
    ("127", "the command was not found"),
    ("1", "ps, stop, kill, rm, logs, inspect: as docker's; doctor and verify: something failed"),
    ("other", "the command's own exit code"),
)
_FILES = (
    ("/var/lib/vgpurun, ~/.local/state/vgpurun", "the state of containers: limits, and what they use"),
    ("/etc/vgpurun/config.yaml, ~/.config/vgpurun/config.yaml", "the configuration: docs/config.md"),
    ("/run/vgpurun", "where launches take turns to look for room, and wait for it; /tmp until root has run vgpurun"),
    ("/var/tmp/vgpulock", "where limited programs on one GPU know of each other"),
)


def page() -> str:
    """Return the page as roff source, for `man`."""
    lines = [
        f'.TH VGPURUN 1 "" "vgpurun {__version__}" "User Commands"',
        *_section("NAME", ["vgpurun \\- docker run with a GPU memory cap and a compute cap"]),
        *_section("SYNOPSIS", _synopsis()),
        *_section("DESCRIPTION", _prose(cli.help or "")),
    ]
    for name, command in all_commands(cli):
        lines += _verb(name, command)
    lines += _section("ENVIRONMENT", _terms((each.name, _plain(each.meaning)) for each in VARIABLES))
    lines += _section("FILES", _terms(_FILES))
    lines += _section("EXIT STATUS", _terms(_EXIT_CODES))
    lines += _section("SEE ALSO", [".BR docker\\-run (1),", ".BR nvidia\\-smi (1)"])
    return "\n".join(lines) + "\n"


def option_records(command: click.Command, context: click.Context) -> list[tuple[str, str]]:
    """Return each option of a verb and what it means: what --help says, and more."""
    options = [each for each in command.get_params(context) if isinstance(each, click.Option)]
    records = [
        (each.get_help_record(context), getattr(each, "more", "")) for each in options if "--help" not in each.opts
    ]
    # A flag's name has a blank behind it.
    return [(record[0].rstrip(), f"{record[1]} {more}".rstrip()) for record, more in records if record]


def _synopsis() -> list[str]:
    uses = ["vgpurun [OPTIONS] IMAGE [COMMAND] [ARG...]"]
    uses += [_usage(name, command) for name, command in all_commands(cli)]
    return [line for use in uses for line in (f".B {_escaped(use)}", ".br")][:-1]


def _usage(name: str, command: click.Command) -> str:
    return " ".join([f"vgpurun {name}", *command.collect_usage_pieces(_context(name, command))])


def _context(name: str, command: click.Command) -> click.Context:
    return click.Context(command, info_name=f"vgpurun {name}")


def _verb(name: str, command: click.Command) -> list[str]:
    options = option_records(command, _context(name, command))
    body = [f".B {_escaped(_usage(name, command))}", ".PP", *_prose(command.help or ""), *_terms(options)]
    return _section(f"vgpurun {name}".upper(), body)


def _section(title: str, lines: Iterable[str]) -> list[str]:
    return [f'.SH "{_escaped(title)}"', *lines]


def _terms(records: Iterable[tuple[str, str]]) -> list[str]:
    return [line for term, meaning in records for line in (".TP", f".B {_escaped(term)}", _escaped(meaning))]


def _prose(text: str) -> list[str]:
    """Paragraphs as they are; one that begins with click's \\b keeps its lines."""
    lines = []
    for paragraph in re.split(r"\n\s*\n", cleandoc(_plain(text))):
        if paragraph.lstrip().startswith("\b"):
            lines += [".nf", *(_escaped(line) for line in paragraph.splitlines() if line.strip() != "\b"), ".fi"]
        else:
            lines.append(_escaped(" ".join(paragraph.split())))
        lines.append(".PP")
    return lines


def _plain(markdown: str) -> str:
    return markdown.replace("`", "")


def _escaped(text: str) -> str:
    """Roff reads a backslash anywhere, and a dot or a quote at the beginning of a line, as its own."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith((".", "'")) else text
