"""A claim's allocation of this node's GPUs: read from the claim as the API server has it.

A claim is one budget. All containers that use it share it, on each GPU: those of one pod, or of several pods that name
the same claim. Results of one claim on one GPU add up.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from vgpurun.errors import ClaimError
from vgpurun.host.gpus import Gpu, usable
from vgpurun.kubernetes.dra.config import GpuConfig, config_of
from vgpurun.kubernetes.dra.model import COMPUTE, DRIVER, MEMORY, capacity_bytes, device_name
from vgpurun.limits.model import DeviceQuota
from vgpurun.limits.policies import SmPolicy
from vgpurun.limits.quota import Quota, show_size

_UID = re.compile(r"[0-9A-Za-z]([0-9A-Za-z-]{0,61}[0-9A-Za-z])?", re.ASCII)
_NO_CAPACITY = (
    "the cluster does not know consumable capacity: it needs Kubernetes 1.34 with the feature gate "
    "DRAConsumableCapacity, which is on by default from 1.36"
)


class ClaimName(NamedTuple):
    """A claim as kubelet names it."""

    uid: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"claim {self.namespace}/{self.name}"

    def in_log(self) -> str:
        """Name it by its UID too: another claim may have had the same name before, or come to have it."""
        return f"{self} ({self.uid})"


class Result(NamedTuple):
    """A part of one GPU that was given to one request of a claim. `memory_bytes` is of the GPU's own memory.

    `sm_percent` 0 means that there is no compute limit.
    """

    request: str
    pool: str
    device: str
    share_id: str
    memory_bytes: int
    sm_percent: int
    config: GpuConfig


class Allocation(NamedTuple):
    """All that a claim has been given of this node's GPUs, and the pods for which it is reserved."""

    claim: ClaimName
    results: tuple[Result, ...]
    pods: tuple[str, ...]


def check_uid(uid: str) -> str:
    """Return a claim's UID, which names files. Raises ClaimError for one that cannot."""
    if not _UID.fullmatch(uid):
        raise ClaimError(f"'{uid}' is not the UID of a claim")
    return uid


def read_claim(claim: ClaimName, found: Mapping[str, Any], node: str) -> Allocation:
    """Return what a ResourceClaim gives on this node.

    Raises ClaimError when it is another claim of the same name, or not allocated, or not from here, or unreadable.
    """
    try:
        return _read(claim, found, node)
    except (KeyError, TypeError, AttributeError) as error:
        raise ClaimError(f"{claim} cannot be read: {type(error).__name__} {error}") from None


def _read(claim: ClaimName, found: Mapping[str, Any], node: str) -> Allocation:
    uid = found["metadata"]["uid"]
    if uid != claim.uid:
        raise ClaimError(f"{claim} has the UID {uid} now, not {claim.uid}: it has been made anew")
    status = found.get("status") or {}
    devices = (status.get("allocation") or {}).get("devices") or {}
    results = [each for each in devices.get("results") or [] if each["driver"] == DRIVER]
    if not results:
        raise ClaimError(f"{claim} has no device of {DRIVER} allocated")
    entries = devices.get("config") or []
    pods = [each["name"] for each in status.get("reservedFor") or [] if each.get("resource") == "pods"]
    return Allocation(claim, tuple(_result(claim, each, entries, node) for each in results), tuple(pods))


def _result(claim: ClaimName, found: Mapping[str, Any], entries: Sequence[Mapping[str, Any]], node: str) -> Result:
    device = str(found["device"])
    if found["pool"] != node:
        raise ClaimError(f"{claim} has a device of pool '{found['pool']}', but this node's pool is '{node}'")
    if found.get("adminAccess"):
        raise ClaimError(f"{claim} asks for admin access, which {DRIVER} has none of; use limits instead")
    consumed = found.get("consumedCapacity")
    if not consumed:
        raise ClaimError(f"{claim} has consumed no capacity of {device}; {_NO_CAPACITY}")
    request = str(found["request"])
    return Result(
        request=request,
        pool=node,
        device=device,
        share_id=str(found.get("shareID") or ""),
        memory_bytes=_amount(claim, MEMORY, consumed),
        sm_percent=_amount(claim, COMPUTE, consumed),
        config=config_of(entries, request),
    )


