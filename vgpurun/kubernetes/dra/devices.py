"""The CDI specification of a claim: one device for each of its GPUs, and what all of them need once.

A container that uses one request of a claim gets the nodes of that request's GPU alone. Its limits, and what the
driver needs for any GPU, are the specification's own, which an engine applies once however many of its devices it adds.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vgpurun.cdi.edits import Edits, driver_edits, joined
from vgpurun.cdi.files import write_specification
from vgpurun.cdi.nvidia import FOLDERS, nvidia_edits
from vgpurun.cdi.specification import Share, share_edits, specification
from vgpurun.errors import DriverError
from vgpurun.host import drivers, simulation
from vgpurun.host.drivers import DriverPlan, EngineFacts
from vgpurun.host.gpus import Gpu
from vgpurun.kubernetes.dra import together
from vgpurun.kubernetes.dra.claim import ClaimName
from vgpurun.kubernetes.dra.model import device_name
from vgpurun.limits.model import DeviceQuota
from vgpurun.storage import tenants

KIND = "vgpurun.io/claim"
# For an engine whose default runtime is NVIDIA's: it must not add all GPUs on its own.
_NO_OTHERS = "NVIDIA_VISIBLE_DEVICES=void"


class NodeDriver:
    """How the driver's files come into this node's containers: as NVIDIA's CDI specification says, or bound by us.

    `simulated` is the folder of the simulated driver, for the mode sim.
    """

    def __init__(self, mode: str, simulated: Path | None = None, cdi_folders: Sequence[str] = FOLDERS) -> None:
        self._mode = mode
        self.simulated = simulated
        self._cdi_folders = cdi_folders

    def plan(self, gpus: Sequence[Gpu]) -> tuple[DriverPlan, Edits]:
        """Return what containers with these GPUs need. Raises DriverError."""
        if self.simulated:
            planned = simulation.plan_container(self.simulated, gpus)
            return planned, driver_edits(planned)
        if self._mode != "mount" and (edits := nvidia_edits(gpus, self._cdi_folders)):
            return DriverPlan("cdi"), edits
        if self._mode == "cdi":
            raise DriverError(
                f"no CDI specification in {' or '.join(self._cdi_folders)} has {drivers.CDI_KIND} devices for these "
                "GPUs; write one with: nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml"
            )
        planned = drivers.plan_driver("mount", gpus, EngineFacts())
        return planned, driver_edits(planned)


class ClaimDevices:
    """The CDI specifications of claims, in one folder."""

    def __init__(self, folder: Path, driver: NodeDriver) -> None:
        self._folder = folder
        self._driver = driver

    def path(self, uid: str) -> Path:
        """Return where a claim's specification is."""
        return self._folder / f"vgpurun.io-claim-{uid}.json"

    def driver_of(self, quotas: Sequence[DeviceQuota]) -> DriverPlan:
        """Return how containers of a claim get the driver. Raises DriverError."""
        return self._driver.plan([each.gpu for each in quotas])[0]

    def check_together(self, claim: ClaimName, quotas: Sequence[DeviceQuota]) -> None:
        """Raise ClaimError for a claim whose containers are to work at the same time, and cannot here."""
        if any(each.quota.together for each in quotas):
            together.check(claim, quotas, self._driver.simulated)

    def write(self, uid: str, quotas: Sequence[DeviceQuota], state_folder: Path, library: Path) -> None:
        """Write a claim's specification; `library` is libvgpu.so on the host.

        Raises DriverError, StateError, TogetherError and OutputError.
        """
        tenants.make(state_folder)
        share = share_edits(Share(uid, tuple(quotas), state_folder), library)
        if any(each.quota.together for each in quotas):
            share = joined([share, together.edits(state_folder, self._driver.simulated)])
        edits = [self._driver.plan([each.gpu])[1] for each in quotas]
        common = _common(edits) if len(edits) > 1 else {}
        devices = [
            {"name": cdi_name(uid, device_name(each.gpu)), "containerEdits": _without(own, common)}
            for each, own in zip(quotas, edits, strict=True)
        ]
        write_specification(self.path(uid), {**specification(devices, KIND), "containerEdits": joined([common, share])})

    def remove(self, uid: str) -> None:
        """Remove a claim's specification if there is one. Raises OSError."""
        self.path(uid).unlink(missing_ok=True)

    def paths(self) -> set[Path]:
        """Return all specifications of claims that are there, half-written ones included."""
        name = self.path("*").name
        return {*self._folder.glob(name), *self._folder.glob(f".{name}.*")}


def cdi_name(uid: str, device: str) -> str:
    """Return the name of a device of a claim in its specification."""
    return f"{uid}-{device}"


def qualified_name(uid: str, device: str) -> str:
    """Return the name of a device of a claim as an engine or kubelet takes it."""
    return f"{KIND}={cdi_name(uid, device)}"


def _common(edits: Sequence[Edits]) -> Edits:
    """Return the content of each of these edits."""
    first, *others = edits
    return {key: [each for each in first[key] if all(each in other.get(key, []) for other in others)] for key in first}


def _without(edits: Edits, common: Edits) -> dict[str, Any]:
    """These edits without what is common; never none at all, which no specification may have."""
    own = {key: [each for each in values if each not in common.get(key, [])] for key, values in edits.items()}
    return {key: values for key, values in own.items() if values} or {"env": [_NO_OTHERS]}
