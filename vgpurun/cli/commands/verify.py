"""`vgpurun verify`: tries to pass limits on this host, and says what holds."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click

from vgpurun.cli.common import LIMITS, EngineCommand, Seconds, format_option, limit_options, option
from vgpurun.config import values as config
from vgpurun.console.messages import say
from vgpurun.diagnostics.verify import FAILED, OK, SKIPPED, WARNING, Check, Trial, check_compute, check_memory
from vgpurun.errors import OptionError, VgpurunError
from vgpurun.host import gpu_records, library, memory_limits
from vgpurun.host.gpu_names import select_gpus
from vgpurun.host.gpu_records import GpuTimes
from vgpurun.host.gpus import Gpu
from vgpurun.host.visible import libcuda, visible_gpus
from vgpurun.inventory.reservations import Holder, local_processes, of_container
from vgpurun.limits import quota
from vgpurun.limits.model import DeviceQuota, Limits
from vgpurun.limits.quota import Quota, shortest_size, show_size
from vgpurun.util.choices import DRIVER_MODES

_GROUP = "Trial"
_IN_CONTAINER = "/vgpurun-verify"
_DEFAULT_MEMORY, _DEFAULT_SM = "2g", "50"
_BESIDE = ("--mem=1g", "--overcommit")  # little, so that there is room beside it
_SMALL_GPU_BYTES = 4 << 30  # below, 2 GiB would hardly be a limit
_NAME_WIDTH = 31


@click.command(cls=EngineCommand, name="verify", options_metavar="[OPTIONS]")
@limit_options(
    "Memory limit to try; 2g where neither limit is given.", "Compute limit to try; 50 where neither limit is given."
)
@option(
    "--gpus", metavar="GPUS", default="device=0", show_default=True, group=LIMITS,
    help="Which GPUs, one after the other: all, a count, or device=0,1.",
)  # fmt: skip
@option(
    "--seconds", metavar="SECONDS", type=Seconds(0.5, 600), default=2.0, show_default=True, group=_GROUP,
    help="How long each kind of work is measured, with and without the limit.",
)  # fmt: skip
@option(
    "--hostile", is_flag=True, group=_GROUP,
    help="Try to bypass the limits on purpose instead, each way in a container of IMAGE, and show what stopped it: "
    "the library, the driver's own limit, the guard, the container, or nothing.",
)  # fmt: skip
@option(
    "--driver", "driver_mode", type=click.Choice(DRIVER_MODES), default=lambda: config.default("driver"), group=_GROUP,
    help="How the driver comes into the container, as for run. By default VGPURUN_DRIVER, or auto.",
)  # fmt: skip
@format_option(_GROUP, "How to print what was found.")
@click.argument("image", required=False)
def verify(
    image: str | None,
    mem: str | None,
    sm: str | None,
    gpus: str,
    seconds: float,
    hostile: bool,
    driver_mode: str,
    output_format: str,
) -> int:
    """Try to exceed limits on this host in every way that a program has, and show what holds.

    With IMAGE the trial runs in a container of it, which needs glibc and nothing else; without, in a process of the
    host. It judges memory by NVML on the host, and a share of compute against the same work without a limit. Root also
    sees whether the library counts the GPU time that the GPU itself has recorded, alone and beside another program. The
    exit code is 1 when a limit does not hold or the two differ, and when nothing could be tried.
    """
    if hostile and image is None:
        raise OptionError("--hostile needs an IMAGE: nothing holds a hostile process of the host")
    chosen = select_gpus(gpus, visible_gpus(driver_mode == "sim"))
    if image is not None:
        _have(image)
    program = library.find_verifier(say)
    found = []
    for gpu in chosen:
        limits = _limits(gpu, mem, sm)
        if output_format == "table":
            click.echo(_title(gpu, limits, image))
        walls = _walls(gpu, limits, image, driver_mode)
        if output_format == "table" and "driver" in walls:
            click.echo("  memory is held by the library, and by the driver itself")
        if hostile and image is not None:
            tried = _escapes(gpu, limits, image, driver_mode, program)
        else:
            trial = _trial(gpu, limits, image, driver_mode, program)
            tried = _checks(trial, gpu, limits, seconds, driver_mode == "sim")
        checks = [_shown(check, output_format) for check in tried]
        found.append(_described(gpu, limits, image, walls, checks))
        if output_format == "table":
            click.echo(_sum_of(checks))
    if output_format == "json":
        click.echo(json.dumps(found))
    return 0 if all(each["passed"] for each in found) else 1


def _have(image: str) -> None:
    """Pull the image if the engine does not have it: else each trial would do so, and nothing be tried."""
    from vgpurun.engine.containers import ContainerEngine
    from vgpurun.engine.images import PullOptions, find_image

    engine = ContainerEngine.connect()
    find_image(engine, image, engine.image(image), PullOptions())


def _limits(gpu: Gpu, mem: str | None, sm: str | None) -> Quota:
    if mem is None and sm is None:
        mem, sm = _DEFAULT_MEMORY if gpu.memory_bytes >= _SMALL_GPU_BYTES else "50%", _DEFAULT_SM
    given = Limits.read(mem, sm)
    (limits,) = quota.resolve([gpu], given.memory, given.sm, {}, [0])
    if limits == Quota():
        raise OptionError("there is no limit to try; give --mem, --sm or both")
    return limits


def _trial(gpu: Gpu, limits: Quota, image: str | None, driver_mode: str, program: Path) -> Trial:
    """How a user would start the program under these limits."""
    words = [f"--gpus=device={gpu.uuid}"]
    # To try a share takes hardly any memory, so it needs no room for all that a program without a limit could take.
    limited = ["--overcommit"] if limits.memory_bytes is None else [f"--mem={shortest_size(limits.memory_bytes)}"]
    limited += [] if limits.sm_percent is None else [f"--sm={limits.sm_percent}"]
    limited.append("--sm-policy=hard")  # whatever the configuration says of options that are not given
    free = ["--mem=100%", "--sm=100", "--overcommit"]  # all of the GPU, also where others run
    on_host, end = ["local", *words, f"--driver={'sim' if driver_mode == 'sim' else 'host'}"], ["--", str(program)]
    beside = [*on_host, *_BESIDE, *end]
    if image is None:
        return Trial([*on_host, *free, *end], [*on_host, *limited, *end], False, lambda pid: pid, _local_holder, beside)
    name = f"vgpurun-verify-{os.urandom(4).hex()}"
    words += [f"--driver={driver_mode}", "--rm", "--interactive", f"--name={name}", "--network=none"]
    words += [f"--volume={program}:{_IN_CONTAINER}:ro", f"--entrypoint={_IN_CONTAINER}"]

    def first_pid(_: int) -> int | None:
        from vgpurun.engine.containers import ContainerEngine

        return int(ContainerEngine.connect().describe(name)["State"]["Pid"]) or None

    def holder(_: int) -> Holder | None:
        from vgpurun.engine.containers import ContainerEngine

        return next((of_container(each) for each in ContainerEngine.connect().containers() if each.name == name), None)

    return Trial(["run", *words, *free, image], ["run", *words, *limited, image], True, first_pid, holder, beside)


def _local_holder(pid: int) -> Holder | None:
    return next((each for each in local_processes() if each.id == str(pid)), None)


@contextmanager
def _gpu_times(is_simulated: bool) -> Iterator[GpuTimes | str]:
    """Yield how long processes have the GPUs, as these record it, or why that cannot be had."""
    if why := gpu_records.lacking(is_simulated):
        yield why
        return
    with ExitStack() as stack:
        times: GpuTimes | str
        try:
            times = GpuTimes(stack.enter_context(gpu_records.opened(libcuda(is_simulated))))
        except (VgpurunError, OSError) as error:
            times = str(error)
        yield times


def _checks(trial: Trial, gpu: Gpu, limits: Quota, seconds: float, is_simulated: bool) -> Iterator[Check]:
    if limits.memory_bytes is not None:
        yield from check_memory(trial, gpu, limits.memory_bytes)
    if limits.sm_percent is None:
        return
    with _gpu_times(is_simulated) as times:
        if not isinstance(times, str) and gpu.uuid not in times.uuids:
            times = "MIG instances have none"
        if isinstance(times, str):
            yield Check("GPU time: by its own records", SKIPPED, f"not compared: {times}", {})
        known = None if isinstance(times, str) else times
        yield from check_compute(trial, gpu, limits.sm_percent, seconds, known)


def _escapes(gpu: Gpu, limits: Quota, image: str, driver_mode: str, program: Path) -> Iterator[Check]:
    from vgpurun.diagnostics.escapes import try_escapes, try_time

    words = ["run", f"--gpus=device={gpu.uuid}", f"--driver={driver_mode}", "--interactive", "--rm", "--network=none"]
    words += [f"--volume={program}:{_IN_CONTAINER}:ro", f"--entrypoint={_IN_CONTAINER}"]
    if limits.memory_bytes is not None:
        limit = f"--mem={shortest_size(limits.memory_bytes)}"
        yield from try_escapes([*words, limit], image, gpu, limits.memory_bytes)
    if limits.sm_percent is not None:
        words += ["--overcommit", "--mem=100%", "--sm-policy=hard"]
        yield from try_time([*words, "--sm=100"], [*words, f"--sm={limits.sm_percent}"], image, limits.sm_percent)


def _walls(gpu: Gpu, limits: Quota, image: str | None, driver_mode: str) -> Sequence[str]:
    """Return what holds the memory limit of the trial: the library, and where it has such limits the driver itself."""
    from vgpurun.engine.containers import ContainerEngine
    from vgpurun.launch.enforcement import enforcing_device
    from vgpurun.launch.local_cgroup import lacking_for_process

    mode = config.default("enforce")
    if limits.memory_bytes is None or mode == "library" or memory_limits.lacking([gpu]):
        return ["library"]
    if image is None:
        is_held = not lacking_for_process(mode, [DeviceQuota(gpu, limits)])
    else:
        simulated = library.find_simulated_driver(say) if driver_mode == "sim" else None
        facts = ContainerEngine.connect().facts()
        is_held = enforcing_device(mode, [gpu], facts, simulated, is_dry_run=True) is not None
    return ["library", "driver"] if is_held else ["library"]


def _title(gpu: Gpu, limits: Quota, image: str | None) -> str:
    words = [] if limits.memory_bytes is None else [show_size(limits.memory_bytes)]
    words += [] if limits.sm_percent is None else [f"{limits.sm_percent} % of its time"]
    where = f"in a container of {image}" if image else "in a process of this host"
    return f"GPU {gpu.number}, {gpu.name}: {' and '.join(words)}, {where}"


def _shown(check: Check, output_format: str) -> Check:
    """Print a line at once: the whole takes a while."""
    if output_format == "table":
        colour = {OK: "green", FAILED: "red", WARNING: "yellow"}.get(check.status)
        status = click.style(f"{check.status:<4}", fg=colour, bold=check.status == FAILED)
        click.echo(f"  {status}  {check.name:<{_NAME_WIDTH}}  {check.words}")
    return check


def _sum_of(checks: list[Check]) -> str:
    failed = sum(check.status == FAILED for check in checks)
    warned = sum(check.status == WARNING for check in checks)
    held = sum(check.status == OK for check in checks)
    words = [f"{held} hold", f"{failed} do not" if failed else "", f"{warned} with a reservation" if warned else ""]
    return ", ".join(word for word in words if word)


def _described(gpu: Gpu, limits: Quota, image: str | None, walls: Sequence[str], checks: list[Check]) -> dict[str, Any]:
    found = {check.status for check in checks}
    return {
        "gpu_index": gpu.index,
        "uuid": gpu.uuid,
        "name": gpu.name,
        "image": image,
        "memory_limit_bytes": limits.memory_bytes,
        "memory_held_by": list(walls),
        "sm_limit_percent": limits.sm_percent,
        "passed": FAILED not in found and found != {SKIPPED},
        "checks": [{"name": check.name, "status": check.status.lower(), "what": check.words, **check.figures}
                   for check in checks],
    }  # fmt: skip
