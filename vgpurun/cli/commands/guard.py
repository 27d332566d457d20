"""`vgpurun guard`: acts on programs that get past the library; `vgpurun thaw`: lets what it has frozen go on."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from vgpurun.cli.common import ContainerName, EngineCommand, GroupedCommand, SliceName, host_driver_option, option
from vgpurun.config import values as config
from vgpurun.console.messages import say, warn
from vgpurun.errors import OptionError
from vgpurun.host.visible import activate_simulation, libcuda
from vgpurun.util.choices import GUARD_COMPUTE, GUARD_MEMORY, GUARD_OUTSIDE

if TYPE_CHECKING:
    from vgpurun.inventory.guarded import Stopped

_GROUP, _CONTAINER = "Guard", "Container"


@click.command(cls=GroupedCommand, name="guard", on_broken_config=warn)
@option(
    "--memory", type=click.Choice(GUARD_MEMORY), group=_GROUP,
    help="Action on a container that holds 5 % more than its memory limit. By default as configured, or freeze.",
)  # fmt: skip
@option(
    "--compute", type=click.Choice(GUARD_COMPUTE), group=_GROUP,
    help="Action on a container that uses more than its share through programs that the library does not see. hold: "
    "freeze and thaw it in turn. unheld: have the GPU's scheduler take them off the GPU. all: every program "
    "with a limit, also those that the library sees (experimental). By default as configured, or hold.",
)  # fmt: skip
@option(
    "--outside", type=click.Choice(GUARD_OUTSIDE), group=_GROUP,
    help="Action on a program on a GPU that vgpurun did not start. By default as configured, or warn.",
)  # fmt: skip
@host_driver_option(_GROUP)
def guard(memory: str | None, compute: str | None, outside: str | None, driver: str) -> None:
    """Watch what every process holds and uses of the GPUs, and act on what passes its limit.

    It sees what NVML sees, and so also programs that the library is not loaded into. A container above its limit is
    frozen (or warned of, or ended), one above its share of time frozen and thawed in turn. Each action is a line on
    stderr, a metric, a row of `vgpurun history --by action`, and a line of /.vgpurun/etc/guard in the container. It
    needs root. SIGTERM and Ctrl-C end it.
    """
    from vgpurun.console.signals import Ending
    from vgpurun.guard.outside_slices import Slices
    from vgpurun.guard.run import Running

    configured = config.readable()
    settings = {name: setting.value for name, setting in configured.guard().items()}
    given = {"memory": memory, "compute": compute, "outside": outside}
    settings |= {name: value for name, value in given.items() if value is not None}
    if driver == "sim":
        activate_simulation()
    with Ending() as ending:
        running = Running(settings, Slices(*configured.outside()), libcuda=libcuda(driver == "sim"))
        say(
            f"memory above a limit: {settings['memory']}; compute: {settings['compute']}; "
            f"programs outside: {settings['outside']}"
        )
        running.run(ending)


@click.command(cls=EngineCommand, name="thaw", options_metavar="[OPTIONS]")
@click.argument("containers", metavar="[CONTAINER...]", nargs=-1, type=ContainerName(everything=False))
@option(
    "--process", "processes", metavar="PID", multiple=True, group=_CONTAINER, help="A process of vgpurun local.",
)  # fmt: skip
@option(
    "--slice", "slices", metavar="NAME", multiple=True, type=SliceName(), group=_CONTAINER,
    help="A slice: all that has joined it.",
)  # fmt: skip
def thaw(containers: tuple[str, ...], processes: tuple[str, ...], slices: tuple[str, ...]) -> int:
    """Unfreeze what the guard has frozen, although it is above its limit.

    The guard acts on it again when it takes 5 % more than it holds now, or has been within its limit. It needs root.
    """
    from vgpurun.engine.containers import each_of
    from vgpurun.inventory import guarded

    if not (containers or processes or slices):
        raise OptionError("name a container, or give --slice or --process")
    return max(
        _thaw_containers(containers) if containers else 0,
        each_of(processes, lambda pid: _thaw(f"process {pid}", guarded.frozen_container(pid, f"process {pid}")), say),
        each_of(slices, _thaw_slice, say),
    )


def _thaw_containers(names: Sequence[str]) -> int:
    from vgpurun.engine.containers import ContainerEngine, each_of
    from vgpurun.inventory import guarded

    engine = ContainerEngine.connect()
    return each_of(
        names, lambda name: _thaw(name, guarded.frozen_container(engine.find(name).id, f"container {name}")), say
    )


def _thaw_slice(name: str) -> None:
    from vgpurun.inventory import guarded

    for id_, stopped in guarded.frozen_in_slice(name).items():
        _thaw(f"process {id_}" if guarded.is_launch(id_) else id_[:12], stopped)


def _thaw(name: str, stopped: "Stopped") -> None:
    stopped.cgroup.thaw()
    click.echo(name)
