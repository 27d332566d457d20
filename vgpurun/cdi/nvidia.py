"""Reads how NVIDIA's own CDI specification (by nvidia-ctk) brings the driver, so that our devices do the same.

What is read is a copy: after an update of the driver NVIDIA's specification is written anew, and ours has to follow.
"""

from collections.abc import Sequence

from vgpurun.cdi.edits import Edits, joined
from vgpurun.host.drivers import CDI_KIND, cdi_specifications
from vgpurun.host.gpus import Gpu

FOLDERS = ("/etc/cdi", "/var/run/cdi")


def nvidia_edits(gpus: Sequence[Gpu], folders: Sequence[str] = FOLDERS) -> Edits | None:
    """Return the edits of these GPUs' devices in NVIDIA's specification; None unless one file there has them all."""
    for specification in cdi_specifications(folders):
        if specification["kind"] != CDI_KIND:
            continue
        devices = {str(each["name"]): each.get("containerEdits") for each in specification["devices"]}
        found = [devices.get(gpu.uuid) or devices.get(gpu.number) for gpu in gpus]
        if all(found):
            return joined([specification.get("containerEdits") or {}, *filter(None, found)])
    return None
