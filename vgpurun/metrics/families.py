"""The metrics of `vgpurun exporter`: one list, from which the output, the documentation and its checks are made.

A family's value is None, and it has no sample, where there is nothing to say: no limit, unreadable, not measured.
"""

import platform
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from vgpurun import __version__
from vgpurun.limits.usage_file import NOT_ENFORCED
from vgpurun.metrics.holding import Held
from vgpurun.metrics.snapshot import ENGINE, NVML, SOURCES, Device, GpuSeen, HadGpu, Snapshot, TenantSeen

Row = TypeVar("Row")
GAUGE, COUNTER, UNTYPED = "gauge", "counter", "untyped"


@dataclass(frozen=True)
class Scope(Generic[Row]):
    """The objects that a family has samples of: rows of a snapshot, and how each is labelled."""

    rows: Callable[[Snapshot], Iterable[Row]]
    labels: Mapping[str, Callable[[Row], str]]


@dataclass(frozen=True)
class Family(Generic[Row]):
    """A metric: its name as it is scraped, gauge, counter or untyped, one line of help, and its value for a row."""

    name: str
    kind: str
    help: str
    scope: Scope[Row]
    value: Callable[[Row], float | None]


HOST_GPU: Scope[GpuSeen] = Scope(
    lambda snapshot: snapshot.gpus,
    {
        "gpu": lambda seen: seen.gpu.uuid,
        "index": lambda seen: seen.gpu.number,
        "model": lambda seen: seen.gpu.name,
    },
)
_OF_DEVICE: Mapping[str, Callable[[Device], str]] = {
    "container": lambda device: device.tenant.name,
    "user": lambda device: device.tenant.user,
    "namespace": lambda device: device.tenant.namespace,
    "pod": lambda device: device.tenant.pod,
    "gpu": lambda device: device.gpu.uuid,
}


def _of_first(read: Callable[[Device], str]) -> Callable[[tuple[Device, Any]], str]:
    return lambda row: read(row[0])


DEVICE: Scope[Device] = Scope(lambda snapshot: snapshot.devices, _OF_DEVICE)
_LIMIT: Scope[tuple[Device, str]] = Scope(
    lambda snapshot: [(device, limit) for device in snapshot.devices for limit in NOT_ENFORCED],
    {
        **{name: _of_first(read) for name, read in _OF_DEVICE.items()},
        "limit": lambda row: row[1],
    },
)
_HELD: Scope[tuple[Device, Held]] = Scope(
    lambda snapshot: [
        (device, snapshot.held[device.key]) for device in snapshot.devices if device.key in snapshot.held
    ],
    {name: _of_first(read) for name, read in _OF_DEVICE.items()},
)
_TENANT: Scope[TenantSeen] = Scope(
    lambda snapshot: snapshot.tenants,
    {
        "container": lambda tenant: tenant.name,
        "user": lambda tenant: tenant.user,
        "namespace": lambda tenant: tenant.namespace,
        "pod": lambda tenant: tenant.pod,
        "id": lambda tenant: tenant.id,
        "image": lambda tenant: tenant.image,
        "kind": lambda tenant: tenant.kind,
    },
)
_STOPPED: Scope[TenantSeen] = Scope(
    _TENANT.rows, {name: read for name, read in _TENANT.labels.items() if name in _OF_DEVICE}
)
_IN_TURNS: Scope[TenantSeen] = Scope(
    lambda snapshot: [each for each in snapshot.tenants if any(device.quota.takes_turns for device in each.devices)],
    _STOPPED.labels,
)
_ACTION: Scope[tuple[tuple[str, str], int]] = Scope(
    lambda snapshot: snapshot.guard_actions.items(), {"action": lambda row: row[0][0], "cause": lambda row: row[0][1]}
)
_HAD: Scope[HadGpu] = Scope(
    lambda snapshot: snapshot.had,
    {"container": lambda had: had.name, "user": lambda had: had.user, "gpu": lambda had: had.uuid},
)
_EXPORTER: Scope[Snapshot] = Scope(lambda snapshot: [snapshot], {})
_SOURCE: Scope[tuple[Snapshot, str]] = Scope(
    lambda snapshot: [(snapshot, source) for source in (NVML, ENGINE)], {"source": lambda row: row[1]}
)
_TROUBLE: Scope[tuple[Snapshot, str]] = Scope(
    lambda snapshot: [(snapshot, source) for source in SOURCES], {"source": lambda row: row[1]}
)
_BUILD: Scope[Snapshot] = Scope(
    lambda snapshot: [snapshot],
    {"version": lambda _: __version__, "python_version": lambda _: platform.python_version()},
)


