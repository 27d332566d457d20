"""Whether systemd removes what is old from a folder, by the lines of tmpfiles.d(5)."""

from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path

_FOLDERS = ("etc/tmpfiles.d", "run/tmpfiles.d", "usr/local/lib/tmpfiles.d", "usr/lib/tmpfiles.d")
_PATH, _AGE = 1, 5  # words of a line


def cleaned_by(path: Path, root: Path = Path("/")) -> Path | None:
    """Return the file that has systemd clean up around this one, with it, or None. Raises nothing."""
    if not (root / "run/systemd/system").exists():
        return None
    found, is_spared = None, False
    for file in _files(root):
        with suppress(OSError):
            for line in file.read_text(errors="replace").splitlines():
                words = line.split()
                if len(words) <= _PATH or line.startswith("#"):
                    continue
                is_spared |= fnmatchcase(str(path), words[_PATH])
                if Path(words[_PATH]) in path.parents and words[_AGE:] not in ([], ["-"]):
                    found = file
    return None if is_spared else found


def _files(root: Path) -> list[Path]:
    """Return the files that count: of those of one name the first one."""
    by_name: dict[str, Path] = {}
    for folder in _FOLDERS:
        for file in sorted((root / folder).glob("*.conf")):
            by_name.setdefault(file.name, file)
    return list(by_name.values())
