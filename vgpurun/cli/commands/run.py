"""`vgpurun run`: a container under limits."""

from typing import TYPE_CHECKING, Any

import click

from vgpurun.cli.common import (
    EngineCommand,
    ImageName,
    enforce_option,
    limit_options,
    option,
    oversubscribe_option,
    policy_options,
    profile_options,
)
from vgpurun.cli.docker_options import docker_options
from vgpurun.cli.placing import lifetime_option, placement_options
from vgpurun.config import values as config
from vgpurun.console.messages import warn
from vgpurun.console.signals import Signals
from vgpurun.engine.address import config_fault
from vgpurun.engine.images import PullOptions
from vgpurun.errors import OptionError, PullError
from vgpurun.options.build import container_options
from vgpurun.options.devices import gpus
from vgpurun.util.choices import DRIVER_MODES
from vgpurun.util.times import parse_lifetime

if TYPE_CHECKING:
    from vgpurun.launch.profiling import Profiling

_VGPURUN = "vgpurun"


@click.command(
    cls=EngineCommand,
    name="run",
    options_metavar="[OPTIONS]",
    context_settings={"allow_interspersed_args": False},
)
@limit_options()
@oversubscribe_option
@policy_options()
@placement_options
@lifetime_option(
    "Placement",
    "Stop it after a time such as 30m, 2h or 7d.",
    "It is warned before. Where no vgpurun run waits for it, the guard, the next launch or vgpurun prune stops it.",
)
@enforce_option
@profile_options
@docker_options
@option(
    "--driver",
    "driver_mode",
    type=click.Choice(DRIVER_MODES),
    metavar="DRIVER",
    default=lambda: config.default("driver"),
    group=_VGPURUN,
    help="auto, toolkit, cdi, mount, or sim: a simulated GPU.",
    more="toolkit and cdi: the engine brings the driver into the container. mount: vgpurun binds this host's own "
    "files. auto: toolkit or cdi where the engine has it, else mount. By default VGPURUN_DRIVER, or auto.",
)
@option("--dry-run", is_flag=True, group=_VGPURUN, help="Print what would be done as YAML, and do nothing.")
@click.argument("image", type=ImageName())
@click.argument("command", metavar="[COMMAND] [ARG...]", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def run(
    ctx: click.Context,
    /,
    image: str,
    command: tuple[str, ...],
    driver_mode: str,
    enforce: str,
    profile: str | None,
    profile_size: str | None,
    dry_run: bool,
    lifetime: str | None,
    **given: Any,
) -> int:
    """Run a container in which each GPU has the given memory and the given share of its time.

    docs/reference.md says more about each option. Options after IMAGE belong to the command. Exit codes are Docker's:
    125 when vgpurun fails, 126 when the command cannot be executed, 127 when it is not found, else the command's own.
    """
    _refuse_late_verb(ctx, image)
    if not image:
        raise OptionError("IMAGE is empty; is the variable that names it set?")
    parse_lifetime(lifetime)  # a slip of the pen is said first
    _read_gpus(given)
    if fault := config_fault():
        warn(fault)
    from vgpurun.launch.asking import ask_engine

    signals: Signals = ctx.obj
    signals.take()
    asked = ask_engine(image)  # meanwhile the rest is imported, and the driver asked for its GPUs
    from vgpurun.admission.nesting import share_on_host
    from vgpurun.admission.wanted import Wanted
    from vgpurun.launch.run import Launch

    wanted = Wanted.take(given, share=share_on_host())
    profiling = _profiling(profile, profile_size)
    options = container_options(image, command, given)
    pull = PullOptions.read(given["pull"] or config.default("pull"), given["quiet"], options.platform)
    launch = Launch(options, wanted, profiling, driver_mode, enforce, lifetime)
    if dry_run:
        from vgpurun.launch.describe import to_yaml  # few launches are dry runs

        click.echo(to_yaml(launch.plan_without_effect(asked)), nl=False)
        return 0
    try:
        return launch.run(asked, pull, signals)
    except PullError as error:
        if "vgpurun.verbs" not in ctx.meta or not image.replace("-", "").isalpha():
            raise
        raise PullError(f"{error}; nor is '{image}' a verb, which vgpurun --help lists") from None


def _profiling(folder: str | None, size: str | None) -> "Profiling | None":
    if folder is None and size is None:
        return None
    from vgpurun.launch.profiling import Profiling

    return Profiling.read(folder, size)


def _read_gpus(given: dict[str, Any]) -> None:
    """Leave of --gpus what chooses GPUs; capabilities are the variable that NVIDIA's runtime has for them."""
    if not given["gpus"]:
        return
    try:
        given["gpus"], capabilities, driver_options = gpus(given["gpus"])
    except ValueError as error:
        raise OptionError(f"--gpus {given['gpus']}: {error}") from None
    if capabilities:
        given["env"] = (f"NVIDIA_DRIVER_CAPABILITIES={capabilities}", *given["env"])
    if driver_options:
        warn(f"--gpus options={driver_options} does nothing: NVIDIA's driver knows none; limits are --mem and --sm")


def _refuse_late_verb(ctx: click.Context, image: str) -> None:
    """`vgpurun --mem 2g smi` could mean two things."""
    if image in ctx.meta.get("vgpurun.verbs", ()):
        raise OptionError(
            f"'{image}' comes after options: put the verb first (vgpurun {image} ...), or, for an image of that name, "
            f"say: vgpurun run ... {image}"
        )
