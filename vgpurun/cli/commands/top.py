"""`vgpurun top`: what every GPU and every container on it uses, live."""

import sys
from collections.abc import Callable

import click

from vgpurun.cli.common import ContainerName, GroupedCommand, Seconds, host_driver_option, option
from vgpurun.console.messages import warn
from vgpurun.console.signals import Signals
from vgpurun.host.visible import survey_gpus

_GROUP = "Display"


@click.command(
    cls=GroupedCommand,
    name="top",
    on_broken_config=warn,
    options_metavar="[OPTIONS]",
    context_settings={"allow_interspersed_args": False},
)
@option(
    "--sort", type=click.Choice(["gpu", "memory", "compute"]), default="gpu", show_default=True, group=_GROUP,
    help="Show containers below their GPU, or all of them by what they use.",
)  # fmt: skip
@option(
    "-n", "--interval", "interval_s", metavar="SECONDS", type=Seconds(0.1, 3600), default=2.0,
    show_default=True, group=_GROUP, help="Seconds between refreshes.",
)  # fmt: skip
@option("--once", is_flag=True, group=_GROUP, help="Print once and end (the default when output is not a terminal).")
@host_driver_option(_GROUP)
@click.argument("container", metavar="[CONTAINER]", required=False, type=ContainerName(everything=False))
@click.argument("ps_options", metavar="[PS OPTIONS]", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def top(
    signals: Signals,
    /,
    sort: str,
    interval_s: float,
    once: bool,
    driver: str,
    container: str | None,
    ps_options: tuple[str, ...],
) -> Callable[[], object] | None:
    """Show live what every GPU, and every container on it, uses of its memory and its time.

    With a CONTAINER it is `docker top`: its processes, once.

    Compute is the GPU time of the last whole second. Keys: q quits; ? lists all of them, among them / to filter, enter
    for details, and p, u, l and x to pause, limit, read and stop the chosen container.
    """
    if container is not None:
        from vgpurun.cli.commands.docker_verbs import handed_over
        from vgpurun.engine.containers import ContainerEngine

        return handed_over("top", [ContainerEngine.connect().describe(container)["Id"], *ps_options])
    from vgpurun.cli.views.top_screen import Watch

    watch = Watch(lambda: survey_gpus(driver == "sim"), sort, interval_s, driver)
    if once or not sys.stdout.isatty():
        watch.print_once()
    else:
        signals.take()
        watch.run(signals)
    return None
