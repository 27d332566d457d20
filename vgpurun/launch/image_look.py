"""Looks at the C library that a container will have, before it is made: the image's, or that of a host folder over it.

The engine shows an image's files only in a container. So one of the image alone is made, without the user's volumes,
and what was seen is remembered: an image's id is that of its content.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import astuple
from pathlib import Path
from typing import Any

from vgpurun.engine.client import Image
from vgpurun.engine.image_libc import PLACES, Libc, check_image
from vgpurun.engine.launches import LaunchEngine
from vgpurun.host.library import Library
from vgpurun.options import ContainerOptions, mount_targets
from vgpurun.storage import state
from vgpurun.util.atomic_file import atomic_file

_REMEMBERED = 512  # images, and first programs of them


class ImageFiles:
    """Reads files of an image, and of host folders that the user mounts over it.

    The container to read from is made for the first file, and removed at the end.
    """

    def __init__(self, engine: LaunchEngine, image: Image, options: ContainerOptions) -> None:
        self._engine = engine
        self._image = image
        self._options = options
        self._bare: str | None = None

    def __enter__(self) -> "ImageFiles":
        return self

    def __exit__(self, *error: object) -> None:
        if self._bare is not None:
            self._engine.remove(self._bare)

    def read(self, path: str) -> bytes | None:
        """Return a file, or None where there is none. Raises EngineError."""
        on_host = mount_targets.path_on_host(path, self._options)
        return self.of_image(path) if on_host is None else _read_if_there(Path(on_host))

    def of_image(self, path: str) -> bytes | None:
        """Return a file of the image itself. Raises EngineError."""
        if self._bare is None:
            self._bare = self._engine.create_to_read(self._image.id, self._options.platform)
        return self._engine.read_file(self._bare, path)


def look(files: ImageFiles, image: Image, options: ContainerOptions, library: Library) -> Libc:
    """Return what is known of the C library. Raises ImageError for one that cannot be limited, and EngineError."""
    if any(mount_targets.shows_any_of_host(path, options) for path in PLACES):
        return check_image(options.image, files.read, library)
    key = f"{image.id} {options.platform or ''} {library.machine} {library.glibc}"
    with suppress(KeyError, TypeError, ValueError):
        folder, version, preload, of_driver = known()[key]
        return Libc(folder, tuple(version), preload, tuple(of_driver))
    found = check_image(options.image, files.read, library)
    remember(key, astuple(found))
    return found


def _read_if_there(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _memory() -> Path:
    return state.root_folder() / "images.json"


def known() -> dict[str, Any]:
    """Return what was remembered of images, by their ids and what else it depends on."""
    with suppress(OSError, ValueError):
        found = json.loads(_memory().read_bytes())
        return found if isinstance(found, dict) else {}
    return {}


def remember(key: str, found: Sequence[Any]) -> None:
    """Write down what was found, beside the last of what is known. Where that cannot be, the next launch looks."""
    last = dict(list({**known(), key: found}.items())[-_REMEMBERED:])
    with suppress(OSError):
        state.make_readable(_memory().parent)
        with atomic_file(_memory(), is_flushed=False) as half_made:
            half_made.write_text(json.dumps(last))
