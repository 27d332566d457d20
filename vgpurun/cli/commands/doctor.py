"""`vgpurun doctor`: what on this host is in the way of launches and limits."""

import json
from dataclasses import asdict

import click

from vgpurun.cli.common import GroupedCommand, option
from vgpurun.config import values as config
from vgpurun.diagnostics.doctor import FAILED, OK, WARNING, Finding, examine
from vgpurun.errors import DriverError, GpuError, LibraryError
from vgpurun.host.visible import survey_gpus
from vgpurun.util.choices import DRIVER_MODES

_GROUP = "Examination"
_NAME_WIDTH = 20


def _found_below(_: str) -> None:
    """Say nothing of a broken configuration file: it is one of the findings."""


@click.command(cls=GroupedCommand, name="doctor", on_broken_config=_found_below)
@option(
    "--driver", "driver_mode", type=click.Choice(DRIVER_MODES), default=lambda: config.default("driver"), group=_GROUP,
    help="How containers get the driver, as for run. By default VGPURUN_DRIVER, or auto.",
)  # fmt: skip
@option(
    "--format", "output_format", type=click.Choice(["table", "json"]), default="table", show_default=True, group=_GROUP,
    help="How to print what was found.",
)  # fmt: skip
def doctor(driver_mode: str, output_format: str) -> int:
    """Look at the driver, the GPUs, the engine, the library, permissions and conflicts, and say what helps.

    The exit code is 1 when something fails. Whether limits hold is tried by `vgpurun verify`.
    """
    try:
        found = examine(survey_gpus(driver_mode == "sim"), driver_mode)
    except (GpuError, DriverError, LibraryError) as error:
        found = examine(GpuError(str(error)), driver_mode)
    findings = list(found)
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
