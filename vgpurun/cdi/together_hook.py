"""The hook by which an engine has a container join the MPS server of its slice (docs/together.md).

The engine runs it as hook.py, as root. The slice is the device's, whatever mounts the container has. The keeper sees a
container by its mount of the pipes, so that nothing has to be told of its end. One that cannot join does not start.
"""

import json
import os
import pwd
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from vgpurun.cdi.hook import config_of, simulate, sources_of
from vgpurun.errors import TogetherError, VgpurunError
from vgpurun.host import gpus
from vgpurun.host.mounted import mounts_of, place_of
from vgpurun.launch.together import membership_in, user_of
from vgpurun.slices import store
from vgpurun.slices.store import Slice
from vgpurun.storage import state
from vgpurun.util.kernel_text import read_text
from vgpurun.util.process_identity import ProcessIdentity, identify
from vgpurun.util.users import become

_POLL_S = 0.1
_ALL_USERS = ["0", "0", "4294967295"]  # of the host, as /proc has them


def main() -> int:
    """Have the container on standard input join its slice; return the exit code."""
    return run(lambda folder, _: store.find(folder.name))


def run(find: Callable[[Path, bool], Slice]) -> int:
    """Have the container on standard input join; return the exit code.

    `find` returns what has the folder that the device names, given whether the driver is the simulated one.
    """
    try:
        container = json.load(sys.stdin)
        config = config_of(container)
        folder, *simulated = map(Path, sys.argv[1:])
        if simulated:
            simulate(simulated[0], sources_of(config))
        use_state_around(folder)
        found = find(folder, bool(simulated))
        check_container(int(container["pid"]))
        check_user(found, int(config["process"]["user"]["uid"]))
        become(user_of(found))
        join(found, int(container["pid"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"vgpurun: the engine does not say what a container is to join: {error!r}", file=sys.stderr)
        return 1
    except VgpurunError as error:
        print(f"vgpurun: {error}", file=sys.stderr)
        return 1
    return 0


def use_state_around(folder: Path) -> None:
    """Use the state that this folder is a part of, whatever an engine's environment has of that."""
    os.environ.pop("VGPURUN_STATE_DIR", None)
    if (root := folder.parents[1]) != state.ROOT_FOLDER:
        os.environ["VGPURUN_STATE_DIR"] = str(root)


def check_container(pid: int) -> None:
    """Raise TogetherError for a container whose programs no server could serve. `pid` is its first. Raises OSError."""
    process = Path(f"/proc/{pid}")
    if os.geteuid() or read_text(process / "uid_map").split() != _ALL_USERS:
        raise TogetherError(
            "containers of a rootless engine, or with users of their own, cannot work at the same time as others; use "
            "a slice without --together (Kubernetes: leave out hostUsers: false, or together)"
        )
    if not os.path.samestat((process / "ns/ipc").stat(), Path("/proc/self/ns/ipc").stat()):
        raise TogetherError(
            "MPS needs the host's IPC namespace: add --ipc host (Compose: ipc: host; Kubernetes: hostIPC: true)"
        )


def check_user(found: Slice, uid: int) -> None:
    """Raise TogetherError for a container whose programs are another user's than the slice's."""
    user = user_of(found)
    try:
        served = pwd.getpwnam(user).pw_uid
    except KeyError:
        raise TogetherError(
            f"this host knows no user {user}, whose {found.named} is; as root: vgpurun slice update --users NAME "
            f"{found.name}"
        ) from None
    if uid != served:
        raise TogetherError(
            f"the container's programs would be user {uid}'s, and the MPS server of {found.named} is for user {user}; "
            f'add --user {served} (Compose: user: "{served}"; Kubernetes: runAsUser: {served})'
        )


def join(found: Slice, pid: int) -> None:
    """Have the server run of the slice whose pipes a container has. Raises VgpurunError, and OSError."""
    first = identify(pid)
    membership = membership_in(found, gpus.list_gpus())
    _check_mount(found, pid, membership.group.pipes)
    with membership.joined() as lock:
        _check_mount(found, pid, membership.group.pipes)  # they may have been removed before this was a member
        if first and not os.fork():
            try:
                _keep_nothing_but(lock)
                _stand_for(first, membership.group.pipes)
            finally:
                os._exit(0)


def _check_mount(found: Slice, pid: int, pipes: Path) -> None:
    """Raises TogetherError, and OSError."""
    if not _has_mounted(Path(f"/proc/{pid}"), pipes):
        raise TogetherError(f"the CDI device is not {found.named}'s as it is now; write it anew: vgpurun cdi generate")


def _keep_nothing_but(lock: int) -> None:
    """Let go of all that the engine or a terminal waits for the end of, or ends with what it has started."""
    os.setsid()
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for number in range(3):
        os.dup2(null, number)
    for number in {int(each.name) for each in Path("/proc/self/fd").iterdir()} - {0, 1, 2, lock}:
        with suppress(OSError):  # the listing's own
            os.close(number)


def _stand_for(first: ProcessIdentity, pipes: Path) -> None:
    """Be a member until the keeper sees the container's first process, which is the engine's until its program runs."""
    while first.is_alive() and not _is_seen(first, pipes):
        time.sleep(_POLL_S)


def _is_seen(first: ProcessIdentity, pipes: Path) -> bool:
    process = Path(f"/proc/{first.pid}")
    with suppress(OSError):
        (process / "ns" / "mnt").readlink()  # fails where this user may not look into it
        return _has_mounted(process, pipes)
    return False


def _has_mounted(process: Path, pipes: Path) -> bool:
    """Whether it has the folder itself: engines mount what has its path, which a user may make a link for a while."""
    place = place_of(pipes)
    return any(each.place == place for each in mounts_of(process))


if __name__ == "__main__":
    sys.exit(main())
