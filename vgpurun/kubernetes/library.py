"""The library that a node's containers have, where the host has it too: <root>/lib/<version>/libvgpu.so."""

from pathlib import Path

from vgpurun.errors import StateError
from vgpurun.host.library import folder_below
from vgpurun.storage import state
from vgpurun.util.atomic_file import atomic_file


def install_library(root: Path, library: Path) -> Path:
    """Put the library where this host's engine finds it: the plugin may run in a container. Raises StateError."""
    place = folder_below(root) / "libvgpu.so"
    try:
        state.make_readable(place.parent)
        content = library.read_bytes()
        if not place.exists() or place.read_bytes() != content:
            with atomic_file(place, 0o755) as half_made:  # programs that have the old one mapped keep it
                half_made.write_bytes(content)
    except OSError as error:
        raise StateError(f"cannot put the library at {place}: {error.strerror}") from None
    return place
