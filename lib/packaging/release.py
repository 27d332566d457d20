"""release.py [--check] DIST    what a release has beside its packages in DIST: NOTES.md and SHA256SUMS

The notes are the version's section of CHANGELOG.md. --check only looks whether this checkout can be released: nothing
uncommitted, a tag vX.Y.Z here that names the version of the command line, and a section with a date.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent.parent


class NotReadyError(Exception):
    """This checkout cannot be released. The text says why, and what to do."""


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=CHECKOUT, check=True, stdout=subprocess.PIPE, text=True).stdout


def version() -> str:
    """Read the version that the command line says."""
    (found,) = re.findall(r'__version__ = "(.*)"', (CHECKOUT / "vgpurun" / "__init__.py").read_text())
    return str(found)


def notes(changelog: str, of: str) -> str:
    """Return the section of a version without its heading. Raises NotReadyError where there is none with a date."""
    found = re.search(rf"^## \[{re.escape(of)}\] - \d{{4}}-\d\d-\d\d\n(.*?)(?=^## |\Z)", changelog, re.M | re.S)
    if found is None:
        raise NotReadyError(f'CHANGELOG.md has no section [{of}] with a date: write it in place of "unreleased"')
    return found[1].strip() + "\n"


def check() -> str:
    """Return the notes of this checkout's release. Raises NotReadyError."""
    if changed := _git("status", "--porcelain").strip():
        raise NotReadyError(f"not committed: {changed.splitlines()[0].split()[-1]}")
    if f"v{version()}" not in _git("tag", "--points-at", "HEAD").split():
        raise NotReadyError(
            f"no tag v{version()} here: git tag v{version()}, or change the version (docs/dev/release.md)"
        )
    return notes((CHECKOUT / "CHANGELOG.md").read_text(), version())


def main() -> None:
    """Check, and write both files unless --check is given."""
    *options, dist = sys.argv[1:]
    try:
        text = check()
    except NotReadyError as error:
        sys.exit(f"release: {error}")
    if options == ["--check"]:
        return
    packages = sorted(file for file in Path(dist).iterdir() if file.suffix in (".whl", ".deb"))
    sums = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in packages]
    (Path(dist) / "SHA256SUMS").write_text("".join(sums))
    (Path(dist) / "NOTES.md").write_text(text)


if __name__ == "__main__":
    main()
