"""Options that several verbs have, and how help shows options in groups."""

import math
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from vgpurun.cli.flags import canonical
from vgpurun.config import values as config
from vgpurun.errors import OptionError, VgpurunError
from vgpurun.limits.policies import PRIORITIES, SM_POLICIES
from vgpurun.util.choices import ENFORCE_MODES

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


Function = TypeVar("Function", bound=Callable[..., Any])

LIMITS = "Limits"
LIVE = "vgpurun top shows it live"
# For verbs that docker has without --force.
NO_FORCE = {"--force": "for a container of another user it is --others"}
_PROFILE = "Profile"
# Settings of an option that may have a value, or something to do, where it is not given.
_NEEDS_CLICK = frozenset(("callback", "default", "envvar", "expose_value", "prompt", "required"))
_NAMES_COLUMN = 31  # columns of help for an option's name; a longer one has a line of its own


class GroupedOption(click.Option):
    """An option with the title under which --help lists it, and with `more` that the reference and man page say."""

    def __init__(
        self, *args: Any, group: str, more: str = "", optional_value: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.group = group
        self.more = more
        self.optional_value = (
            optional_value  # an option that may stand alone takes a value that is no time after '=' only
        )
        self._is_plain = not kwargs.keys() & _NEEDS_CLICK

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        """Take the value. Few of a hundred options are given; click's own handling of them all takes milliseconds."""
        if not self._is_plain or self.name in opts:
            return super().handle_parse_result(ctx, opts, args)
        value = () if self.multiple else False if self.is_flag else None
        ctx.params[self.name or ""] = value
        return value, args


class GroupedCommand(click.Command):
    """A command whose help lists the options under titles; options after the first argument are not its own.

    `elsewhere` has the way out for options that users look for in vain. A verb that launches nothing has
    `on_broken_config`: that is told what is wrong with a configuration file, and the verb continues without the file.
    Other verbs end there.
    """

    def __init__(
        self,
        *args: Any,
        on_broken_config: Callable[[str], object] | None = None,
        elsewhere: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.elsewhere = elsewhere or {}
        self.on_broken_config = on_broken_config

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Attach the verb to every error: click forgets to for an option without its value."""
        if self.on_broken_config is not None:
            ctx.with_resource(config.without_broken_files(self.on_broken_config))
        try:
            return super().parse_args(ctx, canonical(self, ctx, args, self.elsewhere))
        except click.UsageError as error:
            if ctx.resilient_parsing:  # a shell asks what could come next
                return super().parse_args(ctx, args)
            error.ctx = error.ctx or ctx
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each group of options in the order in which the first of each was declared; --help is in the last."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                title = getattr(parameter, "group", next(reversed(groups), "Options"))
                groups.setdefault(title, []).append(record)
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records, col_max=_NAMES_COLUMN)


class VerbGroup(click.Group):
    """A verb that has verbs of its own; alone it shows its help. They are listed in the order of their making."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names in their order."""
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List them with whole sentences, where click would cut what is longer than a line."""
        with formatter.section("Commands"):
            formatter.write_dl(
                [(each, self.commands[each].get_short_help_str(200)) for each in self.list_commands(ctx)]
            )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Show the help where nothing is asked for."""
        return super().parse_args(ctx, args or ["--help"])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Name the verbs if the first word is none of them."""
        if not ctx.resilient_parsing and args[0] not in self.commands and not args[0].startswith("-"):
            raise click.UsageError(f"there is no verb '{args[0]}'; the verbs are {', '.join(self.commands)}.", ctx)
        return super().resolve_command(ctx, args)


class EngineCommand(GroupedCommand):
    """A command whose options have docker's syntax.

    Its arguments go to the engine, which takes UTF-8 only and would change other bytes unseen.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse an argument that is not UTF-8, then parse."""
        return super().parse_args(ctx, [_utf8(argument) for argument in args])


def _utf8(argument: str) -> str:
    """Return an argument that Python may have taken for another encoding, as in LANG=C. Raises OptionError."""
    try:
        argument.encode()
        return argument
    except UnicodeEncodeError:
        given = os.fsencode(argument)
    try:
        return given.decode()
    except UnicodeDecodeError:
        shown = given.decode(errors="backslashreplace")
        raise OptionError(f"argument '{shown}' is not UTF-8 text, and the Docker Engine takes no other") from None


class ContainerName(click.ParamType):  # type: ignore[type-arg]  # an older click's has none
    """The name or id of a container that vgpurun made; a shell completes it."""

    name = "container"

    def __init__(self, everything: bool = True) -> None:
        """`everything`: whether one that does not run is of use too."""
        self._everything = everything

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list["CompletionItem"]:
        """Return the names that begin so; none where no engine answers."""
        from click.shell_completion import CompletionItem

        from vgpurun.engine.client import Engine

        given = ctx.params.get(param.name or "") or ()
        try:
            containers = Engine.connect().containers(self._everything)
        except VgpurunError:
            return []
        names = [each for each in containers if each.name.startswith(incomplete) and each.name not in given]
        return [CompletionItem(each.name, help=each.image) for each in names]


class SliceName(click.ParamType):  # type: ignore[type-arg]
    """The name of a slice; a shell completes it."""

    name = "slice"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list["CompletionItem"]:
        """Return the names that begin so."""
        from click.shell_completion import CompletionItem

        from vgpurun.slices import store

        given = ctx.params.get(param.name or "") or ()
        names = [each.name for each in store.slices()]
        return [CompletionItem(name) for name in names if name.startswith(incomplete) and name not in given]


class Seconds(click.FloatRange):
    """A number of seconds within bounds, which `nan` never is."""

    name = "number of seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number."""
        seconds = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value!r} is not a number of seconds.", param, ctx)
        return seconds


class ImageName(click.ParamType):  # type: ignore[type-arg]
    """The name of an image; a shell completes those that the engine has."""

    name = "image"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list["CompletionItem"]:
        """Return the names that begin so; none where no engine answers."""
        del ctx, param
        from click.shell_completion import CompletionItem

        from vgpurun.engine.client import Engine

        try:
            names = Engine.connect().image_names()
        except VgpurunError:
            return []
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


class GpuNames(click.ParamType):  # type: ignore[type-arg]
    """A value of --gpus; a shell completes the GPUs of this host."""

    name = "gpus"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list["CompletionItem"]:
        """Return what begins so; nothing where no driver answers."""
        del param
        from click.shell_completion import CompletionItem

        from vgpurun.host.visible import survey_gpus

        given = ctx.params.get("driver_mode") or ctx.params.get("driver") or config.default("driver")
        try:
            gpus = survey_gpus(given == "sim").gpus
        except VgpurunError:
            return []
        items = [("all", "every GPU"), *((f"device={gpu.number}", gpu.name) for gpu in gpus)]
        return [CompletionItem(value, help=words) for value, words in items if value.startswith(incomplete)]


def option(*names: str, group: str, **settings: Any) -> Callable[[Function], Function]:
    """Declare an option in a group."""
    return click.option(*names, cls=GroupedOption, group=group, **settings)


def format_option(group: str, help_text: str, *formats: str) -> Callable[[Function], Function]:
    """Add --format, as `output_format`: a table or json, or else these, of which the first is the default."""
    formats = formats or ("table", "json")
    return option(
        "--format", "output_format", type=click.Choice(formats), default=formats[0], show_default=True, group=group,
        help=help_text,
    )  # fmt: skip


def others_option(group: str) -> Callable[[Function], Function]:
    """Add --others to a verb that acts on containers."""
    return option(
        "--others", is_flag=True, group=group, help="Act on containers of other users too, as root always does."
    )


def limit_options(
    memory: str = "Memory of each GPU: 2g, 50% or 0=2g,1=4g; max: all that is free; 4g:8g: 4 reserved, up to 8.",
    compute: str = "Percent of each GPU's time, or by GPU: 0=50,1=20.",
) -> Callable[[Function], Function]:
    """Return what adds --mem and --sm, with these helps."""

    def add(function: Function) -> Function:
        function = option(
            "--sm", "--compute", metavar="PERCENT", group=LIMITS, help=compute, more="From 1 to 100; 100: no limit."
        )(function)
        return option(
            "--mem",
            "--gpu-mem",
            metavar="SIZE",
            group=LIMITS,
            help=memory,
            more="Sizes are 2g, 1.5GiB, 1024m and the like. A GPU is named by its index in this host's nvidia-smi, its "
            "UUID or the beginning of that.",
        )(function)

    return add


def profile_options(function: Function) -> Function:
    """Add --profile and --profile-size."""
    for decorate in reversed(
        (
            option(
                "--profile",
                metavar="DIR",
                group=_PROFILE,
                help="Record GPU activity in DIR, for vgpurun report.",
                more="Each process makes a file there.",
            ),
            option(
                "--profile-size",
                metavar="SIZE",
                group=_PROFILE,
                help="The largest size of each file; 64m by default.",
                more="Beyond it the oldest records are dropped; totals stay exact.",
            ),
        )
    ):
        function = decorate(function)
    return function


def oversubscribe_option(function: Function) -> Function:
    """Add --oversubscribe."""
    return option(
        "--oversubscribe",
        metavar="SIZE",
        group=LIMITS,
        help="Memory that programs see; --mem of it is the GPU's.",
        more="Written like --mem. The rest is host memory, which is slower.",
    )(function)


def policy_options(default: str = "") -> Callable[[Function], Function]:
    """Return what adds --sm-policy and --priority; `default` says what holds without them."""

    def add(function: Function) -> Function:
        add_priority = option(
            "--priority",
            type=click.Choice(list(PRIORITIES)),
            group=LIMITS,
            help="high goes first where they share a GPU.",
            more=f"Both have their limits. {default or 'By default high.'}",
        )
        add_policy = option(
            "--sm-policy",
            type=click.Choice(list(SM_POLICIES)),
            metavar="POLICY",
            group=LIMITS,
            help="When --sm holds: hard, burst or off.",
            more="hard: always. burst: only while another container wants the GPU, and then as a weight. off: never. "
            f"{default or 'By default hard.'}",
        )
        return add_policy(add_priority(function))

    return add


def enforce_option(function: Function) -> Function:
    """Add --enforce."""
    return option(
        "--enforce",
        type=click.Choice(ENFORCE_MODES),
        metavar="MODE",
        default=lambda: config.default("enforce"),
        group=LIMITS,
        help="Mechanism for --mem: auto, library or driver.",
        more="library: the library in each program alone. driver: from r615 on, the driver's own limits too, which "
        "hold whatever a program loads. auto, the default: every mechanism this host supports.",
    )(function)


def host_driver_option(group: str) -> Callable[[Function], Function]:
    """Add --driver to a verb that starts no container: however a container gets the driver, here it is the host's."""
    return option(
        "--driver",
        type=click.Choice(["host", "sim"]),
        default=lambda: "sim" if config.default("driver") == "sim" else "host",
        group=group,
        help="This host's driver, or the simulated GPU. By default host, or sim if VGPURUN_DRIVER is sim.",
    )


def health_port_option(group: str) -> Callable[[Function], Function]:
    """Add --health-port to a daemon of a Kubernetes node."""
    return option(
        "--health-port",
        type=click.IntRange(1, 65535),
        metavar="PORT",
        group=group,
        help="The port for /healthz and /readyz, which a pod's probes ask.",
    )
