"""The folder of `--profile DIR`, in which each process of the program records what it does on the GPU."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from vgpurun import abi
from vgpurun.errors import LimitError, ProfileError
from vgpurun.launch.container_user import ContainerUser
from vgpurun.limits import quota
from vgpurun.util.nofollow import open_nofollow

_LEAST_BYTES = 4 << 20
_WRITES = os.W_OK | os.X_OK
_ACL = "system.posix_acl_access"  # which may let in whom the mode keeps out
_ANYBODY = 0o1777  # like /tmp: whatever user a process of the container has, it makes files of its own


class Profiling(NamedTuple):
    """The folder, and how large the file of a process may become (None: as the library has it)."""

    folder: Path
    size_bytes: int | None = None

    @classmethod
    def read(cls, folder: str | None, size: str | None) -> Profiling | None:
        """Return what the options ask for; None without a folder.

        Raises:
            ProfileError: the folder cannot be used, or the size is none.
        """
        if folder is None:
            if size is not None:
                raise ProfileError(f"--profile-size {size} without --profile DIR: there is nothing to be recorded")
            return None
        if not folder:
            raise ProfileError("--profile: the folder has no name; is the variable that names it set?")
        profiling = cls(Path(folder).absolute(), None if size is None else _size_bytes(size))
        profiling.check()
        return profiling

    def check(self) -> None:
        """Raise ProfileError for a folder that is none, or that this user may not write."""
        if self.folder.is_dir():
            if not os.access(self.folder, os.W_OK | os.X_OK):
                raise ProfileError(f"--profile {self.folder}: this user may not write there; choose another folder")
        elif self.folder.exists():
            raise ProfileError(f"--profile {self.folder} is not a folder; choose another name")

    def check_for(self, user: ContainerUser | None) -> None:
        """Raise ProfileError where the folder is there already, and not for this user of a container to write."""
        if user is None or user.uid == 0 or not self.folder.is_dir():
            return
        status = self.folder.stat()
        bits = status.st_mode
        if status.st_uid == user.uid:
            bits >>= 6
        elif status.st_gid in user.gids:
            bits >>= 3
        if bits & _WRITES != _WRITES and not self._has_acl():
            raise ProfileError(
                f"--profile {self.folder}: user {user.name} of the container may not write there; chmod 1777 it, or "
                "choose a folder that is not there yet"
            )

    def _has_acl(self) -> bool:
        with suppress(OSError):  # a file system without them
            return _ACL in os.listxattr(self.folder)
        return False

    def variables(self, folder: str) -> dict[str, str]:
        """Return what tells the library so, where it sees the folder under that name."""
        size = {} if self.size_bytes is None else {abi.ENV_PROFILE_SIZE: str(self.size_bytes)}
        return {abi.ENV_PROFILE: folder, **size}

    def make_folder(self) -> bool:
        """Make the folder unless it is there; return whether it was made.

        Raises:
            ProfileError: it cannot be made.
        """
        try:
            self.folder.mkdir(parents=True)
            folder = open_nofollow(self.folder, os.O_RDONLY | os.O_DIRECTORY)  # not what another has put there by now
            try:
                os.fchmod(folder, _ANYBODY)
            finally:
                os.close(folder)
        except OSError as error:
            if self.folder.is_dir():
                self.check()
                return False
            raise ProfileError(f"--profile {self.folder} cannot be made: {error.strerror}") from None
        return True


def _size_bytes(text: str) -> int:
    try:
        size = quota.parse_size(text)
    except LimitError:
        size = None
    if size is None or size.is_percent:
        raise ProfileError(f"--profile-size '{text}' is not a size; use e.g. 64m or 1g")
    if size.bytes_on(0) < _LEAST_BYTES:
        raise ProfileError(f"--profile-size {text} is too little: a profile needs 4m")
    return size.bytes_on(0)