def _reserved(seen: GpuSeen, limit: Callable[[Device], float | None]) -> float:
    """Return the sum of limits on a GPU; those that take turns have the largest of theirs, suspended ones none."""
    there = [device for device in seen.devices if not device.quota.is_suspended]
    in_turns = max((limit(device) or 0 for device in there if device.quota.takes_turns), default=0)
    return sum(limit(device) or 0 for device in there if not device.quota.takes_turns) + in_turns


def reserved_bytes(seen: GpuSeen) -> float:
    """Return what is reserved of a GPU's memory by limits."""
    return _reserved(seen, lambda device: device.memory_limit_bytes)


def reserved_ratio(seen: GpuSeen) -> float:
    """Return what is reserved of a GPU's time by limits; 1 is the whole GPU."""
    return _reserved(seen, lambda device: device.sm_limit_ratio)


def used_ratio(device: Device) -> float | None:
    """Return the share of a GPU's time that a container used in the last whole second, from 0 to 1."""
    return device.reading.utilization.last_1s / 100 if device.reading and device.is_measured else None


def kernel_age_s(device: Device) -> float | None:
    """Return the seconds since a container's last launch; None without one, or if it lies in the future (bad data)."""
    last_ns = device.reading.last_launch_ns if device.reading else 0
    age_ns = time.monotonic_ns() - last_ns
    return age_ns / 1e9 if last_ns > 0 and age_ns >= 0 else None


def launches_held(device: Device) -> float | None:
    """Return whether the compute limit is held by holding launches, as 0 or 1; None where nothing holds one yet."""
    limiter = device.reading.limiter if device.reading else None
    return None if limiter is None else int(limiter == "launches")


def of_reading(name: str, unit: float = 1) -> Callable[[Device], float | None]:
    """Return what takes one field of a device's reading, divided by a unit."""
    return lambda device: None if device.reading is None else getattr(device.reading, name) / unit


