"""The file by which a container's users learn what the guard has done: /.vgpurun/etc/guard, read-only for them."""

import os
import stat
import time
from contextlib import suppress
from pathlib import Path

from vgpurun.inventory.guarded import Done

FILE = "guard"
_MOST_LINES = 20
_MOST_BYTES = 16 << 10
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def tell(folder: Path, done: Done) -> None:
    """Add a line to the file of a container whose limits are in this folder, which may be its user's own.

    So no link is followed in it. Raises OSError.
    """
    when = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(done.at_s))
    line = f"{when}  {done.action.name}: {done.action.verb}: {done.action.words}\n"
    outer = os.open(folder, _FOLDER)
    try:
        inner = os.open("etc", _FOLDER, dir_fd=outer)
    finally:
        os.close(outer)
    try:
        lines = [*_lines(inner), line][-_MOST_LINES:]
        made = f".{FILE}.{os.urandom(4).hex()}"
        try:
            file = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=inner)
            try:
                os.write(file, "".join(lines).encode())
                os.fchmod(file, 0o644)
            finally:
                os.close(file)
            os.replace(made, FILE, src_dir_fd=inner, dst_dir_fd=inner)
        except OSError:
            with suppress(OSError):
                os.unlink(made, dir_fd=inner)
            raise
    finally:
        os.close(inner)


def _lines(folder: int) -> list[str]:
    with suppress(OSError):
        file = os.open(FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        try:
            if stat.S_ISREG(os.fstat(file).st_mode):
                return os.read(file, _MOST_BYTES).decode(errors="replace").splitlines(keepends=True)
        finally:
            os.close(file)
    return []
