"""Whether an image's C library can load libvgpu.so: read from the files, before anything of the image runs.

A loader that cannot load a preloaded library goes on without it, that is without limits: so what cannot be is refused.
"""

from collections.abc import Callable
from contextlib import suppress

from vgpurun.errors import ImageError
from vgpurun.host.elf import NotElfError, glibc_version, read_elf
from vgpurun.host.library import Library, show_version

_LOADERS = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}

ReadFile = Callable[[str], bytes | None]


def check_image(image: str, read_file: ReadFile, library: Library) -> list[str]:
    """Return warnings about what cannot be limited. Raises ImageError for musl and for a glibc that is too old."""
    if _has_new_loader(read_file, library):
        return []
    found = _find_glibc(read_file, library.machine)
    if found is not None:
        _check_glibc(image, *found, library)
        return []
    if read_file(f"/lib/ld-musl-{library.machine}.so.1") is not None:
        raise ImageError(
            f"image {image} is built on musl, which libvgpu.so cannot run under; use an image with glibc (e.g. "
            "Debian, Ubuntu, Fedora or their -slim variants)"
        )
    return [f"no glibc was found in image {image}: a statically linked program is not limited"]


def _has_new_loader(read_file: ReadFile, library: Library) -> bool:
    """Whether glibc's loader tells already that its libc.so.6 is new enough, which is ten times its size.

    Among the loader's own versions are 2.34 and 2.35, but few that are older and none that is newer: so it may not.
    """
    name = _LOADERS.get(library.machine, "")
    for folder in (f"/lib/{library.machine}-linux-gnu", "/lib64"):
        content = read_file(f"{folder}/{name}") if name else None
        if content is not None:
            with suppress(NotElfError):
                elf = read_elf(content)
                return elf.machine == library.machine and (glibc_version(elf.defined_versions) or ()) >= library.glibc
    return False


def _find_glibc(read_file: ReadFile, machine: str) -> tuple[str, bytes] | None:
    multiarch = f"{machine}-linux-gnu"
    for folder in (f"/lib/{multiarch}", f"/usr/lib/{multiarch}", "/lib64", "/usr/lib64", "/lib", "/usr/lib"):
        path = f"{folder}/libc.so.6"
        content = read_file(path)
        if content is not None:
            return path, content
    return None


def _check_glibc(image: str, path: str, content: bytes, library: Library) -> None:
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
