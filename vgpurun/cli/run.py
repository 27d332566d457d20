"""`vgpurun run`: a container under limits."""

from collections.abc import Sequence
from typing import Any

import click

from vgpurun import drivers, library, simulation, state
from vgpurun.admission import Admission
from vgpurun.cli.common import (
    EngineCommand,
    default_driver,
    find_library,
    limit_options,
    option,
    say,
    visible_gpus,
    warn,
)
from vgpurun.cli.placing import Wanted, placement_options
from vgpurun.describe import to_yaml
from vgpurun.drivers import DriverPlan, EngineFacts
from vgpurun.errors import EngineError, ImageError, OptionError
from vgpurun.gpus import Gpu
from vgpurun.options import (
    ContainerOptions,
    check_name,
    parse_bytes,
    parse_environment,
    parse_labels,
    parse_mount,
    parse_volume,
)
from vgpurun.placement import Placement
from vgpurun.plan import LaunchPlan, plan_launch
from vgpurun.signals import Signals

_LIFE = "Container"
_FILES = "Files and environment"
_NETWORK = "Network and sharing"
_VGPURUN = "vgpurun"


@click.command(
    cls=EngineCommand,
    name="run",
    options_metavar="[OPTIONS]",
    context_settings={"allow_interspersed_args": False},
)
@limit_options
@placement_options
@option("-d", "--detach", is_flag=True, group=_LIFE, help="Run in the background and print the container's id.")
@option("-i", "--interactive", is_flag=True, group=_LIFE, help="Pass standard input on to the command.")
@option("-t", "--tty", is_flag=True, group=_LIFE, help="Give the command a terminal.")
@option("--rm", "remove", is_flag=True, group=_LIFE, help="Remove the container when it ends.")
@option("--name", metavar="NAME", group=_LIFE, help="The container's name.")
@option("-l", "--label", "labels", metavar="NAME=VALUE", multiple=True, group=_LIFE, help="Set a label.")
@option("-u", "--user", metavar="USER[:GROUP]", group=_LIFE, help="User, by name or number, for the command.")
@option("-w", "--workdir", "working_dir", metavar="FOLDER", group=_LIFE, help="Working directory of the command.")
@option("--entrypoint", metavar="PROGRAM", group=_LIFE, help="Replace the image's entrypoint.")
@option(
    "--pull",
    type=click.Choice(["missing", "always", "never"]),
    default="missing",
    show_default=True,
    group=_LIFE,
    help="When to pull the image.",
)
@option(
    "-e", "--env", "environment", metavar="NAME[=VALUE]", multiple=True, group=_FILES,
    help="Set a variable; NAME alone passes this shell's value on.",
)  # fmt: skip
@option("--env-file", "env_files", metavar="FILE", multiple=True, group=_FILES, help="Read variables from a file.")
@option(
    "-v", "--volume", "volumes", metavar="SOURCE:TARGET[:MODE]", multiple=True, group=_FILES,
    help="Mount a folder or volume; mode e.g. ro.",
)  # fmt: skip
@option(
    "--mount", "mounts", metavar="KEY=VALUE,...", multiple=True, group=_FILES,
    help="Mount with all settings: type=bind,source=...,target=...,readonly.",
)  # fmt: skip
@option("--network", "--net", "network", metavar="NETWORK", group=_NETWORK, help="Network: none, host, or by name.")
@option(
    "-p", "--publish", "ports", metavar="[ADDRESS:][PORT:]PORT", multiple=True, group=_NETWORK,
    help="Publish a port of the container on the host.",
)  # fmt: skip
@option("--ipc", metavar="MODE", group=_NETWORK, help="IPC namespace: private, shareable, host, container:NAME.")
@option("--shm-size", metavar="SIZE", group=_NETWORK, help="Size of /dev/shm, such as 8g.")
@option(
    "--driver",
    "driver_mode",
    type=click.Choice(drivers.MODES),
    default=default_driver,
    group=_VGPURUN,
    help="How the driver comes into the container: the engine brings it (cdi, toolkit), vgpurun binds this host's own "
    "files (mount), or the simulated GPU (sim). auto: cdi or toolkit where the engine has it, else mount. By default "
    "VGPURUN_DRIVER, or auto.",
)
@option("--dry-run", is_flag=True, group=_VGPURUN, help="Print what would be done as YAML, and do nothing.")
@click.argument("image")
@click.argument("command", metavar="[COMMAND] [ARG...]", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def run(ctx: click.Context, /, image: str, driver_mode: str, dry_run: bool, pull: str, **given: Any) -> int:
    """Run a container in which each GPU has the given memory and the given share of its time.

    Options after IMAGE belong to the command. Exit codes are Docker's: 125 when vgpurun fails, 126 when the command
    cannot be executed, 127 when it is not found, else the command's own.
    """
    _refuse_late_verb(ctx, image)
    if not image:
        raise OptionError("IMAGE is empty; is the variable that names it set?")
    wanted = Wanted.take(given)
    options = _container_options(image, given)
    with Signals() as signals:
        launch = _Launch(options, wanted, driver_mode, dry_run)
        if dry_run:
            click.echo(to_yaml(launch.plan_without_effect()), nl=False)
            return 0
        return launch.run(pull, signals)


def _refuse_late_verb(ctx: click.Context, image: str) -> None:
    """`vgpurun --mem 2g smi` could mean two things."""
    if image in ctx.meta.get("vgpurun.verbs", ()):
        raise OptionError(
            f"'{image}' comes after options: put the verb first (vgpurun {image} ...), or, for an image of that name, "
            f"say: vgpurun run ... {image}"
        )


def _container_options(image: str, given: dict[str, Any]) -> ContainerOptions:
    shm_size = given.pop("shm_size")
    name = given.pop("name")
    return ContainerOptions(
        image=image,
        environment=parse_environment(given.pop("environment"), given.pop("env_files")),
        volumes=tuple(parse_volume(text) for text in given.pop("volumes")),
        mounts=tuple(parse_mount(text) for text in given.pop("mounts")),
        labels=parse_labels(given.pop("labels")),
        name=None if name is None else check_name(name),
        shm_size_bytes=None if shm_size is None else parse_bytes(shm_size, "--shm-size"),
        **given,
    )


class _Launch:
    """The steps of one run, in the order in which they can fail with the clearest message."""

    def __init__(self, options: ContainerOptions, wanted: Wanted, driver_mode: str, is_dry_run: bool) -> None:
        self._options = options
        self._wanted = wanted
        self._driver_mode = driver_mode
        self._gpus = visible_gpus(driver_mode == "sim")
        # What can never be is said before an image is pulled; the image's own variables are looked at later.
        wanted.check(options.environment, self._gpus)
        self._library = find_library(is_dry_run)

    def run(self, pull: str, signals: Signals) -> int:
        """Carry the launch out and return the exit code."""
        from vgpurun.engine import Engine, port_bindings
        from vgpurun.launch import check_terminal, launch

        port_bindings(self._options.ports)
        engine = Engine.connect()
        facts = engine.facts()
        image = _image(engine, self._options.image, pull)
        check_terminal(self._options)
        admission = self._admission(engine, image)
        return launch(
            engine, facts.id, admission, lambda place: self._plan(place, facts, image), self._library, signals, warn
        )

    def plan_without_effect(self) -> LaunchPlan:
        """Return the plan; without an engine, as for one that injects nothing and an image that sets nothing."""
        from vgpurun.engine import Engine, port_bindings

        port_bindings(self._options.ports)
        try:
            engine = Engine.connect()
            found = engine.image(self._options.image)
            facts, image = engine.facts(), dict(found.environment) if found else {}
            placement = self._admission(engine, image).look()
        except EngineError as error:
            warn(f"planned without an engine: {error}")
            facts, image = EngineFacts(), {}
            placement = self._admission(None, image).look()
        return self._plan(placement, facts, image)

    def _admission(self, engine: Any, image_environment: dict[str, str]) -> Admission:
        environment = {**image_environment, **self._options.environment}
        return self._wanted.admission(environment, self._gpus, engine)

    def _plan(self, placement: Placement, facts: EngineFacts, image_environment: dict[str, str]) -> LaunchPlan:
        return plan_launch(
            self._options,
            placement.limits,
            placement.gpus,
            self._driver(facts, placement.gpus),
            self._library.path,
            state.new_folder_path(self._options.name),
            image_environment,
        )

    def _driver(self, facts: EngineFacts, gpus: Sequence[Gpu]) -> DriverPlan:
        if self._driver_mode == "sim":
            return simulation.plan_container(library.find_simulated_driver(say), gpus)
        return drivers.plan_driver(self._driver_mode, gpus, facts)


def _image(engine: Any, name: str, pull: str) -> dict[str, str]:
    """Return the environment of the image, pulled first where that is asked for or needed."""
    from vgpurun import progress

    image = None if pull == "always" else engine.image(name)
    if image is None:
        if pull == "never":
            raise ImageError(f"image {name} is not on this host, and --pull never forbids to pull it")
        progress.show(f"Pulling {name}", engine.pull(name))
        image = engine.image(name)
    if image is None:
        raise ImageError(f"image {name} was pulled but is not there; is its name right?")
    return dict(image.environment)
