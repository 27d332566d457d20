"""The verbs: what each is for, and where it is. A verb's module is loaded when it is used, so that each starts fast."""

from collections.abc import Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

from vgpurun.errors import EngineError

# By the titles of the help: the verb, the name in its module of vgpurun/cli/commands, and one line about it.
VERBS: Mapping[str, tuple[tuple[str, str, str], ...]] = {
    "Run": (
        ("run", "run:run", "Run a container under GPU limits (the default verb)."),
        ("local", "local:local", "Run a process of this host under GPU limits, without a container."),
        ("exec", "exec:exec_command", "Run another command in a container."),
    ),
    "Look": (
        ("ps", "ps:ps", "List containers and local processes, their limits and what they use of them."),
        ("top", "top:top", "Show live what every GPU and container uses."),
        ("free", "free:free", "Show what of each GPU is free, and the largest launch that would start."),
        ("queue", "queue:queue", "Show the launches that wait for room."),
        ("smi", "smi:smi", "Show GPUs, containers and what they use of their limits."),
        ("report", "report:report", "Show what a profiled run did: a page, tables, pictures, a trace."),
        ("advise", "advise:advise", "Estimate what containers would gain from working at the same time."),
        ("inspect", "inspect:inspect", "Show everything about containers as JSON."),
        ("exporter", "exporter:exporter", "Serve usage of GPUs and containers as Prometheus metrics."),
        ("guard", "guard:guard", "Watch the GPUs, and act on programs that get past the library."),
        ("history", "history:history", "Show who used how much of which GPU."),
        ("logs", "logs:logs", "Show a container's output."),
    ),
    "Change": (
        ("update", "update:update", "Change the limits of running containers."),
        ("pause", "pause:pause", "Pause containers, or their GPU work alone."),
        ("unpause", "pause:unpause", "Unpause containers, or their GPU work."),
        ("thaw", "guard:thaw", "Unfreeze what the guard has frozen."),
        ("suspend", "suspend:suspend", "Move running containers' GPU memory to the host and release the GPUs."),
        ("resume", "suspend:resume", "Give suspended containers their GPUs back."),
        ("move", "suspend:move", "Move running containers to other GPUs."),
        ("defrag", "defrag:defrag", "Move running programs so that a launch fits."),
        ("start", "start:start", "Start stopped containers, where there is room for them."),
        ("restart", "start:restart", "Stop containers and start them again; their reservations stay."),
        ("stop", "containers:stop", "End containers, with time to clean up."),
        ("kill", "containers:kill", "Send containers a signal."),
        ("rm", "containers:rm", "Remove containers and their state."),
        ("slice", "slice:slice_group", "Make and manage shares of GPUs that containers join."),
        ("prune", "prune:prune", "Remove the state of containers that are gone."),
    ),
    "As docker has them": (
        ("attach", "docker_verbs:attach", "Attach this terminal to a container."),
        ("cp", "docker_verbs:cp", "Copy files to and from a container."),
        ("port", "docker_verbs:port", "List the ports of a container."),
        ("stats", "docker_verbs:stats", "Show live what containers use of processors and memory."),
        ("wait", "docker_verbs:wait", "Wait until containers end; print their exit codes."),
    ),
    "Kubernetes": (
        ("device-plugin", "device_plugin:device_plugin", "Offer shares of this node's GPUs to Kubernetes."),
        ("dra-plugin", "dra_plugin:dra_plugin", "Offer shares of this node's GPUs by resource claims (DRA)."),
        ("node-agent", "node_agent:node_agent", "Remove what dead pods have left, and serve pods' metrics."),
    ),
    "Slurm": (("slurm", "slurm:slurm_group", "Hold Slurm's jobs to their shards of a GPU."),),
    "Set up": (
        ("config", "config:config", "Show the configuration and where each value comes from."),
        ("doctor", "doctor:doctor", "Look at this host, and say what is in the way."),
        ("verify", "verify:verify", "Try to exceed limits on this host, and show which hold."),
        ("convert", "convert:convert", "Turn invented GPU limits of Compose files into ones that hold."),
        ("cdi", "cdi:cdi_group", "Let docker, podman and compose use slices by CDI."),
        ("completion", "completion:completion", "Print the script by which a shell completes a command line."),
        ("build", "build:build", "Build libvgpu.so with this host's compiler."),
        ("build-in-docker", "build:build_in_docker", "Build libvgpu.so in a container."),
    ),
}


