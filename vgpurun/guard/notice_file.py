"""The file by which a container's users learn what the guard has done: /.vgpurun/etc/guard, read-only for them."""

import time
from contextlib import suppress
from pathlib import Path

from vgpurun.inventory.guarded import Done
from vgpurun.storage.shared_file import read_regular
from vgpurun.util.nofollow import replace_nofollow

FILE = "guard"
_MOST_LINES = 20
_MOST_BYTES = 16 << 10


def tell(folder: Path, done: Done) -> None:
    """Add a line to the file of a container whose limits are in this folder, which may be its user's own.

    So no link is followed in it. Raises OSError.
    """
    when = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(done.at_s))
    line = f"{when}  {done.action.name}: {done.action.verb}: {done.action.words}\n"
    path = folder / "etc" / FILE
    lines = [*_lines(path), line][-_MOST_LINES:]
    replace_nofollow(path, "".join(lines).encode(), is_flushed=False)


def _lines(path: Path) -> list[str]:
    with suppress(OSError):
        return (read_regular(path, _MOST_BYTES) or b"").decode(errors="replace").splitlines(keepends=True)
    return []
