"""Whether programs would gain from working at the same time (--together), by what the profile of each says.

The model is small. A program works on the GPU for a part of its time, and fills a part of the GPU meanwhile. One after
the other, programs have no more than the GPU's time; at the same time, no more than the GPU. All lose alike where that
is too little. What else they share then, memory bandwidth above all, no profile says.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from vgpurun import abi
from vgpurun.errors import ProfileError
from vgpurun.profiles.reader import FileProfile, read_profiles

_LEAST_KNOWN = 0.5  # of the GPU time: less says nothing of all of it
_NEARLY_ALL = 0.95
_LEAST_GAIN = 1.05


@dataclass(frozen=True)
class Use:
    """A container's use of its GPU while it was profiled, in parts of a whole."""

    name: str
    gpu: str  # UUID
    began_ns: int
    ended_ns: int
    busy: float  # of the time in which it had processes
    fill: float  # of the GPU while busy, as far as that is known
    known: float  # of its GPU time
    is_member: bool  # of a group that works at the same time already
    files: frozenset[Path]


class Estimate(NamedTuple):
    """The pace of each program, in parts of the one that it has alone."""

    together: float
    in_turns: float

    @property
    def sentence(self) -> str:
        """The same in words."""
        together, in_turns = (f"{100 * pace:.0f} %" for pace in self)
        told = f"Together each would have about {together} of its pace alone at best; one after the other {in_turns}"
        return f"{told}." if self.together >= _LEAST_GAIN * self.in_turns else f"{told}: there is nothing to gain."


def estimate(uses: Sequence[Use]) -> Estimate:
    """Return the estimate for these programs on one GPU."""
    return Estimate(_pace(each.busy * each.fill for each in uses), _pace(each.busy for each in uses))


def _pace(asked: Iterable[float]) -> float:
    return 1 / max(sum(asked), 1.0)


def read_use(described: Mapping[str, Any], is_member: bool, say: Callable[[str], None]) -> Use:
    """Return what the profiles of a container tell, by the engine's description of it; `say` hears of damaged ones.

    Raises:
        ProfileError: it has none, or they do not tell enough.
    """
    name = described["Name"].lstrip("/")
    folders = [each["Source"] for each in described["Mounts"] if each["Destination"] == abi.CONTAINER_PROFILE]
    if not folders:
        raise ProfileError(f"container {name} is not profiled; start it by `vgpurun run --profile DIR`")
    profiles = read_profiles(Path(folders[0]), say, _host_name(described))  # others may record there, too
    kernels = [kernel for profile in profiles for kernel in profile.kernels]
    gpu_ns, known_ns = sum(each.gpu_ns for each in kernels), sum(each.fill_known_ns for each in kernels)
    lives = [(profile.started_ns, profile.ended_ns or profile.last_ns) for profile in profiles]
    lived_ns = _covered_ns(lives)
    if not gpu_ns or not lived_ns:
        raise ProfileError(f"the profile of container {name} has no work on a GPU yet; let it work for a while")
    if known_ns < _LEAST_KNOWN * gpu_ns:
        raise ProfileError(
            f"the profile of container {name} does not say how full the GPU was for {1 - known_ns / gpu_ns:.0%} of its "
            "GPU time, as those of CUDA graphs and of older libraries do not; profile it anew, without graphs"
        )
    return Use(
        name,
        _only_gpu(name, profiles),
        min(began_ns for began_ns, _ in lives),
        max(ended_ns for _, ended_ns in lives),
        busy=min(gpu_ns / lived_ns, 1.0),
        fill=sum(each.filled_ns for each in kernels) / known_ns,
        known=known_ns / gpu_ns,
        is_member=is_member,
        files=frozenset(profile.path for profile in profiles),
    )


def _host_name(described: Mapping[str, Any]) -> str:
    """Return the name of its host that a container sees. With `--uts host` the engine says another one."""
    has_the_hosts = described["HostConfig"]["UTSMode"] == "host"
    return socket.gethostname() if has_the_hosts else str(described["Config"]["Hostname"])


def _only_gpu(name: str, profiles: Sequence[FileProfile]) -> str:
    gpus = {gpu for profile in profiles for gpu in profile.devices}
    if len(gpus) != 1:
        raise ProfileError(f"container {name} has {len(gpus)} GPUs in its profile; advice is for containers with one")
    return gpus.pop()


def _covered_ns(lives: Iterable[tuple[int, int]]) -> int:
    """Return the length of time in which there was at least one process."""
    covered_ns, until_ns = 0, None
    for began_ns, ended_ns in sorted(lives):
        from_ns = began_ns if until_ns is None else max(began_ns, until_ns)
        covered_ns += max(ended_ns - from_ns, 0)
        until_ns = max(ended_ns, from_ns)
    return covered_ns


def check(uses: Sequence[Use]) -> None:
    """Raise ProfileError where nobody can tell whose a profile is."""
    for one, other in combinations(uses, 2):
        if one.files & other.files:
            raise ProfileError(
                f"the profiles of containers {one.name} and {other.name} cannot be told apart: they have one folder "
                "and one host name; give each a --profile of its own"
            )


def notes(uses: Sequence[Use]) -> Iterator[str]:
    """Yield what the estimate leaves out, and what makes it worse than it could be."""
    for each in uses:
        if each.known < _NEARLY_ALL:
            yield f"How full {each.name} has the GPU is known of {each.known:.0%} of its GPU time alone."
    if len({each.gpu for each in uses}) > 1:
        yield "They are on different GPUs, where none takes anything from the others; the estimate is for one such GPU."
    if any(_were_beside(one, other) for one, other in combinations(uses, 2)):
        yield "They were recorded beside each other, so their GPU time includes the others' work; profile each alone."
    if members := [each.name for each in uses if each.is_member]:
        yield (
            f"Together with others already: {', '.join(members)}. How much that has gained them is not recorded; "
            "FILLED is of the SMs that each may use."
        )
    yield "Left out: memory bandwidth, caches and each SM's units, which they would share as well, and so gain less."


def _were_beside(one: Use, other: Use) -> bool:
    return one.gpu == other.gpu and one.began_ns < other.ended_ns and other.began_ns < one.ended_ns
