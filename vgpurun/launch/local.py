"""Runs a process of this host under limits: with its driver, and out of reach of an MPS daemon."""

import os
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vgpurun.admission.placement import Placement
from vgpurun.admission.wanted import Wanted, WantedPart, WantedSlice
from vgpurun.console.messages import say, warn
from vgpurun.host import library, mps, simulation
from vgpurun.host.gpus import Survey
from vgpurun.host.program import Doubts, doubts_of
from vgpurun.host.visible import survey_gpus, warned_of
from vgpurun.launch.local_cgroup import lacking_for_process
from vgpurun.launch.plan import ProcessPlan, plan_process, warnings_of_program
from vgpurun.launch.process import prepare_process, run_process
from vgpurun.launch.profiling import Profiling
from vgpurun.limits.idle import idle_files
from vgpurun.storage import state
from vgpurun.storage.shared_file import read_regular

if TYPE_CHECKING:
    from vgpurun.admission.controller import AdmissionController
    from vgpurun.engine.client import Engine

_MOST_BYTES = 64 << 20  # of a program; larger ones are not read


class LocalLaunch:
    """The steps of one `vgpurun local`, in the order in which they can fail with the clearest message.

    `engine` of its methods is the one whose containers hold parts of the GPUs too, if there is one.
    """

    def __init__(
        self,
        command: tuple[str, ...],
        given: Mapping[str, str],
        wanted: Wanted | WantedSlice | WantedPart,
        profiling: Profiling | None,
        driver: str,
        enforce: str,
    ) -> None:
        """Raises VgpurunError for what this host can never grant. `given` are variables for the command."""
        self._command = command
        self._given = given
        self._environment = {**os.environ, **given}
        if isinstance(wanted, Wanted) and wanted.gpus is None and self._environment.get("CUDA_VISIBLE_DEVICES"):
            wanted = replace(wanted, gpus="all")  # the user's own choice, in CUDA's numbers, which may not be NVML's
        if isinstance(wanted, Wanted) and wanted.limits.together:
            from vgpurun.launch.together import check_stays

            check_stays(wanted.limits.swap, wanted.is_movable)
        self._wanted = wanted
        self._profiling = profiling
        self._driver = driver
        self._enforce = enforce
        self._host = warned_of(survey_gpus(driver == "sim"))
        wanted.check(self._environment, self._host.gpus)

    def plan_without_effect(self, engine: "Engine | None") -> ProcessPlan:
        """Return the plan. Raises VgpurunError."""
        return self._plan(self._admission(engine).look(), is_dry_run=True)

    def run(self, engine: "Engine | None") -> int:
        """Carry the launch out and return the command's exit code. Raises VgpurunError."""
        library.find_library(is_dry_run=False)  # is built before others have to wait for this launch
        admission = self._admission(engine)
        with ExitStack() as undo:
            with admission.granted() as placement:
                plan = self._plan(placement)
                folder = prepare_process(plan)
                undo.callback(folder.remove)
                admission.confirm(str(os.getpid()))
            undo.pop_all()
        return run_process(plan, folder)

    def _admission(self, engine: "Engine | None") -> "AdmissionController":
        return self._wanted.admission(self._environment, self._host.gpus, engine)

    def _plan(self, placement: Placement, is_dry_run: bool = False) -> ProcessPlan:
        plan = plan_local(
            self._command, placement, self._host, self._driver, self._given, is_dry_run, self._profiling, self._enforce
        )
        return replace(plan, state_files={**plan.state_files, **idle_files(self._wanted.idle)})


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
    membership = None
    if placement.joined or placement.part or placement.limits.together:
        from vgpurun.launch.together import membership_of  # few launches need it

        membership = membership_of(placement, driver, host_environment, [gpu.index for gpu in placement.gpus])
    if driver != "sim" and membership is None and (away := mps.keep_process_out(host_environment)):
        warn("an MPS daemon runs on this host; the program is kept out of it, for no limit would hold there")
        driver_environment |= away
    if driver == "sim":
        driver_environment |= simulation.local_environment(library.find_simulated_driver(say), host_environment)
    found = library.find_library(is_dry_run)
    library.check_host(found)
    preloaded = library.preloaded(host_environment) if placement.part else None
    plan = plan_process(
        command,
        placement,
        len(placement.gpus) < len(host.gpus) or bool(host.lost and not host_environment.get("CUDA_VISIBLE_DEVICES")),
        driver,
        driver_environment,
        preloaded or found.path,
        state.new_folder_path("local"),
        host_environment,
        profiling,
        membership,
    )
    plan = replace(plan, is_driver_held=not lacking_for_process(enforce, plan.quotas))
    _warn_of_program(plan, host_environment)
    return plan


def _warn_of_program(plan: ProcessPlan, environment: Mapping[str, str]) -> None:
    path = shutil.which(plan.command[0], path=environment.get("PATH"))
    doubts = doubts_of(path, _content) if path else Doubts()
    for warning in warnings_of_program(doubts, [each.quota for each in plan.quotas], plan.is_driver_held, environment):
        warn(warning)


def _content(path: str) -> bytes | None:
    try:
        return read_regular(Path(path).resolve(), _MOST_BYTES)
    except OSError:
        return None
