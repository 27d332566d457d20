"""Asks the guard for a suspension that takes root, or its end: a container's programs are root's, whoever started it.

    <state folder>/request   what its owner asks for, until when, and a token
    <state folder>/answer    the guard's: that token, and what was in the way, if anything was

The state folder is its owner's, who started the container; the container does not see it. Only a request in a file of
the folder's own owner counts, and only within its time: none is carried out later by a guard that starts then.
"""

import json
import os
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from vgpurun.errors import SuspendError
from vgpurun.inventory import guarded
from vgpurun.util.nofollow import open_nofollow, replace_nofollow
from vgpurun.util.printable import printable
from vgpurun.util.process_identity import boot_id
from vgpurun.util.times import boot_s

REQUEST, ANSWER = "request", "answer"
SUSPEND, RESUME = "suspend", "resume"
_MOST_BYTES = 4096
_COPY_TAKES_S = 300.0  # at the very most, beside what the work on the GPUs may take to end
_MOST_LOCK_MS = 60_000  # for which a guard that is to end waits for work on the GPUs of whoever asks
_POLL_S = 0.05


class Request(NamedTuple):
    """A wish: one of SUSPEND and RESUME, and how the suspension is to be."""

    verb: str
    token: str
    is_held: bool = False
    lock_timeout_ms: int = 0


def ask_guard(name: str, folder: Path, verb: str, is_held: bool = False, lock_timeout_ms: int = 0) -> None:
    """Have the guard do it, and wait until it is done. Raises SuspendError, also with the guard's own words."""
    if not guarded.is_running():
        raise SuspendError(
            f"the programs of {name} are another user's, root's as a rule; use sudo, or let root run vgpurun guard, "
            "which does it for the user who started them"
        )
    asked = Request(verb, os.urandom(8).hex(), is_held, lock_timeout_ms)
    until_s = boot_s() + lock_timeout_ms / 1000 + _COPY_TAKES_S
    content = json.dumps({**asked._asdict(), "until_boot_s": until_s, "boot": boot_id()})
    try:
        replace_nofollow(folder / REQUEST, content.encode(), is_flushed=False)
    except OSError as error:
        raise SuspendError(
            f"{folder}: {error.strerror}; only the user who started {name}, or root, may do that"
        ) from None
    try:
        while (given := _read(folder / ANSWER)).get("token") != asked.token:
            if boot_s() > until_s or not guarded.is_running():
                raise SuspendError(f"{name}: the guard has not answered; its journal says why")
            time.sleep(_POLL_S)
    finally:
        with suppress(OSError):
            (folder / REQUEST).unlink()
    if trouble := given.get("trouble"):
        raise SuspendError(printable(str(trouble)))


def read_request(folder: Path) -> Request | None:
    """Return what is asked for in a state folder and has no answer yet. Raises nothing."""
    with suppress(KeyError, TypeError, ValueError):
        given = _read(folder / REQUEST, _owner_of(folder))
        if (
            given["boot"] == boot_id()
            and boot_s() <= float(given["until_boot_s"])
            and given["verb"] in (SUSPEND, RESUME)
        ):
            asked = Request(
                given["verb"],
                str(given["token"]),
                given["is_held"] is True,
                min(int(given["lock_timeout_ms"]), _MOST_LOCK_MS),
            )
            return None if _read(folder / ANSWER).get("token") == asked.token else asked
    return None


def answer(folder: Path, request: Request, trouble: str) -> None:
    """Tell who asked that it is done, or what was in the way. Raises OSError."""
    content = json.dumps({"token": request.token, "trouble": trouble})
    replace_nofollow(folder / ANSWER, content.encode(), is_flushed=False)


def _owner_of(folder: Path) -> int:
    try:
        return folder.lstat().st_uid
    except OSError:
        return -1


def _read(path: Path, uid: int | None = None) -> Mapping[str, Any]:
    """Return what a file says, nothing where it is none, or none of this user's. Raises nothing."""
    with suppress(OSError, ValueError, RecursionError):
        file = open_nofollow(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            status = os.fstat(file)
            if stat.S_ISREG(status.st_mode) and uid in (None, status.st_uid):
                found = json.loads(os.pread(file, _MOST_BYTES, 0))
                return found if isinstance(found, dict) else {}
        finally:
            os.close(file)
    return {}
