"""Where our files can be mounted among the user's own mounts.

Programs find the driver's libraries without any variable in a folder that glibc's loader looks into before any other,
and that images do not have: `glibc-hwcaps/x86-64-v2` since glibc 2.33, `tls` before, beside the libraries of Debian's
glibc or of Red Hat's. So nothing of an image is hidden, and all that stays in one that is committed is an empty folder:
an empty file in the place of each library would be in the way of ldconfig and of NVIDIA's toolkit. Only where an image
brings a driver itself, which ldconfig's cache puts first, it lies under ours, and is back in the committed image.

A mount needs a file or folder to be mounted on. In the image's own file system the engine makes one; in a folder of
the user's (-v /etc:/etc) it would make an empty file on the host, or fail where that is read-only. So there ours is
mounted only on what is there already.
"""

import platform
from collections.abc import Callable, Collection
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from vgpurun import abi
from vgpurun.errors import OptionError
from vgpurun.host.drivers import DriverPlan
from vgpurun.options import ContainerOptions, Mount, Volume

if TYPE_CHECKING:
    from vgpurun.engine.image_libc import Libc

PRELOAD_FILE = "/etc/ld.so.preload"
# Where LD_LIBRARY_PATH has to say it: another processor, another loader, no place among the user's mounts.
DRIVER_FOLDER = f"{abi.CONTAINER_DIR}/driver"
_LIBRARY_FOLDERS = (f"/usr/lib/{platform.machine()}-linux-gnu", "/usr/lib64")
_HWCAPS, _BEFORE_HWCAPS = "glibc-hwcaps/x86-64-v2", "tls"
_HWCAPS_SINCE = (2, 33)
_TOOL_FOLDER = "/usr/bin"


def refuse_mounts_over_ours(options: ContainerOptions) -> None:
    """Raise OptionError for a mount of the user's that would hide what limits the container."""
    for mount in _user_mounts(options):
        target = PurePosixPath(mount.target)
        if str(target) in (PRELOAD_FILE, "/") or target.is_relative_to(abi.CONTAINER_DIR):
            raise OptionError(f"the mount at {target} would hide what limits the container; choose another target")


def has_place(target: str, options: ContainerOptions, host_exists: Callable[[str], bool]) -> bool:
    """Ask whether something of ours can be mounted at a target. `host_exists` tells whether a path is on this host."""
    mount = _innermost(target, options)
    if mount is None:
        return True
    if PurePosixPath(mount.target) == PurePosixPath(target):
        return False  # the user brings one
    path = path_on_host(target, options)
    if path is None:
        return not mount.read_only  # in a volume or tmpfs the engine makes what is missing
    return host_exists(path)


def shows_host(target: str, options: ContainerOptions) -> bool:
    """Ask whether a target is in the container, by a mount of the user's, what it is on the host."""
    return path_on_host(target, options) == target


def path_on_host(target: str, options: ContainerOptions) -> str | None:
    """Return what a folder of this host, mounted by the user, shows at a target; None where no such mount covers it."""
    mount = _innermost(target, options)
    if mount is None or mount.source is None or not mount.source.startswith("/"):
        return None
    return str(PurePosixPath(mount.source) / PurePosixPath(target).relative_to(mount.target))


def shows_any_of_host(folder: str, options: ContainerOptions) -> bool:
    """Ask whether a folder of this host, mounted by the user, shows at a target or somewhere below it."""
    below = (mount.target for mount in _user_mounts(options) if PurePosixPath(mount.target).is_relative_to(folder))
    return any(path_on_host(each, options) is not None for each in (folder, *below))


def _innermost(target: str, options: ContainerOptions) -> Volume | Mount | None:
    covering = [mount for mount in _user_mounts(options) if PurePosixPath(target).is_relative_to(mount.target)]
    return max(covering, key=lambda mount: len(PurePosixPath(mount.target).parts), default=None)


def _user_mounts(options: ContainerOptions) -> list[Volume | Mount]:
    in_memory = [Mount(None, target, read_only=False, type="tmpfs") for target in options.tmpfs]
    return [*options.volumes, *options.mounts, *in_memory]


def doubts_of_preload(targets: Collection[str]) -> list[str]:
    """Return what is not limited where our preload file is not among the targets of a container's mounts."""
    if PRELOAD_FILE in targets:
        return []
    return [
        f"{PRELOAD_FILE} has no place in your own mount of /etc: a program that clears LD_PRELOAD (env -i, su, ssh) is "
        "not limited; an empty file of that name in the mounted folder makes the place"
    ]


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
