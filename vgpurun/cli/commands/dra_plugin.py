"""`vgpurun dra-plugin`: shares of this node's GPUs for pods, by Kubernetes' dynamic resource allocation."""

import os
from pathlib import Path

import click

from vgpurun.cli.common import GroupedCommand, Seconds, health_port_option, option
from vgpurun.console.messages import say
from vgpurun.host import library
from vgpurun.host.visible import activate_simulation
from vgpurun.storage import state
from vgpurun.util.extras import needs_extra

_GROUP = "DRA plugin"


@click.command(cls=GroupedCommand, name="dra-plugin")
@option(
    "--node", envvar="NODE_NAME", default=lambda: os.uname().nodename.lower(), group=_GROUP,
    help="This node's name in the cluster. By default NODE_NAME, or the host's name.",
)  # fmt: skip
@option(
    "--kubeconfig", metavar="FILE", group=_GROUP,
    help="How to reach the API server. By default through the service account of this pod.",
)  # fmt: skip
@option(
    "--driver", type=click.Choice(["auto", "cdi", "mount", "sim"]), default="auto", show_default=True, group=_GROUP,
    help="How pods get the driver: as NVIDIA's CDI specification says, by mounts of its files, or simulated.",
)  # fmt: skip
@option(
    "--kubelet-dir", type=click.Path(path_type=Path), default=Path("/var/lib/kubelet"), show_default=True,
    group=_GROUP, help="kubelet's folder, in which the plugin's sockets are.",
)  # fmt: skip
@option(
    "--cdi-dir", type=click.Path(path_type=Path), default=Path("/var/run/cdi"), show_default=True, group=_GROUP,
    help="Where the container engine looks for CDI specifications.",
)  # fmt: skip
@option(
    "--interval", "interval_s", type=Seconds(min=0.1), default=30, show_default=True, group=_GROUP,
    metavar="SECONDS", help="How often to check that the published GPUs are still there.",
)  # fmt: skip
@health_port_option(_GROUP)
def dra_plugin(
    node: str,
    kubeconfig: str | None,
    driver: str,
    kubelet_dir: Path,
    cdi_dir: Path,
    interval_s: float,
    health_port: int | None,
) -> None:
    """Offer this node's GPUs to the cluster, and prepare the claims of pods that get a share of them.

    It needs Kubernetes 1.34 or newer with DRAConsumableCapacity, and root on the node. SIGTERM and Ctrl-C end it;
    containers that run keep their shares, and the next start continues from there.
    """
    with needs_extra("k8s"):
        from vgpurun.kubernetes.dra.cluster import Cluster
        from vgpurun.kubernetes.dra.devices import NodeDriver
        from vgpurun.kubernetes.dra.plugin import Plugin
    from vgpurun.console.signals import Ending
    from vgpurun.kubernetes.library import install_library
    from vgpurun.kubernetes.probes import serving_health

    simulated = None
    if driver == "sim":
        activate_simulation()
        simulated = library.find_simulated_driver(say)
    root = state.root_folder()
    plugin = Plugin(
        node=node,
        cluster=Cluster(kubeconfig),
        node_driver=NodeDriver(driver, simulated),
        library=install_library(root, library.find_or_build(say).path),
        kubelet=kubelet_dir.absolute(),
        cdi=cdi_dir.absolute(),
        root=root,
        say=say,
    )
    with Ending() as ending, serving_health(health_port, plugin.pulse):
        plugin.run(ending, interval_s)
