"""The part that a Ray task may use of a node's GPUs: Ray's own account of it, as limits.

Pure, and quick to import, since every worker does.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from vgpurun.errors import GpuError, LimitError
from vgpurun.host.gpu import Gpu
from vgpurun.host.gpu_names import match_gpu
from vgpurun.limits.policies import PRIORITIES, SM_POLICIES, Priority, SmPolicy
from vgpurun.limits.quota import Quota, parse_limit, parse_share

if TYPE_CHECKING:
    from vgpurun.limits.nested import Share

FIELD = "vgpurun"  # in a runtime_env
HOOK_FIELD = "worker_process_setup_hook"  # Ray's own
NODE_VARIABLE = "VGPURUN_RAY"  # tells a worker its node's GPUs when it starts
SETUP = "vgpurun.ray.worker.setup"  # the setup hook of workers
# A placement group has a key for the whole group and one for each bundle: they name the same share.
_RESOURCE = re.compile(r"GPU|GPU_group_[0-9A-Za-z]+", re.ASCII)
_NOTHING = Quota(memory_bytes=0)
_KEYS = ("mem", "sm", "sm_policy", "priority")


@dataclass(frozen=True)
class Wish:
    """The field's values as they are written: `mem` and `sm` lower what a task's `num_gpus` comes to."""

    mem: str | None = None
    sm: str | None = None
    sm_policy: SmPolicy = SmPolicy.HARD
    priority: Priority = Priority.HIGH


@dataclass(frozen=True)
class Node:
    """The message to a worker that starts: the node's GPUs, its job's wish, and the job's own setup hook.

    A node that is itself in a share gives parts of it: `parents` are that share's folder and those of the shares that
    it is a part of, and the memory of `gpus` is the share's, as are `percents`, by UUID.
    """

    gpus: tuple[Gpu, ...]
    wish: Wish
    hook: str = ""
    parents: tuple[str, ...] = ()
    percents: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def within(cls, share: "Share | None", gpus: Sequence[Gpu], wish: Wish, hook: str) -> "Node":
        """Return the node of these GPUs, which is in a share or not. Raises LimitError for a wish that cannot be."""
        if share is None:
            return cls(tuple(gpus), wish, hook)
        if (wish.sm_policy, wish.priority) != (SmPolicy.HARD, Priority.HIGH):
            raise LimitError(f"runtime_env: {FIELD}: sm_policy and priority are the share's that this node is in")
        wholes = {gpu: quota for gpu in gpus for uuid, quota in share.quotas if uuid == gpu.uuid}
        sizes = {gpu: quota.virtual_bytes or quota.memory_bytes or gpu.memory_bytes for gpu, quota in wholes.items()}
        seen = [replace(gpu, memory_bytes=size_bytes) for gpu, size_bytes in sizes.items()]
        percents = {gpu.uuid: quota.sm_percent or 100 for gpu, quota in wholes.items()}
        from vgpurun.limits.nested import folders_above

        above = (share.folder, *folders_above(share.folder))
        return cls(tuple(seen), wish, hook, tuple(map(str, above)), percents)

    def to_json(self) -> str:
        """Return it as a variable has it."""
        wish = {**asdict(self.wish), "sm_policy": self.wish.sm_policy.value, "priority": self.wish.priority.value}
        return json.dumps({**asdict(self), "wish": wish}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Node":
        """Return what to_json() has written."""
        said = json.loads(text)
        wish = said["wish"]
        wish |= {"sm_policy": SmPolicy(wish["sm_policy"]), "priority": Priority(wish["priority"])}
        gpus = tuple(Gpu(**{**each, "mig_ids": tuple(each["mig_ids"])}) for each in said["gpus"])
        return cls(**{**said, "gpus": gpus, "wish": Wish(**wish), "parents": tuple(said["parents"])})


def read_wish(field: Any) -> Wish:
    """Read the field of a runtime_env. Raises LimitError for what is not understood."""
    if not isinstance(field, Mapping):
        raise LimitError(f"runtime_env: {FIELD} is a dictionary of {', '.join(_KEYS)}; {{}} goes by num_gpus alone")
    for key in field:
        if key not in _KEYS:
            raise LimitError(f"runtime_env: {FIELD} has no '{key}'; it has {', '.join(_KEYS)}")
    texts = {key: str(field[key]) for key in ("mem", "sm") if field.get(key) is not None}
    if "mem" in texts:
        parse_limit(texts["mem"])
    if "sm" in texts:
        parse_share(texts["sm"])
    policy = _one_of("sm_policy", field.get("sm_policy", "hard"), SM_POLICIES)
    return Wish(**texts, sm_policy=policy, priority=_one_of("priority", field.get("priority", "high"), PRIORITIES))


def _one_of(key: str, value: Any, values: Mapping[str, Any]) -> Any:
    if not isinstance(value, str) or value not in values:
        raise LimitError(f"runtime_env: {FIELD}: {key} '{value}' is not one of {', '.join(values)}")
    return values[value]


def fractions(resources: Mapping[str, Sequence[tuple[int, float]]]) -> dict[int, float]:
    """Return how much of each GPU a task has, by Ray's number for it; `resources` is the worker's account."""
    found: dict[int, float] = {}
    for name, assignment in resources.items():
        if _RESOURCE.fullmatch(name):
            for number, fraction in assignment:
                found[int(number)] = found.get(int(number), 0.0) + float(fraction)
    return found


def gpu_of(number: int, visible: Sequence[str] | None, gpus: Sequence[Gpu]) -> Gpu:
    """Return the GPU that Ray has a number for; `visible` is the node's CUDA_VISIBLE_DEVICES, by which Ray counts.

    Raises GpuError for one that the node does not have.
    """
    if visible is not None and number >= len(visible):
        raise GpuError(f"Ray's GPU {number} is not among CUDA_VISIBLE_DEVICES={','.join(visible)} of its worker")
    name = str(number) if visible is None else visible[number].strip()
    found = match_gpu(name, gpus)
    if found is None:
        raise GpuError(f"this node has no GPU '{name}', of which Ray has given a share; was it lost?")
    return found


def limits_of(shares: Mapping[str, float], node: Node) -> list[tuple[str, Quota]]:
    """Return a task's limits on every GPU of the node, by UUID; on those that it has no share of, nothing is granted.

    Raises LimitError for a share that is too small to be held to.
    """
    return [(gpu.uuid, quota_of(shares[gpu.uuid], gpu, node) if gpu.uuid in shares else _NOTHING) for gpu in node.gpus]


def quota_of(fraction: float, gpu: Gpu, node: Node) -> Quota:
    """Return what a fraction of a GPU comes to, or the wish where that is less. Raises LimitError."""
    wish, of_percent = node.wish, node.percents.get(gpu.uuid, 100)
    percent = int(min(fraction, 1.0) * of_percent + 1e-6)
    if percent < 1:
        raise LimitError(
            f"num_gpus={fraction:g} is less than 1 % of a GPU, the smallest share that can be held to; ask for more"
        )
    memory_bytes = int(gpu.memory_bytes * min(fraction, 1.0) + 1e-3)
    if wish.mem is not None:
        memory_bytes = min(memory_bytes, parse_limit(wish.mem).bytes_on(gpu.memory_bytes))
    if wish.sm is not None:
        percent = min(percent, (parse_share(wish.sm) or 100) * of_percent // 100)
    return Quota(memory_bytes, percent if percent < 100 else None, wish.sm_policy, wish.priority)
