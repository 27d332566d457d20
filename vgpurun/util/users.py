"""The user who runs vgpurun."""

import grp
import os
import pwd
from contextlib import suppress


def current_user() -> str:
    """Return the login name of this process's user, or the number of one without a name; under sudo, who called it."""
    uid = os.getuid()
    caller = os.environ.get("SUDO_UID", "")
    if uid == 0 and caller.isdecimal():
        uid = int(caller)
    return name_of(uid)


def name_of(uid: int) -> str:
    """Return the login name of a user, or the number of one without a name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return str(uid)


def groups_of(name: str) -> frozenset[str]:
    """Return the names of a user's groups; a group without a name is left out."""
    try:
        numbers = os.getgrouplist(name, pwd.getpwnam(name).pw_gid)
    except (KeyError, OSError):
        return frozenset()
    return frozenset(group for number in numbers if (group := _group_name(number)) is not None)


def uid_of(name: str) -> int | None:
    """Return the number of a user by its name, or by the number itself; None for one that this host does not know."""
    with suppress(KeyError):
        return pwd.getpwnam(name).pw_uid
    return int(name) if name.isdecimal() else None


def gid_of(name: str) -> int | None:
    """Return the number of a group by its name, or None for one that this host does not know."""
    with suppress(KeyError):
        return grp.getgrnam(name).gr_gid
    return None


def become(name: str) -> None:
    """Be another user of this host from now on, at home there. It takes root. Raises KeyError and OSError."""
    user = pwd.getpwnam(name)
    os.initgroups(name, user.pw_gid)
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)
    os.environ["HOME"] = user.pw_dir
    os.environ.pop("XDG_STATE_HOME", None)


def is_user(name: str) -> bool:
    """Whether a user of this host can go by that name, which is a number for one without a name."""
    uid = uid_of(name)
    return uid is not None and name_of(uid) == name


def is_group(name: str) -> bool:
    """Whether this host knows a group of that name."""
    return gid_of(name) is not None


def _group_name(number: int) -> str | None:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return None
