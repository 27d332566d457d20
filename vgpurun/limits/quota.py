"""Memory and compute limits: how people write them, and what they mean on a device.

The grammar is that of lib/src/shared/limit_text.c; tests/limit_cases.tsv holds both to the same answers. All arithmetic
is exact.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from vgpurun import abi
from vgpurun.errors import LimitError
from vgpurun.host.gpu import Gpu
from vgpurun.host.gpu_names import match_gpu, unmatched
from vgpurun.limits.policies import Priority, SmPolicy

T = TypeVar("T")

_SIZE = r"[ \t]*([0-9]*)(\.[0-9]{0,9})?[ \t]*(%|b|[kmgt]i?b?)?[ \t]*"
_SM = r"[ \t]*([0-9]+)[ \t]*%?[ \t]*"
_UNIT_BYTES = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_SHOWN_UNITS = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
_BILLION = 10**9  # a size has nine decimals at most
_MAX_DIGITS = 20  # a number below 2^64, without leading zeros

LEAST_LIMIT_BYTES = 1 << 20  # less is surely a slip: a context alone takes some hundred times that

# Measured on an H200 with driver 580.159.04 (README.md). Another GPU's may take less.
_CONTEXT_BYTES, _CONTEXT_OF = 518 << 20, "an H200"

# NVIDIA's container toolkit has these for a hook of its own, in MiB.
ENV_TOOLKIT_LIMIT = "NVIDIA_GPU_MEMORY_LIMIT"
ENV_TOOLKIT_REQUEST = "NVIDIA_GPU_MEMORY_REQUEST"

MEMORY_HELP = "use a size such as 2g, 1.5GiB or 1024m, or a share of the GPU such as 50%"
_MAX_IS_OF_A_LAUNCH = f"memory limit 'max' is what a launch finds left, and of no use here; {MEMORY_HELP}"
SM_HELP = "use a whole percentage from 1 to 100 (100: no limit)"


@dataclass(frozen=True)
class MemorySize:
    """A memory limit as it was written: a number of bytes, or a percentage of a device that is not known yet."""

    text: str
    billionths: int
    is_percent: bool

    def bytes_on(self, device_memory_bytes: int) -> int:
        """Return the limit in bytes on a device of that size. Raises LimitError when less than one byte is left."""
        parts = self.billionths * device_memory_bytes // 100 if self.is_percent else self.billionths
        size_bytes = parts // _BILLION
        if size_bytes < 1:
            raise LimitError(f"memory limit '{self.text}' is less than one byte; {MEMORY_HELP}")
        return size_bytes


@dataclass(frozen=True)
class Quota:
    """The limits of one container on one device; None means no limit.

    `virtual_bytes` is what its programs see when that is more than `memory_bytes`: the host serves the rest.
    `suspended` is one of all devices: SUSPENDED and so on of abi.py.
    `guaranteed_bytes` is what is kept for it when that is less than `memory_bytes`, the most that it may have.
    `together`: --together; its programs work at the same time, by MPS, `sms_percent` of the SMs in each.
    `takes_turns`: --swap; its memory is on the device in its own turns, so that those that take turns share one room.
    """

    memory_bytes: int | None = None
    sm_percent: int | None = None
    sm_policy: SmPolicy = SmPolicy.HARD
    priority: Priority = Priority.HIGH
    paused: bool = False
    virtual_bytes: int | None = None
    suspended: int = abi.NOT_SUSPENDED
    guaranteed_bytes: int | None = None
    takes_turns: bool = False
    together: bool = False
    sms_percent: int | None = None

    @property
    def is_suspended(self) -> bool:
        """Whether the container has given back its memory and its time of the device, and reserves nothing there."""
        return self.suspended == abi.SUSPENDED

    @property
    def is_swapped(self) -> bool:
        """Whether it waits for its turn, and what it had of the device is in host memory, if anything."""
        return self.suspended == abi.SWAPPED

    @property
    def is_away(self) -> bool:
        """Whether nothing of it is on the device, for the one reason or the other."""
        return self.is_suspended or self.is_swapped

    @property
    def reserved_bytes(self) -> int | None:
        """The bytes reserved for it: all that it may have, or what it was guaranteed of that."""
        return self.memory_bytes if self.guaranteed_bytes is None else self.guaranteed_bytes

    def guaranteed(self, size_bytes: int) -> "Quota":
        """Return it with so much guaranteed, where that is not all of it."""
        return replace(self, guaranteed_bytes=None if size_bytes == self.memory_bytes else size_bytes)

    def has_more_memory_than(self, other: "Quota") -> bool:
        """Whether the memory limit is higher, or more is reserved."""
        unlimited = float("inf")
        return (self.memory_bytes or unlimited) > (other.memory_bytes or unlimited) or (
            (self.reserved_bytes or unlimited) > (other.reserved_bytes or unlimited)
        )

    def has_more_compute_than(self, other: "Quota") -> bool:
        """Whether the compute limit is higher."""
        return (self.sm_percent or 100) > (other.sm_percent or 100)


@dataclass(frozen=True)
class MemoryLimit:
    """A memory limit as it was written: the most, and what of it is guaranteed where that is less.

    `most` is None for `max`, which is all that a launch finds free.
    """

    text: str
    most: MemorySize | None
    guaranteed: MemorySize | None = None


@dataclass(frozen=True)
class PerDevice(Generic[T]):
    """A value for all devices, or one for each of some devices (by index or UUID), and how that was written."""

    text: str
    everywhere: T | None = None
    by_device: tuple[tuple[str, T], ...] = ()

    @property
    def values(self) -> tuple[T, ...]:
        """Every value that was written."""
        return tuple(value for _, value in self.by_device) if self.everywhere is None else (self.everywhere,)


def parse_size(text: str) -> MemorySize:
    """Read a memory limit. Raises LimitError; a percentage must be above 0 and at most 100."""
    match = re.fullmatch(_SIZE, text, re.ASCII | re.IGNORECASE)
    whole, fraction, unit = match.groups(default="") if match else ("", "", "")
    digits = whole.lstrip("0")
    if text.strip().lower() == "max":
        raise LimitError(_MAX_IS_OF_A_LAUNCH)
    if match is None or not (whole or fraction.strip(".")):
        raise LimitError(f"memory limit '{text}' is not a size; {MEMORY_HELP}")
    if len(digits) > _MAX_DIGITS:
        raise LimitError(f"memory limit '{text}' is larger than any GPU; {MEMORY_HELP}")
    number = int(digits or "0") * _BILLION + int(fraction[1:].ljust(9, "0"))
    is_percent = unit == "%"
    amount = number if is_percent else number * _UNIT_BYTES[unit[:1].lower()]
    if is_percent and amount > 100 * _BILLION:
        raise LimitError(f"memory limit '{text}' is more than the whole GPU; {MEMORY_HELP}")
    if amount <= 0 or (not is_percent and amount < _BILLION):
        raise LimitError(f"memory limit '{text}' leaves no memory at all; {MEMORY_HELP}")
    if not is_percent and amount // _BILLION >= abi.NO_MEMORY_LIMIT:
        raise LimitError(f"memory limit '{text}' is larger than any GPU; {MEMORY_HELP}")
    return MemorySize(text.strip(), amount, is_percent)


def parse_limit(text: str) -> MemorySize:
    """Read a memory limit that somebody writes for a program. Raises LimitError, also for one that is a slip."""
    size = parse_size(text)
    if not size.is_percent:
        _check_least(size, size.bytes_on(0))
    return size


def parse_memory(text: str) -> MemoryLimit:
    """Read --mem of a device: a limit, GUARANTEED:MOST, or max. Raises LimitError."""
    if text.strip().lower() == "max":
        return MemoryLimit(text, None)
    guaranteed, colon, most = text.partition(":")
    if colon and not (guaranteed.strip() and most.strip()):
        raise LimitError(f"memory limit '{text}' lacks a size on one side of ':'; use e.g. 4g:8g, or one size alone")
    if not colon:
        return MemoryLimit(text, parse_limit(text))
    return MemoryLimit(text, parse_limit(most), parse_limit(guaranteed))


def exact_memory(most_bytes: int, guaranteed_bytes: int | None = None) -> MemoryLimit:
    """Return the limit of so many bytes, of which so many are guaranteed (None: all)."""
    text = shortest_range(Quota(most_bytes, guaranteed_bytes=guaranteed_bytes))
    return MemoryLimit(text, _exactly(most_bytes), None if guaranteed_bytes is None else _exactly(guaranteed_bytes))


def _exactly(size_bytes: int) -> MemorySize:
    return MemorySize(shortest_size(size_bytes), size_bytes * _BILLION, is_percent=False)


def parse_mib(text: str) -> MemorySize:
    """Read a whole number of MiB, as NVIDIA's container toolkit has it. Raises LimitError."""
    if not text.strip(" \t").isdecimal():
        raise LimitError(f"'{text}' is not a whole number of MiB")
    return parse_size(f"{text.strip()}m")


