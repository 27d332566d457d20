"""`vgpurun guard`: acts on programs that get past the library; `vgpurun thaw`: lets what it has frozen go on."""

import click

from vgpurun.cli.common import ContainerName, EngineCommand, GroupedCommand, host_driver_option, option
from vgpurun.config import values as config
from vgpurun.console.messages import say, warn
from vgpurun.errors import ContainerError
from vgpurun.host.visible import activate_simulation, libcuda
from vgpurun.util.choices import GUARD_COMPUTE, GUARD_MEMORY, GUARD_OUTSIDE

_GROUP = "Guard"


@click.command(cls=GroupedCommand, name="guard", on_broken_config=warn)
@option(
    "--memory", type=click.Choice(GUARD_MEMORY), group=_GROUP,
    help="Action on a container that holds 5 % more than its memory limit. By default as configured, or freeze.",
)  # fmt: skip
@option(
    "--compute", type=click.Choice(GUARD_COMPUTE), group=_GROUP,
    help="Action on a container that uses more than its share through programs that the library does not see. unheld: "
    "take these off the GPU in turn, in the middle of a kernel; all: and those that it sees (experimental). By default "
    "as configured, or hold.",
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
    from vgpurun.guard.run import Running

    settings = {name: setting.value for name, setting in config.readable().guard().items()}
    given = {"memory": memory, "compute": compute, "outside": outside}
    settings |= {name: value for name, value in given.items() if value is not None}
    if driver == "sim":
        activate_simulation()
    with Ending() as ending:
        running = Running(settings, libcuda=libcuda(driver == "sim"))
        say(
            f"memory above a limit: {settings['memory']}; compute: {settings['compute']}; "
            f"programs outside: {settings['outside']}"
        )
        running.run(ending)


@click.command(cls=EngineCommand, name="thaw")
@click.argument("containers", metavar="CONTAINER...", nargs=-1, required=True, type=ContainerName(everything=False))
def thaw(containers: tuple[str, ...]) -> int:
    """Unfreeze containers that the guard has frozen, although they are above their limit.

    The guard acts on them again when they take 5 % more than they hold now, or have been within their limit. It needs
    root.
    """
    from vgpurun.engine.containers import ContainerEngine, each_of
    from vgpurun.inventory import guarded

    engine = ContainerEngine.connect()
    frozen = guarded.stopped()

    def thaw_one(name: str) -> None:
        container = engine.find(name)
        stopped = frozen.get(container.id)
        if stopped is None or stopped.verb != guarded.FREEZE:
            held = f", but {stopped}: `vgpurun update --sm` gives it more" if stopped else ""
            raise ContainerError(f"container {name} is not frozen by the guard{held}")
        stopped.cgroup.thaw()
        click.echo(name)

    return each_of(containers, thaw_one, say)
