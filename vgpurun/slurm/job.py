"""Asks slurmctld what a job has of a node's GPUs. Hooks are told the GPUs, but not the job's shards of them."""

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from vgpurun.errors import SlurmError
from vgpurun.slurm.conf import GresLine, expand, gres_lines

PATIENCE_S = 20.0  # slurmctld may be busy; a prolog has to end all the same
_WHERE = ":".join(
    f"{folder}/{kind}"
    for folder in ("/usr", "/usr/local", "/opt/slurm", "/usr/local/slurm")
    for kind in ("bin", "sbin")
)
_GRES = re.compile(r"(gpu|shard)(?::[^:(),\s]+)?:(\d+)\(([^)]*)\)")
# By scontrol's words: jobs of any other state may have something on a node.
_ENDED = frozenset((
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
    "TIMEOUT",
))  # fmt: skip
# Somebody's own variables would have Slurm's programs leave jobs out, or ask another cluster.
_CHOICES = ("SACCT_", "SCONTROL_", "SLURM_CLUSTERS")


class GpuShare(NamedTuple):
    """A job's part of one GPU of the node: `shards` of `all_shards`. A whole GPU is 1 of 1.

    `at` is its index in Slurm."""

    at: int
    shards: int = 1
    all_shards: int = 1

    @property
    def is_whole(self) -> bool:
        """Whether nobody else can have anything of it."""
        return self.shards == self.all_shards


def shares_of(job: str, node: str, gres_conf: Path) -> list[GpuShare]:
    """Return what a job has of a node's GPUs. Raises SlurmError."""
    record = _record_of(job, "-d")
    if not record:
        raise SlurmError(f"slurmctld knows no job {job}")
    return parse_shares(record, node, gres_conf)


def parse_shares(record: str, node: str, gres_conf: Path) -> list[GpuShare]:
    """Read them in the output of `scontrol -d show job`.

    24.11 has `shard:3(0/4,3/4)`, the job's and all of each GPU; 22.05 has `shard:3(IDX:0)`, where gres.conf has all.
    Raises SlurmError, also where the job's user has written such a line.
    """
    lines = re.findall(r"^ +Nodes=(\S+) CPU_IDs=.* GRES=(\S*)", record, re.MULTILINE)
    found = [gres for nodes, gres in lines if node in expand(nodes)]
    if len(found) > 1:
        raise SlurmError(f"a name or comment of this job looks like what it has of {node}; take the line breaks out")
    return [share for gres in found for kind, count, where in _GRES.findall(gres) for share in _shares(
        kind, int(count), where, lambda: gres_lines(gres_conf, node), gres
    )]  # fmt: skip


def _record_of(job: str, *options: str) -> str:
    """Return what slurmctld has of a job, empty where it has none. Raises SlurmError.

    Its name, account and comment are as its user wrote them, line breaks too. What cannot be forged is that slurmctld's
    own lines are there as well, so each is believed only while there is no other like it. For an array or a
    heterogeneous job scontrol would add its other tasks or components, which have such lines.
    """
    record = ask("scontrol", *options, "show", "job", job)
    one_of = re.match(rf"JobId={job} (?:(Array)|Het)JobId={job} \w+=(\d+) ", record)
    if one_of:
        record = ask("scontrol", *options, "show", "job", f"{job}{'_' if one_of[1] else '+'}{one_of[2]}")
    return record if record.startswith(f"JobId={job} ") else ""


def _shares(kind: str, count: int, where: str, conf: "object", gres: str) -> list[GpuShare]:
    if "/" in where:
        pairs = [part.partition("/") for part in where.split(",")]
        return [GpuShare(at, int(n), int(of)) for at, (n, _, of) in enumerate(pairs) if int(n)]
    match = re.search(r"IDX:([\d,-]+)", where)
    indexes = [int(each) for each in expand(f"[{match.group(1)}]")] if match else []
    if kind == "gpu":
        return [GpuShare(index) for index in indexes]
    if len(indexes) != 1:
        raise SlurmError(f"this Slurm does not tell how the shards of {gres} are spread over GPUs; ask for fewer")
    assert callable(conf)
    return [GpuShare(indexes[0], count, all_shards(conf(), indexes[0]))]


def all_shards(lines: Sequence[GresLine], index: int) -> int:
    """Return how many shards a GPU has by gres.conf. Raises SlurmError."""
    numbers = sorted(number for line in lines if line.name == "gpu" for number in line.numbers)
    shards = [line for line in lines if line.name == "shard"]
    for line in shards:
        if line.total and line.numbers and index < len(numbers) and numbers[index] in line.numbers:
            return line.total // len(line.numbers)
    for line in shards:
        if line.total and not line.numbers and index < len(numbers):
            each, rest = divmod(line.total, len(numbers))
            return each + (index < rest)
    raise SlurmError(f"gres.conf does not say how many shards GPU {index} has: Name=shard Count=... and Name=gpu File=")


def is_on(job: str, node: str) -> bool:
    """Whether slurmctld has a job on a node, as may be one whose user has written lines like its own.

    Raises SlurmError.
    """
    try:
        # Not squeue: for several jobs, or for a node, it fetches all jobs or all nodes of the cluster.
        record = _record_of(job, "-a")
    except SlurmError as error:
        if "Invalid job id" in str(error):
            return False
        raise
    states = re.findall(r"^ +JobState=(\S+)", record, re.MULTILINE)
    nodes = re.findall(r"^ +NodeList=(\S*)", record, re.MULTILINE)
    if len(states) > 1 or len(nodes) > 1:
        return True
    return bool(states and nodes) and states[0] not in _ENDED and node in expand(nodes[0])


def ask(program: str, *arguments: str) -> str:
    """Return what a program of Slurm's prints. Raises SlurmError."""
    path = find(program)
    if path is None:
        raise SlurmError(f"Slurm's {program} is not on PATH ({os.environ.get('PATH', '')}); set PATH in the prolog")
    done = run(path, *arguments)
    if done.returncode:
        raise SlurmError(f"{program} failed: {' '.join((done.stderr or done.stdout).split())[:200]}")
    return done.stdout


def find(program: str) -> str | None:
    """Return the path of a program of Slurm's, None where it is not installed."""
    return shutil.which(program) or shutil.which(program, path=_WHERE)


def run(path: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a program of Slurm's. Raises SlurmError."""
    try:
        return subprocess.run(
            [path, *arguments], capture_output=True, text=True, errors="replace", timeout=PATIENCE_S, check=False,
            env={name: value for name, value in os.environ.items() if not name.startswith(_CHOICES)},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{path} has not ended in {PATIENCE_S:.0f} s: is slurmctld up?") from None
    except OSError as error:
        raise SlurmError(f"{path} cannot be run: {error.strerror}") from None
