"""Prints what a look at a host or a cluster has found."""

import json
from collections.abc import Sequence
from dataclasses import asdict

import click

from vgpurun.diagnostics.finding import FAILED, OK, WARNING, Finding

_NAME_WIDTH = 20


def show_findings(findings: Sequence[Finding], output_format: str) -> int:
    """Print them as a table or as JSON, and return the exit code: 1 when something fails."""
    if output_format == "json":
        click.echo(json.dumps([{**asdict(each), "status": each.status.lower()} for each in findings]))
    else:
        for each in findings:
            _show(each)
        failed, warned = (sum(each.status == status for each in findings) for status in (FAILED, WARNING))
        click.echo("all is well" if not failed + warned else f"{failed} failed, {warned} to look at")
    return 1 if any(each.status == FAILED for each in findings) else 0


def _show(finding: Finding) -> None:
    colour = {OK: "green", FAILED: "red", WARNING: "yellow"}[finding.status]
    status = click.style(f"{finding.status:<4}", fg=colour, bold=finding.status == FAILED)
    click.echo(f"{status}  {finding.name:<{_NAME_WIDTH}}  {finding.words}")
    if finding.remedy:
        click.echo(f"{'':<{_NAME_WIDTH + 6}}  -> {finding.remedy}")
