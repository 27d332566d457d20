"""`vgpurun exporter`: what GPUs and containers use, for Prometheus."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vgpurun.cli.common import GroupedCommand, host_driver_option, option
from vgpurun.console.messages import say, warn
from vgpurun.errors import LimitError, OptionError, VgpurunError
from vgpurun.host.visible import activate_simulation, libcuda
from vgpurun.limits.quota import parse_size
from vgpurun.util.extras import needs_extra
from vgpurun.util.times import parse_span

if TYPE_CHECKING:
    from vgpurun.metrics.on_gpu import OnGpu
    from vgpurun.metrics.store import Store

_GROUP, _HISTORY = "Exporter", "History"
_LEAST_KEPT_S, _LEAST_BYTES = 3600, 1 << 20


@click.command(cls=GroupedCommand, name="exporter", on_broken_config=warn)
@option(
    "--listen", metavar="ADDRESS:PORT", default="127.0.0.1:9487", show_default=True, group=_GROUP,
    help="Where to serve /metrics; `:9487` is every address of this host.",
)  # fmt: skip
@option(
    "--compat", "compatible", type=click.Choice(["hami", "alnair"]), multiple=True, group=_GROUP,
    help="Serve metrics also under the names of HAMi's or Alnair's exporters.",
)  # fmt: skip
@option(
    "--history", "path", metavar="FILE", type=click.Path(path_type=Path), group=_HISTORY,
    help="Where to keep samples for `vgpurun history`. By default history.sqlite in the state folder.",
)  # fmt: skip
@option("--no-history", is_flag=True, group=_HISTORY, help="Keep no samples.")
@option(
    "--history-keep", "keep", metavar="TIME", default="400d", show_default=True, group=_HISTORY,
    help="Keep history for this long: 24h, 90d, 52w. Samples stay for 6 hours, sums of 5 minutes for 14 days, and "
    "sums of an hour for all of TIME.",
)  # fmt: skip
@option(
    "--history-size", "size", metavar="SIZE", default="256m", show_default=True, group=_HISTORY,
    help="How large the file may become; then the oldest history is dropped.",
)  # fmt: skip
@option(
    "--history-interval", "interval_s", metavar="SECONDS", type=click.IntRange(1, 60), default=10, show_default=True,
    group=_HISTORY, help="Time between two samples.",
)  # fmt: skip
@host_driver_option(_GROUP)
def exporter(
    listen: str, compatible: tuple[str, ...], path: Path | None, no_history: bool, keep: str, size: str,
    interval_s: int, driver: str,
) -> None:  # fmt: skip
    """Serve what every GPU and every container on it uses, and its limits, as metrics for Prometheus.

    It reads at each scrape, so a container has metrics only while it runs. It needs access to the
    Docker Engine and to the containers' state, as root has. SIGTERM and Ctrl-C end it.
    """
    with needs_extra("metrics"):
        from vgpurun.metrics.collector import make_registry
        from vgpurun.metrics.server import serving
    from vgpurun.console.signals import Ending
    from vgpurun.metrics.recorder import Recorder
    from vgpurun.metrics.snapshot import Reader

    open_store = None if no_history else _history(path, keep, size)
    if no_history and path:
        raise OptionError("--history and --no-history exclude each other")
    if driver == "sim":
        activate_simulation()
    with Ending() as ending, ExitStack() as stack:
        reader = Reader(say)
        stack.callback(reader.close)
        url = stack.enter_context(serving(listen, make_registry(reader, compatible)))
        reader.on_gpu = stack.enter_context(_on_gpu(driver == "sim"))
        say(f"metrics at {url}")
        reader.look()  # obstacles are named now, not at the first scrape
        if open_store:
            Recorder(reader, say, open_store, interval_s).run(ending.wait)
        else:
            while not ending.wait(3600):
                pass


@contextmanager
def _on_gpu(is_simulated: bool) -> Iterator["OnGpu | None"]:
    """Yield what counts the time on GPUs, None where the driver does not tell this user."""
    from vgpurun.host.gpu_records import GpuTimes, lacking, opened
    from vgpurun.metrics.on_gpu import OnGpu

    if lacking(is_simulated):
        yield None
        return
    with ExitStack() as stack:
        try:
            made = OnGpu(GpuTimes(stack.enter_context(opened(libcuda(is_simulated)))), warn)
        except (VgpurunError, OSError) as error:
            warn(f"the time on GPUs is not counted: {error}")
            yield None
            return
        made.start()
        stack.callback(made.close)
        yield made


def _history(path: Path | None, keep: str, size: str) -> Callable[[], "Store"]:
    from vgpurun.metrics.accounting import default_path
    from vgpurun.metrics.store import Store

    keep_s = parse_span(keep)
    if keep_s is None or keep_s < _LEAST_KEPT_S:
        raise OptionError(f"--history-keep '{keep}' is not a time of at least an hour; use e.g. 90d")
    return partial(Store, path or default_path(), int(keep_s), _size_bytes(size))


def _size_bytes(text: str) -> int:
    with suppress(LimitError):
        size = parse_size(text)
        if not size.is_percent and size.bytes_on(0) >= _LEAST_BYTES:
            return size.bytes_on(0)
    raise OptionError(f"--history-size '{text}' is not a size of at least 1m; use e.g. 256m")
