"""The CDI device by which an engine has the driver's own memory limits set for a container, before its program starts.

The device has no GPU and changes nothing in the container: it is a hook that the engine runs as root once the
container's cgroup is there (`createRuntime` of OCI). The hook is `vgpurun/cdi/hook.py`; it finds the limits among the
container's mounts, so one device serves all containers, and a launch that is not root's gets them too.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from vgpurun.errors import EnforceError
from vgpurun.host.drivers import LIMITS_KIND, EngineFacts
from vgpurun.util.atomic_file import atomic_file

_HOOK = "vgpurun.cdi.hook"


def device_name(is_simulated: bool) -> str:
    """Return the device's name as engines take it."""
    return f"{LIMITS_KIND}={'sim' if is_simulated else 'host'}"


def hook(simulated_driver: Path | None) -> dict[str, Any]:
    """Return the hook as a CDI specification has it. `simulated_driver` is the folder of one to use instead of NVML."""
    python = os.path.abspath(sys.executable)  # noqa: PTH100 - resolved it would leave its virtual environment
    return {
        "hookName": "createRuntime",
        "path": python,
        "args": [python, "-I", "-m", _HOOK, *([str(simulated_driver)] if simulated_driver else [])],
    }


def specification_path(folder: Path, is_simulated: bool) -> Path:
    """Return where the device's specification is in a folder of an engine's."""
    return folder / f"vgpurun-limits{'-sim' * is_simulated}.json"


def write_device(folder: Path, simulated_driver: Path | None) -> None:
    """Write the device's specification, where it is not there as it should be. Raises EnforceError."""
    path = specification_path(folder, simulated_driver is not None)
    _, _, name = device_name(simulated_driver is not None).partition("=")
    device = {"name": name, "containerEdits": {"hooks": [hook(simulated_driver)]}}
    text = json.dumps({"cdiVersion": "0.5.0", "kind": LIMITS_KIND, "devices": [device]}, indent=2) + "\n"
    try:
        if not path.exists() or path.read_text() != text:
            folder.mkdir(parents=True, exist_ok=True)
            with atomic_file(path) as half_made:
                half_made.write_text(text)
    except OSError as error:
        raise EnforceError(f"{path} cannot be written: {error.strerror}") from None


def lacking_of_engine(facts: EngineFacts, is_simulated: bool) -> str:
    """Return what an engine lacks to have the driver's own limits set; nothing where it lacks nothing."""
    if facts.is_rootless:
        return "the engine is rootless, and only root may set limits of the driver's own"
    if not facts.cdi_folders:
        return "the engine has no CDI, which Docker has from 25 on"
    name = device_name(is_simulated)
    if name not in facts.cdi_devices:
        return f"the engine lacks the CDI device {name}, which a launch by root makes, or: sudo vgpurun cdi generate"
    return ""
