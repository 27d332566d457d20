"""How the driver's files are mounted in a container, and where.

Programs find the driver's libraries without any variable in a folder that glibc's loader looks into before any other,
and that images do not have: `glibc-hwcaps/x86-64-v2` since glibc 2.33, `tls` before, beside the libraries of Debian's
glibc or of Red Hat's. So nothing of an image is hidden, and all that stays in one that is committed is an empty folder:
an empty file in the place of each library would be in the way of ldconfig and of NVIDIA's toolkit. Only where an image
brings a driver itself, which ldconfig's cache puts first, it lies under ours, and is back in the committed image.
"""

import platform
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from vgpurun import abi
from vgpurun.host.drivers import DriverPlan
from vgpurun.options import ContainerOptions, Mount
from vgpurun.options.mount_targets import has_place

if TYPE_CHECKING:
    from vgpurun.engine.image_libc import Libc

# LD_LIBRARY_PATH has to say it here: another processor, another loader, no place among the user's mounts.
DRIVER_FOLDER = f"{abi.CONTAINER_DIR}/driver"
_LIBRARY_FOLDERS = (f"/usr/lib/{platform.machine()}-linux-gnu", "/usr/lib64")
_HWCAPS, _BEFORE_HWCAPS = "glibc-hwcaps/x86-64-v2", "tls"
_HWCAPS_SINCE = (2, 33)
_TOOL_FOLDER = "/usr/bin"


def driver_files(driver: DriverPlan) -> list[Mount]:
    """Return a mount for each of the driver's files in each folder where a loader may look, for a CDI device."""
    libraries = driver.libraries.items()
    return [Mount(path, f"{place}/{name}") for name, path in libraries for place in _LIBRARY_FOLDERS] + _tools(driver)


def driver_mounts(
    driver: DriverPlan, links: str, options: ContainerOptions, host_exists: Callable[[str], bool], libc: "Libc | None"
) -> tuple[list[Mount], bool]:
    """Return the mounts that bring the driver's files, and whether LD_LIBRARY_PATH has to name DRIVER_FOLDER.

    `links` is a folder of links to DRIVER_FOLDER, for a driver whose libraries have no folder to themselves.
    """
    mounts = [mount for mount in (*driver.mounts, *_tools(driver)) if has_place(mount.target, options, host_exists)]
    if not driver.libraries:
        return mounts, False
    first = _first_folders(libc) if driver.has_hwcaps else []
    folders = [each for each in first if has_place(each, options, host_exists)]
    needs_path = not first or len(folders) < len(first)
    mounts += [Mount(driver.folder or links, each) for each in folders]
    if driver.folder is None:
        mounts += [Mount(path, f"{DRIVER_FOLDER}/{name}") for name, path in driver.libraries.items()]
    elif needs_path:
        mounts.append(Mount(driver.folder, DRIVER_FOLDER))
    mounts += [mount for mount in _over_the_images(driver, libc) if has_place(mount.target, options, host_exists)]
    return mounts, needs_path


def _over_the_images(driver: DriverPlan, libc: "Libc | None") -> list[Mount]:
    """Return mounts over a driver in the image, which fits this host's kernel at best by chance."""
    paths = map(PurePosixPath, libc.driver if libc else ())
    return [Mount(driver.libraries[path.name], str(path)) for path in paths if path.name in driver.libraries]


def _tools(driver: DriverPlan) -> list[Mount]:
    return [Mount(path, f"{_TOOL_FOLDER}/{name}") for name, path in driver.tools.items()]


def _first_folders(libc: "Libc | None") -> list[str]:
    """Return the folders of this module's description that an image's loader looks into; all, of an unknown image."""
    if libc is None:
        return [f"{place}/{kind}" for place in _LIBRARY_FOLDERS for kind in (_HWCAPS, _BEFORE_HWCAPS)]
    kind = _HWCAPS if libc.version >= _HWCAPS_SINCE else _BEFORE_HWCAPS
    return [f"{libc.folder}/{kind}"] if libc.folder else []
