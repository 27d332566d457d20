"""The options of placement and admission, which `run` and `local` have, and what they come to."""

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from vgpurun.admission.controller import Admission
from vgpurun.admission.grants import own_grant
from vgpurun.admission.joining import Joining
from vgpurun.admission.request import Request
from vgpurun.cli.common import LIMITS, Function, SliceName, option, say, warn
from vgpurun.config import values as config
from vgpurun.config.schema import NO_TIMEOUT, parse_wait
from vgpurun.errors import EngineError, NoEngineError, NoRoomError, OptionError
from vgpurun.host.gpus import GPUS_HELP, Gpu
from vgpurun.limits.model import Limits, check_limits
from vgpurun.limits.quota import Quota, sets_limits
from vgpurun.util.choices import PLACE_POLICIES

if TYPE_CHECKING:
    from vgpurun.engine.client import Engine
    from vgpurun.limits.update import Admit

_GROUP = "Placement"
_WAYS_OUT_OF_CHANGE = "ask for less, or share regardless with --overcommit"  # no change waits


def placement_options(function: Function) -> Function:
    """Add --slice, --gpus, --place, --overcommit and --wait."""
    return option(
        "--slice",
        "slice_name",
        metavar="NAME",
        group=LIMITS,
        type=SliceName(),
        help="Join a slice: use its part of its GPUs, together with all that have joined it.",
    )(own_placement_options(function))


def own_placement_options(function: Function) -> Function:
    """Add --gpus, --place, --overcommit and --wait."""
    for decorate in reversed(
        (
            option(
                "--gpus",
                metavar="GPUS",
                group=_GROUP,
                help=f"Which GPUs: {GPUS_HELP.removeprefix('use ')}. By default one that has room, or those that --mem "
                "and --sm name.",
            ),
            option(
                "--place",
                type=click.Choice(PLACE_POLICIES),
                group=_GROUP,
                help="Which of the GPUs that have room: the emptiest (spread, the default) or the fullest (binpack).",
            ),
            overcommit_option(_GROUP),
            option(
                "--wait",
                metavar="[=TIME]",
                optional_value=NO_TIMEOUT,
                group=_GROUP,
                help="Wait for room, first come, first served; at most for a time such as 90s, 10m or 2h.",
            ),
        )
    ):
        function = decorate(function)
    return function


def overcommit_option(group: str) -> Callable[[Function], Function]:
    """Add --overcommit; without it the value is None."""
    return option(
        "--overcommit",
        type=bool,
        metavar="",
        group=group,
        help="Also where the memory or the time of a GPU is promised to others already.",
    )


class Wanted(NamedTuple):
    """What the options of limits and placement ask for."""

    limits: Limits
    gpus: str | None
    policy: str
    is_overcommit: bool
    wait_s: float
    is_local: bool = False
    defaults: frozenset[str] = frozenset()

    @classmethod
    def take(cls, given: MutableMapping[str, Any], is_local: bool = False) -> "Wanted | WantedSlice":
        """Take the options out of all that were given; the configuration has the values of those that were not.

        Raises LimitError, OptionError and ConfigError.
        """
        if (name := given.pop("slice_name")) is not None:
            return WantedSlice.take(name, given)

        defaults = frozenset(name for name in ("mem", "sm", "overcommit") if given[name] is None)

        def take(name: str) -> Any:
            value = given.pop(name)
            return config.default(name) if value is None else value

        limits = Limits(
            take("mem"),
            take("sm"),
            given.pop("sm_policy"),
            given.pop("priority"),
            given.pop("oversubscribe"),
        )
        check_limits(limits)  # a slip of the pen is said before a missing driver or engine is
        return cls(
            limits=limits,
            gpus=take("gpus"),
            policy=take("place"),
            is_overcommit=take("overcommit"),
            wait_s=parse_wait(take("wait")),
            is_local=is_local,
            defaults=defaults,
        )

    def admission(self, environment: Mapping[str, str], gpus: Sequence[Gpu], engine: "Engine | None") -> Admission:
        """Return the admission of a launch whose program will have this environment."""
        request = Request(
            self.limits, self.gpus, self.policy, self.is_overcommit, environment, self.is_local, defaults=self.defaults
        )
        return Admission(request, gpus, own_grant(), engine, self.wait_s, say, warn)

    def has_limits(self, environment: Mapping[str, str]) -> bool:
        """Ask whether anything limits a program that will have this environment."""
        return self.limits.memory is not None or self.limits.sm is not None or sets_limits(environment)

    def check(self, environment: Mapping[str, str], gpus: Sequence[Gpu]) -> None:
        """Raise what stands against the launch however much room there is.

        That is LimitError, GpuError, OptionError or QuotaError.
        """
        self.admission(environment, gpus, None).check()


