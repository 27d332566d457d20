"""`vgpurun smi`: who uses what of the GPUs; or the real nvidia-smi, inside a container or under limits."""

import json
import sys
from typing import Any

import click

from vgpurun.admission.placement import Placement
from vgpurun.cli.common import LIMITS, LIVE, EngineCommand, GpuNames, host_driver_option, limit_options, option
from vgpurun.console.messages import warn
from vgpurun.errors import EngineError, OptionError
from vgpurun.host.gpu_names import GPUS_HELP, select_gpus
from vgpurun.host.visible import survey_gpus, visible_gpus, warned_of
from vgpurun.launch.local import plan_local
from vgpurun.launch.plan import ProcessPlan
from vgpurun.launch.process import prepare_process, run_process
from vgpurun.limits.model import Limits

_GROUP = "Display"


@click.command(
    cls=EngineCommand,
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
@option(
    "--format",
    "output_format",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    group=_GROUP,
    help="How to print the GPUs and containers.",
)
@host_driver_option(_GROUP)
@click.argument("arguments", metavar="[CONTAINER] [ARG...]", nargs=-1, type=click.UNPROCESSED)
def smi(arguments: tuple[str, ...], mem: str | None, sm: str | None, gpus: str, output_format: str, driver: str) -> int:
    """Show every GPU and every vgpurun container on it: memory used and its limit, compute used and its limit.

    \b
    vgpurun smi                       all GPUs and containers
    vgpurun smi CONTAINER [ARG...]    the real nvidia-smi, inside that container
    vgpurun smi --mem 2g [-- ARG...]  nvidia-smi as under such a limit
    """
    if mem is not None or sm is not None:
        found = warned_of(survey_gpus(driver == "sim"))
        placement = Placement(tuple(select_gpus(gpus, found.gpus)), Limits(mem, sm))
        plan = of_chosen_gpus(plan_local(("nvidia-smi", *arguments), placement, found, driver, {}))
        return run_process(plan, prepare_process(plan))
    if arguments:
        return _inside(arguments[0], arguments[1:])
    _overview(gpus, output_format, driver == "sim")
    return 0


def of_chosen_gpus(plan: ProcessPlan) -> ProcessPlan:
    """NVML shows a process all GPUs of the host: name those that a container would have, where they are not all."""
    if "CUDA_VISIBLE_DEVICES" not in plan.environment:
        return plan
    uuids = ",".join(each.gpu.uuid for each in plan.quotas)
    return plan._replace(command=(plan.command[0], "-i", uuids, *plan.command[1:]))


def _inside(container: str, arguments: tuple[str, ...]) -> int:
    from vgpurun.console.streams import copy_output
    from vgpurun.engine.containers import ContainerEngine, ExecOptions

    if container.startswith("-"):
        raise OptionError(f"'{container}' is not a container; for nvidia-smi's own options: vgpurun smi CONTAINER ...")
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
