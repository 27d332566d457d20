"""The options of limits and placement, with the configuration's values for those that are not given."""

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vgpurun.admission.controller import Admission
from vgpurun.admission.grants import own_grant
from vgpurun.admission.request import Request
from vgpurun.config import values as config
from vgpurun.config.schema import parse_wait
from vgpurun.console.messages import say, warn
from vgpurun.errors import OptionError
from vgpurun.host.gpus import Gpu
from vgpurun.limits.idle import NEVER, parse_idle
from vgpurun.limits.model import Limits
from vgpurun.limits.nested import Share
from vgpurun.limits.quota import sets_limits

if TYPE_CHECKING:
    from vgpurun.admission.joining import Joining
    from vgpurun.admission.nesting import Nesting
    from vgpurun.engine.client import Engine

OF_NO_PART = ("place", "overcommit", "wait", "preempt_idle", "idle", "swap", "movable", "together")
_UPDATED = ("sm_policy", "priority", "oversubscribe")  # by vgpurun slice update
OF_A_SLICE = (*_UPDATED, "gpus", *OF_NO_PART)


@dataclass(frozen=True)
class Wanted:
    """The request that the options of limits and placement make."""

    limits: Limits
    gpus: str | None
    policy: str
    is_overcommit: bool
    wait_s: float
    preempts_idle: bool = False
    is_local: bool = False
    defaults: frozenset[str] = frozenset()
    idle: str = ""
    is_movable: bool = False

    @classmethod
    def take(
        cls, given: MutableMapping[str, Any], is_local: bool = False, share: Share | None = None
    ) -> "Wanted | WantedSlice | WantedPart":
        """Take the options out of all that were given; the configuration has the values of those that were not.

        `share`: what this process is in, and the launch will be. Raises LimitError, OptionError and ConfigError.
        """
        if (name := given.pop("slice_name")) is not None:
            return WantedSlice.take(name, given)
        if share is not None:
            return WantedPart.take(share, given)

        defaults = frozenset(name for name in ("mem", "sm", "overcommit") if given[name] is None)

        def take(name: str) -> Any:
            value = given.pop(name)
            return config.default(name) if value is None else value

        limits = Limits.read(  # a slip of the pen is said before a missing driver or engine is
            take("mem"),
            take("sm"),
            given.pop("sm_policy"),
            given.pop("priority"),
            given.pop("oversubscribe"),
            swap=take("swap"),
            together=bool(given.pop("together", None)),
        )
        parse_idle(given["idle"] or NEVER)
        return cls(
            limits=limits,
            gpus=take("gpus"),
            policy=take("place"),
            is_overcommit=take("overcommit"),
            wait_s=parse_wait(take("wait")),
            preempts_idle=take("preempt_idle"),
            is_local=is_local,
            defaults=defaults,
            idle=take("idle"),
            is_movable=take("movable"),
        )

    def admission(self, environment: Mapping[str, str], gpus: Sequence[Gpu], engine: "Engine | None") -> Admission:
        """Return the admission of a launch whose program will have this environment."""
        request = Request(
            self.limits, self.gpus, self.policy, self.is_overcommit, environment, self.is_local, defaults=self.defaults
        )
        return Admission(request, gpus, own_grant(), engine, self.wait_s, say, warn, preempts_idle=self.preempts_idle)

    def has_limits(self, environment: Mapping[str, str]) -> bool:
        """Ask whether anything limits a program that will have this environment."""
        return self.limits.memory is not None or self.limits.sm is not None or sets_limits(environment)

    def check(self, environment: Mapping[str, str], gpus: Sequence[Gpu]) -> None:
        """Raise what stands against the launch however much room there is.

        That is LimitError, GpuError, OptionError or QuotaError, and GuardError for turns that nobody gives.
        """
        if self.limits.swap:
            from vgpurun.admission.turns import check_turns  # few launches take turns

            check_turns(gpus, self.is_local)
        self.admission(environment, gpus, None).check()


@dataclass(frozen=True)
class WantedSlice:
    """The slice that --slice names, instead of limits and a placement of the launch's own."""

    name: str
    gpus: str | None = None
    idle: str = ""
    is_movable: bool = False  # the joined share decides that

    @classmethod
    def take(cls, name: str, given: MutableMapping[str, Any]) -> "WantedSlice | WantedPart":
        """Take the options out of all that were given: with limits a part of the slice is wanted.

        Raises LimitError, and OptionError for options that a slice decides.
        """
        mem, sm = given.pop("mem"), given.pop("sm")
        for each in OF_A_SLICE:
            if given.pop(each, None) is not None:
                or_else = f", or change it for all of the slice: vgpurun slice update {name}" * (each in _UPDATED)
                raise OptionError(
                    f"--{each.replace('_', '-')} beside --slice: a slice has its own; leave it out{or_else}"
                )
        return cls(name) if mem is None and sm is None else WantedPart(name, Limits.read(mem, sm))

    def admission(self, environment: Mapping[str, str], gpus: Sequence[Gpu], engine: "Engine | None") -> "Joining":
        """Return what lets a launch into the slice."""
        del environment, engine
        from vgpurun.admission.joining import Joining  # few launches join a slice

        return Joining(self.name, gpus)

    def has_limits(self, environment: Mapping[str, str]) -> bool:
        """Return True: every slice has limits, or may be given some while it is used."""
        del environment
        return True

    def check(self, environment: Mapping[str, str], gpus: Sequence[Gpu]) -> None:
        """Raise SliceError for a slice that is not there, or not this user's."""
        self.admission(environment, gpus, None).look()


@dataclass(frozen=True)
class WantedPart:
    """A part of a share: of the slice of this name, or of the share that this process is in."""

    within: Share | str
    limits: Limits
    gpus: str | None = None
    idle: str = ""
    is_movable: bool = False

    @classmethod
    def take(cls, share: Share, given: MutableMapping[str, Any]) -> "WantedPart":
        """Take the options out of all that were given; what is not given is the share's, not the configuration's.

        Raises LimitError, and OptionError for options that have no meaning within a share.
        """
        for each in OF_NO_PART:
            if given.pop(each, None) is not None:
                raise OptionError(f"--{each.replace('_', '-')} can only be set on the outer share; leave it out")
        names = ("mem", "sm", "sm_policy", "priority", "oversubscribe")
        limits = Limits.read(*(given.pop(name) for name in names))
        return cls(share, limits, given.pop("gpus"))

    def admission(self, environment: Mapping[str, str], gpus: Sequence[Gpu], engine: "Engine | None") -> "Nesting":
        """Return what lets a launch into the share."""
        del environment, engine
        from vgpurun.admission.nesting import Nesting

        return Nesting(self.within, self.limits, gpus, self.gpus)

    def has_limits(self, environment: Mapping[str, str]) -> bool:
        """Return True: every share has limits, or may be given some while it is used."""
        del environment
        return True

    def check(self, environment: Mapping[str, str], gpus: Sequence[Gpu]) -> None:
        """Raise LimitError and GpuError for a part that the share does not have, SliceError as for a slice."""
        self.admission(environment, gpus, None).look()