def _check_least(size: MemorySize, limit_bytes: int) -> None:
    if limit_bytes < LEAST_LIMIT_BYTES:
        remedy = f"write {size.text}g or {size.text}m" if size.text.isdecimal() else MEMORY_HELP
        raise LimitError(
            f"memory limit '{size.text}' is {show_size(limit_bytes)}, too little for any program; {remedy}"
        )


def parse_sm(text: str) -> int | None:
    """Read a compute limit of a variable in percent; None means no limit (written 0 or 100). Raises LimitError."""
    match = re.fullmatch(_SM, text, re.ASCII)
    digits = match.group(1).lstrip("0") if match else ""
    if match is None:
        raise LimitError(f"compute limit '{text}' is not a percentage; {SM_HELP}")
    if len(digits) > 3 or int(digits or "0") > 100:
        raise LimitError(f"compute limit '{text}' is more than the whole GPU; {SM_HELP}")
    percent = int(digits or "0")
    return None if percent in (0, 100) else percent


def parse_share(text: str) -> int:
    """Read --sm of a device, from 1 to 100. Raises LimitError, also for 0: as with --mem, nobody means all by that."""
    percent = parse_sm(text)
    if percent is None and not text.strip(" \t%0"):
        raise LimitError(f"compute limit '{text}' leaves no compute at all; {SM_HELP}")
    return percent or 100


