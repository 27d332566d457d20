"""A look at the GPUs and at all that hold a part of them: what every metric and every sample is made of.

A source that fails (the engine, NVML, one container's files) takes its own part away and nothing else, and is counted.
Data from containers is not trusted: texts are cut, numbers bounded, and one container's files cannot hide
another's.
"""

import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from vgpurun import abi
from vgpurun.errors import EngineError, GpuError, VgpurunError
from vgpurun.host import gpus
from vgpurun.host.gpus import Gpu, GpuUse
from vgpurun.inventory import guarded
from vgpurun.inventory.reservations import Holder, local_processes, of_container, slice_holders
from vgpurun.inventory.swap_counts import SwapCounts, read_swaps
from vgpurun.limits import usage_file
from vgpurun.limits.quota import Quota
from vgpurun.limits.usage_file import BrokenUsageError, DeviceReading
from vgpurun.metrics.holding import Held, Holding, Key
from vgpurun.metrics.on_gpu import OnGpu

if TYPE_CHECKING:
    from vgpurun.engine.client import Engine  # slow to import

# The sources that can fail, as the label `source` of the error counter names them.
NVML, ENGINE, UNREADABLE, BROKEN, HISTORY = "nvml", "engine", "unreadable", "broken", "history"
SOURCES = (NVML, ENGINE, UNREADABLE, BROKEN, HISTORY)
ENGINE_PATIENCE_S = 5  # Prometheus gives up after 10
_FRESH_S = 0.5  # two scrapers at the same time share a look
_MAX_TEXT = 200  # characters of a label


@dataclass(frozen=True)
class Device:
    """A GPU of a tenant. `reading` is None where its usage cannot be read."""

    tenant: "TenantSeen"
    gpu: Gpu
    number: int  # among the tenant's GPUs
    quota: Quota
    reading: DeviceReading | None

    @property
    def key(self) -> Key:
        """Return the key under which its sums are kept."""
        return self.tenant.id, self.gpu.uuid

    @property
    def is_measured(self) -> bool:
        """Whether GPU time is measured: not for one without a limit while it is alone on its GPU, and not under MPS."""
        return (
            self.reading is not None
            and not self.quota.together
            and (self.quota.sm_percent is not None or self.reading.busy_ns > 0)
        )

    @property
    def memory_limit_bytes(self) -> int | None:
        """The memory limit, or None without one."""
        limit_bytes = self.quota.memory_bytes
        return None if limit_bytes is None else max(0, min(limit_bytes, self.gpu.memory_bytes))

    @property
    def sm_limit_ratio(self) -> float | None:
        """The compute limit from 0 to 1, or None without one."""
        return None if self.quota.sm_percent is None else max(0, min(self.quota.sm_percent, 100)) / 100

    @property
    def memory_used_bytes(self) -> int | None:
        """The bytes that count against the memory limit, no more than there are: managed ones may be on the host."""
        if self.quota.is_away:
            return 0
        return None if self.reading is None else min(self.reading.memory_used_bytes, self.gpu.memory_bytes)

    @property
    def suspended_bytes(self) -> int | None:
        """The bytes that lie in host memory while it is suspended or swapped."""
        if not self.quota.is_away:
            return 0
        return None if self.reading is None else min(self.reading.memory_used_bytes, self.gpu.memory_bytes)

    @property
    def counted_s(self) -> float:
        """The GPU time that was measured so far, in seconds."""
        return 0.0 if self.reading is None else self.reading.busy_ns / 1e9

    @property
    def busy_s(self) -> float | None:
        """The same, or None where nothing is measured."""
        return self.counted_s if self.is_measured else None


