"""Finds the first program of a container before it is made, and looks whether the library will be in it."""

from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from vgpurun.engine.client import Image
from vgpurun.host.program import Doubts, doubts_of
from vgpurun.launch.image_look import ImageFiles, known, remember
from vgpurun.options import ContainerOptions, mount_targets
from vgpurun.storage.shared_file import read_regular

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # if neither image nor user sets one
_MOST_BYTES = 64 << 20


def look(files: ImageFiles, image: Image, options: ContainerOptions, environment: Mapping[str, str]) -> Doubts:
    """Return what is doubtful of the first program; nothing where that cannot be told. Raises EngineError.

    What is seen of an image alone is remembered, with the paths that were read.
    """
    word = _first_word(image, options)
    if not word:
        return Doubts()
    folder = str(options.fields.get("WorkingDir") or image.folder or "/")
    places = [f"{each}/{word}" for each in environment.get("PATH", _PATH).split(":") if each.startswith("/")]
    paths = [str(PurePosixPath(folder, word))] if "/" in word else places
    key = f"{image.id} {options.platform or ''} {' '.join(paths)}"
    try:
        without, refuses, *read = known()[key]
        if not any(mount_targets.is_covered(path, options) for path in read):
            return Doubts(without, refuses)
    except (KeyError, TypeError, ValueError):
        pass
    reader = _Reader(files, options)
    path = next((path for path in paths if reader.read(path) is not None or reader.is_blind), "")
    found = doubts_of(path, reader.read) if path else Doubts()
    if not any(mount_targets.is_covered(path, options) for path in reader.seen):
        remember(key, (found.without, found.refuses, *reader.seen))
    return found


def _first_word(image: Image, options: ContainerOptions) -> str:
    """Return the first word of the command, as the engine puts it together; nothing for `--entrypoint ""`."""
    if options.entrypoint is not None:
        return options.entrypoint
    return next(iter((*image.entrypoint, *(options.command or image.command))), "")


class _Reader:
    """Reads each file once, and notes which: of a volume that is not on this host nothing is known."""

    def __init__(self, files: ImageFiles, options: ContainerOptions) -> None:
        self._files = files
        self._options = options
        self.seen: dict[str, bytes | None] = {}
        self.is_blind = False

    def read(self, path: str) -> bytes | None:
        if path not in self.seen:
            self.seen[path] = self._read(path)
        return self.seen[path]

    def _read(self, path: str) -> bytes | None:
        if not mount_targets.is_covered(path, self._options):
            return self._files.of_image(path)
        on_host = mount_targets.path_on_host(path, self._options)
        try:
            content = None if on_host is None else read_regular(Path(on_host), _MOST_BYTES)
        except FileNotFoundError:
            return None
        except OSError:
            content = None
        self.is_blind = content is None
        return content