def engine_if_any() -> "Engine | None":
    """Return the engine whose containers hold parts of the GPUs too, or None where there is none."""
    from vgpurun.engine.client import Engine

    try:
        return Engine.connect()
    except NoEngineError:
        return None
    except EngineError as error:
        warn(f"what containers hold is not counted: {error}")
        return None


_OF_A_SLICE = ("mem", "sm", "sm_policy", "priority", "oversubscribe", "gpus", "place", "overcommit", "wait")


class WantedSlice(NamedTuple):
    """The slice that --slice names, instead of limits and a placement of the launch's own."""

    name: str
    gpus: str | None = None

    @classmethod
    def take(cls, name: str, given: MutableMapping[str, Any]) -> "WantedSlice":
        """Take the options out of all that were given. Raises OptionError for those that a slice decides."""
        for each in _OF_A_SLICE:
            if given.pop(each) is not None:
                raise OptionError(
                    f"--{each.replace('_', '-')} beside --slice: a slice has its own; leave it out, or change them "
                    f"for all of it: vgpurun slice update {name}"
                )
        return cls(name)

    def admission(self, environment: Mapping[str, str], gpus: Sequence[Gpu], engine: "Engine | None") -> Joining:
        """Return what lets a launch into the slice."""
        del environment, engine
        return Joining(self.name, gpus)

    def has_limits(self, environment: Mapping[str, str]) -> bool:
        """Every slice has limits, or may be given some while it is used."""
        del environment
        return True

    def check(self, environment: Mapping[str, str], gpus: Sequence[Gpu]) -> None:
        """Raise SliceError for a slice that is not there, or not this user's."""
        self.admission(environment, gpus, None).look()


def admission_of_changes(gpus: Sequence[Gpu], engine: "Engine | None", overcommit: bool | None) -> "Admit":
    """How `update` of containers and slices admits what grows; see admitted_change."""
    return lambda holder, wanted, before: admitted_change(holder.id, wanted, gpus, engine, overcommit, before)


@contextmanager
def admitted_change(
    holder: str,
    wanted: Sequence[tuple[Gpu, Quota]],
    gpus: Sequence[Gpu],
    engine: "Engine | None",
    overcommit: bool | None,
    before: Mapping[str, Quota] | None = None,
) -> Iterator[None]:
    """Let a container or slice, by its id, have these limits on its GPUs, which it must have at the end.

    Of what it has already, `before` by UUIDs, nothing is asked for anew.
    Raises NoRoomError, also at the end: then they are to be taken back. Raises ConfigError, too.
    """
    memory = _by_gpu([(gpu, shortest_size(each.memory_bytes)) for gpu, each in wanted if each.memory_bytes], wanted)
    sm = _by_gpu([(gpu, str(each.sm_percent)) for gpu, each in wanted if each.sm_percent], wanted)
    request = Request(
        Limits(memory, sm),
        gpus="device=" + ",".join(gpu.uuid for gpu, _ in wanted),
        is_overcommit=bool(config.default("overcommit")) if overcommit is None else overcommit,
        before=before or {},
    )
    admission = Admission(request, gpus, own_grant(), engine, 0, say, warn, in_place_of=holder)
    try:
        with admission.granted():
            yield
            admission.confirm(holder)
    except NoRoomError as error:
        is_own_quota = error.gpus is not None and not error.gpus
        may_overcommit = admission.grant.may_overcommit
        way_out = (
            "end one, or ask for less" if is_own_quota else _WAYS_OUT_OF_CHANGE if may_overcommit else "ask for less"
        )
        raise NoRoomError(error.reason, way_out, error.details, error.gpus) from None


def _by_gpu(texts: Sequence[tuple[Gpu, str]], wanted: Sequence[object]) -> str | None:
    """Write limits as a user would, with the GPU's number only where there are several."""
    if len(wanted) == 1:
        return next((text for _, text in texts), None)
    return ",".join(f"{gpu.number}={text}" for gpu, text in texts) or None


def shortest_size(size_bytes: int) -> str:
    """Return a size as --mem takes it, and people read it."""
    for unit, unit_bytes in (("g", 1 << 30), ("m", 1 << 20), ("k", 1 << 10)):
        if size_bytes % unit_bytes == 0:
            return f"{size_bytes // unit_bytes}{unit}"
    return str(size_bytes)
