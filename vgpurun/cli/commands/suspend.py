"""`vgpurun suspend|resume|move`: takes the GPUs from programs, and gives them back, or others."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from vgpurun.cli.common import (
    NO_FORCE,
    ContainerName,
    EngineCommand,
    Function,
    GpuNames,
    SliceName,
    host_driver_option,
    option,
    others_option,
)
from vgpurun.cli.placing import engine_if_any, overcommit_option
from vgpurun.config.schema import NO_TIMEOUT, parse_wait
from vgpurun.console.messages import say, warn
from vgpurun.console.signals import Interrupted, Signals
from vgpurun.errors import OptionError, OthersProcessError, VgpurunError
from vgpurun.host.gpu_names import named_gpus
from vgpurun.host.visible import libcuda, visible_gpus
from vgpurun.limits.quota import show_size
from vgpurun.util.threads import ENDING
from vgpurun.util.times import parse_duration

if TYPE_CHECKING:
    from vgpurun.host.gpus import Gpu
    from vgpurun.suspend.targets import Target

_GROUP = "Container"


_wait_option = option(
    "--wait", metavar="[TIME]", optional_value=NO_TIMEOUT, group=_GROUP,
    help="Wait for room, at most for a time such as 90s, 10m or 2h.",
)  # fmt: skip
_timeout_option = option(
    "--timeout", metavar="TIME", default="10s", show_default=True, group=_GROUP,
    help="Wait this long for running GPU work to finish; then give up and let the programs continue.",
)  # fmt: skip


def _target_options(function: Function) -> Function:
    for decorate in (
        others_option(_GROUP),
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


@click.command(
    cls=EngineCommand, name="suspend", on_broken_config=warn, elsewhere=NO_FORCE, options_metavar="[OPTIONS]"
)
@option(
    "--hold", is_flag=True, group=_GROUP,
    help="Keep it suspended until vgpurun resume, even when its programs call CUDA.",
)  # fmt: skip
@_timeout_option
@_target_options
def suspend(
    containers: tuple[str, ...],
    slices: tuple[str, ...],
    processes: tuple[str, ...],
    hold: bool,
    timeout: str,
    others: bool,
    driver: str,
) -> int:
    """Move running programs' GPU memory to the host, and release their GPUs.

    The programs go on until they call CUDA: the call waits, and vgpurun guard resumes them for it. Meanwhile others may
    take their reservation. Either all processes are suspended or none: where the driver cannot suspend one, all run on,
    and a message says why. It needs driver 570 or newer, and root for most containers; vgpurun guard does it for the
    user who started the container.
    """
    from vgpurun.host.checkpoints import Checkpoints
    from vgpurun.suspend import requests
    from vgpurun.suspend.record import Phase, Record
    from vgpurun.suspend.transition import Wishes, read
    from vgpurun.suspend.transition import suspend as take

    wishes = Wishes(is_held=hold, lock_timeout_ms=_timeout_ms(timeout))
    targets = _named(containers, slices, processes, others)
    gpus, library = visible_gpus(driver == "sim"), libcuda(driver == "sim")

    def suspend_one(target: "Target") -> None:
        try:
            with Checkpoints(library) as checkpoints:
                found = take(target, gpus, checkpoints, wishes)
        except OthersProcessError:
            requests.ask_guard(target.name, target.limits_folder, requests.SUSPEND, hold, wishes.lock_timeout_ms)
            found = read(target) or Record(Phase.SUSPENDED)
        click.echo(f"{target.name}: {show_size(found.total_bytes)} in host memory")

    return _each(targets, gpus, suspend_one)


@click.command(cls=EngineCommand, name="resume", on_broken_config=warn, elsewhere=NO_FORCE, options_metavar="[OPTIONS]")
@_wait_option
@overcommit_option(_GROUP, "Allow it")
@_target_options
def resume(
    containers: tuple[str, ...],
    slices: tuple[str, ...],
    processes: tuple[str, ...],
    wait: str | None,
    overcommit: bool | None,
    others: bool,
    driver: str,
) -> int:
    """Give suspended programs their GPUs back, where there is room for their limits now.

    It also finishes a suspension or a resume that was interrupted.
    """
    from vgpurun.host.checkpoints import Checkpoints
    from vgpurun.suspend import requests
    from vgpurun.suspend.resuming import bring_back
    from vgpurun.suspend.transition import read, was_cut_off

    patience_s = parse_wait(wait or "0")
    targets = _named(containers, slices, processes, others)
    gpus, library = visible_gpus(driver == "sim"), libcuda(driver == "sim")
    engine = engine_if_any()

    def resume_one(target: "Target") -> None:
        is_cut_off = was_cut_off(target)
        found = read(target)
        try:
            with Checkpoints(library) as checkpoints:
                found = bring_back(target, gpus, checkpoints, engine, overcommit, patience_s)
        except OthersProcessError:
            requests.ask_guard(target.name, target.limits_folder, requests.RESUME)
        nothing = "what was cut off is finished; it runs" if is_cut_off else "not suspended"
        click.echo(target.name if found else f"{target.name}: {nothing}")

    return _each(targets, gpus, resume_one)


@click.command(cls=EngineCommand, name="move", on_broken_config=warn, elsewhere=NO_FORCE, options_metavar="[OPTIONS]")
@option(
    "--gpus", metavar="GPUS", type=GpuNames(), group=_GROUP,
    help="The GPUs to move to, as many as it has and of the same kind: indexes as nvidia-smi shows them, or UUIDs, "
    "with commas.",
)  # fmt: skip
@_wait_option
@_timeout_option
@overcommit_option(_GROUP, "Allow it")
@_target_options
def move(
    containers: tuple[str, ...],
    slices: tuple[str, ...],
    processes: tuple[str, ...],
    gpus: str | None,
    wait: str | None,
    timeout: str,
    overcommit: bool | None,
    others: bool,
    driver: str,
) -> int:
    """Move running programs to other GPUs of the same kind, with their limits; they are not restarted.

    --gpus 1 is the GPU with that index, and not a count. GPU memory goes through the host's, as for suspend, and calls
    of CUDA wait meanwhile. Either all processes move or none, and room on the new GPUs is reserved first. Containers
    and slices have to be made with --movable.
    """
    from vgpurun.cli.commands.slice import refresh_cdi
    from vgpurun.host.checkpoints import Checkpoints
    from vgpurun.suspend.resuming import move_over
    from vgpurun.suspend.transition import Wishes

    wishes = Wishes(by="vgpurun move", lock_timeout_ms=_timeout_ms(timeout))
    patience_s = parse_wait(wait or "0")
    targets = _named(containers, slices, processes, others)
    if gpus is None:
        raise OptionError("choose the GPUs to move to, such as --gpus 1")
    found, library = visible_gpus(driver == "sim"), libcuda(driver == "sim")
    wanted = named_gpus(gpus, found)
    engine = engine_if_any()

    def move_one(target: "Target") -> None:
        with Checkpoints(library) as checkpoints:
            gone = move_over(target, found, checkpoints, wanted, engine, wishes, overcommit, patience_s)
        held = show_size(sum(gone.held_bytes.get(uuid, 0) for uuid in gone.onto))
        new = gone.onto.values()
        had = [gpu for gpu in found if gpu.uuid in gone.onto or (gpu in wanted and gpu.uuid not in new)]
        click.echo(f"{target.name}: {_numbers(had)} -> {_numbers(wanted)}, {held} moved")

    exit_code = _each(targets, found, move_one)
    if slices:
        refresh_cdi(driver, found)
    return exit_code


def _how_it_is(target: "Target", gpus: "Sequence[Gpu]") -> str:
    from vgpurun.suspend.transition import gpus_of, read, was_cut_off

    if was_cut_off(target):
        return "is on its way still; vgpurun resume finishes that"
    return "is suspended" if read(target) else f"runs on {_numbers(gpus_of(target, gpus))}"


def _numbers(gpus: "Sequence[Gpu]") -> str:
    return f"GPU {','.join(gpu.number for gpu in gpus)}"


def _timeout_ms(text: str) -> int:
    timeout_s = parse_duration(text)
    if not timeout_s:
        raise OptionError(f"--timeout '{text}' is not a time; use e.g. 10s or 1m30s")
    return int(timeout_s * 1000)


def _named(
    containers: tuple[str, ...], slices: tuple[str, ...], processes: tuple[str, ...], others: bool
) -> "list[Target]":
    from vgpurun.engine.containers import ContainerEngine
    from vgpurun.suspend.targets import named

    if not (containers or slices or processes):
        raise OptionError("name a container, or give --slice or --process")
    return named(containers, slices, processes, ContainerEngine.connect() if containers else None, others)


def _each(targets: "list[Target]", gpus: "Sequence[Gpu]", act: Callable[["Target"], None]) -> int:
    exit_code = 0
    click.get_current_context().ensure_object(Signals).take(ENDING)  # a transition that is ended is undone
    for target in targets:
        try:
            act(target)
        except Interrupted:
            say(f"interrupted: {target.name} {_how_it_is(target, gpus)}")
            raise
        except VgpurunError as error:
            say(str(error))
            exit_code = error.exit_code
    return exit_code
