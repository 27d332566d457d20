"""Looks at the C library that a container will have, before it is made: the image's, or that of a host folder over it.

The engine shows an image's files only in a container. So one of the image alone is made, without the user's volumes,
and what was seen is remembered: an image's id is that of its content.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from vgpurun.engine.client import Image
from vgpurun.engine.image_libc import PLACES, Libc, check_image
from vgpurun.engine.launches import LaunchEngine
from vgpurun.host.library import Library
from vgpurun.options import ContainerOptions, mount_targets
from vgpurun.storage import state
from vgpurun.util.atomic_file import atomic_file

_REMEMBERED = 256  # images


def look(engine: LaunchEngine, image: Image, options: ContainerOptions, library: Library) -> Libc:
    """Return what is known of the C library. Raises ImageError for one that cannot be limited, and EngineError."""
    if any(mount_targets.shows_any_of_host(path, options) for path in PLACES):
        return _seen(engine, image, options, library)
    key = f"{image.id} {options.platform or ''} {library.machine} {library.glibc}"
    known = _known()
    with suppress(KeyError, TypeError, ValueError):
        folder, version, preload, warnings, of_driver = known[key]
        return Libc(folder, tuple(version), preload, tuple(warnings), tuple(of_driver))
    found = _seen(engine, image, options, library)
    _remember({**known, key: found})
    return found


def _seen(engine: LaunchEngine, image: Image, options: ContainerOptions, library: Library) -> Libc:
    with _files(engine, image, options) as read:
        return check_image(options.image, read, library)


@contextmanager
def _files(engine: LaunchEngine, image: Image, options: ContainerOptions) -> Iterator[Callable[[str], bytes | None]]:
    bare = engine.create_to_read(image.id, options.platform)

    def read(path: str) -> bytes | None:
        on_host = mount_targets.path_on_host(path, options)
        return engine.read_file(bare, path) if on_host is None else _read_if_there(Path(on_host))

    try:
        yield read
    finally:
        engine.remove(bare)


def _read_if_there(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _memory() -> Path:
    return state.root_folder() / "images.json"


def _known() -> dict[str, Any]:
    with suppress(OSError, ValueError):
        known = json.loads(_memory().read_bytes())
        return known if isinstance(known, dict) else {}
    return {}


def _remember(known: dict[str, Any]) -> None:
    """Write down the last of what is known. Where that cannot be, the next launch looks again."""
    last = dict(list(known.items())[-_REMEMBERED:])
    with suppress(OSError):
        state.make_readable(_memory().parent)
        with atomic_file(_memory(), is_flushed=False) as half_made:
            half_made.write_text(json.dumps(last))