@dataclass(frozen=True)
class TenantSeen:
    """A container, a process of `vgpurun local` or a slice (with all that is in it), with texts that can be shown.

    `namespace` and `pod` are Kubernetes' names, and empty elsewhere. `is_stopped`: frozen or held by the guard.
    """

    kind: str
    id: str
    name: str
    user: str
    image: str
    devices: list[Device] = field(default_factory=list)
    namespace: str = ""
    pod: str = ""
    is_stopped: bool = False
    swaps: SwapCounts = field(default_factory=SwapCounts)

    @property
    def key(self) -> tuple[str, ...]:
        """The labels that identify it in metrics."""
        return self.name, self.user, self.namespace, self.pod


@dataclass(frozen=True)
class GpuSeen:
    """A GPU, what NVML sees on it, and what its tenants have reserved of it."""

    gpu: Gpu
    use: GpuUse
    devices: Sequence[Device]

    @property
    def utilization_ratio(self) -> float | None:
        """The share of the last period in which the GPU ran kernels, from 0 to 1, or None where NVML does not say."""
        percent = self.use.utilization_percent
        return None if percent is None else percent / 100

    @property
    def only_user(self) -> Device | None:
        """The one tenant that has processes on the GPU, or None where there are none or several."""
        there = [device for device in self.devices if not device.quota.is_away]
        working = [device for device in there if device.reading and device.reading.processes]
        return working[0] if len(working) == 1 else None


@dataclass(frozen=True)
class HadGpu:
    """For how long a container, or a user of programs in none, had a GPU by its own records. `name`: or a short id."""

    uuid: str
    name: str
    user: str
    seconds: float


@dataclass(frozen=True)
class Snapshot:
    """A look at everything. `errors` counts by source since the start; `up` says which sources answered this time.

    `guard_actions` counts what the guard has done, by verb and cause. `held` is since this exporter began to look.
    """

    gpus: Sequence[GpuSeen]
    tenants: Sequence[TenantSeen]
    up: Mapping[str, bool]
    errors: Mapping[str, int]
    ended_s: float  # time.monotonic()
    duration_s: float
    is_guarded: bool = False
    guard_actions: Mapping[tuple[str, str], int] = field(default_factory=dict)
    held: Mapping[Key, Held] = field(default_factory=dict)
    had: Sequence[HadGpu] = ()

    @property
    def devices(self) -> list[Device]:
        """Return every GPU of every tenant."""
        return [device for tenant in self.tenants for device in tenant.devices]


