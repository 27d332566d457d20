"""The options of placement and admission, which `run` and `local` have."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from vgpurun.cli.common import LIMITS, Function, GpuNames, SliceName, option
from vgpurun.config.schema import NO_TIMEOUT
from vgpurun.console.messages import warn
from vgpurun.errors import EngineError, NoEngineError
from vgpurun.util.choices import PLACE_POLICIES

if TYPE_CHECKING:
    from vgpurun.engine.client import Engine

_GROUP = "Placement"


def placement_options(function: Function) -> Function:
    """Add those of a launch: --slice, --together, --idle and own_placement_options."""
    return option(
        "--slice",
        "slice_name",
        metavar="NAME",
        group=LIMITS,
        type=SliceName(),
        help="Join a slice; --mem and --sm then count within it.",
        more="All that have joined it use its part of its GPUs together. Limits in percent are percent of that part.",
    )(own_placement_options(_together_option(idle_option(function))))


def _together_option(function: Function) -> Function:
    return option(
        "--together",
        type=bool,
        metavar="",
        group=_GROUP,
        help="Work at the same time as others of --together, by MPS.",
        more="All of this user's on the same GPUs run in one MPS server, which vgpurun starts and ends: a fault of one "
        "ends the others. --sm is then its part of the SMs, and no limit of time. They share the memory's bandwidth.",
    )(function)


def idle_option(function: Function) -> Function:
    """Add --idle."""
    return option(
        "--idle",
        metavar="TIME[:ACTION]",
        group=_GROUP,
        help="Once idle for TIME: suspend, warn or stop it.",
        more="vgpurun guard does so after that long without GPU time. suspend: its memory goes to the host "
        "until it needs the GPU again. never: no action.",
    )(function)


def own_placement_options(function: Function) -> Function:
    """Add the options of placement that `slice create` has, too."""
    for decorate in reversed(
        (
            option(
                "--gpus",
                metavar="GPUS",
                type=GpuNames(),
                group=_GROUP,
                help="all, a count or device=0,1; else one with room.",
                more="Indexes are those of nvidia-smi (0:1 for a MIG instance); UUIDs do too. By default one GPU that "
                "has room, or those that --mem and --sm name.",
            ),
            option(
                "--place",
                type=click.Choice(PLACE_POLICIES),
                group=_GROUP,
                help="The emptiest GPU with room, or the fullest.",
                more="By default spread, the emptiest.",
            ),
            overcommit_option(_GROUP),
            option(
                "--wait",
                metavar="[TIME]",
                optional_value=NO_TIMEOUT,
                group=_GROUP,
                help="Queue for room, at most for e.g. 90s, 10m or 2h.",
                more="First come, first served.",
            ),
            option(
                "--preempt-idle",
                type=bool,
                metavar="",
                group=_GROUP,
                help="Let the guard suspend idle programs to make room.",
                more="It suspends only those that allow it (--idle); the launch waits up to 30 s.",
            ),
            option(
                "--swap",
                type=bool,
                metavar="",
                group=_GROUP,
                help="Take turns in GPU memory with other --swap launches.",
                more="For some seconds one launch has its memory on the GPU and the others' waits in host memory, so "
                "together they may use more than the GPU has. Needs vgpurun guard.",
            ),
            option(
                "--movable",
                type=bool,
                metavar="",
                group=_GROUP,
                help="Let move and defrag bring it to another GPU.",
                more="It gets the device nodes of all GPUs of the same kind, but cannot use the others. A local "
                "process needs no --movable.",
            ),
        )
    ):
        function = decorate(function)
    return function


def overcommit_option(group: str, what: str = "Start") -> Callable[[Function], Function]:
    """Add --overcommit; without it the value is None."""
    return option(
        "--overcommit",
        type=bool,
        metavar="",
        group=group,
        help=f"{what} even if the GPU is fully reserved.",
    )


def lifetime_option(group: str, help_text: str, more: str) -> Callable[[Function], Function]:
    """Add --for, as `lifetime`."""
    return option("--for", "lifetime", metavar="TIME", group=group, help=help_text, more=more)


def engine_if_any() -> "Engine | None":
    """Return the engine whose containers hold parts of the GPUs too, or None where there is none."""
    from vgpurun.engine.client import Engine

    try:
        return Engine.connect()
    except NoEngineError:
        return None
    except EngineError as error:
        warn(f"what containers hold is not counted: {error}")
        return None