def all_commands(group: click.Group, prefix: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield every command, those below a verb too, by the words that call it."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from all_commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


class _Loaded(MutableMapping[str, click.Command]):
    """The commands by their verbs, each loaded when it is asked for."""

    def __init__(self) -> None:
        self._places = {verb: (place, line) for verbs in VERBS.values() for verb, place, line in verbs}
        self._commands: dict[str, click.Command] = {}

    def __getitem__(self, verb: str) -> click.Command:
        if verb not in self._commands:
            place, line = self._places[verb]
            module, _, name = place.partition(":")
            command: click.Command = getattr(import_module(f"vgpurun.cli.commands.{module}"), name)
            command.short_help = line
            self._commands[verb] = command
        return self._commands[verb]

    def __setitem__(self, verb: str, command: click.Command) -> None:
        self._commands[verb] = command

    def __delitem__(self, verb: str) -> None:
        del self._places[verb]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


# Words of docker and other tools that people type, and what to say here: no image that anybody has is called so.
_OF_DOCKER = (
    "bake", "builder", "buildx", "checkpoint", "commit", "compose", "context", "create", "diff", "events", "export",
    "image", "images", "import", "init", "load", "login", "logout", "manifest", "model", "network", "node", "plugin",
    "pull", "push", "rename", "rmi", "save", "scout", "search", "secret", "service", "stack", "swarm", "system", "tag",
    "trust", "volume",
)  # fmt: skip
OTHER_WORDS = {
    **{word: f"docker {word}" for word in _OF_DOCKER},
    **{"version": "vgpurun --version", "info": "vgpurun doctor"},
    **dict.fromkeys(("ls", "list", "status", "container"), "vgpurun ps"),
    **{"daemon": "vgpurun guard", "freeze": "vgpurun pause", "migrate": "vgpurun move", "unfreeze": "vgpurun thaw"},
    **dict.fromkeys(("gpu", "gpus", "devices", "usage"), "vgpurun smi"),
    **dict.fromkeys(("monitor", "watch"), "vgpurun top"),
    **dict.fromkeys(("limit", "limits", "set"), "vgpurun update"),
    **dict.fromkeys(
        ("quota", "quotas", "default", "defaults"), "vgpurun config (docs/config.md says where they are set)"
    ),
    **dict.fromkeys(("slices", "share", "shares"), "vgpurun slice"),
    **dict.fromkeys(("profiles", "profiler", "trace"), "vgpurun run --profile DIR, and vgpurun report DIR"),
    **dict.fromkeys(("metrics", "prometheus"), "vgpurun exporter"),
    **dict.fromkeys(("kubernetes", "k8s"), "vgpurun device-plugin (docs/kubernetes.md)"),
    **dict.fromkeys(("install", "upgrade"), "pipx or apt (docs/install.md)"),
    **{
        "check": "vgpurun doctor",
        "test": "vgpurun verify",
        "accounting": "vgpurun history",
        "waiting": "vgpurun queue",
    },
    **{"remove": "vgpurun rm", "delete": "vgpurun rm", "nvidia-smi": "vgpurun smi"},
    "uninstall": "pipx uninstall vgpurun or apt purge vgpurun (docs/install.md says what is left)",
}


class Verbs(click.Group):
    """`vgpurun [options] IMAGE` is `vgpurun run [options] IMAGE`: a verb is one only in the first place.

    `vgpurun help [VERB]` is `vgpurun [VERB] --help`, as docker has it; an image of that name: `vgpurun run help`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.commands = _Loaded()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `run` before arguments that begin with neither a verb nor an option of the group."""
        place = self._end_of_own_values(ctx, args)
        return super().parse_args(ctx, [*args[:place], *self._with_verb(ctx, args[place:])])

    def _end_of_own_values(self, ctx: click.Context, args: list[str]) -> int:
        """Return where the group's options that have a value end, as in `-H ADDRESS ps`."""
        options = [each for each in self.get_params(ctx) if isinstance(each, click.Option) and not each.is_flag]
        names = {name for each in options for name in each.opts}
        place = 0
        while place < len(args):
            name, equals, _ = args[place].partition("=")
            is_joined = args[place][:2] in names and len(args[place]) > 2  # -HADDRESS
            if name not in names and not is_joined:
                break
            place += 1 if equals or is_joined else 2
        return place

    def _with_verb(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args[:1] == ["help"]:
            if unknown := [verb for verb in args[1:2] if verb not in self.commands]:
                raise click.UsageError(
                    f"there is no verb '{unknown[0]}'; the verbs are {', '.join(self.commands)}.", ctx
                )
            args = [*args[1:2], "--help"]
        if args and not ctx.resilient_parsing and args[0] not in self.commands:
            self._check_other_word(args[0], ctx)
        of_group = {name for parameter in self.get_params(ctx) for name in parameter.opts}
        if len(args) > 1:
            of_group.discard("-v")  # a volume of run's
        if args and args[0] not in self.commands and args[0] not in of_group:
            ctx.meta["vgpurun.verbs"] = frozenset(self.commands)
            if not ctx.resilient_parsing:
                self._check_typed_verb(args[0], ctx)
            args = ["run", *args]
        return args

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """Return what a line can begin with: a verb, or an option of this group's or of run's."""
        found = super().shell_complete(ctx, incomplete)
        if incomplete.startswith("-"):
            run = self.commands["run"]
            found += run.shell_complete(click.Context(run, parent=ctx, info_name="run"), incomplete)
        return list({item.value: item for item in found}.values())

    def _check_other_word(self, word: str, ctx: click.Context) -> None:
        """Refuse a word of other tools, and the name of an option: they are no images that anybody has."""
        meant = OTHER_WORDS.get(word)
        if meant is None and word.isalpha():
            run = self.commands["run"]
            if any(f"--{word}" in parameter.opts for parameter in run.params) and not _is_image(word):
                meant = f"vgpurun run --{word}"
        if meant is not None:
            words = f"'{word}' is not a verb of vgpurun: use {meant}; for an image of that name: vgpurun run {word}."
            raise click.UsageError(words, ctx)

    def _check_typed_verb(self, first: str, ctx: click.Context) -> None:
        """Refuse a first word that is nearly a verb and no image of the engine's, before it is looked for elsewhere."""
        if first.startswith("-") or not first.replace("-", "").isalpha():  # an option, or a name with a tag or a folder
            return
        from difflib import get_close_matches  # slow to import

        verbs = [*self.commands, *OTHER_WORDS, "help"]
        same_letters = [verb for verb in verbs if sorted(verb) == sorted(first)]  # letters in the wrong order
        near = same_letters or get_close_matches(first, verbs, n=1, cutoff=0.7)
        if near and not _is_image(first):
            meant = OTHER_WORDS.get(near[0], f"vgpurun {near[0]}")
            raise click.UsageError(
                f"'{first}' is neither a verb nor an image that the engine has; did you mean: {meant}? "
                f"For an image of that name: vgpurun run {first}.",
                ctx,
            )

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs under their titles, without loading them."""
        del ctx
        column = max(map(len, self.commands))  # the same for all titles
        for title, verbs in VERBS.items():
            with formatter.section(title):
                formatter.write_dl([(verb.ljust(column), line) for verb, _, line in verbs])


def _is_image(name: str) -> bool:
    from vgpurun.engine.client import Engine

    try:
        return Engine.connect().image(name) is not None
    except EngineError:
        return False
