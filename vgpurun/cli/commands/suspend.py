"""`vgpurun suspend|resume`: programs lose their GPUs, and get them back."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from vgpurun.cli.common import ContainerName, EngineCommand, Function, SliceName, host_driver_option, option
from vgpurun.cli.placing import engine_if_any, overcommit_option
from vgpurun.config.schema import NO_TIMEOUT, parse_wait
from vgpurun.console.messages import say
from vgpurun.errors import OptionError, VgpurunError
from vgpurun.host.visible import libcuda, visible_gpus
from vgpurun.limits.quota import show_size
from vgpurun.util.times import parse_duration

if TYPE_CHECKING:
    from vgpurun.suspend.targets import Target

_GROUP = "Container"


def _target_options(function: Function) -> Function:
    for decorate in (
        click.argument("containers", metavar="[CONTAINER...]", nargs=-1, type=ContainerName(everything=False)),
        host_driver_option(_GROUP),
        option(
            "--process", "processes", metavar="PID", multiple=True, group=_GROUP, help="A process of vgpurun local.",
        ),
        option(
            "--slice", "slices", metavar="NAME", multiple=True, type=SliceName(), group=_GROUP,
            help="A slice, with all that has joined it.",
        ),
    ):  # fmt: skip
        function = decorate(function)
    return function


@click.command(cls=EngineCommand, name="suspend", options_metavar="[OPTIONS]")
@option("--hold", is_flag=True, group=_GROUP, help="Until vgpurun resume: no call of its programs brings it back.")
@option(
    "--timeout", metavar="TIME", default="10s", show_default=True, group=_GROUP,
    help="How long its work on the GPUs may take to end; then it runs on.",
)  # fmt: skip
@_target_options
def suspend(
    containers: tuple[str, ...],
    slices: tuple[str, ...],
    processes: tuple[str, ...],
    hold: bool,
    timeout: str,
    driver: str,
) -> int:
    """Take the GPUs from running programs, and keep what they have there in the host's memory.

    The programs go on; a call of CUDA waits, and asks for the GPUs, which vgpurun guard then gives back. Their
    reservation is free for others meanwhile. It is all processes or none: what the driver cannot take off the
    GPUs is left as it is, with the reason. It takes driver 570 or newer, and root where others run the programs.
    """
    from vgpurun.host.checkpoints import Checkpoints
    from vgpurun.suspend.transition import Wishes
    from vgpurun.suspend.transition import suspend as take

    timeout_s = parse_duration(timeout)
    if not timeout_s:
        raise OptionError(f"--timeout '{timeout}' is not a time; use e.g. 10s or 1m30s")
    wishes = Wishes(is_held=hold, lock_timeout_ms=int(timeout_s * 1000))
    targets = _named(containers, slices, processes)
    gpus, library = visible_gpus(driver == "sim"), libcuda(driver == "sim")

    def suspend_one(target: "Target") -> None:
        with Checkpoints(library) as checkpoints:
            found = take(target, gpus, checkpoints, wishes)
        click.echo(f"{target.name}: {show_size(found.total_bytes)} in host memory")

    return _each(targets, suspend_one)


@click.command(cls=EngineCommand, name="resume", options_metavar="[OPTIONS]")
@option(
    "--wait", metavar="[=TIME]", optional_value=NO_TIMEOUT, group=_GROUP,
    help="Wait for room, at most for a time such as 90s, 10m or 2h.",
)  # fmt: skip
@overcommit_option(_GROUP)
@_target_options
def resume(
    containers: tuple[str, ...],
    slices: tuple[str, ...],
    processes: tuple[str, ...],
    wait: str | None,
    overcommit: bool | None,
    driver: str,
) -> int:
    """Give suspended programs their GPUs back, where there is room for their limits now.

    One that was interrupted on its way out or back is finished.
    """
    from vgpurun.host.checkpoints import Checkpoints
    from vgpurun.suspend.coming_back import bring_back

    targets = _named(containers, slices, processes)
    patience_s = parse_wait(wait or "0")
    gpus, library = visible_gpus(driver == "sim"), libcuda(driver == "sim")
    engine = engine_if_any()

    def resume_one(target: "Target") -> None:
        with Checkpoints(library) as checkpoints:
            found = bring_back(target, gpus, checkpoints, engine, overcommit, patience_s)
        click.echo(target.name if found else f"{target.name}: not suspended")

    return _each(targets, resume_one)


def _named(containers: tuple[str, ...], slices: tuple[str, ...], processes: tuple[str, ...]) -> "list[Target]":
    from vgpurun.engine.containers import ContainerEngine
    from vgpurun.suspend.targets import named

    if not (containers or slices or processes):
        raise OptionError("name a container, or give --slice or --process")
    return named(containers, slices, processes, ContainerEngine.connect() if containers else None)


def _each(targets: "list[Target]", act: Callable[["Target"], None]) -> int:
    exit_code = 0
    for target in targets:
        try:
            act(target)
        except VgpurunError as error:
            say(str(error))
            exit_code = error.exit_code
    return exit_code
