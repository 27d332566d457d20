"""Access lists of the kernel (POSIX ACLs), by which some users and groups may pass through a folder and others not."""

import errno
import os
import stat
import struct
from collections.abc import Collection
from pathlib import Path

_NAME = "system.posix_acl_access"
_OF_NEW_FILES = "system.posix_acl_default"
_VERSION = struct.Struct("<I")
_ENTRY = struct.Struct("<HHI")  # tag, rights, id
_OWNER, _USER, _OWN_GROUP, _GROUP, _MASK, _OTHERS = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20
_NO_ID = 0xFFFFFFFF
_ALL, _PASS, _NONE = 7, 1, 0  # rights: who may only pass can open no folder, and so not lock it


def let_through(folder: Path, uids: Collection[int], gids: Collection[int], is_open: bool = False) -> None:
    """Let its owner alone use a folder, and these users and groups pass through it; all, where it `is_open`.

    Raises OSError, ENOTSUP where the file system has no access lists and one is needed.
    """
    entries = [
        (_OWNER, _ALL, _NO_ID), *((_USER, _PASS, uid) for uid in sorted({*uids})),
        (_OWN_GROUP, _NONE, _NO_ID), *((_GROUP, _PASS, gid) for gid in sorted({*gids})),
        (_MASK, _PASS, _NO_ID), (_OTHERS, _NONE, _NO_ID),
    ]  # fmt: skip
    folder.chmod(stat.S_IRWXU | (stat.S_IXGRP | stat.S_IXOTH if is_open else 0))
    if is_open or not (uids or gids):
        remove(folder)
    else:
        os.setxattr(folder, _NAME, _VERSION.pack(2) + b"".join(_ENTRY.pack(*each) for each in entries))


def remove(folder: Path | int) -> None:
    """Remove a folder's access list, and the one for what is made in it: its mode alone says who may do what.

    Raises OSError.
    """
    for name in (_NAME, _OF_NEW_FILES):
        try:
            os.removexattr(folder, name)
        except OSError as error:
            if error.errno not in (errno.ENODATA, errno.ENOTSUP):
                raise
