"""`vgpurun doctor`: what on this host is in the way of launches and limits."""

import click

from vgpurun.cli.common import GroupedCommand, format_option, option
from vgpurun.cli.views.findings import show_findings
from vgpurun.config import values as config
from vgpurun.diagnostics.doctor import examine
from vgpurun.errors import DriverError, GpuError, LibraryError
from vgpurun.host.visible import survey_gpus
from vgpurun.util.choices import DRIVER_MODES

_GROUP = "Examination"


def _found_below(_: str) -> None:
    """Say nothing of a broken configuration file: it is one of the findings."""


@click.command(cls=GroupedCommand, name="doctor", on_broken_config=_found_below)
@option(
    "--driver", "driver_mode", type=click.Choice(DRIVER_MODES), default=lambda: config.default("driver"), group=_GROUP,
    help="How containers get the driver, as for run. By default VGPURUN_DRIVER, or auto.",
)  # fmt: skip
@format_option(_GROUP, "How to print what was found.")
def doctor(driver_mode: str, output_format: str) -> int:
    """Look at the driver, the GPUs, the engine, the library, permissions and conflicts, and say what helps.

    The exit code is 1 when something fails. Whether limits hold is tried by `vgpurun verify`.
    """
    try:
        found = examine(survey_gpus(driver_mode == "sim"), driver_mode)
    except (GpuError, DriverError, LibraryError) as error:
        found = examine(GpuError(str(error)), driver_mode)
    return show_findings(list(found), output_format)
