"""Prepares claims for the containers that kubelet is about to start, and undoes that when their pods are gone.

Every answer is about one claim: what is wrong with one keeps no other from being prepared. Preparing a claim again
gives the same answer and needs no API server, so kubelet may ask as often as it likes.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vgpurun.errors import ClaimError, VgpurunError
from vgpurun.host.gpus import Gpu
from vgpurun.kubernetes.dra import together
from vgpurun.kubernetes.dra.claim import ClaimName, quotas_of, read_claim
from vgpurun.kubernetes.dra.cluster import Cluster
from vgpurun.kubernetes.dra.devices import ClaimDevices, qualified_name
from vgpurun.kubernetes.dra.state import Claims, Part, Prepared
from vgpurun.limits.device_quotas import shared_files
from vgpurun.limits.model import DeviceQuota
from vgpurun.limits.quota import show_size
from vgpurun.storage.shared_file import has_live_processes


class PreparedDevice(NamedTuple):
    """A part of a GPU that a claim has, as kubelet passes it on to the engine."""

    part: Part
    cdi_name: str


class Driver:
    """The DRA driver of one node. `library` is libvgpu.so on the host; `say` is given a line for the log.

    `fault_of` tells why a GPU (by UUID) cannot be used, or None.
    """

    def __init__(
        self,
        node: str,
        cluster: Cluster,
        claims: Claims,
        devices: ClaimDevices,
        library: Path,
        list_gpus: Callable[[], Sequence[Gpu]],
        say: Callable[[str], None],
        fault_of: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        self._node = node
        self._cluster = cluster
        self._claims = claims
        self._devices = devices
        self._library = library
        self._list_gpus = list_gpus
        self._say = say
        self._fault_of = fault_of

    def prepare(self, claim: ClaimName, is_waited_for: Callable[[], bool] = lambda: True) -> list[PreparedDevice]:
        """Prepare a claim, if it is not prepared yet. Raises VgpurunError with the reason for kubelet.

        One that kubelet no longer waits for is left alone, since it may have been given back meanwhile.
        """
        prepared = self._claims.find(claim.uid) or self._add(claim, is_waited_for)
        self._write_devices(prepared)
        return [PreparedDevice(part, qualified_name(claim.uid, part.device)) for part in dict.fromkeys(prepared.parts)]

    def release_lost(self, min_age_s: float, read_held: Callable[[], Collection[tuple[str, str]]]) -> None:
        """Give back what kubelet has forgotten: claims that are gone or allocated no more, and that no process uses.

        A claim is let alone for some time after it was prepared: its pod may be about to start. `read_held` returns the
        claims, by namespace and name, that kubelet's pods have: the cluster is asked for others only. Raises
        ClusterError, and what `read_held` raises.
        """
        prepared = self._claims.all()
        idle = [each for each in prepared if each.age_s() >= min_age_s and not _is_in_use(each)]
        if not idle:
            return
        held, names = read_held(), Counter(_name(each) for each in prepared)
        for each in idle:
            if _name(each) in held and names[_name(each)] == 1:  # two of the same name: one has been made anew
                continue
            found = self._cluster.claim(each.claim.namespace, each.claim.name)
            if reason := _why_nobodys(each.claim, found):
                self._say(f"{each.claim.in_log()}: {reason}")
                self.unprepare(each.claim)

    def restore_tenants(self) -> None:
        """Make what somebody has removed of the folders by which containers know of each other. Raises StateError."""
        self._claims.restore_tenants()

    def unprepare(self, claim: ClaimName) -> None:
        """Undo prepare(), also for a claim that was never prepared. Raises VgpurunError."""
        try:
            self._devices.remove(claim.uid)  # first: as long as there is a record, this is tried again
        except OSError as error:
            raise ClaimError(f"{self._devices.path(claim.uid)} cannot be removed: {error.strerror}") from None
        if (prepared := self._claims.find(claim.uid)) and prepared.together:
            together.withdraw(prepared)
        self._claims.remove(claim.uid)
        self._say(f"{claim.in_log()}: given back")

    def resume(self) -> None:
        """After a start: finish what an earlier process may have left undone. Raises StateError."""
        self._claims.clean()
        found = self._devices.paths()  # before the records: another plugin may be making both, the record first
        prepared = self._claims.all()
        for path in found - {self._devices.path(each.claim.uid) for each in prepared}:
            path.unlink(missing_ok=True)
        for each in prepared:
            try:
                self._write_devices(each)
            except VgpurunError as error:
                self._say(f"{each.claim}: {error}")

    def _add(self, claim: ClaimName, is_waited_for: Callable[[], bool]) -> Prepared:
        found = self._cluster.claim(claim.namespace, claim.name)
        if found is None:
            raise ClaimError(f"{claim} is not there")
        allocation = read_claim(claim, found, self._node)
        quotas = quotas_of(allocation, self._list_gpus())
        for each in quotas:
            if reason := self._fault_of(each.gpu.uuid):
                raise ClaimError(f"{claim} has GPU {each.gpu.number}, which cannot be used: {reason}")
        self._devices.check_together(claim, quotas)
        files = shared_files(quotas, self._devices.driver_of(quotas))
        if not is_waited_for():
            raise ClaimError(f"{claim}: kubelet no longer waits for it")
        prepared = self._claims.add(allocation, quotas, files, self._library)
        self._say(f"{claim.in_log()}: prepared with {', '.join(_show(each) for each in quotas)}")
        return prepared

    def _write_devices(self, prepared: Prepared) -> None:
        gpus = {gpu.uuid: gpu for gpu in self._list_gpus()}
        for uuid, _ in prepared.quotas:
            if uuid not in gpus:
                raise ClaimError(f"{prepared.claim} has {uuid}, which this node does not have now")
        quotas = [DeviceQuota(gpus[uuid], quota) for uuid, quota in prepared.quotas]
        self._devices.write(prepared.claim.uid, quotas, prepared.folder, prepared.library)


def each_on_its_own(claims: Iterable[ClaimName], act: Callable[[ClaimName], Any]) -> dict[str, Any]:
    """Return what `act` answers for each claim, by its UID; for one that failed, the error."""
    answers: dict[str, Any] = {}
    for claim in claims:
        try:
            answers[claim.uid] = act(claim)
        except VgpurunError as error:
            answers[claim.uid] = error
        except Exception as error:  # a mistake of ours must not keep other claims from being prepared
            answers[claim.uid] = ClaimError(f"{claim}: unexpected {type(error).__name__}: {error}; please report it")
    return answers


def _name(prepared: Prepared) -> tuple[str, str]:
    return prepared.claim.namespace, prepared.claim.name


def _is_in_use(prepared: Prepared) -> bool:
    return has_live_processes(prepared.folder / "run" / "usage")


def _why_nobodys(claim: ClaimName, found: Mapping[str, Any] | None) -> str | None:
    """Return why no pod can have a claim any more, or None; `found` is what the cluster has under its name."""
    if found is None or found["metadata"]["uid"] != claim.uid:
        return "the cluster no longer has it"
    return None if (found.get("status") or {}).get("allocation") else "it is allocated no longer"


def _show(each: DeviceQuota) -> str:
    percent = "no compute limit" if each.quota.sm_percent is None else f"{each.quota.sm_percent} % of compute"
    return f"{show_size(each.quota.memory_bytes or 0)} and {percent} of GPU {each.gpu.number}"