FAMILIES: tuple[Family[Any], ...] = (
    Family("vgpurun_gpu_memory_total_bytes", GAUGE, "Memory of the GPU.", HOST_GPU, lambda seen: seen.gpu.memory_bytes),
    Family(
        "vgpurun_gpu_memory_used_bytes", GAUGE, "Memory of the GPU in use by all programs, by NVML.", HOST_GPU,
        lambda seen: seen.use.memory_used_bytes,
    ),
    Family(
        "vgpurun_gpu_utilization_ratio", GAUGE, "Share of the time in which the GPU ran kernels, by NVML.", HOST_GPU,
        lambda seen: seen.utilization_ratio,
    ),
    Family(
        "vgpurun_gpu_memory_reserved_bytes", GAUGE, "Sum of the memory limits of the containers on the GPU.", HOST_GPU,
        reserved_bytes,
    ),
    Family(
        "vgpurun_gpu_sm_reserved_ratio", GAUGE, "Sum of the compute limits of the containers on the GPU.", HOST_GPU,
        reserved_ratio,
    ),
    Family("vgpurun_gpu_containers", GAUGE, "Containers that have the GPU.", HOST_GPU, lambda seen: len(seen.devices)),
    Family(
        "vgpurun_container_memory_limit_bytes", GAUGE, "Memory limit of the container on the GPU.", DEVICE,
        lambda device: device.memory_limit_bytes,
    ),
    Family(
        "vgpurun_container_memory_virtual_limit_bytes", GAUGE,
        "Memory that the programs see with oversubscription; the host serves what is above the limit.", DEVICE,
        lambda device: device.quota.virtual_bytes,
    ),
    Family(
        "vgpurun_container_memory_used_bytes", GAUGE, "Memory in use that counts against the limit.", DEVICE,
        lambda device: device.memory_used_bytes,
    ),
    Family(
        "vgpurun_container_memory_buffer_bytes", GAUGE, "Memory in use that programs have allocated.", DEVICE,
        of_reading("allocated_bytes"),
    ),
    Family(
        "vgpurun_container_memory_context_bytes", GAUGE, "Memory in use by CUDA contexts.", DEVICE,
        of_reading("context_bytes"),
    ),
    Family(
        "vgpurun_container_memory_module_bytes", GAUGE,
        "Memory in use by loaded code, and by whatever else the driver keeps.", DEVICE, of_reading("other_bytes"),
    ),
    Family(
        "vgpurun_container_memory_host_bytes", GAUGE,
        "Oversubscribed memory, which lies on the host and counts against no limit of the GPU.", DEVICE,
        of_reading("host_bytes"),
    ),
    Family(
        "vgpurun_container_gpu_seconds_total", COUNTER, "GPU time used.", DEVICE, lambda device: device.busy_s,
    ),
    Family(
        "vgpurun_container_sm_used_ratio", GAUGE, "Share of the GPU's time used in the last whole second.", DEVICE,
        used_ratio,
    ),
    Family(
        "vgpurun_container_sm_limit_ratio", GAUGE, "Compute limit of the container on the GPU.", DEVICE,
        lambda device: device.sm_limit_ratio,
    ),
    Family(
        "vgpurun_container_throttled_seconds_total", COUNTER,
        "Throttled time: for which its work waited for the compute limit, off the GPU or not launched.", DEVICE,
        of_reading("throttled_ns", 1e9),
    ),
    Family(
        "vgpurun_container_launches_held", GAUGE,
        "1 where the driver does not let the GPU's own scheduler hold the compute limit, and launches are held, less "
        "exactly.", DEVICE, launches_held,
    ),
    Family(
        "vgpurun_container_oom_refusals_total", COUNTER, "Allocations refused for the memory limit.", DEVICE,
        of_reading("refusals"),
    ),
    Family(
        "vgpurun_container_launches_total", COUNTER, "Kernel and graph launches that were measured.", DEVICE,
        lambda device: of_reading("launches")(device) if device.is_measured else None,
    ),
    Family(
        "vgpurun_container_last_kernel_age_seconds", GAUGE, "Time since the last kernel or graph launch.", DEVICE,
        kernel_age_s,
    ),
    Family(
        "vgpurun_container_processes", GAUGE, "Processes that hold memory of the GPU.", DEVICE, of_reading("processes"),
    ),
    Family(
        "vgpurun_container_paused", GAUGE, "1 while the container's GPU work is paused.", DEVICE,
        lambda device: int(device.quota.paused),
    ),
    Family(
        "vgpurun_container_suspended", GAUGE, "1 while the container's programs are off their GPUs.", DEVICE,
        lambda device: int(device.quota.is_away),
    ),
    Family(
        "vgpurun_container_suspended_bytes", GAUGE,
        "Device memory that lies in host memory while the container is suspended.", DEVICE,
        lambda device: device.suspended_bytes,
    ),
    Family(
        "vgpurun_container_swaps_total", COUNTER, "Moves of its memory off the GPUs or back, for turns (--swap).",
        _IN_TURNS, lambda tenant: tenant.swaps.swaps,
    ),
    Family(
        "vgpurun_container_swapped_bytes_total", COUNTER, "Bytes that those moves have transferred.",
        _IN_TURNS, lambda tenant: tenant.swaps.swapped_bytes,
    ),
    Family(
        "vgpurun_container_swap_wait_seconds_total", COUNTER, "Time in which its calls waited for its turn (--swap).",
        _IN_TURNS, lambda tenant: tenant.swaps.waited_s,
    ),
    Family(
        "vgpurun_container_idle_seconds_total", COUNTER,
        "Time in which it held memory of the GPU and used no GPU time, since this exporter began.", _HELD,
        lambda row: row[1].idle_s,
    ),
    Family(
        "vgpurun_container_given_back_seconds_total", COUNTER,
        "Time in which it was suspended and its memory of the GPU free for others, since this exporter began.", _HELD,
        lambda row: row[1].given_back_s,
    ),
    Family(
        "vgpurun_container_not_enforced", GAUGE,
        "1 if a limit could not be enforced at some time: memory or sm.", _LIMIT,
        lambda row: int(row[1] in row[0].reading.not_enforced) if row[0].reading else None,
    ),
    Family(
        "vgpurun_container_stopped", GAUGE, "1 while the guard has frozen the container, or holds it to its share.",
        _STOPPED, lambda tenant: int(tenant.is_stopped),
    ),
    Family(
        "vgpurun_on_gpu_seconds_total", COUNTER,
        "Time on the GPU by its own records, also of programs past the library and outside vgpurun, which have no "
        "container but a user; a context that is alone stays there with nothing to do. As root.",
        _HAD, lambda had: had.seconds,
    ),
    Family("vgpurun_guard_running", GAUGE, "1 while a guard runs on this host.", _EXPORTER,
           lambda snapshot: int(snapshot.is_guarded)),
    Family("vgpurun_guard_actions_total", COUNTER, "Actions of the guard, by verb and cause.", _ACTION,
           lambda row: row[1]),
    Family("vgpurun_container_info", GAUGE, "The container's identity; always 1.", _TENANT, lambda _: 1),
    Family("vgpurun_build_info", GAUGE, "Versions; always 1.", _BUILD, lambda _: 1),
    Family(
        "vgpurun_exporter_source_up", GAUGE, "1 if NVML (of every GPU), or the Docker Engine, answered.", _SOURCE,
        lambda row: int(row[0].up[row[1]]),
    ),
    Family(
        "vgpurun_exporter_errors_total", COUNTER,
        "Scrapes in which something failed: nvml, engine, unreadable or broken files of a container, history.",
        _TROUBLE,
        lambda row: row[0].errors[row[1]],
    ),
    Family(
        "vgpurun_exporter_look_duration_seconds", GAUGE, "Time that collecting all this took.", _EXPORTER,
        lambda snapshot: snapshot.duration_s,
    ),
)  # fmt: skip