def _amount(claim: ClaimName, capacity: str, consumed: Mapping[str, str]) -> int:
    """A whole number from a quantity of Kubernetes, such as 2Gi. A name may be written with the driver's domain."""
    from kubernetes.utils.quantity import parse_quantity  # slow to import

    text = consumed.get(capacity, consumed.get(f"{DRIVER}/{capacity}"))
    if text is None:
        raise ClaimError(f"{claim} has consumed no {capacity}, which every device of {DRIVER} has")
    try:
        amount = parse_quantity(text)
        whole = int(amount)
    except (ValueError, ArithmeticError):
        raise ClaimError(f"{claim} has consumed {capacity} '{text}', which is not a quantity") from None
    if whole != amount or whole < 0:
        raise ClaimError(f"{claim} has consumed {capacity} '{text}', which is not a whole number from 0")
    return whole


def quotas_of(allocation: Allocation, gpus: Sequence[Gpu]) -> tuple[DeviceQuota, ...]:
    """Return the claim's quota on each of its GPUs, in NVML's order.

    Raises ClaimError for a GPU that is not here, for more than the GPU has, and for configurations that differ on one.
    """
    by_name = {device_name(gpu): gpu for gpu in usable(gpus)}
    for result in allocation.results:
        if result.device not in by_name:
            raise ClaimError(f"{allocation.claim} has the device {result.device}, which this node does not have (now)")
    names = dict.fromkeys(result.device for result in allocation.results)
    chosen = sorted((by_name[name] for name in names), key=lambda gpu: gpu.place)
    quotas = tuple(DeviceQuota(gpu, _quota_on(allocation, gpu)) for gpu in chosen)
    _check_together(allocation.claim, [each.quota for each in quotas])
    return quotas


def _check_together(claim: ClaimName, quotas: Sequence[Quota]) -> None:
    """Raise ClaimError for a claim whose containers one MPS server could not serve on all of its GPUs."""
    if not any(each.together for each in quotas):
        return
    if len({(each.together, each.sm_percent) for each in quotas}) > 1:
        raise ClaimError(
            f"{claim} has together, by which one server is for all: give it to every request, and as much compute on "
            "each of its GPUs"
        )
    if any(each.sm_policy is not SmPolicy.HARD for each in quotas):
        raise ClaimError(f"{claim} has together, by which compute is always limited: give it smPolicy: hard")


def _quota_on(allocation: Allocation, gpu: Gpu) -> Quota:
    results = [result for result in allocation.results if result.device == device_name(gpu)]
    memory_bytes = sum(result.memory_bytes for result in results)
    sm_percent = sum(result.sm_percent for result in results)
    if memory_bytes < 1:
        raise ClaimError(f"{allocation.claim} has no memory of GPU {gpu.number}")
    if memory_bytes > capacity_bytes(gpu):
        raise ClaimError(
            f"{allocation.claim} has {show_size(memory_bytes)} of GPU {gpu.number}, which has "
            f"{show_size(capacity_bytes(gpu))}"
        )
    if sm_percent > 100:
        raise ClaimError(f"{allocation.claim} has {sm_percent} % of the compute of GPU {gpu.number}")
    if len({result.config for result in results}) > 1:
        raise ClaimError(
            f"{allocation.claim} has GPU {gpu.number} more than once, with different parameters; use a claim for each"
        )
    config = results[0].config
    limited = sm_percent if 0 < sm_percent < 100 else None
    return Quota(memory_bytes, limited, config.sm_policy, config.priority, together=config.together)
