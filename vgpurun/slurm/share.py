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
    return [DeviceQuota(gpu, _quota(share, asked, gpu)) for share in shares for gpu in [gpu_at(share.at, gpus, conf)]]


def gpu_at(index: int, gpus: Sequence[Gpu], conf: Sequence[GresLine]) -> Gpu:
    """Return the GPU that has an index in Slurm: those of gres.conf are in the order of their files' numbers.

    Where gres.conf names no files (AutoDetect=nvml) it is their order by minor number. The MIG instances of a GPU
    follow each other. Raises SlurmError: another GPU than the job's must never be taken for it.
    """
    found = sorted(usable(gpus), key=lambda gpu: (gpu.minor_number, gpu.mig_index or 0))
    numbers = sorted(number for line in conf if line.name == "gpu" for number in line.numbers)
    if not numbers and index < len(found):
        return found[index]
    if index >= len(numbers):
        raise SlurmError(
            f"Slurm gave the job GPU {index}, and there are {len(numbers or found)}; does gres.conf say so?"
        )
    number = numbers[index]
    same = [gpu for gpu in found if gpu.minor_number == number]
    if len(same) != numbers.count(number):
        raise SlurmError(
            f"gres.conf has {numbers.count(number)} of GPU {index} (minor number {number}), and the driver shows "
            f"{len(same)}; is it lost, or are its MIG instances others?"
        )
    return same[index - numbers.index(number)]


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
