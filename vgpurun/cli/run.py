"""`vgpurun run`: a container under limits."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from vgpurun.admission.controller import Admission
from vgpurun.admission.joining import Joining
from vgpurun.admission.placement import Placement
from vgpurun.cli.common import (
    EngineCommand,
    find_library,
    limit_options,
    option,
    oversubscribe_option,
    policy_options,
    profile_options,
    say,
    visible_gpus,
    warn,
)
from vgpurun.cli.docker_options import docker_options
from vgpurun.cli.placing import Wanted, WantedSlice, placement_options
from vgpurun.config import values as config
from vgpurun.console.signals import Signals
from vgpurun.engine.address import config_fault
from vgpurun.engine.images import PullOptions, find_image
from vgpurun.errors import EngineError, OptionError
from vgpurun.host import drivers, mps, simulation
from vgpurun.host import gpus as devices
from vgpurun.host.drivers import DriverPlan, EngineFacts
from vgpurun.host.gpus import Gpu
from vgpurun.host.library import Library, find_simulated_driver
from vgpurun.launch.committed import own_variables
from vgpurun.launch.describe import to_yaml
from vgpurun.launch.plan import LaunchPlan, plan_launch
from vgpurun.launch.profiling import Profiling
from vgpurun.options import ContainerOptions
from vgpurun.options.build import container_options
from vgpurun.options.devices import gpus
from vgpurun.storage import state
from vgpurun.util.background import Background
from vgpurun.util.choices import DRIVER_MODES

if TYPE_CHECKING:
    from vgpurun.engine.client import Image
    from vgpurun.engine.image_libc import Libc
    from vgpurun.engine.launches import LaunchEngine

_VGPURUN = "vgpurun"
_Asked: TypeAlias = "tuple[LaunchEngine, Image | None, Background[EngineFacts]]"


@click.command(
    cls=EngineCommand,
    name="run",
    options_metavar="[OPTIONS]",
    context_settings={"allow_interspersed_args": False},
)
@limit_options
@oversubscribe_option
@policy_options()
@placement_options
@profile_options
@docker_options
@option(
    "--driver",
    "driver_mode",
    type=click.Choice(DRIVER_MODES),
    default=lambda: config.default("driver"),
    group=_VGPURUN,
    help="How the driver comes into the container: the engine brings it (cdi, toolkit), vgpurun binds this host's own "
    "files (mount), or the simulated GPU (sim). auto: cdi or toolkit where the engine has it, else mount. By default "
    "VGPURUN_DRIVER, or auto.",
)
@option("--dry-run", is_flag=True, group=_VGPURUN, help="Print what would be done as YAML, and do nothing.")
@click.argument("image")
@click.argument("command", metavar="[COMMAND] [ARG...]", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def run(
    ctx: click.Context, /, image: str, command: tuple[str, ...], driver_mode: str, dry_run: bool, **given: Any
) -> int:
    """Run a container in which each GPU has the given memory and the given share of its time.

    Options after IMAGE belong to the command. Exit codes are Docker's: 125 when vgpurun fails, 126 when the command
    cannot be executed, 127 when it is not found, else the command's own.
    """
    _refuse_late_verb(ctx, image)
    if not image:
        raise OptionError("IMAGE is empty; is the variable that names it set?")
    _read_gpus(given)
    wanted = Wanted.take(given)
    profiling = Profiling.read(given.pop("profile"), given.pop("profile_size"))
    options = container_options(image, command, given)
    if fault := config_fault():
        warn(fault)
    pull = PullOptions.read(given["pull"] or config.default("pull"), given["quiet"], options.platform)
    with Signals() as signals:
        devices.prepare()
        asked = Background(lambda: _ask_engine(image))  # meanwhile the driver is asked for its GPUs
        launch = _Launch(options, wanted, profiling, driver_mode)
        if dry_run:
            click.echo(to_yaml(launch.plan_without_effect(asked)), nl=False)
            return 0
        return launch.run(asked, pull, signals)


def _read_gpus(given: dict[str, Any]) -> None:
    """Leave of --gpus what chooses GPUs; capabilities are the variable that NVIDIA's runtime has for them."""
    if not given["gpus"]:
        return
    try:
        given["gpus"], capabilities = gpus(given["gpus"])
    except ValueError as error:
        raise OptionError(f"--gpus {given['gpus']}: {error}") from None
    if capabilities:
        given["env"] = (f"NVIDIA_DRIVER_CAPABILITIES={capabilities}", *given["env"])


