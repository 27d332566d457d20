"""`vgpurun device-plugin`: shares of this node's GPUs as resources of Kubernetes."""

from collections.abc import Sequence
from pathlib import Path

import click

from vgpurun.cli.common import GroupedCommand, health_port_option, option
from vgpurun.config import values as config
from vgpurun.console.messages import say
from vgpurun.host import library, simulation
from vgpurun.host.drivers import DriverPlan
from vgpurun.host.gpus import Gpu
from vgpurun.host.visible import visible_gpus
from vgpurun.kubernetes.device_plugin.offered_resources import read_offered_resources
from vgpurun.kubernetes.device_plugin.units import Resource, resources_of
from vgpurun.storage import state
from vgpurun.util.extras import needs_extra

_GROUP = "Device plugin"
_MODES = ("auto", "cdi", "toolkit", "mount", "sim")


@click.command(cls=GroupedCommand, name="device-plugin", options_metavar="[OPTIONS]")
@option(
    "--config",
    "offer_file",
    type=click.Path(path_type=Path),
    group=_GROUP,
    help="The YAML file with the resources' names and with slices. By default alnair/vgpu-memory in GiB and "
    "alnair/vgpu-compute in percent.",
)
@option(
    "--kubelet-dir",
    type=click.Path(path_type=Path),
    default="/var/lib/kubelet/device-plugins",
    show_default=True,
    group=_GROUP,
    help="The folder with kubelet's socket and its record.",
)
@option(
    "--driver",
    type=click.Choice(_MODES),
    default=lambda: "sim" if config.default("driver") == "sim" else "auto",
    group=_GROUP,
    help="How containers get the driver's files. By default cdi if this host has NVIDIA's CDI specification, else "
    "toolkit (NVIDIA's runtime), or sim if VGPURUN_DRIVER is sim.",
)
@option(
    "--allow-disable-control",
    is_flag=True,
    group=_GROUP,
    help="Let programs that have CUDA_DISABLE_CONTROL=true in their environment run without limits, as in HAMi.",
)
@health_port_option(_GROUP)
@option("--dry-run", is_flag=True, group=_GROUP, help="Print the resources as YAML, and do nothing.")
def device_plugin(
    offer_file: Path | None,
    kubelet_dir: Path,
    driver: str,
    allow_disable_control: bool,
    health_port: int | None,
    dry_run: bool,
) -> int:
    """Offer memory, compute and slices of this node's GPUs to pods, until it is stopped by a signal."""
    offered = read_offered_resources(offer_file)
    found = visible_gpus(driver == "sim")
    resources = resources_of(offered, found)
    if dry_run:
        _show(resources)
        return 0
    with needs_extra("k8s"):
        from vgpurun.kubernetes.device_plugin.allocate_response import driver_of
        from vgpurun.kubernetes.device_plugin.plugin import Plugin
    from vgpurun.console.signals import Ending
    from vgpurun.kubernetes.probes import serving_health

    def plan_driver(chosen: Sequence[Gpu]) -> DriverPlan:
        if driver == "sim":
            return simulation.plan_container(library.find_simulated_driver(say), chosen)
        return driver_of(driver, chosen)

    root = state.root_folder()
    plugin = Plugin(found, resources, plan_driver, allow_disable_control, kubelet_dir, root, say)
    with Ending() as ending, serving_health(health_port, plugin.pulse):
        plugin.run(ending)
    return 0


def _show(resources: Sequence[Resource]) -> None:
    import yaml  # slow to import

    shown = [
        {"resource": each.name, "units": sum(each.counts.values()), "of_gpus": dict(each.counts)} for each in resources
    ]
    click.echo(yaml.safe_dump(shown, sort_keys=False), nl=False)
