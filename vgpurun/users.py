"""Who runs vgpurun."""

import os
import pwd


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
