"""Prints the findings about a host or a cluster."""

import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict

import click

from vgpurun.cli.views.columns import terminal_width
from vgpurun.diagnostics.finding import FAILED, OK, WARNING, Finding

_NAME_WIDTH = 20
_INDENT = _NAME_WIDTH + 8  # the column of the words
_LEAST_WIDTH = 20
_COUNTED = {FAILED: "failed", WARNING: "to look at"}


def show_findings(findings: Sequence[Finding], output_format: str) -> int:
    """Print them as a table or as JSON, and return the exit code: 1 when something fails."""
    if output_format == "json":
        click.echo(json.dumps([{**asdict(each), "status": each.status.lower()} for each in findings]))
    else:
        for each in findings:
            _show(each)
        counts = {words: sum(each.status == status for each in findings) for status, words in _COUNTED.items()}
        click.echo(", ".join(f"{count} {words}" for words, count in counts.items() if count) or "all is well")
    return 1 if any(each.status == FAILED for each in findings) else 0


def _show(finding: Finding) -> None:
    colour = {OK: "green", FAILED: "red", WARNING: "yellow"}[finding.status]
    status = click.style(f"{finding.status:<4}", fg=colour, bold=finding.status == FAILED)
    first, *others = [*_lines(finding.words), *(_lines(f"-> {finding.remedy}") if finding.remedy else [])]
    click.echo(f"{status}  {finding.name:<{_NAME_WIDTH}}  {first}")
    for line in others:
        click.echo(" " * _INDENT + line)


def _lines(text: str) -> list[str]:
    """Return a text in lines that fit the terminal, if it is for one; what has no space, as a path, stays whole."""
    if (width := terminal_width()) is None:
        return [text]
    width = max(_LEAST_WIDTH, width - _INDENT)
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [text]