def _refuse_late_verb(ctx: click.Context, image: str) -> None:
    """`vgpurun --mem 2g smi` could mean two things."""
    if image in ctx.meta.get("vgpurun.verbs", ()):
        raise OptionError(
            f"'{image}' comes after options: put the verb first (vgpurun {image} ...), or, for an image of that name, "
            f"say: vgpurun run ... {image}"
        )


def _ask_engine(image: str) -> _Asked:
    """Return the engine, the image if it has it, and what it is about to say of itself, which takes it a while."""
    import vgpurun.engine.without_tls  # noqa: F401  # first; a launch speaks with nobody else
    from vgpurun.engine.launches import LaunchEngine

    engine = LaunchEngine.connect()
    facts = Background(engine.facts)
    return engine, engine.image(image), facts


class _Launch:
    """The steps of one run, in the order in which they can fail with the clearest message."""

    def __init__(
        self,
        options: ContainerOptions,
        wanted: Wanted | WantedSlice,
        profiling: Profiling | None,
        driver_mode: str,
    ) -> None:
        self._options = options
        self._wanted = wanted
        self._profiling = profiling
        self._driver_mode = driver_mode
        self._gpus = visible_gpus(driver_mode == "sim")
        # What can never be is said before an image is pulled; the image's own variables are looked at later.
        wanted.check(options.environment_over({}), self._gpus)

    def run(self, asked: Background[_Asked], pull: PullOptions, signals: Signals) -> int:
        """Carry the launch out and return the exit code."""
        engine, found, facts = asked.result()
        library = find_library(is_dry_run=False)  # while the engine describes itself
        # Only now: docker's package cannot be imported by two threads at the same time.
        from vgpurun.launch.container import check_terminal, launch
        from vgpurun.launch.image_look import look

        image = find_image(engine, self._options.image, found, pull)
        check_terminal(self._options, engine)
        environment = self._options.environment_over(own_variables(image.environment))
        if self._driver_mode != "sim":
            mps.refuse_in_container(self._options, environment)
        libc = None
        if self._wanted.has_limits(environment):
            with signals.held():  # it may make a container to read from
                libc = look(engine, image, self._options, library)
        return launch(
            engine,
            facts,
            self._wanted.admission(environment, self._gpus, engine),
            lambda place: self._plan(place, facts.result(), image.environment, library, libc),
            signals,
            warn,
        )

    def plan_without_effect(self, asked: Background[_Asked]) -> LaunchPlan:
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
        return self._plan(placement, facts, image, library)

    def _admission(self, engine: Any, image_environment: dict[str, str]) -> Admission | Joining:
        environment = self._options.environment_over(own_variables(image_environment))
        return self._wanted.admission(environment, self._gpus, engine)

    def _plan(
        self,
        placement: Placement,
        facts: EngineFacts,
        image_environment: Mapping[str, str],
        library: Library,
        libc: "Libc | None" = None,
    ) -> LaunchPlan:
        return plan_launch(
            self._options,
            placement.limits,
            placement.gpus,
            self._driver(facts, placement.gpus),
            library.path,
            state.new_folder_path(self._options.name),
            image_environment,
            joined=placement.joined,
            profiling=self._profiling,
            libc=libc,
        )

    def _driver(self, facts: EngineFacts, gpus: Sequence[Gpu]) -> DriverPlan:
        if self._driver_mode == "sim":
            return simulation.plan_container(find_simulated_driver(say), gpus)
        return drivers.plan_driver(self._driver_mode, gpus, facts)
