"""`vgpurun update`: changes the limits of running containers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vgpurun.admission.changes import admission_of_changes
from vgpurun.cli.common import (
    LIMITS,
    NO_FORCE,
    ContainerName,
    EngineCommand,
    host_driver_option,
    limit_options,
    option,
    others_option,
    policy_options,
)
from vgpurun.cli.placing import overcommit_option
from vgpurun.console.messages import warn
from vgpurun.errors import OptionError
from vgpurun.host.program import Doubts
from vgpurun.host.visible import visible_gpus
from vgpurun.inventory.cgroups import cgroups_of
from vgpurun.launch.plan import warnings_of_program
from vgpurun.limits.model import Limits
from vgpurun.limits.policies import Priority, SmPolicy
from vgpurun.limits.quota import Quota, doubt, show_range, show_size

if TYPE_CHECKING:
    from vgpurun.limits.update import Change


@click.command(
    cls=EngineCommand,
    name="update",
    on_broken_config=warn,
    options_metavar="[OPTIONS]",
    elsewhere={
        **NO_FORCE,
        "--gpus": "vgpurun move takes a container to another GPU",
        **dict.fromkeys(("--enforce", "--for", "--idle", "--swap"), "a launch sets it, and it stays"),
    },
)
@limit_options(
    "New memory limit, as for run, but not max; 100% lifts it.", "New compute limit, as for run; 100 lifts it."
)
@option(
    "--oversubscribe",
    metavar="SIZE",
    group=LIMITS,
    help="Memory that its programs see of each GPU from now on, as for run; none: as much as --mem. Data in the host's "
    "memory stays there.",
)
@policy_options("It stays as it is without this.")
@overcommit_option(LIMITS, "Allow it")
@others_option(LIMITS)
@host_driver_option(LIMITS)
@click.argument("containers", metavar="CONTAINER...", nargs=-1, required=True, type=ContainerName(everything=False))
def update(
    containers: tuple[str, ...],
    mem: str | None,
    sm: str | None,
    sm_policy: str | None,
    priority: str | None,
    overcommit: bool | None,
    oversubscribe: str | None,
    others: bool,
    driver: str,
) -> None:
    """Change the limits of running containers. Their programs see them at once.

    A higher limit needs room on the GPU, like a launch. A container that holds more than its new limit keeps it, and
    gets no more until it has freed enough.
    """
    from vgpurun.engine.containers import ContainerEngine, from_description
    from vgpurun.limits import update as limits

    given = Limits.read(mem, sm, sm_policy, priority, oversubscribe)
    if given == Limits():
        raise OptionError("nothing to change; give --mem, --oversubscribe, --sm, --sm-policy or --priority")
    gpus = visible_gpus(driver == "sim")
    engine = ContainerEngine.connect()
    admit = admission_of_changes(gpus, engine, overcommit)
    described = [engine.describe(engine.find_own(name, others).id) for name in containers]
    found = [from_description(each) for each in described]
    for container in found:
        if not container.is_part:
            limits.refuse_in_slice(container.name, container.slice_name)
            limits.refuse_sms(given, [quota for _, quota in container.quotas])
    doubts = {
        container.id: _look_late(container.name, description)
        for container, description in zip(found, described, strict=True)
        if not any(quota.memory_bytes or quota.sm_percent for _, quota in container.quotas)
    }
    for container in found:
        changes = limits.update(container, gpus, given, admit, partial(_cgroups_of, container.id))
        show_changes(container.name, changes)
        without = doubts.get(container.id, Doubts()).without
        for warning in warnings_of_program(Doubts(without), [each.after for each in changes], False, {}):
            warn(f"{container.name}: {warning}")


def _cgroups_of(container: str) -> list[Path]:
    return list(cgroups_of({container}).values())


def _look_late(name: str, description: Mapping[str, Any]) -> Doubts:
    """Look at the C library of a container that started without limits, and at its first program: a start looks only
    where there are some.

    Raises ImageError.
    """
    from vgpurun.engine.client import Image
    from vgpurun.engine.launches import LaunchEngine
    from vgpurun.host.library import find_library
    from vgpurun.launch import first_program
    from vgpurun.launch.image_look import ImageFiles, look
    from vgpurun.options import ContainerOptions, Volume, mount_targets

    image, options = Image(description["Image"], {}), ContainerOptions(description["Config"]["Image"])
    mounted = {each["Destination"]: each["Source"] for each in description["Mounts"]}
    volumes = tuple(Volume(source, target) for target, source in mounted.items())
    environment = dict(entry.split("=", 1) for entry in description["Config"]["Env"] or () if "=" in entry)
    with ImageFiles(LaunchEngine.connect(), image, options) as files:
        look(files, image, options, find_library(False))
        started = replace(options, entrypoint=description["Path"], volumes=volumes)
        doubts = first_program.look(files, image, started, environment)
    for warning in mount_targets.doubts_of_preload(set(mounted)):
        warn(f"{name}: {warning}")
    return doubts


def show_changes(name: str, changes: Sequence["Change"]) -> None:
    """Print what has changed of a container or a slice."""
    for change in changes:
        click.echo(f"{name}, GPU {change.gpu.number}: {show_quota(change.before)} -> {show_quota(change.after)}")
        if change.after.memory_bytes != change.before.memory_bytes and (remark := doubt(change.after.memory_bytes)):
            warn(remark)
        if change.is_over:
            held = show_size(change.held_bytes or 0)
            warn(f"{name} holds {held} of GPU {change.gpu.number}, more than its new limit: it gets no more")
        for left in change.unsettled:
            warn(f"{name}: {left}; the library enforces the new limit; run `sudo vgpurun prune` to update the driver's")


def show_quota(quota: Quota) -> str:
    """Return limits for people."""
    memory = "all memory" if quota.memory_bytes is None else show_range(quota)
    if quota.virtual_bytes is not None:
        memory += f" (seen as {show_size(quota.virtual_bytes)})"
    words = [
        f"{100 if quota.sm_percent is None else quota.sm_percent} %",
        quota.sm_policy.name.lower() if quota.sm_policy != SmPolicy.HARD else "",
        "low priority" if quota.priority == Priority.LOW else "",
    ]
    return f"{memory}, {' '.join(filter(None, words))}"
