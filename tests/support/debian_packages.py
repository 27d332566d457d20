"""Debian's packages without installing them: fetched once, unpacked, kept, and run from where they lie.

debian_packages.py unpack DIR [--release NAME] PACKAGE...   put their files there
debian_packages.py source DIR [--release NAME] PACKAGE      put its original archive there, and print that one's path
debian_packages.py tool NAME PACKAGE...                     print the path of a program
debian_packages.py with PACKAGE...                          print that of a script that runs its arguments with them
"""

from __future__ import annotations

import argparse
import atexit
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
# These are links into /usr on every machine; packages name files by either path.
MERGED = ("bin", "lib", "lib64", "sbin")
# A file of the machine hides a package's. Nobody but the command sees the mounts, and they end with it.
RUN = """\
#!/bin/sh
# run COMMAND...    COMMAND, with the files of the packages in this folder in their places
# as/NAME ...       run NAME ...
tree=$(dirname "$(realpath "$0")")
# A link to this script may itself be on the PATH under that name.
[ "${0##*/}" = run ] || { set -- "${0##*/}" "$@"; PATH=/usr/sbin:/usr/bin:$PATH; }
exec unshare --mount sh -c '
for folder in usr etc; do
  [ ! -d "$0/$folder" ] || mount -t overlay -o "lowerdir=/$folder:$0/$folder" packages "/$folder" || exit 126
done
exec "$@"' "$tree" "$@"
"""


class UnavailableError(Exception):
    """Something that a test needs cannot be had on this machine; the message says why."""


def cache_dir() -> Path:
    """Return the folder that keeps between runs what takes long to make."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vgpurun-tests"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def kept(name: str, make: Callable[[Path], None]) -> Path:
    """A folder of the cache, which ``make`` fills first where it is not there."""
    folder = cache_dir() / name
    if not folder.exists():
        # A download takes what the network takes: the test's own time stands still.
        left = signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            _make_once(folder, make)
        except UnavailableError as error:
            raise UnavailableError(f"{name} cannot be had: {error}") from None
        finally:
            signal.setitimer(signal.ITIMER_REAL, *left)
    return folder


def _make_once(folder: Path, make: Callable[[Path], None]) -> None:
    """Make a folder, unless another process does, which is waited for."""
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            return
        half_made = folder.with_name(f"{folder.name}.{os.getpid()}")
        half_made.mkdir()
        try:
            make(half_made)
            half_made.rename(folder)
        finally:
            shutil.rmtree(half_made, ignore_errors=True)


def unpacked(package: str, release: str = "") -> Path:
    """The folder with the files of one package, of this machine's release or of another.

    Raises:
        UnavailableError: it cannot be had.
    """
    return kept("-".join(filter(None, (package, release))), lambda folder: unpack(folder, [package], release))


def unpack(folder: Path, packages: Sequence[str], release: str = "") -> None:
    """Put the files of packages, without those they depend on, into a folder.

    Raises:
        UnavailableError: they cannot be had.
    """
    with tempfile.TemporaryDirectory() as work:
        _apt(release)("download", *packages, cwd=work)
        _extract(Path(work), folder)


def original_source(package: str, release: str, folder: Path) -> Path:
    """Download the archive that a source package is made from into a folder.

    Raises:
        UnavailableError: it cannot be had.
    """
    _apt(release, "deb-src")("source", "--download-only", package, cwd=folder)
    return next(path for path in folder.glob(f"{package}_*.orig.tar.*") if path.suffix != ".asc")


def tool(name: str, *packages: str, release: str = "") -> str:
    """The path of a program: the installed one, or else of a script that runs it with its packages' files in place.

    Raises:
        UnavailableError: the packages cannot be had, or cannot be used on this machine.
    """
    if found := shutil.which(name):
        return found
    script = with_packages(*packages, release=release).with_name("as") / name
    script.parent.mkdir(exist_ok=True)
    with suppress(FileExistsError):
        script.symlink_to("../run")
    return str(script)


def with_packages(*packages: str, release: str = "") -> Path:
    """A script that runs its arguments as if the packages, and all they depend on, were installed.

    Raises:
        UnavailableError: the packages cannot be had, or cannot be used on this machine.
    """
    names = " and ".join(packages)
    if os.geteuid() != 0:
        raise UnavailableError(f"{names} is not installed, and only root can use what is not")
    name = "-".join(filter(None, (*packages, release, "with-dependencies")))
    script = kept(name, lambda folder: unpack_with_dependencies(folder, packages, release)) / "run"
    _run(script, "true")
    return script


def unpack_with_dependencies(folder: Path, packages: Sequence[str], release: str) -> None:
    """Put the files of packages, and of all that they depend on, into a folder, with the script that uses them there.

    Raises:
        UnavailableError: they cannot be had.
    """
    with tempfile.TemporaryDirectory() as work:
        Path(work, "partial").mkdir()
        install = ("--no-install-recommends", "--download-only", "--yes", "install")
        _apt(release)("-o", f"Dir::Cache::archives={work}", *install, *packages)
        _extract(Path(work), folder)
    (folder / "run").write_text(RUN)
    (folder / "run").chmod(0o755)


def _extract(debs: Path, folder: Path) -> None:
    for name in MERGED:
        (folder / "usr" / name).mkdir(parents=True, exist_ok=True)
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"usr/{name}")
    for deb in sorted(debs.glob("*.deb")):
        _run("sh", "-c", 'dpkg-deb --fsys-tarfile "$0" | tar -x --keep-directory-symlink -C "$1"', deb, folder)


class _Apt(NamedTuple):
    """apt-get with lists of its own: it neither needs nor changes what the machine's has downloaded or installed."""

    command: tuple[str, ...]
    complaint: str  # about what it could not download for these lists

    def __call__(self, *request: str, cwd: str | Path | None = None) -> str:
        try:
            return _run(*self.command, *request, cwd=cwd)
        except UnavailableError as error:
            raise UnavailableError("; ".join(filter(None, (str(error), self.complaint)))) from None


