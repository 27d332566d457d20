"""`vgpurun pause|unpause`: a container, or with --gpu its GPU work alone."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from vgpurun.cli.common import NO_FORCE, ContainerName, EngineCommand, option, others_option
from vgpurun.console.messages import say
from vgpurun.errors import ContainerError

if TYPE_CHECKING:
    from vgpurun.engine.client import VgpurunContainer

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
    """Pause the processes of containers; with --gpu only their work on the GPU.

    With --gpu, running kernels finish and further launches wait. The programs keep their memory, may take more, and
    can be stopped as usual. Other containers get the GPU's time meanwhile.
    """
    return _set_paused(containers, gpu_only, others, True)


@click.command(cls=EngineCommand, name="unpause", elsewhere=NO_FORCE)
@_options
def unpause(containers: tuple[str, ...], gpu_only: bool, others: bool) -> int:
    """Let the processes of containers go on, and their work on the GPU; with --gpu that alone."""
    return _set_paused(containers, gpu_only, others, False)


def _set_paused(containers: tuple[str, ...], gpu_only: bool, others: bool, paused: bool) -> int:
    from vgpurun.engine.containers import ContainerEngine, each_of
    from vgpurun.inventory.reservations import quotas_now
    from vgpurun.limits.update import refuse_in_slice, set_paused

    engine = ContainerEngine.connect()

    def change_one(name: str) -> None:
        container = engine.find_own(name, others)
        own = quotas_now(container) if container.is_part or not container.slice_name else ()
        is_gpu_paused = any(quota.paused for _, quota in own)
        if gpu_only and not container.is_part:
            refuse_in_slice(container.name, container.slice_name)
        if not paused and not is_gpu_paused and container.status != "paused":
            _refuse_stopped_otherwise(container, any(quota.is_suspended for _, quota in own))
        if gpu_only or (is_gpu_paused and not paused):
            set_paused(container, paused)
        if not gpu_only and (paused or container.status == "paused" or not is_gpu_paused):
            engine.set_paused(container.id, paused)
        click.echo(name)

    return each_of(containers, change_one, say)


def _refuse_stopped_otherwise(container: "VgpurunContainer", is_suspended: bool) -> None:
    """Raise ContainerError for one that another verb has stopped, and name the one that lets it go on."""
    from vgpurun.inventory import guarded

    if is_suspended:
        raise ContainerError(f"{container.name} is not paused but suspended: vgpurun resume {container.name}")
    if (stopped := guarded.stopped().get(container.id)) and stopped.verb == guarded.FREEZE:
        raise ContainerError(f"{container.name} is not paused but {stopped}: vgpurun thaw {container.name}")
