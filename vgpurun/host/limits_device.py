"""The CDI device by which an engine has the driver's own memory limits set for a container, before its program starts.

The device has no GPU and changes nothing in the container: it is a hook that the engine runs as root once the
container's cgroup is there (`createRuntime` of OCI). The hook is `vgpurun/cdi/hook.py`; it finds the limits among the
container's mounts, so one device serves all containers, and a launch that is not root's gets them too.
"""

import json
import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import vgpurun
from vgpurun.errors import EnforceError
from vgpurun.host.drivers import LIMITS_KIND, EngineFacts
from vgpurun.util import own_module
from vgpurun.util.atomic_file import atomic_file

LIMITS_HOOK = "vgpurun.cdi.hook"
_MOST_S = 300  # that an engine waits for a hook, which users of the host may hold up: twice what it waits itself


def device_name(is_simulated: bool) -> str:
    """Return the device's name as engines take it."""
    return f"{LIMITS_KIND}={'sim' if is_simulated else 'host'}"


def hook(simulated_driver: Path | None, module: str = LIMITS_HOOK, *arguments: str) -> dict[str, Any]:
    """Return the hook, or another module's with these arguments, as a CDI specification has it.

    `simulated_driver` is the folder of one to use instead of NVML.
    """
    args = own_module.command(module, *arguments, *([str(simulated_driver)] if simulated_driver else []))
    return {
        "hookName": "createRuntime",
        "path": args[0],
        "args": args,
        "timeout": _MOST_S,
    }


def specification_path(folder: Path, is_simulated: bool) -> Path:
    """Return where the device's specification is in a folder of an engine's."""
    return folder / f"vgpurun-limits{'-sim' * is_simulated}.json"


def write_device(folder: Path, simulated_driver: Path | None) -> None:
    """Write the device's specification, where it is not there as it should be.

    Raises EnforceError, also where others than root could change what engines would run as root from then on.
    """
    path = specification_path(folder, simulated_driver is not None)
    _, _, name = device_name(simulated_driver is not None).partition("=")
    device = {"name": name, "containerEdits": {"hooks": [hook(simulated_driver)]}}
    text = json.dumps({"cdiVersion": "0.5.0", "kind": LIMITS_KIND, "devices": [device]}, indent=2) + "\n"
    try:
        if not path.exists() or path.read_text() != text:
            if (open_to_others := distrusted()) is not None:
                raise EnforceError(
                    f"engines would run a hook of this vgpurun as root, but others can change {open_to_others}; "
                    "install vgpurun as root, such as its .deb"
                )
            folder.mkdir(parents=True, exist_ok=True)
            with atomic_file(path) as half_made:
                half_made.write_text(text)
    except OSError as error:
        raise EnforceError(f"{path} cannot be written: {error.strerror}") from None


def distrusted(paths: Sequence[Path] | None = None) -> Path | None:
    """Return a file or folder of this vgpurun, or of its Python, that others than root can change; None for none."""
    import sysconfig  # few launches get here

    python, package = Path(os.path.abspath(sys.executable)), Path(vgpurun.__file__).parent  # noqa: PTH100
    places = paths or (python, python.resolve(), Path(sysconfig.get_path("purelib")), package, *package.rglob("*.py"))
    for path in dict.fromkeys(each for place in places for each in (place, *place.parents)):
        if not os.path.lexists(path):
            continue
        status = path.lstat()
        is_kept = stat.S_ISLNK(status.st_mode) or not status.st_mode & 0o022 or status.st_mode & stat.S_ISVTX
        if status.st_uid != 0 or not is_kept:
            return path
    return None


def lacking_of_engine(facts: EngineFacts, is_simulated: bool) -> str:
    """Return what an engine lacks to have the driver's own limits set; nothing where it lacks nothing."""
    if facts.is_rootless:
        return "the engine is rootless, and only root may set limits of the driver's own"
    if not facts.cdi_folders:
        return "the engine has no CDI, which Docker has from 25 on"
    name = device_name(is_simulated)
    if name not in facts.cdi_devices:
        if (open_to_others := distrusted()) is not None:
            return (
                f"others than root can change {open_to_others}, so no engine is told to run it, install vgpurun as root"
            )
        return f"the engine lacks the CDI device {name}, which a launch by root makes, or: sudo vgpurun cdi generate"
    return ""
