"""The options of placement and admission, which `run` and `local` have, and what they come to."""

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from vgpurun import config
from vgpurun.admission import Admission
from vgpurun.choices import PLACE_POLICIES
from vgpurun.cli.common import Function, option, say, warn
from vgpurun.gpus import GPUS_HELP, Gpu
from vgpurun.plan import Limits
from vgpurun.quota import Quota
from vgpurun.request import Request
from vgpurun.waiting import NO_TIMEOUT, parse_wait

if TYPE_CHECKING:
    from vgpurun.engine import Engine, VgpurunContainer

_GROUP = "Placement"


def placement_options(function: Function) -> Function:
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


@dataclass(frozen=True)
class Wanted:
    """What the options of limits and placement ask for."""

    limits: Limits
    gpus: str | None
    policy: str
    is_overcommit: bool
    wait_s: float
    is_local: bool = False

    @classmethod
    def take(cls, given: MutableMapping[str, Any], is_local: bool = False) -> "Wanted":
        """Take the options out of all that were given; the configuration has the values of those that were not.

        Raises OptionError and ConfigError.
        """

        def take(name: str) -> Any:
            value = given.pop(name)
            return config.default(name) if value is None else value

        return cls(
            limits=Limits(
                take("mem"),
                take("sm"),
                given.pop("sm_policy"),
                given.pop("priority"),
                given.pop("oversubscribe"),
            ),
            gpus=take("gpus"),
            policy=take("place"),
            is_overcommit=take("overcommit"),
            wait_s=parse_wait(take("wait")),
            is_local=is_local,
        )

    def admission(self, environment: Mapping[str, str], gpus: Sequence[Gpu], engine: "Engine | None") -> Admission:
        """Return the admission of a launch whose program will have this environment."""
        request = Request(self.limits, self.gpus, self.policy, self.is_overcommit, environment, self.is_local)
        return Admission(request, gpus, config.own_grant(), engine, self.wait_s, say, warn)

    def check(self, environment: Mapping[str, str], gpus: Sequence[Gpu]) -> None:
        """Raise what stands against the launch however much room there is.

        That is LimitError, GpuError, OptionError or QuotaError.
        """
        self.admission(environment, gpus, None).check()


def admission_of_change(
    container: "VgpurunContainer",
    wanted: Sequence[tuple[Gpu, Quota]],
    gpus: Sequence[Gpu],
    engine: "Engine",
    overcommit: bool | None,
) -> Admission:
    """Return the admission of a container to other limits on its GPUs. Raises ConfigError."""
    memory = ",".join(f"{gpu.index}={_shortest(each.memory_bytes)}" for gpu, each in wanted if each.memory_bytes)
    sm = ",".join(f"{gpu.index}={each.sm_percent}" for gpu, each in wanted if each.sm_percent)
    request = Request(
        Limits(memory or None, sm or None),
        gpus="device=" + ",".join(gpu.uuid for gpu, _ in wanted),
        is_overcommit=bool(config.default("overcommit")) if overcommit is None else overcommit,
    )
    return Admission(request, gpus, config.own_grant(), engine, 0, say, warn, in_place_of=container.id)


def _shortest(size_bytes: int) -> str:
    """A size as --mem takes it, and people read it."""
    for unit, unit_bytes in (("g", 1 << 30), ("m", 1 << 20), ("k", 1 << 10)):
        if size_bytes % unit_bytes == 0:
            return f"{size_bytes // unit_bytes}{unit}"
    return str(size_bytes)
