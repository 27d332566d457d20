"""Turns what a job has of a node's GPUs, and what it asked for, into quotas."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from vgpurun.errors import SlurmError
from vgpurun.host.gpus import Gpu, usable
from vgpurun.limits import quota
from vgpurun.limits.model import DeviceQuota
from vgpurun.limits.quota import Quota
from vgpurun.slurm.conf import GresLine
from vgpurun.slurm.job import GpuShare


class Asked(NamedTuple):
    """`--vgpu-mem` and `--vgpu-sm` of a job, as they were written; empty where they were not."""

    memory: str = ""
    sm: str = ""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "Asked":
        """Take them from a prolog's environment, where the SPANK plugin puts them."""
        return cls(environment.get("SPANK_VGPU_MEM", ""), environment.get("SPANK_VGPU_SM", ""))

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self.memory or self.sm)


def job_quotas(
    shares: Sequence[GpuShare], asked: Asked, gpus: Sequence[Gpu], conf: Sequence[GresLine]
) -> list[DeviceQuota]:
    """Return a job's quotas; none for whole GPUs of which it asked for no part.

    Raises SlurmError, and LimitError for options that cannot be read.
    """
    if all(share.is_whole for share in shares) and not asked:
        return []
    in_order = gpus_by_index(gpus, conf)
    return [DeviceQuota(gpu, _quota(share, asked, gpu)) for share in shares for gpu in [_gpu(share, in_order)]]


def gpus_by_index(gpus: Sequence[Gpu], conf: Sequence[GresLine]) -> list[Gpu]:
    """Return the GPUs in the order of Slurm's indexes: those whose files gres.conf names, by their minor numbers.

    Where it names none (AutoDetect=nvml), all of them. The instances of a GPU follow each other.
    """
    found = sorted(usable(gpus), key=lambda gpu: (gpu.minor_number, gpu.mig_index or 0))
    named = {number for line in conf if line.name == "gpu" for number in line.numbers}
    return [gpu for gpu in found if gpu.minor_number in named] if named else found


def _gpu(share: GpuShare, in_order: Sequence[Gpu]) -> Gpu:
    if share.at >= len(in_order):
        raise SlurmError(
            f"Slurm gave the job GPU {share.at}, and the driver shows {len(in_order)} of those in gres.conf"
        )
    return in_order[share.at]


def _quota(share: GpuShare, asked: Asked, gpu: Gpu) -> Quota:
    percent = 100 * share.shards // share.all_shards
    if not percent:
        raise SlurmError(
            f"{share.shards} of {share.all_shards} shards are less than 1 % of a GPU's time; give a GPU at most 100 "
            "shards in gres.conf"
        )
    memory_bytes = gpu.memory_bytes * share.shards // share.all_shards
    return Quota(
        _asked_memory(asked.memory, memory_bytes, gpu) if asked.memory else None if share.is_whole else memory_bytes,
        _asked_sm(asked.sm, percent) if asked.sm else None if share.is_whole else percent,
    )


def _asked_memory(text: str, most_bytes: int, gpu: Gpu) -> int:
    asked_bytes = quota.parse_limit(text).bytes_on(gpu.memory_bytes)
    if asked_bytes > most_bytes:
        raise SlurmError(
            f"--vgpu-mem {text} is more than the job's part of the GPU, {quota.show_size(most_bytes)}; ask for more "
            "shards"
        )
    return asked_bytes


def _asked_sm(text: str, most: int) -> int | None:
    asked = quota.parse_sm(text) or 100
    if asked > most:
        raise SlurmError(f"--vgpu-sm {text} is more than the job's {most} %; ask for more shards")
    return asked if asked < 100 else None