def parse_per_device(text: str, parse: Callable[[str], T]) -> PerDevice[T]:
    """Read `VALUE`, or `DEVICE=VALUE,DEVICE=VALUE`. Raises LimitError, also from `parse`."""
    if "=" not in text:
        return PerDevice(text, everywhere=parse(text))
    values: dict[str, T] = {}
    for part in text.split(","):
        device, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not device:
            raise LimitError(f"'{part}' in '{text}' is not DEVICE=VALUE; write one value, or e.g. 0=2g,1=4g")
        if device in values:
            raise LimitError(f"device {device} has two values in '{text}'; leave one of them")
        values[device] = parse(value)
    return PerDevice(text, by_device=tuple(values.items()))


def by_device(values: Iterable[tuple[str, T, str]]) -> PerDevice[T] | None:
    """Return the option that gives each of these devices its value, written so; None where there are none."""
    found = list(values)
    text = ",".join(f"{device}={text}" for device, _, text in found)
    return PerDevice(text, by_device=tuple((device, value) for device, value, _ in found)) if found else None


def values_on(per_device: PerDevice[T] | None, gpus: Sequence[Gpu], option: str) -> list[T | None]:
    """Return the value of each GPU, None where the option gives none.

    Raises LimitError for a device that is not among them, or is named twice.
    """
    if per_device is None:
        return [None] * len(gpus)
    values: dict[str, T] = {}
    for device, value in per_device.by_device:
        gpu = match_gpu(device, gpus)
        if gpu is None:
            raise LimitError(f"{option}: {unmatched(device, gpus)}")
        if gpu.uuid in values:
            raise LimitError(f"{option} names device '{device}' twice, once by another name; leave one of them")
        values[gpu.uuid] = value
    return [values.get(gpu.uuid, per_device.everywhere) for gpu in gpus]


def resolve(
    gpus: Sequence[Gpu],
    memory: PerDevice[MemoryLimit] | None,
    sm: PerDevice[int] | None,
    environment: Mapping[str, str],
    indexes: Sequence[int],
) -> list[Quota]:
    """Return the quota of each GPU from --mem, --sm and the limit variables that the user set, the lower one of two.

    `indexes` are the NVML indexes that the program will see, for names such as CUDA_DEVICE_MEMORY_LIMIT_0.
    Raises LimitError, also for a limit above the memory of its GPU.
    """
    written_on, share_on = values_on(memory, gpus, "--mem"), values_on(sm, gpus, "--sm")
    quotas = []
    for i, gpu in enumerate(gpus):
        written = written_on[i]
        sizes = [] if written is None else [_most_of(written)]
        memory_names = (f"{abi.ENV_MEMORY_LIMIT}_{indexes[i]}", abi.ENV_MEMORY_LIMIT, abi.ENV_WRAPPER_MEMORY)
        sizes += _from_environment(environment, memory_names, parse_size)
        sizes += _from_environment(environment, (ENV_TOOLKIT_LIMIT,), parse_mib)
        guarantees = (
            [] if written is None or written.guaranteed is None else [(f"--mem {written.text}", written.guaranteed)]
        )
        guarantees = guarantees or _from_environment(environment, (ENV_TOOLKIT_REQUEST,), parse_mib)
        sm_names = (f"{abi.ENV_SM_LIMIT}_{indexes[i]}", abi.ENV_SM_LIMIT, abi.ENV_ALNAIR_SM)
        percents = [share_on[i], *(percent for _, percent in _from_environment(environment, sm_names, parse_sm))]
        most_bytes = min((_bytes_within(size, gpu, origin) for origin, size in sizes), default=None)
        quotas.append(
            Quota(
                memory_bytes=most_bytes,
                sm_percent=min((percent for percent in percents if percent not in (None, 100)), default=None),
                guaranteed_bytes=_guaranteed(guarantees, gpu, most_bytes),
            )
        )
    return quotas


