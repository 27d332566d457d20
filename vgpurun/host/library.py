"""Finds, builds and checks libvgpu.so, and finds the simulated driver beside it.

In a checkout they are in lib/build. An installed vgpurun takes the first of: what root has built for all users of the
host, in a folder that nobody else can write; what this user has built, in the XDG cache; what came with the package. A
package of sources alone carries nothing, and is built on first use. VGPURUN_LIBRARY names another library, which is
then used or refused, never replaced.
"""

import mmap
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from vgpurun import __version__, abi
from vgpurun.console.messages import say
from vgpurun.errors import LibraryError
from vgpurun.host.elf import Content, NotElfError, glibc_version, read_elf
from vgpurun.storage.state import ROOT_FOLDER, make_readable
from vgpurun.util.locking import alone_in

LIBRARY, VERIFIER = "libvgpu.so", "vgpurun-verify"
SIMULATED_DRIVER = ("sim/libcuda.so.1", "sim/libnvidia-ml.so.1", "sim/nvidia-smi")
PARTS = (LIBRARY, VERIFIER, *SIMULATED_DRIVER)
_PACKAGE = Path(__file__).resolve().parent.parent
_OF_OUTER_MAKE = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")  # they would change what is built
_HEADERS = ("nvidia-cuda-runtime", "nvidia-nvml-dev")
_BUILD_TAKES_S = 300.0  # at the very most, on a machine with much else to do
_MARKER = re.compile(rb"%s([0-9A-Za-z.+-]+) abi=([0-9]+)( levels=)?" % abi.MARKER_PREFIX.encode())


@dataclass(frozen=True)
class Library:
    """A libvgpu.so that this vgpurun can use, and the glibc that it asks for, such as (2, 17)."""

    path: Path
    version: str
    machine: str
    glibc: tuple[int, ...]


def sources() -> Path:
    """Return the folder with the library's sources: the checkout's, or the installed copy. Raises LibraryError."""
    for folder in (_PACKAGE.parent / "lib", _PACKAGE / "_lib"):
        if (folder / "src").is_dir() and (folder / "Makefile").exists():
            return folder
    raise LibraryError("the sources of libvgpu.so are not installed; reinstall vgpurun, or set VGPURUN_LIBRARY")


def folder_below(root: Path) -> Path:
    """Return where a library of this version is that is for all users of a host whose state is in `root`."""
    return root / "lib" / f"{__version__}-{abi.ABI_VERSION}"


def dockerfile() -> Path:
    """Return the Dockerfile of the builder image. Raises LibraryError."""
    for folder in (_PACKAGE.parent / "dockerfiles", _PACKAGE / "_dockerfiles"):
        if (folder / "Dockerfile.builder").exists():
            return folder / "Dockerfile.builder"
    raise LibraryError("Dockerfile.builder is not installed; reinstall vgpurun")


def build_folder() -> Path:
    """Return where this user builds: lib/build in a checkout, else a folder of this version, shared or in the cache.

    Raises LibraryError for root where others could change what is there.
    """
    if (_PACKAGE.parent / "lib" / "Makefile").exists():
        return _PACKAGE.parent / "lib" / "build"
    if os.geteuid() == 0:
        if (found := distrusted()) is not None:
            raise LibraryError("others than root can write in {}; {}".format(*found))
        return folder_below(ROOT_FOLDER)
    home = os.environ.get("XDG_CACHE_HOME", "")
    cache = Path(home) if home.startswith("/") else Path.home() / ".cache"
    return cache / "vgpurun" / __version__


def is_roots_alone(path: Path) -> bool:
    """Ask whether this is there, and only root can have put it below root's folder or can change it."""
    try:
        found = [each.stat() for each in (path, *path.parents) if each.is_relative_to(ROOT_FOLDER)]
    except OSError:
        return False
    return all(each.st_uid == 0 and not each.st_mode & 0o022 for each in found)


def _folders(part: str) -> list[Path]:
    """Return where a part may be, the first before the others: shared by all users, this user's own, the package's."""
    own = build_folder()
    if own.is_relative_to(_PACKAGE.parent):
        return [own]
    shared = folder_below(ROOT_FOLDER)
    return [*([shared] if is_roots_alone(shared / part) else []), own, _PACKAGE / "_built"]


def _folder_with(parts: Sequence[str]) -> Path | None:
    """Return the first folder that has all of these parts."""
    return next((folder for folder in _folders(parts[0]) if all((folder / part).exists() for part in parts)), None)


def distrusted() -> tuple[Path, str] | None:
    """Return the outermost place by which others than root could have put a shared library there, and the way out."""
    library = folder_below(ROOT_FOLDER) / LIBRARY
    for path in reversed((library, *library.parents)):
        if os.path.exists(path) and not is_roots_alone(path):  # noqa: PTH110 (never raises)
            return path, f"as root: chown root {path}; chmod go-w {path}; rm -rf {library.parent}; vgpurun build"
    return None


