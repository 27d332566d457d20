"""Whether an image's C library can load libvgpu.so: read from the files, before anything of the image runs.

A loader that cannot load a preloaded library goes on without it, so without limits: such an image is refused.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from vgpurun import abi
from vgpurun.errors import ImageError
from vgpurun.host.elf import NotElfError, glibc_version, read_elf
from vgpurun.host.library import Library, show_version
from vgpurun.options.mount_targets import PRELOAD_FILES

_LOADERS = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}
_CACHE_FILE = "/etc/ld.so.cache"
PLACES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", *PRELOAD_FILES, _CACHE_FILE)  # read, with what is below

ReadFile = Callable[[str], bytes | None]


@dataclass(frozen=True)
class Libc:
    """An image's C library, as far as it is known.

    `folder` is where its loader looks for libraries, or nothing where there is no glibc; `version` is at least its own.
    `preload` is what the image has in its preload files. `driver` are libraries of a driver of its own, as Ubuntu's
    nvidia-cuda-toolkit brings them, which its loader would find.
    """

    folder: str
    version: tuple[int, ...] = ()
    preload: str = ""
    driver: tuple[str, ...] = ()


def check_image(image: str, read_file: ReadFile, library: Library) -> Libc:
    """Return what an image's C library is. Raises ImageError for musl and for a glibc that is too old."""
    found = _new_loader(read_file, library) or _glibc(image, read_file, library)
    preload = _preload(b"\n".join(read_file(path) or b"" for path in PRELOAD_FILES))
    if found is not None:
        return replace(found, preload=preload, driver=_driver(read_file(_CACHE_FILE) or b"", found.folder))
    if read_file(f"/lib/ld-musl-{library.machine}.so.1") is not None:
        raise ImageError(
            f"image {image} is built on musl, which libvgpu.so cannot run under; use an image with glibc (e.g. "
            "Debian, Ubuntu, Fedora or their -slim variants)"
        )
    return Libc("", (), preload)


def _new_loader(read_file: ReadFile, library: Library) -> Libc | None:
    """Return the C library where its loader tells that it is new enough: libc.so.6 itself is ten times the size.

    Among the loader's own versions are 2.34 and 2.35, but few that are older and none that is newer, so it may not.
    Debian's is in /lib64 alone where somebody has copied it there into an empty image.
    """
    name, of_debian = _LOADERS.get(library.machine, ""), f"/lib/{library.machine}-linux-gnu"
    for folder in (of_debian, "/lib64"):
        content = read_file(f"{folder}/{name}") if name else None
        if content is not None:
            with suppress(NotElfError):
                elf = read_elf(content)
                version = glibc_version(elf.defined_versions) or ()
                looks_into = of_debian if f"{of_debian}/".encode() in content else folder
                return Libc(f"/usr{looks_into}", version) if _is_enough(elf.machine, version, library) else None
    return None


def _is_enough(machine: str, version: tuple[int, ...], library: Library) -> bool:
    return machine == library.machine and version >= library.glibc


def _glibc(image: str, read_file: ReadFile, library: Library) -> Libc | None:
    multiarch = f"{library.machine}-linux-gnu"
    for folder in (f"/lib/{multiarch}", f"/usr/lib/{multiarch}", "/lib64", "/usr/lib64", "/lib", "/usr/lib"):
        path = f"{folder}/libc.so.6"
        content = read_file(path)
        if content is not None:
            return Libc(f"/usr{folder.removeprefix('/usr')}", _check_glibc(image, path, content, library))
    return None


def _preload(content: bytes) -> str:
    """Return an image's own entries; ours are in an image into which somebody has written them."""
    names = content.decode("utf-8", "replace").replace(":", " ").split()
    return "".join(f"{name}\n" for name in names if name != abi.CONTAINER_LIBRARY)


def _driver(cache: bytes, folder: str) -> tuple[str, ...]:
    """Return what is beside the C library of the paths in a loader's cache, each of which ends in a zero byte."""
    place = re.escape(folder.removeprefix("/usr").encode())
    found = re.findall(rb"((?:/usr)?" + place + rb"/lib(?:cuda|nv)[\w.-]*)\0", cache)
    return tuple(path.decode() for path in dict.fromkeys(found))


def _check_glibc(image: str, path: str, content: bytes, library: Library) -> tuple[int, ...]:
    try:
        elf = read_elf(content)
    except NotElfError as error:
        raise ImageError(f"image {image}: {path} is damaged: {error}") from None
    if elf.machine != library.machine:
        raise ImageError(
            f"image {image} is for {elf.machine}, but libvgpu.so is for {library.machine}; pull the image for this "
            "machine"
        )
    has = glibc_version(elf.defined_versions) or (0,)
    if has < library.glibc:
        raise ImageError(
            f"image {image} has glibc {show_version(has)}, but {library.path} needs {show_version(library.glibc)}; "
            "build the library on an older system: vgpurun build-in-docker --base-image IMAGE"
        )
    return has
