"""Reads which container holds what on this host's GPUs, for `vgpurun smi`."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from vgpurun.host import gpus
from vgpurun.host.gpus import Gpu, GpuUse
from vgpurun.inventory import guarded
from vgpurun.inventory.cgroups import DriverLimits, driver_limits
from vgpurun.inventory.programs import Program, Programs, command_of, programs
from vgpurun.inventory.reservations import Holder, local_processes, quotas_now
from vgpurun.limits import usage_file
from vgpurun.limits.quota import Quota
from vgpurun.limits.usage_file import DeviceReading
from vgpurun.limits.utilization import Utilization
from vgpurun.slices import store
from vgpurun.slices.members import Member, members
from vgpurun.slices.store import Slice
from vgpurun.storage import state
from vgpurun.util.process_identity import pid_namespace

if TYPE_CHECKING:
    from vgpurun.engine.client import Engine, VgpurunContainer

_SHORT_ID = 12  # characters of an id, as docker shows it


@dataclass(frozen=True)
class TenantDevice:
    """A device of a tenant: its quota, and what it uses; None is what this user may not read.

    `is_part`: a member's part of a slice, whose reading has memory alone. `programs_bytes` is the driver's count of
    what its programs hold, including those that bypass the library.
    """

    gpu: Gpu
    quota: Quota
    reading: DeviceReading | None
    is_part: bool = False
    programs_bytes: int | None = None

    @property
    def memory_used_bytes(self) -> int | None:
        """The bytes that count against the memory limit, or more by the driver's word.

        The container writes the file, so nonsense is cut.
        """
        if self.quota.is_away:
            return 0
        counted = None if self.reading is None else self.reading.memory_used_bytes
        known = [each for each in (counted, self.programs_bytes) if each is not None]
        return min(max(known), self.gpu.memory_bytes) if known else None

    @property
    def suspended_bytes(self) -> int:
        """The bytes that lie in host memory while it is suspended or swapped, and come back after that."""
        return self.reading.memory_used_bytes if self.quota.is_away and self.reading else 0

    @property
    def utilization(self) -> Utilization | None:
        """None also where nothing was measured, as without a limit and alone on the GPU, and by MPS."""
        if (
            self.reading is None
            or self.is_part
            or self.quota.together
            or (self.quota.sm_percent is None and not self.reading.utilization.last_60s)
        ):
            return None
        return self.reading.utilization


@dataclass(frozen=True)
class Tenant:
    """A container, a process of `vgpurun local` or a slice that has limits.

    `container` is None for tenants that are no containers of vgpurun's. `slice_name` is the slice that it has joined.
    `within`: the share around it, of which it has a part with limits and use of its own. `missing` are UUIDs and
    quotas of GPUs that were not asked about: another driver's, or gone ones.
    `stopped` says what the guard has done to it, `created_s` is seconds since 1970.
    """

    kind: str
    id: str
    name: str
    what: str
    folder: Path
    devices: tuple[TenantDevice, ...] = ()
    missing: tuple[tuple[str, Quota], ...] = ()
    container: "VgpurunContainer | None" = None
    slice_name: str = ""
    user: str = ""
    stopped: str = ""
    within: str = ""
    created_s: float = 0.0

    @property
    def full_name(self) -> str:
        """The name, behind that of the share that it has a part of."""
        return f"{self.within} > {self.name}" if self.within else self.name


@dataclass(frozen=True)
class Report:
    """All GPUs of the host with what NVML sees on them, and all tenants; a slice comes before what has joined it.

    `programs` are by UUID, and then by the id of the tenant that they belong to, or "".
    `driver_limits` are what the driver itself holds to.
    """

    gpus: tuple[tuple[Gpu, GpuUse], ...]
    tenants: tuple[Tenant, ...]
    programs: Mapping[str, Mapping[str, Sequence[Program]]] = field(default_factory=dict)
    driver_limits: DriverLimits = field(default_factory=dict)

    def programs_of(self, gpu: Gpu, tenant_id: str) -> Sequence[Program]:
        """Return the programs of a tenant on a GPU, as far as the driver lists them."""
        return self.programs.get(gpu.uuid, {}).get(tenant_id, ())

    def outside(self, gpu: Gpu) -> Sequence[Program]:
        """Return the programs on a GPU that are no tenant's."""
        return self.programs_of(gpu, "")

    def outside_bytes(self, gpu: Gpu, use: GpuUse) -> int:
        """Return what programs outside vgpurun use of a GPU."""
        alone = [tenant for tenant in self.tenants if not tenant.within]
        held = [device for tenant in alone for device in tenant.devices if device.gpu.uuid == gpu.uuid]
        return max(0, use.memory_used_bytes - sum(each.memory_used_bytes or 0 for each in held if not each.is_part))


