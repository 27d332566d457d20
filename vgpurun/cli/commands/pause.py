"""`vgpurun pause|unpause`: a container, or with --gpu its GPU work alone."""

from collections.abc import Callable

import click

from vgpurun.cli.common import NO_FORCE, ContainerName, EngineCommand, option, others_option
from vgpurun.console.messages import say

_GROUP = "Container"


def _options(function: Callable[..., int]) -> Callable[..., int]:
    function = click.argument(
        "containers", metavar="CONTAINER...", nargs=-1, required=True, type=ContainerName(everything=False)
    )(function)
    function = others_option(_GROUP)(function)
    return option(
        "--gpu", "gpu_only", is_flag=True, group=_GROUP, help="Act on its GPU work alone: its programs go on."
    )(function)


@click.command(cls=EngineCommand, name="pause", elsewhere=NO_FORCE)
@_options
def pause(containers: tuple[str, ...], gpu_only: bool, others: bool) -> int:
    """Suspend the processes of containers; with --gpu only their work on the GPU.

    With --gpu, what has been launched ends, and further launches wait. The programs keep their memory, may take more,
    and can be ended as ever. Other containers get the GPU's time meanwhile.
    """
    return _set_paused(containers, gpu_only, others, True)


@click.command(cls=EngineCommand, name="unpause", elsewhere=NO_FORCE)
@_options
def unpause(containers: tuple[str, ...], gpu_only: bool, others: bool) -> int:
    """Let the processes of containers go on; with --gpu their work on the GPU."""
    return _set_paused(containers, gpu_only, others, False)


def _set_paused(containers: tuple[str, ...], gpu_only: bool, others: bool, paused: bool) -> int:
    from vgpurun.engine.containers import ContainerEngine, each_of
    from vgpurun.limits.update import refuse_in_slice, set_paused

    engine = ContainerEngine.connect()

    def change_one(name: str) -> None:
        container = engine.find_own(name, others)
        if gpu_only:
            if not container.is_part:
                refuse_in_slice(container.name, container.slice_name)
            set_paused(container, paused)
        else:
            engine.set_paused(container.id, paused)
        click.echo(name)

    return each_of(containers, change_one, say)
