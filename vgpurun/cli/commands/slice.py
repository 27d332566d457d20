"""`vgpurun slice`: named shares of GPUs that containers and processes join."""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vgpurun.admission.changes import admission_of_changes
from vgpurun.admission.wanted import Wanted
from vgpurun.cli.common import (
    LIMITS,
    GroupedCommand,
    SliceName,
    VerbGroup,
    format_option,
    host_driver_option,
    limit_options,
    option,
    oversubscribe_option,
    policy_options,
)
from vgpurun.cli.placing import engine_if_any, lifetime_option, overcommit_option, own_placement_options
from vgpurun.console.messages import say, warn
from vgpurun.errors import OptionError, VgpurunError
from vgpurun.host.gpu_names import of_same_kind
from vgpurun.host.gpus import Gpu
from vgpurun.host.visible import visible_gpus
from vgpurun.inventory.cgroups import cgroup_around
from vgpurun.limits.model import Limits
from vgpurun.util.times import parse_lifetime

if TYPE_CHECKING:
    from vgpurun.slices.store import Slice

_GROUP = "Slice"
_USERS_HELP = "Other users who may use it: names, @groups, or all; with commas."


@click.group(cls=VerbGroup, name="slice")
def slice_group() -> None:
    """Make and manage slices: named shares of GPUs, each for any number of containers and processes.

    The members of a slice share its memory and its part of the GPU's time. They join it by `vgpurun --slice NAME
    IMAGE`, `vgpurun local --slice NAME -- COMMAND`, or a CDI device (see `vgpurun cdi`). A slice keeps both reserved
    while nothing runs in it, and after a reboot. Only root makes and changes slices.
    """


def _names(function: Any) -> Any:
    return click.argument("names", metavar="NAME...", nargs=-1, required=True, type=SliceName())(function)


@slice_group.command(cls=GroupedCommand, name="create")
@limit_options()
@oversubscribe_option
@policy_options()
@own_placement_options
@option("--users", metavar="NAMES", default="", group=_GROUP, help=_USERS_HELP)
@lifetime_option(
    _GROUP, "Reserve it for a time such as 2h or 7d.", "Afterwards it reserves nothing, and root's launches remove it."
)
@option(
    "--together", is_flag=True, group=_GROUP,
    help="Its programs work at the same time, by MPS; a fault of one ends the others.",
    more="They run in one MPS server, which vgpurun starts and ends, and are all of one user (--users). --sm is the "
    "time of all together; what joins with --sm has that part of the SMs, and no time limit of its own. They share the "
    "memory's bandwidth.",
)  # fmt: skip
@host_driver_option(_GROUP)
@click.argument("name", metavar="NAME")
def create(name: str, users: str, lifetime: str | None, together: bool, driver: str, **given: Any) -> None:
    """Make a slice. It needs room on the GPU as a container does, and counts for the quotas of the user who makes it.

    NAME is up to 63 letters, digits, '_', '.' and '-'.
    """
    from vgpurun.admission.removing import remove
    from vgpurun.cdi.specification import check_name
    from vgpurun.launch.together import for_together
    from vgpurun.limits.device_quotas import quotas_of
    from vgpurun.slices import store
    from vgpurun.slices.files import slice_files

    span_s = parse_lifetime(lifetime)
    store.check_new(check_name(name))
    store.sweep()
    wanted = Wanted.take({**given, "slice_name": None, "idle": None})
    gpus = visible_gpus(driver == "sim")
    wanted.check({}, gpus)
    engine = engine_if_any()
    admission = wanted.admission({}, gpus, engine)
    with ExitStack() as undo:
        with admission.granted() as placement:
            quotas = quotas_of(placement.gpus, placement.limits)
            reached = of_same_kind(placement.gpus, gpus) if wanted.is_movable else placement.gpus
            if together:
                quotas = for_together(quotas, driver, wanted.is_movable, _users(users))
            files = slice_files(quotas, driver, reached, say, wanted.is_movable)
            made = store.make(name, quotas, files, driver, _users(users), span_s=span_s)
            undo.callback(remove, made, engine, force=True)
            admission.confirm(made.id)
        undo.pop_all()
    click.echo(made.name)
    refresh_cdi(driver, gpus)


@slice_group.command(cls=GroupedCommand, name="ls", on_broken_config=warn)
@option("-q", "--quiet", is_flag=True, group="Display", help="Print only the names.")
@format_option("Display", "How to print them; json: a list, as inspect has it.")
@host_driver_option("Display")
def ls(quiet: bool, output_format: str, driver: str) -> None:
    """List slices: their memory used and its limit, compute used in the last second and its limit, and members."""
    from vgpurun.cli.views.slices import print_json, print_table
    from vgpurun.slices import store

    found = store.slices()
    if quiet:
        for each in found:
            click.echo(each.name)
    else:
        (print_table if output_format == "table" else print_json)(found, driver == "sim")


