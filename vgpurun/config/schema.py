"""The schema of a configuration file: every key, how its value is read, and what it means.

docs/config.md has its tables from here, and vgpurun/docs/variables.py the variables. Most launches have no
value to be read, so what reads values is loaded only when there is one.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vgpurun.errors import OptionError, VgpurunError
from vgpurun.util.choices import (
    DRIVER_MODES,
    ENFORCE_MODES,
    GUARD_COMPUTE,
    GUARD_MEMORY,
    GUARD_OUTSIDE,
    PLACE_POLICIES,
    PULL_POLICIES,
)
from vgpurun.util.times import parse_span

if TYPE_CHECKING:
    from vgpurun.limits.quota import MemorySize

UNLIMITED = "unlimited"
NO_TIMEOUT = "forever"
_FOREVER_S = float("inf")
_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0")


class ValueRefused(VgpurunError):  # noqa: N818 - it is caught where the file and the line are known
    """A value that its key cannot have; the message says what it can have."""


@dataclass(frozen=True)
class Key:
    """A key. `read` returns the value of its text, or raises VgpurunError; a list of texts comes joined by commas."""

    name: str
    read: Callable[[str], Any]
    meaning: str
    example: str
    built_in: str | bool | None = None
    is_list: bool = False

    @property
    def variable(self) -> str:
        """The environment variable that goes before the files."""
        return f"VGPURUN_{self.name.upper()}"


def _one_of(*values: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in values:
            raise ValueRefused(f"'{text}' is not one of {', '.join(values)}")
        return text

    return read


def _bool(text: str) -> bool:
    if text.lower() not in (*_TRUE, *_FALSE):
        raise ValueRefused(f"'{text}' is neither true nor false")
    return text.lower() in _TRUE


def _memory(text: str) -> str:
    _check_limits(memory=text)
    return text


def _sm(text: str) -> str:
    _check_limits(sm=text)
    return text


def _check_limits(memory: str | None = None, sm: str | None = None) -> None:
    from vgpurun.limits.model import Limits

    Limits.read(memory, sm)


def _size(text: str) -> "MemorySize":
    from vgpurun.limits.quota import parse_limit

    return parse_limit(text)


def _gpus(text: str) -> str:
    """Read what --gpus takes; a list of GPUs is read as device=."""
    if not re.fullmatch(r"all|(count=)?[0-9]+|(device=)?[\w:-]+(,[\w:-]+)*", text):
        raise ValueRefused(f"'{text}' is not all, a count, or a list of GPUs such as [0, 1]")
    return f"device={text}" if "," in text and not text.startswith("device=") else text


def _idle(text: str) -> str:
    from vgpurun.limits.idle import parse_idle

    parse_idle(text)
    return text


def _wait(text: str) -> str:
    if text.lower() in _FALSE:
        return "0"
    parse_wait(text)
    return text


def parse_wait(text: str) -> float:
    """Read --wait; return seconds, 0 for not at all. Raises OptionError."""
    if text == NO_TIMEOUT:
        return _FOREVER_S
    if text.isdecimal():
        return float(text)
    seconds = parse_span(text)
    if seconds is None:
        raise OptionError(f"--wait={text} is not a time; use e.g. --wait=90s, --wait=10m, or --wait without end")
    return seconds


def _most(read: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda text: None if text.lower() == UNLIMITED else read(text)


def _count(most: int | None) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,9}", text) or (most is not None and int(text) > most):
            raise ValueRefused(f"'{text}' is not a whole number" + (f" from 0 to {most}" if most is not None else ""))
        return int(text)

    return read


def _percent(most: int | None) -> Callable[[str], int]:
    return lambda text: _count(most)(text.removesuffix("%").rstrip())  # the form that --sm takes


def _gpu_names(text: str) -> tuple[str, ...] | None:
    if text == "all":
        return None
    names = tuple(text.split(",")) if text else ()
    if not all(re.fullmatch(r"[\w:-]+", name) for name in names):
        raise ValueRefused(f"'{text}' is not a list of GPUs by index or UUID, such as [0, 1]")
    return names


def _span(text: str) -> float:
    from vgpurun.util.times import parse_span

    seconds = parse_span(text)
    if seconds is None:
        raise ValueRefused(f"'{text}' is not a time such as 0.5s, 2m or 1h")
    return seconds


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


# Values for options that are not given. The administrator's file and the user's have them.
DEFAULTS = (
    Key("mem", _memory, "`--mem`: a size, a share, two with a colon, or `max`", "25%"),
    Key("sm", _sm, "`--sm`: a percentage", "50"),
    Key("gpus", _gpus, "`--gpus`: `all`, a count, or a list of GPUs", "[0, 1]", is_list=True),
    Key("place", _one_of(*PLACE_POLICIES), "`--place`", "binpack", PLACE_POLICIES[0]),
    Key("overcommit", _bool, "`--overcommit`", "true", False),
    Key("wait", _wait, "`--wait`: a time, `forever`, or `false`", "10m", "0"),
    Key("preempt_idle", _bool, "`--preempt-idle`", "true", False),
    Key("idle", _idle, "`--idle`: a time, and what the guard does after it", "15m:suspend", "never"),
    Key("swap", _bool, "`--swap`", "true", False),
    Key("movable", _bool, "`--movable`", "true", False),
    Key("driver", _one_of(*DRIVER_MODES), "`--driver`", "cdi", "auto"),
    Key("enforce", _one_of(*ENFORCE_MODES), "`--enforce`", "library", "auto"),
    Key("pull", _one_of(*PULL_POLICIES), "`--pull`", "never", PULL_POLICIES[0]),
)

# Quotas: the most that a user may have at the same time. Only the administrator's file has them.
MAXIMA = (
    Key("memory", _most(_size), "GPU memory on all GPUs together", "48g"),
    Key("memory_per_gpu", _most(_size), "GPU memory on each GPU", "50%"),
    Key("sm", _most(_percent(None)), "compute in percent, over all GPUs together: 150 is one GPU and a half", "150"),
    Key("sm_per_gpu", _most(_percent(100)), "compute in percent on each GPU", "50"),
    Key("containers", _most(_count(None)), "containers and `vgpurun local` processes", "4"),
    Key("gpus", _most(_gpu_names), "which GPUs, by index or UUID", "[0, 1]", is_list=True),
    Key("overcommit", _bool, "whether `--overcommit` is allowed", "false"),
)

# For `vgpurun guard`. Only the administrator's file has it.
GUARD = (
    Key("memory", _one_of(*GUARD_MEMORY), "what is done to a container that holds 5 % more than its memory limit",
        "kill", "freeze"),
    Key("compute", _one_of(*GUARD_COMPUTE), "what is done to one that uses more than its share with programs that "
        "the library does not see; unheld and all hold by the GPU's own scheduler, an experiment", "warn", "hold"),
    Key("outside", _one_of(*GUARD_OUTSIDE), "what is done to a program on a GPU that vgpurun did not start",
        "kill", "warn"),
    Key("grace", _span, "how long a container may be above its limit if the library does not see all of its programs",
        "2s", "0.4s"),
    Key("counted_grace", _span, "the same if it sees them all: the driver takes memory that is counted afterwards",
        "1m", "10s"),
    Key("outside_grace", _span, "how long such a program may run", "5m", "10s"),
    Key("users", _names, "users whose programs may use GPUs without vgpurun", "[root, alice]", "root", is_list=True),
    Key("programs", _names, "programs that may do so, by the name of their file, which root has to own",
        "[Xorg, dcgmi]", "Xorg,Xwayland,gnome-shell,kwin_wayland,nv-hostengine,dcgm-exporter,nvidia-persistenced,"
        "nvidia-cuda-mps-server", is_list=True),
)  # fmt: skip

SLICE_AT_ALL_US = 20000  # for 100 percent, as the library sets it (lib/src/scheduler/switch.c)
LOW_SLICE_US = 150  # the library gives way to a launch of high priority in the same way


def _slice_us(text: str) -> int:
    percent = 0 if text == "low" else _percent(100)(text)
    return max(percent * SLICE_AT_ALL_US // 100, LOW_SLICE_US)  # never a copy engine's 1024, by which that is told


# For programs that vgpurun did not start. Only the administrator's file has it.
OUTSIDE = Key("outside", _slice_us, "its part of the GPU's time beside others", "low")

DEFAULTS_BY_NAME: Mapping[str, Key] = {key.name: key for key in DEFAULTS}
MAXIMA_BY_NAME: Mapping[str, Key] = {key.name: key for key in MAXIMA}
GUARD_BY_NAME: Mapping[str, Key] = {key.name: key for key in GUARD}


@dataclass(frozen=True)
class Maxima:
    """The most that one user may have at the same time; None is no maximum. `origins` names the line that set each."""

    memory: "MemorySize | None" = None
    memory_per_gpu: "MemorySize | None" = None
    sm: int | None = None
    sm_per_gpu: int | None = None
    containers: int | None = None
    gpus: tuple[str, ...] | None = None
    overcommit: bool | None = None
    origins: Mapping[str, str] = field(default_factory=dict)
