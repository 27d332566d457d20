"""`vgpurun cdi`: the specification by which other tools give containers a slice."""

from collections.abc import Sequence
from pathlib import Path

import click

from vgpurun.cdi.edits import Edits, driver_edits
from vgpurun.cdi.of_slices import DEFAULT_PATH, Host, forget, host_edits, keep, of_slices, with_devices
from vgpurun.cli.common import GroupedCommand, SliceName, VerbGroup, host_driver_option, option
from vgpurun.console.messages import say, warn
from vgpurun.errors import EnforceError, OptionError, SliceError
from vgpurun.host import library, memory_limits, simulation
from vgpurun.host.gpus import Gpu
from vgpurun.host.library import find_library
from vgpurun.host.limits_device import specification_path, write_device
from vgpurun.host.visible import visible_gpus

_GROUP = "CDI"


@click.group(cls=VerbGroup, name="cdi")
def cdi_group() -> None:
    """Let docker, podman, nerdctl and compose give containers a slice, without vgpurun.

    \b
    vgpurun slice create alice --mem 10g --sm 30
    vgpurun cdi generate
    docker run --device vgpurun.io/gpu=alice IMAGE
    """


@cdi_group.command(cls=GroupedCommand, name="generate", on_broken_config=warn)
@option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), default=DEFAULT_PATH, show_default=True,
    group=_GROUP, help="Where to write it: a *.yaml or *.json in a folder that the engine reads; -: standard output.",
)  # fmt: skip
@option(
    "--format", "output_format", type=click.Choice(["yaml", "json"]), group=_GROUP,
    help="Format on standard output, by default yaml; a file's format follows from its name.",
)  # fmt: skip
@host_driver_option(_GROUP)
@click.argument("slices", metavar="[SLICE...]", nargs=-1, type=SliceName())
def generate(slices: tuple[str, ...], output: Path, output_format: str | None, driver: str) -> None:
    """Write a CDI specification with a device vgpurun.io/gpu=NAME for each slice.

    A device brings the driver (as NVIDIA's own specification does where there is one, else this host's own files), the
    library, the limits and usage of the slice, and the folder by which containers know of each other.

    Without SLICE the file has all slices, and `vgpurun slice` keeps it up to date. A file with some of them, and
    standard output, are written once.
    """
    from vgpurun.cdi.files import format_of, specification_text, write_specification
    from vgpurun.slices import store

    is_file = output != Path("-")
    if output_format and is_file and output_format != format_of(output):
        raise OptionError(f"--format {output_format}: {output} is taken for {format_of(output)} by engines; rename it")
    gpus = visible_gpus(driver == "sim")
    if is_file and not slices:
        keep(driver, output, lambda: cdi_host(driver, gpus))
        if not memory_limits.lacking(gpus):
            try:
                write_device(output.parent, simulated_folder(driver))
            except EnforceError as error:
                warn(f"the driver's own memory limits are not set: {error}")
        if output.exists():
            click.echo(str(output))
        else:
            say(f"there is no slice yet, and so no {output}; vgpurun slice create makes both")
        return
    chosen = [store.find(name) for name in slices] or with_devices(driver)
    if not chosen:
        raise SliceError("there is no slice, and a specification has at least one device: vgpurun slice create")
    described = of_slices(cdi_host(driver, gpus), chosen)
    if is_file:
        write_specification(output, described)
        click.echo(str(output))
    else:
        click.echo(specification_text(described, output_format or "yaml"), nl=False)


@cdi_group.command(cls=GroupedCommand, name="remove", on_broken_config=warn)
@host_driver_option(_GROUP)
def remove(driver: str) -> None:
    """Remove the specification that generate has written, and stop updating it."""
    path = forget(driver)
    if path is not None:
        specification_path(path.parent, driver == "sim").unlink(missing_ok=True)
    click.echo("there is none" if path is None else str(path))


def cdi_host(driver: str, gpus: Sequence[Gpu]) -> Host:
    """Return what devices are made with on this host. Raises DriverError and LibraryError."""

    def simulated(chosen: Sequence[Gpu]) -> Edits:
        return driver_edits(simulation.plan_container(library.find_simulated_driver(say), chosen))

    found = find_library(is_dry_run=False)
    return Host(driver, gpus, found.path, simulated if driver == "sim" else host_edits, simulated_folder(driver))


def simulated_folder(driver: str) -> Path | None:
    """Return the simulated driver's folder, None for the host's own. Raises LibraryError."""
    return library.find_simulated_driver(say) if driver == "sim" else None
