"""Runs a container from what was asked for: the engine, the library and the GPUs, in the order of their errors."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vgpurun.admission.placement import Placement
from vgpurun.admission.wanted import Wanted, WantedPart, WantedSlice
from vgpurun.console.messages import say, warn
from vgpurun.console.signals import Signals
from vgpurun.engine.images import PullOptions, find_image
from vgpurun.errors import EngineError
from vgpurun.host import drivers, mps, simulation
from vgpurun.host.drivers import DriverPlan, EngineFacts
from vgpurun.host.gpu_names import of_same_kind
from vgpurun.host.gpus import Gpu
from vgpurun.host.library import Library, find_library, find_simulated_driver
from vgpurun.host.visible import visible_gpus
from vgpurun.launch.committed import own_variables
from vgpurun.launch.enforcement import check_host, enforcing_device
from vgpurun.launch.plan import HostFacts, ImageFacts, LaunchPlan, plan_launch
from vgpurun.limits import limits_file
from vgpurun.limits.idle import idle_files
from vgpurun.options import ContainerOptions
from vgpurun.storage import state
from vgpurun.util.background import Background
from vgpurun.util.times import parse_lifetime

if TYPE_CHECKING:
    from vgpurun.admission.controller import AdmissionController
    from vgpurun.launch.asking import Asked
    from vgpurun.launch.profiling import Profiling
    from vgpurun.together.joining import Membership


class Launch:
    """The steps of one run, in the order in which they can fail with the clearest message."""

    def __init__(
        self,
        options: ContainerOptions,
        wanted: Wanted | WantedSlice | WantedPart,
        profiling: "Profiling | None",
        driver_mode: str,
        enforce: str = "auto",
        lifetime: str | None = None,
    ) -> None:
        self._options = options
        self._wanted = wanted
        self._profiling = profiling
        self._driver_mode = driver_mode
        self._enforce = enforce
        self._lifetime = lifetime
        self._gpus = visible_gpus(driver_mode == "sim")
        # Impossible requests are refused before an image is pulled; the image's own variables are looked at later.
        wanted.check(options.environment_over({}), self._gpus)
        self._is_together = self._joins(wanted)
        check_host(enforce, self._gpus)

    def _joins(self, wanted: Wanted | WantedSlice | WantedPart) -> bool:
        """Whether it will work at the same time as others. Raises OptionError, and TogetherError."""
        if isinstance(wanted, Wanted):
            is_together = wanted.limits.together
        else:
            is_together = self._membership(wanted.admission({}, self._gpus, None).look(), {}) is not None
        if is_together:
            from vgpurun.launch.together import check_options, check_stays

            check_options(self._options)
            check_stays(isinstance(wanted, Wanted) and wanted.limits.swap, wanted.is_movable)
        return is_together

    def _membership(self, placement: Placement, given: Mapping[str, str]) -> "Membership | None":
        if not (placement.joined or placement.part or placement.limits.together):
            return None
        from vgpurun.launch.together import membership_of  # few launches need it

        driver = "sim" if self._driver_mode == "sim" else "host"
        return membership_of(placement, driver, given, range(len(placement.gpus)))

    def run(self, asked: "Background[Asked]", pull: PullOptions, signals: Signals) -> int:
        """Carry the launch out and return the exit code."""
        engine, found, facts = asked.result()
        library = find_library(is_dry_run=False)  # while the engine describes itself
        from vgpurun.launch import first_program
        from vgpurun.launch.container import check_terminal, launch
        from vgpurun.launch.container_user import container_user
        from vgpurun.launch.image_look import ImageFiles, look

        image = find_image(engine, self._options.image, found, pull)
        check_terminal(self._options, engine)
        environment = self._options.environment_over(own_variables(image.environment))
        if self._driver_mode != "sim":
            mps.refuse_in_container(self._options, environment)
        if self._profiling:
            with signals.held(), ImageFiles(engine, image, self._options) as files:
                self._profiling.check_for(container_user(self._options, image.user, files.read))
        if self._is_together:
            from vgpurun.launch.together import check_container_user

            with signals.held(), ImageFiles(engine, image, self._options) as files:
                check_container_user(container_user(self._options, image.user, files.read), facts.result())
        libc, doubts = None, None
        if self._wanted.has_limits(environment):
            # This may make a container to read from.
            with signals.held(), ImageFiles(engine, image, self._options) as files:
                libc = look(files, image, self._options, library)
                doubts = first_program.look(files, image, self._options, environment)
        return launch(
            engine,
            facts,
            self._wanted.admission(environment, self._gpus, engine),
            lambda place: self._plan(place, facts.result(), ImageFacts(image.environment, libc, doubts), library),
            signals,
            warn,
        )

    def plan_without_effect(self, asked: "Background[Asked]") -> LaunchPlan:
        """Return the plan; without an engine, as for one that injects nothing and an image that sets nothing."""
        library = find_library(is_dry_run=True)
        try:
            engine, found, asked_facts = asked.result()
            facts, image = asked_facts.result(), dict(found.environment) if found else {}
            placement = self._admission(engine, image).look()
        except EngineError as error:
            warn(f"planned without an engine: {error}")
            facts, image = EngineFacts(), {}
            placement = self._admission(None, image).look()
        return self._plan(placement, facts, ImageFacts(image), library, is_dry_run=True)

    def _admission(self, engine: Any, image_environment: dict[str, str]) -> "AdmissionController":
        return self._wanted.admission(self._given(image_environment), self._gpus, engine)

    def _given(self, image_environment: Mapping[str, str]) -> dict[str, str]:
        return self._options.environment_over(own_variables(image_environment))

    def _plan(
        self,
        placement: Placement,
        facts: EngineFacts,
        image: ImageFacts,
        library: Library,
        is_dry_run: bool = False,
    ) -> LaunchPlan:
        joined = placement.joined
        is_movable = limits_file.is_movable(joined.folder / "etc" / "limits") if joined else self._wanted.is_movable
        reached = of_same_kind(placement.gpus, self._gpus) if is_movable else placement.gpus
        driver = self._driver(facts, reached)
        simulated = Path(driver.folder) if driver.mode == "sim" and driver.folder else None
        plan = plan_launch(
            self._options,
            placement,
            driver,
            library.path,
            state.new_folder_path(self._options.name),
            image,
            HostFacts(),
            self._profiling,
            is_movable=is_movable,
            membership=self._membership(placement, self._given(image.environment)),
            limits_device=enforcing_device(self._enforce, placement.gpus, facts, simulated, is_dry_run),
        )
        plan = replace(plan, state_files={**plan.state_files, **idle_files(self._wanted.idle)})
        if (span_s := parse_lifetime(self._lifetime)) is None:
            return plan
        return replace(plan, owner={**plan.owner, **state.end_after(span_s)})

    def _driver(self, facts: EngineFacts, gpus: Sequence[Gpu]) -> DriverPlan:
        if self._driver_mode == "sim":
            return simulation.plan_container(find_simulated_driver(say), gpus)
        return drivers.plan_driver(self._driver_mode, gpus, facts)
