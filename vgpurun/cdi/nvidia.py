"""Reads how NVIDIA's own CDI specification (by nvidia-ctk) brings the driver, so that our devices do the same.

What is read is a copy: after an update of the driver NVIDIA's specification is written anew, and ours has to follow.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from vgpurun.cdi.edits import Edits, joined
from vgpurun.host.drivers import CDI_KIND
from vgpurun.host.gpus import Gpu

FOLDERS = ("/etc/cdi", "/var/run/cdi")


def nvidia_edits(gpus: Sequence[Gpu], folders: Sequence[str] = FOLDERS) -> Edits | None:
    """Return the edits of these GPUs' devices in NVIDIA's specification; None unless one file there has them all."""
    for specification in _specifications(folders):
        devices = {str(each["name"]): each["containerEdits"] for each in specification["devices"]}
        found = [devices.get(gpu.uuid) or devices.get(gpu.number) for gpu in gpus]
        if all(found):
            return joined([specification.get("containerEdits") or {}, *filter(None, found)])
    return None


def _specifications(folders: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield NVIDIA's specifications; what cannot be read no engine offers either."""
    import yaml  # slow to import

    for folder in folders:
        for path in sorted(Path(folder).glob("*")):
            if path.suffix not in (".json", ".yaml", ".yml"):
                continue
            try:
                text = path.read_text()
                read = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
                if read["kind"] == CDI_KIND and all(each["containerEdits"] is not None for each in read["devices"]):
                    yield read
            except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
                continue
