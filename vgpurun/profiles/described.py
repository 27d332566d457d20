"""A run in short as plain data, for JSON: times are in nanoseconds, sizes in bytes, shares in percent."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from vgpurun.profiles.names import api_name, kernel_name
from vgpurun.profiles.series import Axis
from vgpurun.profiles.summary import CopySummary, DeviceSummary, Summary


def describe(summary: Summary) -> dict[str, Any]:
    """Return all of a summary but its lanes."""
    return {
        "begin_ns": summary.fine.begin_ns,
        "duration_ns": summary.duration_ns,
        "processes": [asdict(process) for process in summary.processes],
        "devices": [_device(device, summary) for device in summary.devices],
        "apis": [asdict(total) | {"api": api_name(total.api)} for total in summary.apis],
        "kernels": [asdict(total) | {"name": kernel_name(total.name)} for total in summary.kernels],
        "copies": [_copy(copy) for copy in summary.copies],
        "waits": asdict(summary.waits),
    }


def _device(device: DeviceSummary, summary: Summary) -> dict[str, Any]:
    return {
        "uuid": device.uuid,
        "memory_peak_bytes": device.peak_bytes,
        "memory_peak_at_ns": device.peak_at_ns,
        "memory_limit_bytes": device.memory_limit_bytes,
        "sm_used_percent": _percent(device.share),
        "sm_limit_percent": device.sm_limit_percent,
        "gpu_ns": device.gpu_ns,
        "memory_used_bytes": _series(summary.fine, device.used_bytes),
        "sm_used_percent_over_time": _series(summary.coarse, [_percent(share) for share in device.shares]),
    }


def _copy(copy: CopySummary) -> dict[str, Any]:
    return {
        "kind": copy.kind.name.lower(),
        "calls": copy.calls,
        "size_bytes": copy.size_bytes,
        "synchronous_bytes": copy.synchronous_bytes,
        "synchronous_ns": copy.synchronous_ns,
    }


def _series(axis: Axis, values: Sequence[float | None]) -> dict[str, Any]:
    return {"bin_ns": round(axis.bin_ns), "values": [None if value is None else round(value, 1) for value in values]}


def _percent(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 2)