def _most_of(written: MemoryLimit) -> tuple[str, MemorySize]:
    if written.most is None:
        raise LimitError(_MAX_IS_OF_A_LAUNCH)
    return f"--mem {written.most.text}", written.most


def _guaranteed(guarantees: Sequence[tuple[str, MemorySize]], gpu: Gpu, most_bytes: int | None) -> int | None:
    """Return what is guaranteed, None where that is all. Raises LimitError for more than the most."""
    for origin, size in guarantees:
        guaranteed_bytes = _bytes_within(size, gpu, origin)
        if most_bytes is None:
            raise LimitError(f"{origin} guarantees memory without a limit; give --mem GUARANTEED:MOST, such as 4g:8g")
        if guaranteed_bytes > most_bytes:
            raise LimitError(f"{origin} reserves more than its limit, {show_size(most_bytes)}; reserve less")
        return guaranteed_bytes if guaranteed_bytes < most_bytes else None
    return None


def sets_limits(environment: Mapping[str, str]) -> bool:
    """Ask whether any limit variable has a value."""
    names = (
        abi.ENV_MEMORY_LIMIT, abi.ENV_WRAPPER_MEMORY, ENV_TOOLKIT_LIMIT, abi.ENV_SM_LIMIT, abi.ENV_ALNAIR_SM,
    )  # fmt: skip
    return any(name.startswith(names) and value.strip(" \t") for name, value in environment.items())


def _from_environment(
    environment: Mapping[str, str], names: Sequence[str], parse: Callable[[str], T]
) -> list[tuple[str, T]]:
    """Return where it came from and the value of the first of these variables that is set, or nothing."""
    for name in names:
        text = environment.get(name, "")
        if text.strip(" \t"):
            try:
                return [(f"{name}={text}", parse(text))]
            except LimitError as error:
                raise LimitError(f"{name}: {error}") from None
    return []


def _bytes_within(size: MemorySize, gpu: Gpu, origin: str) -> int:
    limit_bytes = size.bytes_on(gpu.memory_bytes)
    _check_least(size, limit_bytes)
    if limit_bytes > gpu.memory_bytes:
        raise LimitError(
            f"{origin} is more than GPU {gpu.number} has ({show_size(gpu.memory_bytes)}); lower it, or leave it out"
        )
    return limit_bytes


def doubt(memory_bytes: int | None) -> str:
    """Return why programs may not even begin under a memory limit, or nothing where they surely do."""
    if memory_bytes is None or memory_bytes >= _CONTEXT_BYTES:
        return ""
    context = f"a CUDA context alone takes {show_size(_CONTEXT_BYTES)} on {_CONTEXT_OF}"
    return f"{context}: with {show_size(memory_bytes)} programs may be out of memory at their start"


def show_size(size_bytes: int) -> str:
    """Return a size in bytes for people, in binary units."""
    for unit, unit_bytes in _SHOWN_UNITS:
        if size_bytes >= unit_bytes:
            return f"{size_bytes / unit_bytes:.2f}".rstrip("0").rstrip(".") + f" {unit}"
    return f"{size_bytes} byte{'s' * (size_bytes != 1)}"


def show_range(quota: Quota) -> str:
    """Return a memory limit for people, after what of it is guaranteed where that is less."""
    if quota.memory_bytes is None:
        return "no limit"
    guaranteed = "" if quota.guaranteed_bytes is None else f"{show_size(quota.guaranteed_bytes)}:"
    return guaranteed + show_size(quota.memory_bytes)


def shortest_range(quota: Quota) -> str:
    """Return a quota's memory as --mem takes it, which is a limit or GUARANTEED:MOST; nothing without a limit."""
    sizes = (quota.guaranteed_bytes, quota.memory_bytes)
    return ":".join(shortest_size(each) for each in sizes if each is not None)


def shortest_size(size_bytes: int) -> str:
    """Return a size as --mem takes it, and people read it."""
    for unit, unit_bytes in (("g", 1 << 30), ("m", 1 << 20), ("k", 1 << 10)):
        if size_bytes % unit_bytes == 0:
            return f"{size_bytes // unit_bytes}{unit}"
    return str(size_bytes)
