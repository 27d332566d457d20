"""Finds, builds and checks libvgpu.so, and finds the simulated driver beside it.

In a checkout they are in lib/build. An installed vgpurun carries the sources and builds into the XDG cache, on first
use. VGPURUN_LIBRARY names another library, which is then used or refused, never replaced.
"""

import mmap
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from vgpurun import __version__, abi
from vgpurun.errors import LibraryError
from vgpurun.host.elf import Content, NotElfError, glibc_version, read_elf
from vgpurun.locking import alone_in

_PACKAGE = Path(__file__).resolve().parent.parent
_OF_OUTER_MAKE = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")  # they would change what is built
_BUILD_TAKES_S = 300.0  # at the very most, on a machine with much else to do
_MARKER = re.compile(rb"%s([0-9A-Za-z.+-]+) abi=([0-9]+)" % abi.MARKER_PREFIX.encode())


class Library(NamedTuple):
    """A libvgpu.so that this vgpurun can use, and the glibc that it asks for, such as (2, 17)."""

    path: Path
    version: str
    machine: str
    glibc: tuple[int, ...]


def sources() -> Path:
    """Return the folder with the library's sources: the checkout's, or the installed copy. Raises LibraryError."""
    for folder in (_PACKAGE.parent / "lib", _PACKAGE / "_lib"):
        if (folder / "abi.h").exists() and (folder / "Makefile").exists():
            return folder
    raise LibraryError("the sources of libvgpu.so are not installed; reinstall vgpurun, or set VGPURUN_LIBRARY")


def dockerfile() -> Path:
    """Return the Dockerfile of the builder image. Raises LibraryError."""
    for folder in (_PACKAGE.parent / "dockerfiles", _PACKAGE / "_dockerfiles"):
        if (folder / "Dockerfile.builder").exists():
            return folder / "Dockerfile.builder"
    raise LibraryError("Dockerfile.builder is not installed; reinstall vgpurun")


def build_folder() -> Path:
    """Return where the library is built: lib/build in a checkout, else a folder of this version in the XDG cache."""
    if (_PACKAGE.parent / "lib" / "Makefile").exists():
        return _PACKAGE.parent / "lib" / "build"
    home = os.environ.get("XDG_CACHE_HOME", "")
    cache = Path(home) if home.startswith("/") else Path.home() / ".cache"
    return cache / "vgpurun" / __version__


def find() -> Library:
    """Return the library as it is. Raises LibraryError when it is missing or of another version."""
    if given := os.environ.get("VGPURUN_LIBRARY"):
        return check(Path(given).absolute(), way_out="correct VGPURUN_LIBRARY, or unset it")
    return check(build_folder() / "libvgpu.so")


def find_or_build(say: Callable[[str], None]) -> Library:
    """Return the library, built first if it is missing or of another version. Raises LibraryError."""
    try:
        return find()
    except LibraryError:
        if os.environ.get("VGPURUN_LIBRARY"):
            raise
    say(f"building {build_folder() / 'libvgpu.so'} (once)")
    return build()


def find_simulated_driver(say: Callable[[str], None]) -> Path:
    """Return the folder of the simulated driver, built first if it is missing. Raises LibraryError."""
    folder = build_folder() / "sim"
    if not (folder / "libcuda.so.1").exists() or not (folder / "libnvidia-ml.so.1").exists():
        say(f"building the simulated driver in {folder} (once)")
        _make("sim")
    return folder


def find_verifier(say: Callable[[str], None]) -> Path:
    """Return the program that tries to pass limits, built first if it is missing. Raises LibraryError."""
    path = build_folder() / "vgpurun-verify"
    if not path.exists():
        say(f"building {path} (once)")
        _make("verify")
    return path


def build(is_verbose: bool = False) -> Library:
    """Build the library with this host's compiler. Raises LibraryError with the compiler's first error."""
    _make("library", is_verbose)
    return check(build_folder() / "libvgpu.so")


def _make(target: str, is_verbose: bool = False) -> None:
    """Run lib/Makefile. Its output is shown when it is asked for, and otherwise the one line that matters."""
    if shutil.which("make") is None:
        raise LibraryError("make is not installed; install gcc and make, or use: vgpurun build-in-docker")
    folder = build_folder()
    command = ["make", "-C", str(sources()), f"BUILD={folder}", f"PYTHON={sys.executable}", target]
    environment = {name: value for name, value in os.environ.items() if name not in _OF_OUTER_MAKE}
    with alone_in(folder, _BUILD_TAKES_S, LibraryError, lambda path: path.mkdir(parents=True, exist_ok=True)):
        done = subprocess.run(command, capture_output=not is_verbose, text=True, check=False, env=environment)
    if done.returncode:
        raise LibraryError(
            f"libvgpu.so cannot be built{_reason(done.stderr or '')}; `vgpurun build --verbose` shows all of it, "
            "`vgpurun build-in-docker` needs no compiler here"
        )


def _reason(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip() and not line.startswith("make")]
    first = next((line for line in lines if "error" in line.lower()), lines[-1] if lines else "")
    return f": {first}" if first else ""


def check(path: Path, machine: str | None = None, way_out: str = "build it with: vgpurun build") -> Library:
    """Read a library's version, ABI, machine and glibc need from its file. Raises LibraryError for one not of ours."""
    try:
        content = _mapped(path)
        elf = read_elf(content)
    except OSError as error:
        raise LibraryError(f"library {path}: {error.strerror}; {way_out}") from None
    except NotElfError as error:
        raise LibraryError(f"library {path}: {error}; {way_out}") from None
    marker = _MARKER.search(content)
    if marker is None:
        raise LibraryError(f"library {path} is not libvgpu.so of vgpurun; {way_out}")
    version, abi_version = marker.group(1).decode(), int(marker.group(2))
    if version != __version__ or abi_version != abi.ABI_VERSION:
        raise LibraryError(
            f"library {path} is version {version} with ABI {abi_version}, but this vgpurun needs {__version__} with "
            f"ABI {abi.ABI_VERSION}; {way_out}"
        )
    wanted = machine or platform.machine()
    if elf.machine != wanted:
        raise LibraryError(f"library {path} is for {elf.machine}, but this host is {wanted}; {way_out}")
    return Library(path, version, elf.machine, glibc_version(elf.needed_versions) or (2, 0))


def _mapped(path: Path) -> Content:
    """Return a file's content, of which only what is looked at is read. Raises OSError."""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if os.fstat(file.fileno()).st_size else b""


def check_host(library: Library) -> None:
    """Raise LibraryError where this host's own C library cannot load libvgpu.so."""
    try:
        name = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except ValueError:
        raise LibraryError("this host's C library is not glibc, and libvgpu.so cannot run under another") from None
    has = tuple(int(part) for part in re.findall("[0-9]+", name))
    if has < library.glibc:
        raise LibraryError(
            f"library {library.path} needs glibc {show_version(library.glibc)}, but this host has {show_version(has)}; "
            "build it here with: vgpurun build"
        )


def show_version(version: tuple[int, ...]) -> str:
    """Return a version for people, such as 2.17."""
    return ".".join(map(str, version))
