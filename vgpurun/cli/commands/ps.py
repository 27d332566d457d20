"""`vgpurun ps`: the containers and local processes of vgpurun, their limits, and what they use of them."""

import click

from vgpurun.cli.common import LIVE, EngineCommand, host_driver_option, option
from vgpurun.console.messages import warn
from vgpurun.errors import EngineError
from vgpurun.host.visible import gpus_if_any

_GROUP = "Display"


@click.command(cls=EngineCommand, name="ps", on_broken_config=warn, elsewhere={"--watch": LIVE})
@option("-a", "--all", "everything", is_flag=True, group=_GROUP, help="Show stopped containers too.")
@option(
    "-f", "--filter", "filters", metavar="KEY=VALUE", multiple=True, group=_GROUP,
    help="Show only containers with this name, id, gpu (index or UUID), user, label (NAME or NAME=VALUE), slice, "
    "status, or exited (an exit code; with -a).",
)  # fmt: skip
@option(
    "--format", "output_format", metavar="FORMAT", default="table", show_default=True, group=_GROUP,
    help="table, json (an object a line), csv (a line for each GPU of a container), or a template: see below.",
)  # fmt: skip
@option("-n", "--last", metavar="NUMBER", type=int, default=-1, group=_GROUP, help="The newest, running or not.")
@option("-l", "--latest", is_flag=True, group=_GROUP, help="The newest one, running or not.")
@option("-s", "--size", is_flag=True, group=_GROUP, help="Show the sizes of containers' files.")
@option("-q", "--quiet", is_flag=True, group=_GROUP, help="Print only the ids of containers.")
@option("--no-trunc", is_flag=True, group=_GROUP, help="Print ids and commands in full.")
@host_driver_option(_GROUP)
def ps(
    everything: bool,
    filters: tuple[str, ...],
    output_format: str,
    last: int,
    latest: bool,
    size: bool,
    quiet: bool,
    no_trunc: bool,
    driver: str,
) -> None:
    """List the containers that vgpurun made, and processes of vgpurun local, with what they use of their limits.

    Compute is that of the last second. Where programs bypass the library, memory is what the driver counts. A local
    process has no id, so -q leaves it out.

    A template is text with fields, as docker ps has it: '{{.Names}}\\t{{.Memory}}'. There are {{.FIELD}},
    {{.Label "KEY"}}, {{json .}}, {{json .FIELD}}, {{upper .FIELD}} and {{lower .FIELD}};
    'table ' in front prints columns.

    The fields are ID, Names, Image, Command, CreatedAt, RunningFor, State, Status, Labels, User, Slice, GPUs, Memory,
    MemoryLimit, SM, SMLimit and Size. For a container with several GPUs, GPUs, Memory, MemoryLimit, SM and SMLimit are
    lists with commas. A container in a slice shows the slice's limits and the memory that it uses itself.
    """
    from vgpurun.cli.views.ps import show
    from vgpurun.engine.client import Engine
    from vgpurun.inventory.listing import FIELDS, identity, parse_filters
    from vgpurun.inventory.reservations import local_processes
    from vgpurun.inventory.usage import read_containers, read_processes

    tests = parse_filters(filters)
    if output_format not in ("table", "json", "csv"):
        from vgpurun.cli.views.templates import Template

        Template(output_format, FIELDS)  # a mistake in it is said before anything else
    processes = [] if quiet else list(local_processes())
    last = 1 if latest and last < 0 else last
    everything = everything or last > 0
    is_of_stopped = any(text.startswith("status=") for text in filters)
    with_sizes = size or ".Size" in output_format
    try:
        containers = Engine.connect().containers(everything or is_of_stopped, with_sizes)
    except EngineError as error:
        if not processes:
            raise
        warn(f"containers are not shown: {error}")
        containers = []
    gpus = gpus_if_any(driver == "sim") if containers or processes else []
    read = [*read_containers(containers, gpus), *read_processes(processes, gpus)]
    tenants = [tenant for tenant in read if all(test(tenant) for test in tests)]
    if last > 0:
        tenants = sorted(tenants, key=lambda tenant: tenant.created_s, reverse=True)[:last]
    if quiet:
        for tenant in tenants:
            click.echo(identity(tenant, not no_trunc))
    else:
        show(tenants, output_format, not no_trunc, with_state=everything, with_sizes=size)