class Reader:
    """Looks again and again. `say` hears once of each trouble, and once of its end. For many threads.

    `find` returns who holds parts of GPUs (None: what Docker and `vgpurun local` have); it may raise VgpurunError.
    `on_gpu` counts the time on GPUs, None where nobody does.
    """

    def __init__(self, say: Callable[[str], None], find: Callable[[], Sequence[Holder]] | None = None) -> None:
        self.on_gpu: OnGpu | None = None
        self._say = say
        self._find = find
        self._nvml = ExitStack()
        self._is_open = False  # NVML
        self._known: list[Gpu] = []  # the GPUs, of the last time that it answered
        self._engine: Engine | None = None
        self._troubles: dict[str, str] = {}
        self._errors: Counter[str] = Counter(dict.fromkeys(SOURCES, 0))
        self._holding = Holding()
        self._missing: set[str] = set()  # tenants without a folder, which have ended if they are not listed again
        self._lock = threading.Lock()
        self._last: Snapshot | None = None

    def look(self) -> Snapshot:
        """Return what there is now, or was half a second ago. Raises nothing."""
        with self._lock:
            # A scrape that waited while an engine did not answer must not wait for the same once more.
            if self._last is None or time.monotonic() - self._last.ended_s > _FRESH_S:
                self._last = self._look()
            return self._last

    def close(self) -> None:
        """Let go of NVML."""
        with self._lock:
            self._nvml.close()
            self._is_open = False

    def note(self, source: str, trouble: str) -> None:
        """Count a trouble (unless it is empty), and say it, or that it is over, if that is news."""
        with self._lock:
            self._note(source, trouble)

    def _note(self, source: str, trouble: str) -> None:
        if trouble:
            self._errors[source] += 1
        trouble = re.sub(r"\b0x[0-9a-f]+", "...", trouble)  # an address in it would make it news each time
        if trouble and self._troubles.get(source) != trouble:
            self._say(f"warning: {trouble}")
        elif not trouble and source in self._troubles:
            self._say(f"{_OVER[source]} again")
        if trouble:
            self._troubles[source] = trouble
        else:
            self._troubles.pop(source, None)

    def _look(self) -> Snapshot:
        began_s = time.monotonic()
        seen = self._read_gpus()
        holders = self._read_holders()
        tenants = self._read_tenants(holders)
        on_gpus = [GpuSeen(gpu, use, _on(gpu, tenants)) for gpu, use in seen]
        return Snapshot(
            gpus=on_gpus,
            tenants=tenants,
            up={source: source not in self._troubles for source in (NVML, ENGINE)},
            errors=dict(self._errors),
            ended_s=(ended_s := time.monotonic()),
            duration_s=ended_s - began_s,
            is_guarded=guarded.is_running(),
            guard_actions=guarded.counts(),
            held=self._holding.look(on_gpus, began_s),
            had=had_gpus(self.on_gpu, tenants) if self.on_gpu else (),
        )

    def _read_gpus(self) -> list[tuple[Gpu, GpuUse]]:
        try:
            if not self._is_open:
                self._nvml.enter_context(gpus.held_open())
                self._is_open = True
            found = gpus.survey()  # MIG instances come and go
            self._known = found.gpus
            use = gpus.read_use(self._known)
        except GpuError as error:
            self._nvml.close()  # a new driver may come
            self._is_open = False
            self._note(NVML, f"GPUs are not shown: {error}")
            return []
        self._note(NVML, ", ".join(map(str, found.lost)))
        return list(zip(self._known, use, strict=True))

    def _read_holders(self) -> list[tuple[str, Callable[[], Holder]]]:
        """Return names, and what reads each one's limits, which may fail for any of them."""
        if self._find is not None:
            return self._found(self._find)
        from vgpurun.engine.client import Engine

        found: list[tuple[str, Callable[[], Holder]]] = [
            (each.name, partial(_same, each))
            for each in (*slice_holders(), *local_processes())
            if not each.slice_folder and not each.parents  # counted with the share that it is in
        ]
        try:
            self._engine = self._engine or Engine.connect(ENGINE_PATIENCE_S)
            running = self._engine.containers(everything=False)
            found += [
                (each.name, partial(of_container, each)) for each in running if not each.slice_name and not each.is_part
            ]
        except EngineError as error:
            self._engine = None
            self._note(ENGINE, f"containers are not shown: {error}")
        else:
            self._note(ENGINE, "")
        return found

    def _found(self, find: Callable[[], Sequence[Holder]]) -> list[tuple[str, Callable[[], Holder]]]:
        try:
            found = find()
        except VgpurunError as error:
            self._note(ENGINE, f"containers are not shown: {error}")
            return []
        self._note(ENGINE, "")
        return [(each.name, partial(_same, each)) for each in found]

    def _read_tenants(self, holders: Sequence[tuple[str, Callable[[], Holder]]]) -> list[TenantSeen]:
        by_uuid = {gpu.uuid: gpu for gpu in self._known}
        tenants: dict[tuple[str, ...], TenantSeen] = {}
        stopped = guarded.stopped()
        missing: set[str] = set()
        unreadable = broken = ""
        for name, find in holders:
            try:
                holder = find()
                if _is_gone(holder.folder):
                    missing.add(holder.id)
                    if holder.id not in self._missing:
                        continue  # has ended since it was listed
                tenant = _read_tenant(holder, by_uuid, holder.id in stopped)
                if tenant.key in tenants:
                    raise BrokenUsageError("there is another one of this name")
                tenants[tenant.key] = tenant
                if any(device.reading is None for device in tenant.devices):
                    unreadable = f"what {tenant.name} uses cannot be read by this user; run the exporter as root"
            except Exception as error:  # whatever one of them has done to its files, the others are shown
                broken = f"{_shown(name)} is not shown: {_one_line(error)}"
        self._missing = missing
        self._note(UNREADABLE, unreadable)
        self._note(BROKEN, broken)
        return list(tenants.values())


