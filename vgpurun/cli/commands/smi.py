"""`vgpurun smi`: who uses what of the GPUs; or the real nvidia-smi, inside a container or under limits."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import click

from vgpurun.admission.placement import Placement
from vgpurun.cli.common import (
    LIMITS,
    LIVE,
    EngineCommand,
    GpuNames,
    format_option,
    host_driver_option,
    limit_options,
    option,
)
from vgpurun.console.messages import say, warn
from vgpurun.errors import EngineError, GpuError
from vgpurun.host import library, simulation
from vgpurun.host.gpu_names import GPUS_HELP, select_gpus
from vgpurun.host.visible import survey_gpus, visible_gpus, warned_of
from vgpurun.launch.local import plan_local
from vgpurun.launch.plan import ProcessPlan
from vgpurun.launch.process import prepare_process, run_process
from vgpurun.limits.model import Limits

_GROUP = "Display"
# The questions of nvidia-smi's own, by which it is known that it is asked and not vgpurun.
_QUESTIONS = frozenset(("-L", "--list-gpus", "-B", "--list-excluded-gpus", "-q", "--query", "-x", "--xml-format", "-d"))
_QUERIES = ("--query-", "--help-query-", "--display=", "-i", "--id")


class _Smi(EngineCommand):
    """Passes on what asks nvidia-smi itself, --format too, which both programs have."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `--` before what is nvidia-smi's, then parse."""
        names = {name for each in self.params if isinstance(each, click.Option) for name in each.opts}
        own, rest = _leading(args, names)
        if rest and (rest[0] in _QUESTIONS or rest[0].startswith(_QUERIES)):
            kept = [word for words in own if not words[0].startswith("--format") for word in words]
            passed = [word for words in own if words[0].startswith("--format") for word in words]
            args = [*kept, "--", *passed, *rest]
        return super().parse_args(ctx, args)


def _leading(args: list[str], names: set[str]) -> tuple[list[list[str]], list[str]]:
    """Return the options of these names in front, each with its value, and all that follows."""
    own, rest = [], list(args)
    while rest and rest[0].partition("=")[0] in names:
        count = 1 if "=" in rest[0] else 2
        own.append(rest[:count])
        rest = rest[count:]
    return own, rest


@click.command(
    cls=_Smi,
    name="smi",
    on_broken_config=warn,
    elsewhere={"--watch": LIVE, "--loop": LIVE, "-l": LIVE, "-n": LIVE},
    options_metavar="[OPTIONS]",
    context_settings={"allow_interspersed_args": False},
)
@limit_options()
@option(
    "--gpus",
    metavar="GPUS",
    type=GpuNames(),
    default="all",
    show_default=True,
    group=LIMITS,
    help=f"Which GPUs: {GPUS_HELP.removeprefix('use ')}.",
)
@format_option(_GROUP, "How to print the GPUs and containers.")
@host_driver_option(_GROUP)
@click.argument("arguments", metavar="[CONTAINER] [ARG...]", nargs=-1, type=click.UNPROCESSED)
def smi(
    arguments: tuple[str, ...], mem: str | None, sm: str | None, gpus: str, output_format: str, driver: str
) -> int | Callable[[], object]:
    """Show every GPU and every vgpurun container on it: memory used and its limit, compute used and its limit.

    \b
    vgpurun smi                       all GPUs and containers
    vgpurun smi CONTAINER [ARG...]    the real nvidia-smi, inside that container
    vgpurun smi --mem 2g [-- ARG...]  nvidia-smi as under such a limit
    vgpurun smi -L                    nvidia-smi of this host; -q, -i, ... too
    """
    if mem is not None or sm is not None:
        found = warned_of(survey_gpus(driver == "sim"))
        placement = Placement(tuple(select_gpus(gpus, found.gpus)), Limits.read(mem, sm))
        plan = of_chosen_gpus(plan_local(("nvidia-smi", *arguments), placement, found, driver, {}))
        return run_process(plan, prepare_process(plan))
    if arguments and arguments[0].startswith("-"):
        return _of_host(arguments, driver == "sim")
    if arguments:
        return _inside(arguments[0], arguments[1:])
    _overview(gpus, output_format, driver == "sim")
    return 0


def of_chosen_gpus(plan: ProcessPlan) -> ProcessPlan:
    """NVML shows a process all GPUs of the host: name those that a container would have, where they are not all."""
    if "CUDA_VISIBLE_DEVICES" not in plan.environment:
        return plan
    uuids = ",".join(each.gpu.uuid for each in plan.quotas)
    return replace(plan, command=(plan.command[0], "-i", uuids, *plan.command[1:]))


def _of_host(arguments: tuple[str, ...], is_simulated: bool) -> Callable[[], object]:
    """Return what becomes this host's nvidia-smi. Raises GpuError."""
    environment = dict(os.environ)
    if is_simulated:
        visible_gpus(is_simulated)
        environment |= simulation.local_environment(library.find_simulated_driver(say), environment)
    program = shutil.which("nvidia-smi", path=environment.get("PATH"))
    if program is None:
        raise GpuError("nvidia-smi is not on the PATH of this host; it comes with NVIDIA's driver")
    sys.stdout.flush()
    return partial(os.execve, program, ["nvidia-smi", *arguments], environment)


def _inside(container: str, arguments: tuple[str, ...]) -> int:
    from vgpurun.console.streams import copy_output
    from vgpurun.engine.containers import ContainerEngine, ExecOptions

    engine = ContainerEngine.connect()
    exec_id = engine.exec_create(engine.find(container).id, ExecOptions(["nvidia-smi", *arguments], {}))
    copy_output(engine.exec_start(exec_id, tty=False), is_terminal=False)
    return engine.exec_state(exec_id)[1]


def _overview(gpu_text: str, output_format: str, is_simulated: bool) -> None:
    from vgpurun.admission.capacity import capacities
    from vgpurun.cli.views.smi import print_table
    from vgpurun.cli.views.smi_json import to_json
    from vgpurun.engine.client import Engine
    from vgpurun.inventory import usage
    from vgpurun.inventory.reservations import all_holders

    chosen = select_gpus(gpu_text, visible_gpus(is_simulated))
    engine = None
    try:
        engine = Engine.connect()
        report = usage.collect(chosen, engine)
    except EngineError as error:
        engine = None
        warn(f"containers are not shown: {error}")
        report = usage.collect(chosen, None)
    shared = capacities(chosen, [use for _, use in report.gpus], all_holders(engine))
    free = {each.gpu.uuid: each for each in shared}
    if output_format == "json":
        described: dict[str, Any] = to_json(report, free)
        sys.stdout.write(json.dumps(described) + "\n")
    else:
        print_table(report, free)
