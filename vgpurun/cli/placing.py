"""The options of placement and admission, which `run` and `local` have."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from vgpurun.cli.common import LIMITS, Function, GpuNames, SliceName, option
from vgpurun.config.schema import NO_TIMEOUT
from vgpurun.console.messages import warn
from vgpurun.errors import EngineError, NoEngineError
from vgpurun.host.gpu_names import GPUS_HELP
from vgpurun.util.choices import PLACE_POLICIES

if TYPE_CHECKING:
    from vgpurun.engine.client import Engine

_GROUP = "Placement"


def placement_options(function: Function) -> Function:
    """Add --slice, --gpus, --place, --overcommit, --wait, --preempt-idle, --swap, --movable and --idle."""
    return option(
        "--slice",
        "slice_name",
        metavar="NAME",
        group=LIMITS,
        type=SliceName(),
        help="Join a slice: use its part of its GPUs, together with all that have joined it. With --mem or --sm: with "
        "limits of its own within the slice, in percent of that.",
    )(own_placement_options(idle_option(function)))


def idle_option(function: Function) -> Function:
    """Add --idle."""
    return option(
        "--idle",
        metavar="TIME[:ACTION]",
        group=_GROUP,
        help="Let vgpurun guard act when it has used no GPU time for so long: suspend (its memory goes to the host "
        "until it needs the GPU again), warn or stop; or never.",
    )(function)


def own_placement_options(function: Function) -> Function:
    """Add --gpus, --place, --overcommit, --wait, --preempt-idle, --swap and --movable."""
    for decorate in reversed(
        (
            option(
                "--gpus",
                metavar="GPUS",
                type=GpuNames(),
                group=_GROUP,
                help=f"Which GPUs: {GPUS_HELP.removeprefix('use ')}. By default one that has room, or those that --mem "
                "and --sm name.",
            ),
            option(
                "--place",
                type=click.Choice(PLACE_POLICIES),
                group=_GROUP,
                help="Choose from the GPUs with room: the emptiest (spread, the default) or the fullest (binpack).",
            ),
            overcommit_option(_GROUP),
            option(
                "--wait",
                metavar="[TIME]",
                optional_value=NO_TIMEOUT,
                group=_GROUP,
                help="Wait for room, first come, first served; at most for a time such as 90s, 10m or 2h.",
            ),
            option(
                "--preempt-idle",
                type=bool,
                metavar="",
                group=_GROUP,
                help="If there is no room, wait up to 30 s for vgpurun guard to suspend idle programs that allow it.",
            ),
            option(
                "--swap",
                type=bool,
                metavar="",
                group=_GROUP,
                help="Take turns of some seconds on a GPU with other --swap launches: one at a time has its memory "
                "there, the others' waits in host memory, so together they may use more than the GPU has. Needs "
                "vgpurun guard.",
            ),
            option(
                "--movable",
                type=bool,
                metavar="",
                group=_GROUP,
                help="Let vgpurun move and defrag bring it to other GPUs of the same kind while it runs: a container "
                "gets the device nodes of those too, but cannot use them. A local process needs no --movable.",
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


def lifetime_option(group: str, help_text: str) -> Callable[[Function], Function]:
    """Add --for, as `lifetime`."""
    return option("--for", "lifetime", metavar="TIME", group=group, help=help_text)


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
