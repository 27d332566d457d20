"""Puts libvgpu.so where the containers of a node can mount it: on the host, not in the plugin's own container."""

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from vgpurun import state
from vgpurun.errors import StateError


def install_library(library: Path, root: Path) -> Path:
    """Copy a library to <root>/lib, if it is not there yet, and return the copy. Raises StateError.

    The name follows from the content, so that another version comes beside those that containers have mounted.
    """
    try:
        content = library.read_bytes()
        copy = root / "lib" / f"libvgpu-{hashlib.sha256(content).hexdigest()[:16]}.so"
        if copy.exists():
            return copy
        state.make_readable(copy.parent)
        half_made = copy.with_name(f".{copy.name}.{os.getpid()}.{os.urandom(4).hex()}")
        try:
            with half_made.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            half_made.chmod(0o755)
            half_made.replace(copy)
        finally:
            with suppress(OSError):
                half_made.unlink(missing_ok=True)
    except OSError as error:
        raise StateError(f"cannot put {library} into {root}/lib: {error.strerror}") from None
    return copy