@cache
def _apt(release: str = "", kind: str = "deb") -> _Apt:
    work = tempfile.mkdtemp(prefix="vgpurun-apt-")
    atexit.register(shutil.rmtree, work, ignore_errors=True)
    for name in ("lists/partial", "cache/archives/partial"):
        Path(work, name).mkdir(parents=True)
    Path(work, "status").touch()  # apt locks the folder of what is installed
    # A mirror may be a snapshot, whose lists are as old as it is.
    options = ["APT::Sandbox::User=root", "Acquire::Check-Valid-Until=false", f"Dir::Cache={work}/cache"]
    options += [f"Dir::State::lists={work}/lists", f"Dir::State::status={work}/status"]
    if release:
        Path(work, "sources").write_text(f"{kind} [signed-by={KEYS}] {_mirror()} {release} main\n")
        options += [f"Dir::Etc::sourcelist={work}/sources", "Dir::Etc::sourceparts=/dev/null"]
    command = ("apt-get", "-qq", *(word for option in options for word in ("-o", option)))
    try:
        updated = subprocess.run([*command, "update"], capture_output=True, text=True)
    except OSError as error:
        raise UnavailableError(str(error)) from None
    return _Apt(command, next(iter(updated.stderr.splitlines()), ""))


def _mirror() -> str:
    """The mirror of Debian that this machine uses."""
    find = ("indextargets", "--format", "$(SITE)", "Created-By: Packages", "Label: Debian")
    sites = _apt()(*find).split()
    if not sites:
        raise UnavailableError(f"no mirror of Debian answers: {_apt().complaint}")
    return sites[0]


def _run(*command: str | Path, cwd: str | Path | None = None) -> str:
    try:
        return subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True).stdout
    except OSError as error:
        raise UnavailableError(str(error)) from None
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or [f"{command[0]} ended with exit code {error.returncode}"]
        raise UnavailableError(lines[-1]) from None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    for name, act in (
        ("unpack", lambda asked: unpack(asked.folder, asked.packages, asked.release)),
        ("source", lambda asked: print(original_source(*asked.packages, asked.release, asked.folder))),
    ):
        verb = verbs.add_parser(name)
        verb.add_argument("folder", type=Path)
        verb.add_argument("packages", nargs="+")
        verb.add_argument("--release", default="")
        verb.set_defaults(act=act)
    verb = verbs.add_parser("tool")
    verb.add_argument("name")
    verb.add_argument("packages", nargs="+")
    verb.set_defaults(act=lambda asked: print(tool(asked.name, *asked.packages)))
    verb = verbs.add_parser("with")
    verb.add_argument("packages", nargs="+")
    verb.set_defaults(act=lambda asked: print(with_packages(*asked.packages)))
    asked = parser.parse_args()
    try:
        asked.act(asked)
    except UnavailableError as error:
        sys.exit(f"debian_packages: {error}")


if __name__ == "__main__":
    main()
