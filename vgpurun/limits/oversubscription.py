"""Oversubscription: a program sees more memory than its share of the device, and the host serves the rest."""

from collections.abc import Sequence
from dataclasses import replace

from vgpurun.errors import LimitError
from vgpurun.host.gpus import Gpu
from vgpurun.limits import quota
from vgpurun.limits.quota import MemorySize, PerDevice, Quota

OPTION = "--oversubscribe"
NOT_OVERSUBSCRIBED: PerDevice[MemorySize] = PerDevice("none")  # lifts it from a container that runs


def parse_oversubscription(text: str) -> PerDevice[MemorySize]:
    """Read --oversubscribe. Raises LimitError."""
    return NOT_OVERSUBSCRIBED if text == NOT_OVERSUBSCRIBED.text else quota.parse_per_device(text, quota.parse_size)


def oversubscribe(gpus: Sequence[Gpu], quotas: Sequence[Quota], wanted: PerDevice[MemorySize] | None) -> list[Quota]:
    """Return the quotas with what --oversubscribe lets the programs see. Raises LimitError where that is no more."""
    sizes = quota.values_on(wanted, gpus, OPTION)
    return [
        each if size is None else _oversubscribed(gpu, each, size.bytes_on(gpu.memory_bytes), size.text)
        for gpu, each, size in zip(gpus, quotas, sizes, strict=True)
    ]


def _oversubscribed(gpu: Gpu, share: Quota, virtual_bytes: int, text: str) -> Quota:
    if share.memory_bytes is None:
        raise LimitError(f"{OPTION} {text} needs a share of GPU {gpu.number} that it goes beyond; give --mem too")
    if virtual_bytes <= share.memory_bytes:
        raise LimitError(
            f"{OPTION} {text} is not more than the share of GPU {gpu.number}, {quota.show_size(share.memory_bytes)}; "
            "raise it, or leave it out"
        )
    return replace(share, virtual_bytes=virtual_bytes)
