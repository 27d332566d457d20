"""`vgpurun node-agent`: looks after a node of Kubernetes."""

from pathlib import Path

import click

from vgpurun.cli.common import GroupedCommand, Seconds, host_driver_option, option
from vgpurun.console.messages import say, warn
from vgpurun.host.visible import activate_simulation
from vgpurun.storage import state
from vgpurun.util.extras import needs_extra

_GROUP = "Node agent"


@click.command(cls=GroupedCommand, name="node-agent", on_broken_config=warn)
@option(
    "--listen", metavar="ADDRESS:PORT", default="127.0.0.1:9487", show_default=True, group=_GROUP,
    help="Where to serve /metrics and /healthz; `:9487` is every address.",
)  # fmt: skip
@option(
    "--compat", "compatible", type=click.Choice(["hami", "alnair"]), multiple=True, group=_GROUP,
    help="Serve metrics also under the names of HAMi's or Alnair's exporters.",
)  # fmt: skip
@option(
    "--kubelet-dir", type=click.Path(path_type=Path), default=Path("/var/lib/kubelet"), show_default=True,
    group=_GROUP, help="kubelet's folder, in which its pod-resources socket is.",
)  # fmt: skip
@option(
    "--interval", "interval_s", type=Seconds(min=0.1), default=60, show_default=True, group=_GROUP,
    metavar="SECONDS", help="How often to look for what dead pods have left.",
)  # fmt: skip
@host_driver_option(_GROUP)
def node_agent(listen: str, compatible: tuple[str, ...], kubelet_dir: Path, interval_s: float, driver: str) -> None:
    """Remove the state of pods that are gone, and serve what pods use of GPUs, as metrics with their names.

    It runs beside the device plugin or the DRA plugin, with their state folder, as root. SIGTERM and Ctrl-C end it.
    """
    with needs_extra("metrics"):
        from vgpurun.metrics.collector import make_registry
        from vgpurun.metrics.server import serving
    with needs_extra("k8s"):
        from vgpurun.kubernetes.agent.agent import Agent
    from vgpurun.console.signals import Ending
    from vgpurun.metrics.snapshot import Reader

    if driver == "sim":
        activate_simulation()
    agent = Agent(state.root_folder(), kubelet_dir.absolute(), say)
    reader = Reader(say, agent.tenants)
    with Ending() as ending, serving(listen, make_registry(reader, compatible)) as url:
        say(f"metrics at {url}")
        agent.run(ending, interval_s)
    reader.close()
