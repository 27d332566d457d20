"""Builds the SPANK plugin for the installed Slurm, and reads for which release one was built."""

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from vgpurun.errors import SlurmError
from vgpurun.host import library
from vgpurun.slurm.job import ask
from vgpurun.storage.state import make_readable
from vgpurun.util.atomic_file import atomic_file

DEFAULT = Path("/usr/local/lib/slurm/spank_vgpurun.so")
DEFAULT_PAM = Path("/usr/local/lib/slurm/pam_vgpurun.so")
_INCLUDES = ("/usr/include", "/usr/local/include", "/opt/slurm/include", "/usr/local/slurm/include")
_MARKER = re.compile(rb"vgpurun spank plugin slurm=0x([0-9a-f]{1,8}) ")
_FLAGS = (
    "-shared",
    "-fPIC",
    "-fvisibility=hidden",
    "-O2",
    "-g",
    "-std=c11",
    "-D_GNU_SOURCE",
    "-Wall",
    "-Wextra",
    "-Werror",
)

Release = tuple[int, int]


def show_release(release: Release) -> str:
    """Return a release as Slurm writes it, such as 22.05."""
    return f"{release[0]}.{release[1]:02}"


def build(output: Path, include: Path | None) -> Release:
    """Build the plugin and return the release that it is for.

    Raises SlurmError: without headers, with those of another release than the installed one, or without a compiler.
    """
    folder = _folder_with("slurm/spank.h", include, "libslurm-dev or slurm-devel")
    built_for, installed = _header_release(folder), installed_release()
    if installed is not None and installed != built_for:
        raise SlurmError(
            f"the headers in {folder} are of Slurm {show_release(built_for)}, and {show_release(installed)} is "
            "installed; name the right ones with --include"
        )
    _build(["slurm/plugin.c", "src/shared/limit_text.c"], output, folder)
    return built_for


def build_pam(output: Path, include: Path | None) -> None:
    """Build the PAM module, which is of no release. Raises SlurmError."""
    _build(["slurm/pam.c"], output, _folder_with("security/pam_ext.h", include, "libpam0g-dev or pam-devel"))


def _build(names: Sequence[str], output: Path, include: Path) -> None:
    lib = library.sources()
    if shutil.which("cc") is None:
        raise SlurmError("cc is not installed; install gcc, or build the plugin where there is one")
    try:
        make_readable(output.parent)
        with atomic_file(output) as half_made:
            sources = [str(lib / name) for name in names]
            _compile(["cc", *_FLAGS, f"-I{lib / 'src'}", f"-I{include}", *sources], half_made)
            half_made.chmod(0o644)
    except OSError as error:
        raise SlurmError(f"{output}: {error.strerror}; name another place with --output") from None


def _compile(command: Sequence[str], output: Path) -> None:
    done = subprocess.run([*command, "-o", str(output)], capture_output=True, text=True, check=False)
    if done.returncode:
        reason = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[-200:])
        raise SlurmError(f"it cannot be built: {reason}")


def _folder_with(header: str, given: Path | None, packages: str) -> Path:
    for folder in [given] if given else map(Path, _INCLUDES):
        if (folder / header).exists():
            return folder
    where = str(given) if given else ", ".join(_INCLUDES)
    raise SlurmError(f"{header} is not in {where}; install {packages}, or use --include")


def _header_release(folder: Path) -> Release:
    try:
        text = (folder / "slurm" / "slurm_version.h").read_text()
    except OSError as error:
        raise SlurmError(f"{error.filename}: {error.strerror}; the headers of Slurm are incomplete") from None
    match = re.search(r"SLURM_VERSION_NUMBER\s+0x([0-9a-fA-F]+)", text)
    if match is None:
        raise SlurmError(f"{folder}/slurm/slurm_version.h does not tell Slurm's version")
    return _release(int(match.group(1), 16))


def built_for(plugin: Path) -> Release | None:
    """Return the release that a plugin was built for, None for a file that is not vgpurun's plugin. Raises OSError."""
    match = _MARKER.search(plugin.read_bytes())
    return _release(int(match.group(1), 16)) if match else None


def _release(number: int) -> Release:
    return number >> 16 & 0xFF, number >> 8 & 0xFF


def installed_release() -> Release | None:
    """Return the release of the installed Slurm, None where it cannot be asked."""
    try:
        match = re.search(r"(\d+)\.(\d+)\.\d+", ask("scontrol", "--version"))
    except SlurmError:
        return None
    return (int(match.group(1)), int(match.group(2))) if match else None
