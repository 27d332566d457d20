"""`vgpurun exporter`: what GPUs and containers use, for Prometheus."""

import click

from vgpurun.cli.common import GroupedCommand, activate_simulation, host_driver_option, option, say
from vgpurun.extras import needs_extra

_GROUP = "Exporter"


@click.command(cls=GroupedCommand, name="exporter")
@option(
    "--listen", metavar="ADDRESS:PORT", default="127.0.0.1:9487", show_default=True, group=_GROUP,
    help="Where to serve /metrics; `:9487` is every address of this host.",
)  # fmt: skip
@option(
    "--compat", "compatible", type=click.Choice(["hami", "alnair"]), multiple=True, group=_GROUP,
    help="Also under the names that HAMi's or Alnair's exporters have for it.",
)  # fmt: skip
@host_driver_option(_GROUP)
def exporter(listen: str, compatible: tuple[str, ...], driver: str) -> None:
    """Serve what every GPU and every container on it uses, and its limits, as metrics for Prometheus.

    It reads when it is asked, so a container's metrics are there while it runs and no longer. It needs the right to ask
    the Docker Engine and to read the containers' state, as root has. SIGTERM and Ctrl-C end it.
    """
    with needs_extra("metrics"):
        from vgpurun.metrics.collector import make_registry
        from vgpurun.metrics.server import serving, until_told_to_end
    from vgpurun.metrics.snapshot import Reader

    if driver == "sim":
        activate_simulation()
    reader = Reader(say)
    with until_told_to_end() as told, serving(listen, make_registry(reader, compatible)) as url:
        say(f"metrics at {url}")
        reader.look()  # what is in the way is said now, not at the first scrape
        told.wait()
    reader.close()