def find() -> Library:
    """Return the library as it is. Raises LibraryError when it is missing or of another version."""
    if given := os.environ.get("VGPURUN_LIBRARY"):
        return check(Path(given).absolute(), way_out="correct VGPURUN_LIBRARY, or unset it")
    there = [path for folder in _folders(LIBRARY) if (path := folder / LIBRARY).exists()]
    for each in there[:-1]:
        with suppress(LibraryError):
            return check(each)
    return check(there[-1] if there else build_folder() / LIBRARY)


def find_or_build(say: Callable[[str], None]) -> Library:
    """Return the library, built first if it is missing or of another version. Raises LibraryError."""
    try:
        return find()
    except LibraryError:
        if os.environ.get("VGPURUN_LIBRARY"):
            raise
    say(f"building {build_folder() / LIBRARY} (once)")
    return build()


def find_simulated_driver(say: Callable[[str], None]) -> Path:
    """Return the folder of the simulated driver, built first if it is missing. Raises LibraryError."""
    return (
        _folder_with(SIMULATED_DRIVER) or _built("sim", f"the simulated driver in {build_folder() / 'sim'}", say)
    ) / "sim"


def find_verifier(say: Callable[[str], None]) -> Path:
    """Return the program that tries to pass limits, built first if it is missing. Raises LibraryError."""
    return (_folder_with([VERIFIER]) or _built("verify", str(build_folder() / VERIFIER), say)) / VERIFIER


def _built(target: str, what: str, say: Callable[[str], None]) -> Path:
    say(f"building {what} (once)")
    _make(target)
    return build_folder()


def missing(parts: Sequence[str]) -> list[str]:
    """Return which parts are nowhere."""
    return [part for part in parts if _folder_with([part]) is None]


def build(is_verbose: bool = False, target: str = "library") -> Library:
    """Build it (`all`: every part) with this host's compiler. Raises LibraryError with the compiler's first error."""
    _make(target, is_verbose)
    return check(build_folder() / LIBRARY)


def why_not_built_here() -> str:
    """Return what this host lacks for a build, and after a semicolon the way out; empty where it lacks nothing."""
    from vgpurun.util.extras import installer

    try:
        command = _make_command()
    except LibraryError as error:
        return str(error)
    for tool in ("make", "cc"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed; install gcc and make, or use: vgpurun build-in-docker"
    done = subprocess.run([*command, "-s", "print-includes"], capture_output=True, text=True, check=False)
    if not done.returncode and not done.stdout.strip():
        return f"the CUDA headers are not here; {installer()} {' '.join(_HEADERS)}"
    return ""


def _make(target: str, is_verbose: bool = False) -> None:
    """Run lib/Makefile. Its output is shown when it is asked for, and otherwise the one line that matters."""
    if shutil.which("make") is None:
        raise LibraryError("make is not installed; install gcc and make, or use: vgpurun build-in-docker")
    environment = {name: value for name, value in os.environ.items() if name not in _OF_OUTER_MAKE}
    with alone_in(build_folder(), _BUILD_TAKES_S, LibraryError, make_readable):
        done = subprocess.run(
            [*_make_command(), target], capture_output=not is_verbose, text=True, check=False, env=environment,
            umask=0o022,  # all users of a container load it
        )  # fmt: skip
    if done.returncode:
        raise LibraryError(
            f"libvgpu.so cannot be built{_reason(done.stderr or '')}; `vgpurun build --verbose` shows all of it, "
            "`vgpurun build-in-docker` needs no compiler here"
        )


def _make_command() -> list[str]:
    from vgpurun.util.extras import installer

    variables = (f"BUILD={build_folder()}", f"PYTHON={sys.executable}", f"PIP_INSTALL={installer()}")
    return ["make", "-C", str(sources()), *variables]


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


def preloaded(environment: Mapping[str, str]) -> Path | None:
    """Return the library that programs of this environment have already: a second one would limit them twice.

    Raises LibraryError for one that is too old for nested shares.
    """
    named = [abi.CONTAINER_LIBRARY, *re.split("[: ]", environment.get("LD_PRELOAD", ""))]
    for path in map(Path, filter(None, named)):
        try:
            marker = _MARKER.search(_mapped(path))
        except OSError:
            continue
        if marker and not marker.group(3):
            raise LibraryError(f"{path} of this share is too old for nested shares; restart the share")
        if marker:
            return path
    return None


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


def find_library(is_dry_run: bool) -> Library:
    """Return the library, built first if need be; a dry run builds nothing and shows where it will be."""
    if not is_dry_run:
        return find_or_build(say)
    try:
        return find()
    except LibraryError:
        return Library(build_folder() / "libvgpu.so", "", "", ())