@slice_group.command(cls=GroupedCommand, name="inspect", on_broken_config=warn)
@host_driver_option("Display")
@_names
def inspect(names: tuple[str, ...], driver: str) -> None:
    """Show limits, use, members and the folder of slices, as a JSON list. Sizes are in bytes."""
    from vgpurun.cli.views.slices import print_json
    from vgpurun.slices import store

    print_json([store.find(name) for name in names], driver == "sim")


@slice_group.command(cls=GroupedCommand, name="update", on_broken_config=warn)
@limit_options(
    "New memory limit, as for create, but not max; 100% lifts it.", "New compute limit, as for create; 100 lifts it."
)
@oversubscribe_option
@policy_options("It stays as it is without this.")
@overcommit_option(LIMITS, "Allow it")
@option("--users", metavar="NAMES", group=_GROUP, help=f"{_USERS_HELP} They replace the earlier ones.")
@host_driver_option(_GROUP)
@_names
def update(
    names: tuple[str, ...],
    mem: str | None,
    sm: str | None,
    oversubscribe: str | None,
    sm_policy: str | None,
    priority: str | None,
    overcommit: bool | None,
    users: str | None,
    driver: str,
) -> None:
    """Change the limits of slices. Their programs see that at once, and are never ended for it.

    A higher limit needs room on the GPU. A slice that holds more than its new limit keeps it, and gets no more.
    """
    from vgpurun.cli.commands.update import show_changes
    from vgpurun.launch.together import check_limits, check_users
    from vgpurun.limits import update as limits
    from vgpurun.slices import store
    from vgpurun.slices.quotas import quotas_on

    given = Limits.read(mem, sm, sm_policy, priority, oversubscribe)
    if given == Limits() and users is None:
        raise OptionError("nothing to change; give --mem, --oversubscribe, --sm, --sm-policy, --priority or --users")
    gpus = visible_gpus(driver == "sim")
    admit = admission_of_changes(gpus, engine_if_any(), overcommit)
    for each in [store.find(name) for name in names]:
        with store.alone(each) as found:
            quotas_on(found, gpus)  # a slice of another driver is refused in words of its own
            if found.together:
                check_limits(given)
                check_users(_users(users or ""))
            if given != Limits():
                store.renew(found)
                show_changes(found.name, limits.update(found, gpus, given, admit, partial(_cgroups_of, found)))
            now = quotas_on(store.find(found.name), gpus)
            store.write_owner(found, now, None if users is None else _users(users))
    refresh_cdi(driver, gpus)


def _cgroups_of(found: "Slice") -> list[Path]:
    from vgpurun.slices.members import members

    own = [cgroup_around(each.pid, each.container) for each in members([found])[found.id]]
    return [cgroup for cgroup in dict.fromkeys(own) if cgroup is not None]


@slice_group.command(cls=GroupedCommand, name="rm", on_broken_config=warn)
@option("-f", "--force", is_flag=True, group=_GROUP, help="Remove slices in use too: see above.")
@host_driver_option(_GROUP)
@_names
def rm(names: tuple[str, ...], force: bool, driver: str) -> int:
    """Remove slices.

    One that is in use, by a container that is stopped too, is kept. With --force, what runs in it keeps the memory
    that it has, and gets no more memory and 1 % of the GPU's time, until it ends.
    """
    from vgpurun.admission.removing import remove
    from vgpurun.slices import store

    engine = engine_if_any()
    exit_code = 0
    drivers = set()
    for name in names:
        try:
            found = store.find(name)
            drivers.add(found.driver)
            for user in remove(found, engine, force):
                warn(f"{user} was in slice {name}, and is granted nothing more")
            click.echo(name)
        except VgpurunError as error:
            say(str(error))
            exit_code = error.exit_code
    if driver in drivers:
        refresh_cdi(driver, None)
    return exit_code


def _users(text: str) -> list[str]:
    return [name for name in (each.strip() for each in text.split(",")) if name]


def refresh_cdi(driver: str, gpus: Sequence[Gpu] | None) -> None:
    """Keep the CDI specification up to date, where there is one. The slice is as it is, whatever becomes of this."""
    from vgpurun.cdi.of_slices import refresh
    from vgpurun.cli.commands.cdi import cdi_host

    try:
        refresh(driver, lambda: cdi_host(driver, visible_gpus(driver == "sim") if gpus is None else gpus))
    except VgpurunError as error:
        warn(f"the CDI specification is not up to date: {error}; then: vgpurun cdi generate")
