"""The places at which our files can be mounted among the user's own mounts.

A mount needs a file or folder to be mounted on. In the image's own file system the engine makes one; in a folder of
the user's (-v /etc:/etc) it would make an empty file on the host, or fail where that is read-only. So there ours is
mounted only on what is there already.
"""

from collections.abc import Callable, Collection
from pathlib import PurePosixPath

from vgpurun import abi
from vgpurun.errors import OptionError
from vgpurun.options.model import ContainerOptions, Mount, Volume

PRELOAD_FILE = "/etc/ld.so.preload"
NIX_PRELOAD_FILE = "/etc/ld-nix.so.preload"  # the loader of Nix's glibc reads this instead
PRELOAD_FILES = (PRELOAD_FILE, NIX_PRELOAD_FILE)


def refuse_mounts_over_ours(options: ContainerOptions) -> None:
    """Raise OptionError for a mount of the user's that would hide what limits the container."""
    for mount in _user_mounts(options):
        target = PurePosixPath(mount.target)
        if str(target) in (*PRELOAD_FILES, "/") or target.is_relative_to(abi.CONTAINER_DIR):
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


def is_covered(path: str, options: ContainerOptions) -> bool:
    """Ask whether a path is in a mount of the user's, so that the image's own file is hidden."""
    return _innermost(path, options) is not None


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
