"""`vgpurun start|restart`: starts containers again where there is room for their limits now."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import TYPE_CHECKING

import click

from vgpurun.admission.changes import admitted_change
from vgpurun.admission.lock import admission_lock
from vgpurun.cli.common import NO_FORCE, ContainerName, EngineCommand, host_driver_option, option, others_option
from vgpurun.cli.placing import overcommit_option
from vgpurun.console.messages import say, warn
from vgpurun.errors import SuspendError
from vgpurun.host.visible import visible_gpus

if TYPE_CHECKING:
    from vgpurun.engine.client import VgpurunContainer
    from vgpurun.engine.containers import ContainerEngine

_GROUP = "Container"


@click.command(cls=EngineCommand, name="start", elsewhere=NO_FORCE)
@overcommit_option(_GROUP)
@others_option(_GROUP)
@host_driver_option(_GROUP)
@click.argument("containers", metavar="CONTAINER...", nargs=-1, required=True, type=ContainerName())
def start(containers: tuple[str, ...], overcommit: bool | None, others: bool, driver: str) -> int:
    """Start stopped containers in the background, with the limits that they had, on the GPUs that they had.

    As at a launch, nothing is reserved twice: where their limits do not fit any more, they are not started.
    `docker start` does not look.
    """
    from vgpurun.engine.containers import ContainerEngine, each_of

    engine = ContainerEngine.connect()
    start_again = _starter(engine, overcommit, driver)

    def start_one(name: str) -> None:
        container = engine.find_own(name, others)
        if container.status != "running":
            start_again(container)
        click.echo(name)

    return each_of(containers, start_one, say)


@click.command(cls=EngineCommand, name="restart", elsewhere=NO_FORCE)
@option("-s", "--signal", metavar="SIGNAL", group=_GROUP, help="Signal to send instead of the container's own.")
@option(
    "-t", "--timeout", "--time", "timeout_s", metavar="SECONDS", type=int, group=_GROUP,
    help="How long to wait before SIGKILL; -1: for ever. By default what the container says, or 10.",
)  # fmt: skip
@overcommit_option(_GROUP)
@others_option(_GROUP)
@host_driver_option(_GROUP)
@click.argument("containers", metavar="CONTAINER...", nargs=-1, required=True, type=ContainerName())
def restart(
    containers: tuple[str, ...],
    signal: str | None,
    timeout_s: int | None,
    overcommit: bool | None,
    others: bool,
    driver: str,
) -> int:
    """End containers and start them again. One that runs keeps its place meanwhile; a stopped one is started."""
    from vgpurun.engine.containers import ContainerEngine, each_of

    engine = ContainerEngine.connect()
    start_again = _starter(engine, overcommit, driver)

    def restart_one(name: str) -> None:
        container = engine.find_own(name, others)
        if container.status == "running":
            _refuse_suspended(container)
            with admission_lock(warn):  # between its end and its start nobody may take its place
                engine.restart(container.id, timeout_s, signal)
        else:
            start_again(container)
        click.echo(name)

    return each_of(containers, restart_one, say)


def _refuse_suspended(container: "VgpurunContainer") -> None:
    """Raise SuspendError for one that has given its place back: a restart keeps a place, and finds none."""
    from vgpurun.inventory.reservations import quotas_now

    if any(quota.is_suspended for _, quota in quotas_now(container)):
        raise SuspendError(
            f"{container.name} is suspended, and others may have its place; resume it first, or stop it and start it"
        )


def _starter(engine: "ContainerEngine", overcommit: bool | None, driver: str) -> Callable[["VgpurunContainer"], None]:
    """Return what starts a stopped container where there is room for it, or raises NoRoomError."""
    from vgpurun.inventory.reservations import quotas_now
    from vgpurun.limits.update import changing, devices_of
    from vgpurun.slices import store
    from vgpurun.storage import tenants
    from vgpurun.suspend.transition import start_over

    gpus = cache(lambda: visible_gpus(driver == "sim"))

    @contextmanager
    def admitted(container: "VgpurunContainer") -> Iterator[None]:
        if container.slice_name:
            with store.joining(container.slice_name):  # what it uses is the slice's, and reserved
                yield
            return
        if container.is_part:  # of a share that holds it already
            yield
            return
        with changing(container):
            wanted = devices_of(container.name, quotas_now(container), gpus())
            with admitted_change(container.id, wanted, gpus(), engine, overcommit):
                start_over(container)
                yield

    def start_again(container: "VgpurunContainer") -> None:
        with ExitStack() as undo:
            with admitted(container):
                if engine.state_of(container.id) != "running":  # another may have been faster
                    tenants.make(container.tenant_folder)  # somebody may have cleaned up
                    engine.start_again(container.id)
                    undo.callback(engine.stop, container.id)
            undo.pop_all()

    return start_again
