"""Makes the folder by which containers of a slice's CDI device join: it is the user's whose programs the server serves.

Root runs this as a process of its own, which becomes that user.
"""

import subprocess
import sys
from pathlib import Path

from vgpurun.errors import TogetherError
from vgpurun.together.group import Group
from vgpurun.util import own_module
from vgpurun.util.users import become

_PATIENCE_S = 60.0


def offered(slice_folder: Path, user: str) -> str:
    """Return the folder of pipes of a user's group, which stays as long as the slice. Raises TogetherError."""
    try:
        done = subprocess.run(
            own_module.command(__name__, str(slice_folder), user),
            capture_output=True, text=True, timeout=_PATIENCE_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TogetherError(f"no folder for the MPS server of slice {slice_folder.name}: {error}") from None
    if done.returncode:
        raise TogetherError(f"no folder for the MPS server of slice {slice_folder.name}: {done.stderr.strip()}")
    return done.stdout.strip()


def main(slice_folder: str, user: str) -> int:
    """Print the folder; return the exit code."""
    try:
        become(user)
        print(_writable(str(Group.of(Path(slice_folder)).offer())))
    except (KeyError, OSError, ValueError, TogetherError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _writable(pipes: str) -> str:
    """Return a path that a specification can have. Raises TogetherError: users may lead their state folder anywhere."""
    if not pipes.isprintable():
        raise TogetherError(f"{pipes!a} has a name that no CDI specification can have")
    return pipes


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
