"""Plans a process of this host: with its driver, and out of reach of an MPS daemon."""

import os
from collections.abc import Mapping

from vgpurun.admission.placement import Placement
from vgpurun.console.messages import say, warn
from vgpurun.host import library, mps, simulation
from vgpurun.host.gpus import Survey
from vgpurun.launch.local_cgroup import lacking_for_process
from vgpurun.launch.plan import ProcessPlan, plan_process
from vgpurun.launch.profiling import Profiling
from vgpurun.storage import state


def plan_local(
    command: tuple[str, ...],
    placement: Placement,
    host: Survey,
    driver: str,
    given: Mapping[str, str],
    is_dry_run: bool = False,
    profiling: Profiling | None = None,
    enforce: str = "library",
) -> ProcessPlan:
    """Return the plan of a local process, with the library built if need be. Raises VgpurunError."""
    host_environment = {**os.environ, **given}
    driver_environment = dict(given)
    if driver != "sim" and (away := mps.keep_process_out(host_environment)):
        warn("an MPS daemon runs on this host; the program is kept out of it, for no limit would hold there")
        driver_environment |= away
    if driver == "sim":
        driver_environment |= simulation.local_environment(library.find_simulated_driver(say), host_environment)
    found = library.find_library(is_dry_run)
    library.check_host(found)
    preloaded = library.preloaded(host_environment) if placement.part else None
    plan = plan_process(
        command,
        placement.limits,
        placement.gpus,
        len(placement.gpus) < len(host.gpus) or bool(host.lost and not host_environment.get("CUDA_VISIBLE_DEVICES")),
        driver,
        driver_environment,
        preloaded or found.path,
        state.new_folder_path("local"),
        host_environment,
        placement.joined,
        placement.part,
        profiling,
    )
    return plan._replace(is_driver_held=not lacking_for_process(enforce, plan.quotas))
