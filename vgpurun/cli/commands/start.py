"""`vgpurun start`: stopped containers again, where there is room for their limits now."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import click

from vgpurun.admission.changes import admitted_change
from vgpurun.cli.common import ContainerName, EngineCommand, host_driver_option
from vgpurun.cli.placing import overcommit_option
from vgpurun.console.messages import say
from vgpurun.host.visible import visible_gpus

if TYPE_CHECKING:
    from vgpurun.engine.client import VgpurunContainer

_GROUP = "Container"


@click.command(cls=EngineCommand, name="start")
@overcommit_option(_GROUP)
@host_driver_option(_GROUP)
@click.argument("containers", metavar="CONTAINER...", nargs=-1, required=True, type=ContainerName())
def start(containers: tuple[str, ...], overcommit: bool | None, driver: str) -> int:
    """Start stopped containers in the background, with the limits that they had, on the GPUs that they had.

    As at a launch, nothing is reserved twice: where their limits do not fit any more, they are not started.
    `docker start` does not look.
    """
    from vgpurun.engine.containers import ContainerEngine, each_of
    from vgpurun.inventory.reservations import quotas_now
    from vgpurun.limits.update import changing, devices_of
    from vgpurun.slices import store
    from vgpurun.storage import state

    gpus = visible_gpus(driver == "sim")
    engine = ContainerEngine.connect()

    @contextmanager
    def admitted(container: "VgpurunContainer") -> Iterator[None]:
        if container.slice_name:
            with store.joining(container.slice_name):  # what it uses is the slice's, and reserved
                yield
            return
        with changing(container):
            wanted = devices_of(container.name, quotas_now(container), gpus)
            with admitted_change(container.id, wanted, gpus, engine, overcommit):
                yield

    def start_one(name: str) -> None:
        container = engine.find(name)
        if container.status != "running":
            state.make_lock_dir()  # a reboot takes it away
            with ExitStack() as undo:
                with admitted(container):
                    if engine.state_of(container.id) != "running":  # another may have been faster
                        engine.start_again(container.id)
                        undo.callback(engine.stop, container.id)
                undo.pop_all()
        click.echo(name)

    return each_of(containers, start_one, say)