_OVER = {
    NVML: "GPUs are shown",
    ENGINE: "containers are shown",
    UNREADABLE: "all usage can be read",
    BROKEN: "every container is shown",
    HISTORY: "the history is written",
}


def had_gpus(on_gpu: OnGpu, tenants: Sequence[TenantSeen]) -> list[HadGpu]:
    """Return how long each container, or user outside containers, had each GPU."""
    by_id = {tenant.id: tenant for tenant in tenants}
    found = []
    for (uuid, owner), seconds in on_gpu.seconds().items():
        tenant = by_id.get(owner.container)
        name, user = (tenant.name, tenant.user) if tenant else (owner.container[:12], owner.user)
        found.append(HadGpu(uuid, name, _shown(user), seconds))
    return found


def _read_tenant(holder: Holder, by_uuid: Mapping[str, Gpu], is_stopped: bool) -> TenantSeen:
    """Raises BrokenUsageError, or anything else that foreign data can lead to."""
    readings: Sequence[DeviceReading | None]
    try:
        readings = usage_file.read_sound_usage(holder.folder / "run" / "usage", [uuid for uuid, _ in holder.quotas])
    except PermissionError:
        readings = [None] * len(holder.quotas)
    if not all(_is_sound(quota) for _, quota in holder.quotas):
        raise BrokenUsageError("its limits are not numbers")
    image = holder.what if holder.kind == "container" else ""  # a command line may hold secrets
    tenant = TenantSeen(
        kind=holder.kind,
        id=_shown(holder.id),
        name=_shown(holder.name),
        user=_shown(holder.user),
        image=_shown(image),
        namespace=_shown(holder.namespace),
        pod=_shown(holder.pod),
        is_stopped=is_stopped,
        swaps=read_swaps(holder.folder),
    )
    for number, ((uuid, quota), reading) in enumerate(zip(holder.quotas, readings, strict=True)):
        if uuid in by_uuid and all(device.gpu.uuid != uuid for device in tenant.devices):
            gpu = by_uuid[uuid]
            tenant.devices.append(Device(tenant, gpu, number, quota, reading and _possible(reading, gpu)))
    return tenant


def _possible(reading: DeviceReading, gpu: Gpu) -> DeviceReading:
    """Cut what a container cannot have used: it writes its file itself, and nobody is older than the host."""
    uptime_ns = time.monotonic_ns()
    overhead_bytes = min(reading.overhead_bytes, gpu.memory_bytes)
    return replace(
        reading,
        allocated_bytes=min(reading.allocated_bytes, gpu.memory_bytes),
        overhead_bytes=overhead_bytes,
        context_bytes=min(reading.context_bytes, overhead_bytes),
        host_bytes=min(reading.host_bytes, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")),
        busy_ns=min(reading.busy_ns, uptime_ns),
        throttled_ns=min(reading.throttled_ns, uptime_ns * abi.MAX_PROCESSES),
    )


def _same(holder: Holder) -> Holder:
    return holder


def _is_gone(folder: Path) -> bool:
    try:
        return not folder.exists()
    except PermissionError:  # in another user's home
        return False


def _is_sound(quota: Quota) -> bool:
    return all(
        each is None or (isinstance(each, int) and 0 <= each < 1 << 64)
        for each in (quota.memory_bytes, quota.sm_percent, quota.virtual_bytes)
    )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _shown(text: str) -> str:
    """Cut a text, and replace what is no Unicode: one label must not make all metrics impossible to encode."""
    return text[:_MAX_TEXT].encode(errors="replace").decode()


def _on(gpu: Gpu, tenants: Sequence[TenantSeen]) -> list[Device]:
    return [device for tenant in tenants for device in tenant.devices if device.gpu.uuid == gpu.uuid]
