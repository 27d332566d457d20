"""A node's GPUs and what its containers have of them: what kubelet's questions about resources are answered from.

A container's units of memory and of compute must be of one GPU. Kubelet gives them one after the other without saying
whose they are, so that is looked at twice: while a pod is admitted, as far as it can be known (admission.py), and
before each start of a container, in kubelet's own record. Until then the container's limits hold back all GPU work.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from vgpurun.cdi.specification import Share
from vgpurun.errors import KubernetesError, StateError
from vgpurun.host.drivers import DriverPlan
from vgpurun.host.gpus import Gpu
from vgpurun.kubernetes.checkpoint import Holding, read_holdings
from vgpurun.kubernetes.device_plugin.admission import Admission
from vgpurun.kubernetes.device_plugin.allocate_response import allocate_response
from vgpurun.kubernetes.device_plugin.preferred_allocation import choose
from vgpurun.kubernetes.device_plugin.units import Kind, Resource
from vgpurun.kubernetes.gpu_health import Health
from vgpurun.kubernetes.proto.deviceplugin_pb2 import ContainerAllocateResponse
from vgpurun.kubernetes.state import alone, folder_of, is_whole, make_folder, write_owner
from vgpurun.limits import limits_file
from vgpurun.limits.device_quotas import limit_variables, shared_files
from vgpurun.limits.model import DeviceQuota
from vgpurun.storage import tenants


class Node:
    """`record` is kubelet's checkpoint, `driver` says how containers with some GPUs get the driver.

    `may_disable`: whether a program may lift its limits by CUDA_DISABLE_CONTROL=true.
    """

    def __init__(
        self,
        gpus: Sequence[Gpu],
        resources: Sequence[Resource],
        health: Health,
        root: Path,
        record: Path,
        library: Path,
        driver: Callable[[Sequence[Gpu]], DriverPlan],
        may_disable: bool = False,
    ) -> None:
        self.resources = resources
        self.health = health
        self._gpus = {gpu.uuid: gpu for gpu in gpus}
        self._by_name = {resource.name: resource for resource in resources}
        self._root = root
        self._record = record
        self._library = library
        self._driver = driver
        self._may_disable = may_disable
        self._admission = Admission(self._holdings)
        self._lock = threading.Lock()

    def prefer(self, resource: Resource, available: Sequence[str], wanted: Sequence[str], count: int) -> list[str]:
        """Return the units that kubelet should take. Raises KubernetesError where no units would do."""
        with self._lock, self._admission.step():
            gpu = self._admission.gpu_for(resource)
            self._admission.asked(resource, count)
            most, left = self._left_of_other(resource)
            expected = self._admission.expected(resource, count)
            fitting = [uuid for uuid, units in left.items() if units >= expected]
            shares = {uuid: units / most for uuid, units in left.items()}
            return choose(resource, available, wanted, count, gpu, shares, fitting)

    def allocate(self, resource: Resource, units: Sequence[str]) -> ContainerAllocateResponse:
        """Return what a container gets with these units; its state folder is made. Raises VgpurunError."""
        quotas = self._checked(resource, units)
        with alone(self._root), self._lock, self._admission.step():
            uuid = quotas[0].gpu.uuid
            other = self._admission.gpu_for(resource)
            if other not in (None, uuid):
                raise KubernetesError(
                    f"kubelet took {resource.name} of GPU {uuid}, but the rest of this container is on GPU {other}"
                )
            if resource.kind is Kind.COMPUTE:
                given = ContainerAllocateResponse(envs=limit_variables(quotas))
            else:
                given = self._with_folder(resource, units, quotas)
            self._admission.given(resource, units, uuid)
            return given

    def start(self, resource: Resource, units: Sequence[str]) -> None:
        """Let the container that has these units start, under the limits that follow from all that it has.

        Raises KubernetesError for one that must not start, and StateError.
        """
        quotas = self._checked(resource, units)
        with alone(self._root), self._lock:
            holders = [each for each in self._holdings() if each.units.get(resource.name) == frozenset(units)]
            if not holders:
                raise KubernetesError(f"kubelet's record {self._record} has no container with these {resource.name}")
            percents = [self._compute_of(each) for each in holders]
            if resource.kind is Kind.COMPUTE:
                return
            if resource.kind is Kind.MEMORY:
                # Several are containers of one pod that run one after the other on the same units.
                sm_percent = max(filter(None, percents), default=None)
                quotas = [DeviceQuota(gpu, replace(quota, sm_percent=sm_percent)) for gpu, quota in quotas]
            self._grant(resource, units, quotas, holders[-1])

    def _checked(self, resource: Resource, units: Sequence[str]) -> list[DeviceQuota]:
        """Return the quota that units come to on each GPU, in NVML's order."""
        if not units:
            raise KubernetesError(f"no unit of {resource.name} is named")
        quotas = resource.quotas_of(units)
        if len(quotas) > 1 and resource.kind is not Kind.SLICE:
            raise KubernetesError(f"{resource.name} of {len(quotas)} GPUs for one container; it must be all of one GPU")
        for uuid in quotas:
            if reason := self.health.reason(uuid):
                raise KubernetesError(f"GPU {uuid} cannot be used: {reason}")
        found = [DeviceQuota(self._gpus[uuid], quota) for uuid, quota in quotas.items()]
        return sorted(found, key=lambda each: each.gpu.place)

    def _with_folder(
        self, resource: Resource, units: Sequence[str], quotas: Sequence[DeviceQuota]
    ) -> ContainerAllocateResponse:
        driver = self._driver([each.gpu for each in quotas])
        held_back = [(each.gpu.uuid, replace(each.quota, paused=True)) for each in quotas]
        limits = {"etc/limits": limits_file.limits_bytes(held_back, self._may_disable)}
        folder = make_folder(self._root, resource.name, units, shared_files(quotas, driver) | limits)
        return allocate_response(Share(folder.name, tuple(quotas), folder), self._library, driver)

    def _grant(self, resource: Resource, units: Sequence[str], quotas: Sequence[DeviceQuota], holder: Holding) -> None:
        folder = folder_of(self._root, resource.name, units)
        if not is_whole(folder):  # removed by hand, or a plugin was killed while it was made
            self._with_folder(resource, units, quotas)
        tenants.make(folder)  # somebody may have cleaned up
        try:
            limits = [(each.gpu.uuid, each.quota) for each in quotas]
            limits_file.write_limits(folder / "etc" / "limits", limits, self._may_disable)
        except OSError as error:
            raise StateError(f"cannot write {folder}/etc/limits: {error.strerror}") from None
        owner = {"resource": resource.name, "units": sorted(units)}
        write_owner(folder, {**owner, "pod_uid": holder.pod_uid, "container": holder.container})

    def _compute_of(self, holder: Holding) -> int | None:
        """The percent of compute that a container has, None without a limit. Raises KubernetesError if it must not."""
        ours = {name: units for name, units in holder.units.items() if name in self._by_name and units}
        kinds = [self._by_name[name].kind for name in ours]
        if Kind.SLICE in kinds:
            if len(ours) > 1:
                raise KubernetesError(
                    f"container {holder.container} asks for {' and '.join(sorted(ours))}; "
                    "a container with a slice has nothing besides"
                )
            return None
        if Kind.MEMORY not in kinds:
            memory = next(each for each in self.resources if each.kind is Kind.MEMORY)
            raise KubernetesError(
                f"container {holder.container} asks for {' and '.join(ours)} alone, which gives it no GPU; "
                f"ask for {memory.name} too"
            )
        gpus = {uuid for name, units in ours.items() for uuid in self._by_name[name].by_gpu(list(units))}
        if len(gpus) > 1:
            raise KubernetesError(
                f"container {holder.container} has its memory and its compute on different GPUs; "
                "delete the pod, and it will be admitted anew"
            )
        return sum(len(units) for name, units in ours.items() if self._by_name[name].kind is Kind.COMPUTE) or None

    def _left_of_other(self, resource: Resource) -> tuple[int, Mapping[str, int]]:
        """Return the most that a GPU has of the other of memory and compute, and what each GPU has left, if known."""
        pair = {Kind.MEMORY: Kind.COMPUTE, Kind.COMPUTE: Kind.MEMORY}
        other = next((each for each in self.resources if each.kind is pair.get(resource.kind)), None)
        if other is None:
            return 1, {}
        left = dict(other.counts)
        for holding in self._holdings():
            with suppress(KubernetesError):  # units that were offered once
                for uuid, units in other.by_gpu(list(holding.units.get(other.name, ()))).items():
                    left[uuid] -= len(units)
        return max(1, *other.counts.values()), left

    def _holdings(self) -> list[Holding]:
        return read_holdings(self._record)