def collect(all_gpus: Sequence[Gpu], engine: "Engine | None") -> Report:
    """Read who runs and what they use. Raises VgpurunError."""
    containers = _read_containers(engine.containers(everything=False) if engine else [], all_gpus)
    known = [*containers, *(_read_process(each, all_gpus) for each in local_processes())]
    tenants = [*_read_slices(known, all_gpus), *(each for each in known if not each.slice_name)]
    found = _programs_of(tenants, all_gpus)
    tenants = _measured(tenants, found)
    uses = tuple(zip(all_gpus, gpus.read_use(all_gpus), strict=True))
    held = driver_limits({each.id for each in tenants if each.kind != "slice"}, all_gpus)
    return Report(uses, tuple(tenants), found, held)


def read_containers(containers: Sequence["VgpurunContainer"], all_gpus: Sequence[Gpu]) -> list[Tenant]:
    """Read what these containers may use and what they use, in their order. Raises nothing."""
    read = _read_containers(containers, all_gpus)
    return _measured(read, _programs_of(read, all_gpus))


def read_processes(processes: Sequence[Holder], all_gpus: Sequence[Gpu]) -> list[Tenant]:
    """Read the same of processes of `vgpurun local`. Raises nothing."""
    read = [_read_process(each, all_gpus) for each in processes]
    return _measured(read, _programs_of(read, all_gpus))


def _programs_of(tenants: Sequence[Tenant], all_gpus: Sequence[Gpu]) -> Programs:
    owners = {pid: each.id for each in tenants if each.kind == "process" for pid in _pids_of(each)}
    return programs(all_gpus, {each.id for each in tenants if each.kind == "container"}, owners)


def _pids_of(process: Tenant) -> Iterator[int]:
    """Yield a local process and, since they may outlive it, those of its user that count in its usage file."""
    yield int(process.id)
    if process.slice_name and not process.within:
        return  # the file is the slice's
    with suppress(OSError, usage_file.BrokenUsageError):
        here, user = pid_namespace(), process.folder.stat().st_uid
        for namespace, pid in usage_file.read_counted(process.folder / "run" / "usage"):
            with suppress(OSError):
                if namespace == here and Path(f"/proc/{pid}").stat().st_uid == user:
                    yield pid


def _measured(tenants: Sequence[Tenant], found: Programs) -> list[Tenant]:
    """Add what the driver says: of what is used of a slice, this user may know nothing else."""

    def held_by(ids: set[str], uuid: str) -> int | None:
        listed = found.get(uuid, {})
        mine = [each.held_bytes for owner in ids for each in listed.get(owner, ())]
        is_told = uuid in found and all(each.user for each in listed.get("", ()))  # else unseen from here
        return sum(mine) if mine or is_told else None

    def measured(tenant: Tenant) -> Tenant:
        ids = {tenant.id}
        if tenant.kind == "slice":
            ids = {each.id for each in tenants if each.slice_name and f"slice {each.slice_name}" == tenant.name}
        devices = (replace(each, programs_bytes=held_by(ids, each.gpu.uuid)) for each in tenant.devices)
        return replace(tenant, devices=tuple(devices))

    return list(map(measured, tenants))


def _read_containers(containers: Sequence["VgpurunContainer"], all_gpus: Sequence[Gpu]) -> list[Tenant]:
    joined = members(store.slices()) if any(each.slice_name for each in containers) else {}
    namespaces = {each.container: each.pid_namespace for of_slice in joined.values() for each in of_slice}
    read = [_read_container(each, all_gpus, namespaces) for each in containers]
    stopped = guarded.stopped()
    return [replace(each, stopped=str(stopped[each.id])) if each.id in stopped else each for each in read]


def read_joined(containers: Sequence["VgpurunContainer"], all_gpus: Sequence[Gpu]) -> list[Tenant]:
    """Read those of these containers, and of all local processes, that have joined a slice. Raises nothing."""
    known = _read_containers([each for each in containers if each.slice_name or each.is_part], all_gpus)
    return known + [_read_process(each, all_gpus) for each in local_processes() if each.slice_folder or each.parents]


def _read_container(
    container: "VgpurunContainer", all_gpus: Sequence[Gpu], namespaces: Mapping[str, int | None]
) -> Tenant:
    tenant = Tenant(
        "container",
        container.id,
        container.name,
        container.image,
        container.limits_folder,
        container=container,
        user=container.user,
        slice_name=container.slice_name,
        within=_share_name(Path(container.record.parents[0])) if container.is_part else "",
        created_s=container.created_s,
    )
    if container.slice_name and not container.is_part:
        return _as_part(tenant, quotas_now(container), all_gpus, namespaces.get(container.id))
    return _with_devices(tenant, quotas_now(container), all_gpus)


