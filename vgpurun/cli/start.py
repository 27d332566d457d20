"""`vgpurun start`: stopped containers again, where there is room for their limits now."""

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import click

from vgpurun.cli.common import ContainerName, EngineCommand, host_driver_option, say, visible_gpus
from vgpurun.cli.placing import admission_of_change, overcommit_option

if TYPE_CHECKING:
    from vgpurun.engine.client import VgpurunContainer

_GROUP = "Container"


@click.command(cls=EngineCommand, name="start")
@overcommit_option(_GROUP)
@host_driver_option(_GROUP)
@click.argument("containers", metavar="CONTAINER...", nargs=-1, required=True, type=ContainerName())
def start(containers: tuple[str, ...], overcommit: bool | None, driver: str) -> int:
    """Start stopped containers in the background, with the limits that they had, on the GPUs that they had.

    As at a launch, nothing is promised twice: where their limits do not fit any more, they are not started.
    `docker start` does not look.
    """
    from vgpurun.admission.holders import quotas_now
    from vgpurun.engine.containers import ContainerEngine, each_of
    from vgpurun.limits import state
    from vgpurun.limits.update import devices_of

    gpus = visible_gpus(driver == "sim")
    engine = ContainerEngine.connect()

    def admission(container: "VgpurunContainer") -> AbstractContextManager[object]:
        if container.slice_name:
            return nullcontext()  # what it uses is the slice's, and promised
        wanted = devices_of(container.name, quotas_now(container), gpus)
        return admission_of_change(container.id, wanted, gpus, engine, overcommit).granted()

    def start_one(name: str) -> None:
        container = engine.find(name)
        if container.status != "running":
            state.make_lock_dir()  # a reboot takes it away
            with admission(container):
                engine.start_again(container.id)
        click.echo(name)

    return each_of(containers, start_one, say)
