"""A profile: what the processes of one run did on their GPUs.

All instants are nanoseconds since the epoch, so that processes, and containers of one host, share an axis.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

MOST_KERNELS = 4094  # kernels with names of their own in a profile
OTHER_KERNELS = "(other kernels)"


class CopyKind(Enum):
    """The direction of a copy; the values are those of Alnair's timeline (and of cudaMemcpyKind)."""

    HOST_TO_HOST = 0
    HOST_TO_DEVICE = 1
    DEVICE_TO_HOST = 2
    DEVICE_TO_DEVICE = 3
    BY_POINTERS = 4


class Call(NamedTuple):
    """A call of the driver's API, as the host saw it."""

    api: str
    start_ns: int
    duration_ns: int
    size_bytes: int  # the copy's or allocation's; 0 for others
    kind: CopyKind | None  # None: no copy
    thread: int
    device: int  # index into FileProfile.devices, -1: not known
    stream: int  # a number that tells streams of the process apart; 0: the default stream, or none


class GpuSpan(NamedTuple):
    """A time in which a stream had these launches on the GPU, by the GPU's clock: they worked, or waited for others."""

    device: int
    stream: int
    start_ns: int
    duration_ns: int
    launches: int
    own_ns: int  # the part that counts for it: of streams that work at the same time, each for one of them


class GateWait(NamedTuple):
    """Work waited for the compute limit: off the GPU, or its launch was held."""

    device: int
    start_ns: int
    duration_ns: int
    thread: int


class Sample(NamedTuple):
    """A device's figures at an instant, for the whole container."""

    device: int
    at_ns: int
    used_bytes: int
    own_bytes: int  # this process's alone
    memory_limit_bytes: int | None
    busy_ns: int  # GPU time since the container's start
    sm_limit_percent: int  # 100: no limit


@dataclass(frozen=True)
class ApiTotal:
    """All calls of one function; exact, even where single calls were dropped."""

    api: str
    calls: int
    failed: int
    size_bytes: int
    duration_ns: int
    longest_ns: int


@dataclass(frozen=True)
class KernelTotal:
    """All launches of one kernel, with its part of the measured GPU time.

    `filled_ns` is the part of `fill_known_ns` that it would have taken had it filled the GPU; the latter is the GPU
    time of the launches of which that is known.
    """

    name: str
    launches: int
    gpu_ns: int
    fill_known_ns: int = 0
    filled_ns: int = 0
