"""`vgpurun start|restart`: starts containers again where there is room for their limits now."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import click

from vgpurun.admission.changes import admitted_change
from vgpurun.admission.lock import admission_lock
from vgpurun.cli.common import NO_FORCE, ContainerName, EngineCommand, host_driver_option, option, others_option
from vgpurun.cli.placing import overcommit_option
from vgpurun.console.messages import say, warn
from vgpurun.console.signals import Signals
from vgpurun.errors import ContainerError, SuspendError, TogetherError
from vgpurun.host.visible import visible_gpus
from vgpurun.storage import tenants

if TYPE_CHECKING:
    from vgpurun.engine.client import VgpurunContainer
    from vgpurun.engine.containers import ContainerEngine

    _Admission = Callable[[VgpurunContainer], AbstractContextManager[None]]

_GROUP = "Container"


@click.command(cls=EngineCommand, name="start", elsewhere=NO_FORCE)
@option("-a", "--attach", is_flag=True, group=_GROUP, help="Show its output, pass signals on, and exit with its code.")
@option("-i", "--interactive", is_flag=True, group=_GROUP, help="Attach to it, and pass standard input on.")
@option("--detach-keys", metavar="KEYS", group=_GROUP, help="Keys that detach from it, instead of ctrl-p,ctrl-q.")
@overcommit_option(_GROUP)
@others_option(_GROUP)
@host_driver_option(_GROUP)
@click.argument("containers", metavar="CONTAINER...", nargs=-1, required=True, type=ContainerName())
@click.pass_obj
def start(
    signals: Signals,
    /,
    containers: tuple[str, ...],
    attach: bool,
    interactive: bool,
    detach_keys: str | None,
    overcommit: bool | None,
    others: bool,
    driver: str,
) -> int:
    """Start stopped containers in the background, with the limits that they had, on the GPUs that they had.

    Like a launch, this refuses containers whose limits no longer fit. `docker start` does not check.
    """
    from vgpurun.engine.containers import ContainerEngine, each_of

    engine = ContainerEngine.connect()
    if attach or interactive:
        if len(containers) > 1:
            raise ContainerError("you cannot start and attach multiple containers at once")
        found = engine.describe(engine.find_own(containers[0], others).id)
        signals.take()
        return _start_attached(found, interactive, detach_keys, signals, _admission(engine, overcommit, driver))
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
    help="How long to wait before SIGKILL; -1: for ever. By default the container's own time, or 10.",
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
    """Stop containers and start them again. A running one keeps its reservation meanwhile; a stopped one is started."""
    from vgpurun.engine.containers import ContainerEngine, each_of

    engine = ContainerEngine.connect()
    start_again = _starter(engine, overcommit, driver)

    def restart_one(name: str) -> None:
        container = engine.find_own(name, others)
        if container.status == "running":
            _refuse_suspended(container)
            _refuse_together(container)
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


def _refuse_together(container: "VgpurunContainer") -> None:
    """Raise TogetherError for one whose MPS server may have ended: it is mounted in the container."""
    from vgpurun.inventory.reservations import quotas_now

    if any(quota.together for _, quota in quotas_now(container)):
        raise TogetherError(
            f"{container.name} has worked at the same time as others (--together), by an MPS server that may have "
            "ended, and is not started again; remove it, and run another one"
        )


def _start_attached(
    found: Mapping[str, Any], interactive: bool, detach_keys: str | None, signals: Signals, admitted: "_Admission"
) -> int:
    """Start a container where there is room for it, and return its exit code, or 0 when it is left by its keys.

    Raises what AttachedRun and an admission raise.
    """
    from vgpurun.engine.containers import from_description
    from vgpurun.engine.launches import LaunchEngine
    from vgpurun.launch.attached import AttachedRun
    from vgpurun.launch.container import check_keys
    from vgpurun.options import ContainerOptions

    engine, config, container = LaunchEngine.connect(), found["Config"], from_description(found)
    takes_input = interactive and bool(config.get("OpenStdin"))
    options = ContainerOptions(
        image=container.image,
        streams=("stdin", "stdout", "stderr") if takes_input else ("stdout", "stderr"),
        tty=bool(config.get("Tty")),
        relays_signals=not config.get("Tty"),  # a terminal's signals come as its keys
        remove=bool(found["HostConfig"].get("AutoRemove")),
        detach_keys=detach_keys,
    )
    check_keys(options, engine)
    with ExitStack() as place:
        if container.status != "running":
            place.enter_context(admitted(container))
            tenants.make(container.tenant_folder)  # somebody may have cleaned up
        return AttachedRun(engine, container.id, options, signals).run(started=place.close)


def _starter(engine: "ContainerEngine", overcommit: bool | None, driver: str) -> Callable[["VgpurunContainer"], None]:
    """Return what starts a stopped container where there is room for it, or raises NoRoomError."""
    admitted = _admission(engine, overcommit, driver)

    def start_again(container: "VgpurunContainer") -> None:
        with ExitStack() as undo:
            with admitted(container):
                if engine.state_of(container.id) != "running":  # another may have been faster
                    tenants.make(container.tenant_folder)  # somebody may have cleaned up
                    engine.start_again(container.id)
                    undo.callback(engine.stop, container.id)
            undo.pop_all()

    return start_again


def _admission(engine: "ContainerEngine", overcommit: bool | None, driver: str) -> "_Admission":
    """Return what holds the room for a stopped container while it is started, or raises NoRoomError."""
    from vgpurun.inventory.reservations import quotas_now
    from vgpurun.limits.update import changing, devices_of
    from vgpurun.slices import store
    from vgpurun.suspend.transition import start_over

    gpus = cache(lambda: visible_gpus(driver == "sim"))

    @contextmanager
    def admitted(container: "VgpurunContainer") -> Iterator[None]:
        _refuse_together(container)
        if container.slice_name:
            with store.joining(container.slice_name):  # its use is the slice's, and reserved
                yield
            return
        if container.is_part:  # the share around it holds its reservation
            yield
            return
        with changing(container):
            wanted = devices_of(container.name, quotas_now(container), gpus())
            with admitted_change(container.id, wanted, gpus(), engine, overcommit):
                start_over(container)
                yield

    return admitted