def _read_process(process: Holder, all_gpus: Sequence[Gpu]) -> Tenant:
    tenant = Tenant(process.kind, process.id, process.name, process.what, process.folder, user=process.user)
    with suppress(OSError):
        tenant = replace(tenant, created_s=(process.folder / "run").stat().st_mtime)  # made with the folder, for good
    if process.parents:
        slices = [each.name for each in process.parents if each.parent.name == state.SLICES]
        tenant = replace(tenant, within=_share_name(process.parents[0]), slice_name=slices[0] if slices else "")
        return _with_devices(tenant, process.quotas, all_gpus)
    if not process.slice_folder:
        return _with_devices(tenant, process.quotas, all_gpus)
    folder = Path(process.slice_folder)
    return _as_part(replace(tenant, folder=folder, slice_name=folder.name), process.quotas, all_gpus, None)


def _share_name(folder: Path) -> str:
    """Name a share for people: by its slice, or by its process."""
    if folder.parent.name == state.SLICES:
        return f"slice {folder.name}"
    return f"process {(state.read_owner(folder) or {}).get('pid', '?')}"


def read_slices(known: Sequence[Tenant], all_gpus: Sequence[Gpu]) -> list[Tenant]:
    """Return every slice, each followed by what has joined it. `known` are tenants, those that have joined among them.

    Raises nothing.
    """
    read = list(_read_slices(known, all_gpus))
    return _measured(read, _programs_of(read, all_gpus))


def _read_slices(known: Sequence[Tenant], all_gpus: Sequence[Gpu]) -> Iterator[Tenant]:
    found = store.slices()
    joined = members(found)
    for each in found:
        mine = [tenant for tenant in known if tenant.slice_name == each.name]
        ids = {tenant.id for tenant in mine}
        mine += [
            _of_member(member, each, all_gpus)
            for member in joined[each.id]
            if (member.container or str(member.pid)) not in ids
        ]
        what = f"{len(mine)} {'member' if len(mine) == 1 else 'members'}"
        tenant = Tenant("slice", each.id, f"slice {each.name}", what, each.folder, user=each.user)
        yield _with_devices(tenant, each.quotas, all_gpus)
        yield from mine


def _of_member(member: Member, joined: Slice, all_gpus: Sequence[Gpu]) -> Tenant:
    """Return a container that an engine started with a CDI device, or a task of a Slurm job."""
    tenant = Tenant("container", member.container, "", "by CDI", joined.folder, slice_name=joined.name)
    if member.container:
        tenant = replace(tenant, name=member.container[:_SHORT_ID])
    else:
        pid, command = str(member.pid), command_of(member.pid)
        tenant = replace(tenant, kind="process", id=pid, name=f"process {pid}", what=command, user=joined.user)
    return _as_part(tenant, joined.quotas, all_gpus, member.pid_namespace)


def _as_part(
    tenant: Tenant, quotas: Sequence[tuple[str, Quota]], all_gpus: Sequence[Gpu], pid_namespace: int | None
) -> Tenant:
    """Read a slice member's use, which its PID namespace tells; that of a member without one is unknown."""
    read = None
    if pid_namespace is not None:
        read = usage_file.read_usage(tenant.folder / "run" / "usage", [uuid for uuid, _ in quotas], pid_namespace)
    return _placed(tenant, quotas, all_gpus, read, is_part=True)


def _with_devices(tenant: Tenant, quotas: Sequence[tuple[str, Quota]], all_gpus: Sequence[Gpu]) -> Tenant:
    read = usage_file.read_usage(tenant.folder / "run" / "usage", [uuid for uuid, _ in quotas])
    return _placed(tenant, quotas, all_gpus, read, is_part=False)


def _placed(
    tenant: Tenant,
    quotas: Sequence[tuple[str, Quota]],
    all_gpus: Sequence[Gpu],
    read: Sequence[DeviceReading] | None,
    is_part: bool,
) -> Tenant:
    by_uuid = {gpu.uuid: gpu for gpu in all_gpus}
    readings: Sequence[DeviceReading | None] = read or [None] * len(quotas)
    devices = [
        TenantDevice(by_uuid[uuid], quota, reading, is_part)
        for (uuid, quota), reading in zip(quotas, readings, strict=True)
        if uuid in by_uuid
    ]
    missing = [(uuid, quota) for uuid, quota in quotas if uuid not in by_uuid]
    return replace(tenant, devices=tuple(devices), missing=tuple(missing))
