"""`vgpurun stop|kill|rm`: docker's verbs of these names, for the containers of vgpurun."""

from collections.abc import Callable

import click

from vgpurun.cli.common import NO_FORCE, ContainerName, EngineCommand, option, others_option
from vgpurun.console.messages import say
from vgpurun.util.background import Background

_GROUP = "Container"


def _container_names(function: Callable[..., int]) -> Callable[..., int]:
    return click.argument("containers", metavar="CONTAINER...", nargs=-1, required=True, type=ContainerName())(function)


@click.command(cls=EngineCommand, name="stop", elsewhere=NO_FORCE)
@option("-s", "--signal", metavar="SIGNAL", group=_GROUP, help="Signal to send instead of the container's own.")
@option(
    "-t", "--timeout", "--time", "timeout_s", metavar="SECONDS", type=int, group=_GROUP,
    help="How long to wait before SIGKILL; -1: for ever. By default the container's own time, or 10.",
)  # fmt: skip
@others_option(_GROUP)
@_container_names
def stop(containers: tuple[str, ...], signal: str | None, timeout_s: int | None, others: bool) -> int:
    """Send containers their stop signal, and SIGKILL when they still run after a time."""
    from vgpurun.engine.containers import ContainerEngine, each_of

    engine = ContainerEngine.connect()

    def stop_one(name: str) -> None:
        engine.stop_in_time(engine.find_own(name, others).id, timeout_s, signal)
        click.echo(name)

    return each_of(containers, stop_one, say)


@click.command(cls=EngineCommand, name="kill", elsewhere=NO_FORCE)
@option("-s", "--signal", metavar="SIGNAL", default="KILL", show_default=True, group=_GROUP, help="Signal to send.")
@others_option(_GROUP)
@_container_names
def kill(containers: tuple[str, ...], signal: str, others: bool) -> int:
    """Send the main process of containers a signal."""
    from vgpurun.engine.containers import ContainerEngine, each_of

    engine = ContainerEngine.connect()

    def kill_one(name: str) -> None:
        engine.send_signal(engine.find_own(name, others).id, signal)
        click.echo(name)

    return each_of(containers, kill_one, say)


@click.command(cls=EngineCommand, name="rm")
@option("-f", "--force", is_flag=True, group=_GROUP, help="Also those that run; none of that name is no error.")
@others_option(_GROUP)
@option("-v", "--volumes", is_flag=True, group=_GROUP, help="With their anonymous volumes.")
@option("-l", "--link", is_flag=True, group=_GROUP, help="Remove a link, CONTAINER/ALIAS, and no container.")
@_container_names
def rm(containers: tuple[str, ...], force: bool, others: bool, volumes: bool, link: bool) -> int:
    """Remove containers, and what vgpurun keeps about them."""
    from vgpurun.engine.containers import ContainerEngine, each_of
    from vgpurun.errors import ContainerError
    from vgpurun.launch.container import sweep

    engine = ContainerEngine.connect()

    def remove_one(name: str) -> None:
        if link:
            engine.find_own(name.lstrip("/").partition("/")[0], others)
            engine.remove_link(name)
            click.echo(name)
            return
        try:
            engine.remove_for_good(engine.find_own(name, others).id, force, volumes)
        except ContainerError:
            if not force or engine.state_of(name) is not None:  # docker rm --force of nothing is no error
                raise
            say(f"No such container: {name}")
            return
        click.echo(name)

    exit_code = each_of(containers, remove_one, say)
    sweep(engine, Background(engine.facts))
    return exit_code
