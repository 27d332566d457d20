"""The CDI specification of the slices of this host, kept up to date as they come, change and go.

`vgpurun cdi generate` writes it, and writes down where and for which driver: from then on whatever changes a slice
writes it anew. Without any slice there is no file, since a specification has at least one device.
"""

import json
import os
import pwd
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vgpurun import abi
from vgpurun.cdi.edits import Edits, distrust, driver_edits, joined, limits_edits, together_edits
from vgpurun.cdi.files import check_path, write_specification
from vgpurun.cdi.nvidia import nvidia_edits
from vgpurun.cdi.specification import Share, cdi_device, specification
from vgpurun.console.messages import warn
from vgpurun.errors import OutputError, SliceError, TogetherError
from vgpurun.host import drivers
from vgpurun.host.drivers import EngineFacts
from vgpurun.host.gpu_names import of_same_kind
from vgpurun.host.gpus import Gpu
from vgpurun.host.limits_device import distrusted
from vgpurun.launch.together import check_slice, user_of
from vgpurun.limits import limits_file
from vgpurun.slices import store
from vgpurun.slices.quotas import quotas_on
from vgpurun.slices.store import Slice
from vgpurun.storage import state, tenants
from vgpurun.together.offering import offered
from vgpurun.util.atomic_file import atomic_file
from vgpurun.util.locking import alone_in

_PATIENCE_S = 60.0
DEFAULT_PATH = Path("/etc/cdi/vgpurun.yaml")
TMPFILES = Path("/etc/tmpfiles.d/vgpurun.conf")
_TMPFILES_LINE = f"""# Made by `vgpurun cdi generate`: containers with a CDI device of vgpurun need this folder at
# their start, and nobody is to clean it up.
d {abi.LOCK_DIR} 1777 root root -
"""


@dataclass(frozen=True)
class Host:
    """The ingredients of this host's devices. `driver` is host or sim; `edits` brings it for some GPUs.

    `simulated_driver` is the simulated one's folder.
    """

    driver: str
    gpus: Sequence[Gpu]
    library: Path
    edits: Callable[[Sequence[Gpu]], Edits]
    simulated_driver: Path | None = None


def host_edits(gpus: Sequence[Gpu]) -> Edits:
    """Return what brings this host's driver: as NVIDIA's specification does where there is one, else its own files.

    Raises DriverError.
    """
    return nvidia_edits(gpus) or driver_edits(drivers.plan_driver("mount", gpus, EngineFacts()))


def of_slices(host: Host, slices: Sequence[Slice]) -> dict[str, Any]:
    """Return the specification of slices. Raises SliceError, DriverError, and TogetherError."""
    for each in slices:
        check(each)
    return specification([_device(host, each) for each in slices])


def check(found: Slice) -> None:
    """Raise SliceError for a slice that can have no device: engines start what its containers join as root."""
    if not found.together:
        return
    try:
        user = pwd.getpwnam(user_of(found))
        check_slice(found, user.pw_uid, user.pw_name)
        trouble = distrust()
        if path := distrusted([found.folder]):
            trouble = f"others than root can change {path}, and so whose it is"
    except KeyError:
        trouble = f"this host knows no user {user_of(found)}"
    except TogetherError as error:
        trouble = str(error)
    if trouble:
        raise SliceError(f"slice {found.name} has no CDI device: {trouble}")


def has_device(found: Slice) -> bool:
    """Whether a slice can have a device."""
    with suppress(SliceError):
        check(found)
        return True
    return False


def with_devices(driver: str) -> list[Slice]:
    """Return the slices of a driver that can have a device."""
    return [each for each in store.slices() if each.driver == driver and has_device(each)]


def _device(host: Host, each: Slice) -> dict[str, Any]:
    quotas = quotas_on(each, host.gpus)
    chosen = [quota.gpu for quota in quotas]
    is_movable = limits_file.is_movable(each.folder / "etc" / "limits")
    reached = of_same_kind(chosen, host.gpus) if is_movable else chosen
    edits = joined([host.edits(reached), limits_edits(quotas, host.simulated_driver)])
    if each.together:
        if os.geteuid():
            raise SliceError(f"only root can make the CDI device of slice {each.name}, made with --together: use sudo")
        edits = joined([edits, together_edits(each.folder, offered(each.folder, user_of(each)), host.simulated_driver)])
    return cdi_device(Share(each.name, quotas, each.folder), host.library, edits)


def _record() -> Path:
    return state.host_root() / "cdi.json"


def kept_at(driver: str) -> Path | None:
    """Return where the specification is that is kept up to date for this driver, or None."""
    try:
        record = json.loads(_record().read_bytes())
        return Path(record["path"]) if record["driver"] == driver else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep(driver: str, path: Path, make_host: Callable[[], Host]) -> None:
    """Write the specification of all slices there, and from now on keep it up to date. Raises VgpurunError."""
    path = path.absolute()
    check_path(path)
    with _one_at_a_time():
        _write(driver, path, make_host)
        try:
            with atomic_file(_record()) as half_made:
                half_made.write_text(json.dumps({"path": str(path), "driver": driver}))
            if path.is_relative_to("/etc") and TMPFILES.parent.is_dir() and not TMPFILES.exists():
                TMPFILES.write_text(_TMPFILES_LINE)
        except OSError as error:
            raise OutputError(f"{error.filename} cannot be written: {error.strerror}") from None


def forget(driver: str) -> Path | None:
    """Remove the specification that is kept up to date; return where it was, or None. Raises OutputError."""
    if kept_at(driver) is None:
        return None
    with _one_at_a_time():
        path = kept_at(driver)
        if path is None:
            return None
        try:
            path.unlink(missing_ok=True)
            _record().unlink(missing_ok=True)
            if TMPFILES.exists() and TMPFILES.read_text() == _TMPFILES_LINE:
                TMPFILES.unlink()
        except OSError as error:
            raise OutputError(f"{path} cannot be removed: {error.strerror}") from None
        return path


def refresh(driver: str, make_host: Callable[[], Host]) -> Path | None:
    """Write the specification of all slices anew, where it is kept; return its path. Raises VgpurunError."""
    if kept_at(driver) is None:
        return None
    with _one_at_a_time():
        path = kept_at(driver)
        if path is not None:
            _write(driver, path, make_host)
        return path


def _write(driver: str, path: Path, make_host: Callable[[], Host]) -> None:
    slices = with_devices(driver)
    devices = list(_devices(make_host(), slices)) if slices else []
    if devices:
        write_specification(path, specification(devices))
    else:
        path.unlink(missing_ok=True)


def _devices(host: Host, slices: Sequence[Slice]) -> Iterator[dict[str, Any]]:
    """Yield the devices of slices, all but those whose user's folder cannot be made: no user keeps others from theirs.

    Raises SliceError, and DriverError.
    """
    for each in slices:
        tenants.make(each.folder)
        try:
            device = _device(host, each)
        except TogetherError as error:
            warn(f"{error}; so it has no CDI device, until: vgpurun cdi generate")
        else:
            yield device


def _one_at_a_time() -> AbstractContextManager[None]:
    """Lock the slices, so that the process that looks at them last writes last."""
    return alone_in(state.host_root(), _PATIENCE_S, OutputError, state.make_readable, "cdi.lock")
