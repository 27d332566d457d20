"""Writes what a job has used of GPUs into its AdminComment, where sacct shows it.

    vgpurun: gpu_seconds=37.5 refusals=0 n1=20.1/0 n2=17.4/0

Each node of a job adds its own part, `node=gpu_seconds/refusals`, and sums up all of them. Slurm cannot change the text
in one step, so a node looks again after a while whether another has lost its part.
"""

import random
import re
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from vgpurun.errors import SlurmError
from vgpurun.limits.usage_file import DeviceReading
from vgpurun.slurm.job import ask

_OURS = re.compile(r"(?:; )?vgpurun: [^;]*")
_PART = re.compile(r" (\S+)=([0-9.]+)/([0-9]+)")
_TRIES = 5
_SETTLES_S = 0.5  # more than a node takes from reading to writing


class Used(NamedTuple):
    """A job's use of the GPUs of a node."""

    gpu_s: float
    refusals: int


def used(readings: Sequence[DeviceReading]) -> Used:
    """Return the sum over a job's GPUs."""
    return Used(sum(each.busy_ns for each in readings) / 1e9, sum(each.refusals for each in readings))


def note(job: str, node: str, mine: Used, is_alone: bool) -> None:
    """Add a node's part to the AdminComment of a job; `is_alone`: it has no other node. Raises SlurmError."""
    for _ in range(_TRIES):
        before = _comment(job)
        after = merged(before, node, mine)
        if before == after:
            return
        ask("sacctmgr", "-i", "modify", "job", "where", f"jobid={job}", "set", f"AdminComment={after}")
        if is_alone:
            return
        time.sleep(_SETTLES_S * (1 + random.random()))
    raise SlurmError(f"the AdminComment of job {job} does not keep what {node} writes; is slurmdbd up?")


def _comment(job: str) -> str:
    lines = ask("sacct", "-j", job, "-X", "-n", "-P", "-o", "JobIDRaw,AdminComment").splitlines()
    return next((line.partition("|")[2] for line in lines if line.startswith(f"{job}|")), "")


def merged(comment: str, node: str, mine: Used) -> str:
    """Return a comment with a node's part, and with what others have written in it."""
    ours = _OURS.search(comment)
    parts = {
        name: Used(float(gpu_s), int(refusals)) for name, gpu_s, refusals in _PART.findall(ours.group() if ours else "")
    }
    parts[node] = Used(round(mine.gpu_s, 1), mine.refusals)
    others = _OURS.sub("", comment)
    return f"{others}; {_text(parts)}" if others else _text(parts)


def _text(parts: Mapping[str, Used]) -> str:
    each = " ".join(f"{name}={part.gpu_s:.1f}/{part.refusals}" for name, part in sorted(parts.items()))
    gpu_s, refusals = sum(part.gpu_s for part in parts.values()), sum(part.refusals for part in parts.values())
    return f"vgpurun: gpu_seconds={gpu_s:.1f} refusals={refusals} {each}"
