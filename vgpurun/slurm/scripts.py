"""Reads the scripts that Slurm runs on a node, as far as their text says what they do: none of them is carried out.

The host's shell of a script is asked for its PATH.
"""

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_MOST_BYTES = 1 << 16
_MOST_NAMED = 64  # files that a pattern may stand for
_PATIENCE_S = 5.0  # for a shell that says its PATH
_SHELL = re.compile(r"(/usr)?/bin/(ba|da|k|z)?sh")  # any other file that a script names is not for root to run
_COMMENT = re.compile(r"(^|\s)#.*")
_BETWEEN_WORDS = re.compile(r"[\s;&|()<>\"'`,\[\]]+")
_PATH = re.compile(r"(?:^|[\s;&|])PATH=(\"[^\"]*\"|'[^']*'|[^\s;&|]*)")
_CALL = r"(-m\s+)?([^\s\"'=,()\[\]]*(?:vgpurun|\$\w+|\$\{{\w+\}}))[\"',)\s]+slurm[\"',\s]+{}\b"


class Script(NamedTuple):
    """A script, and what it carries out: its lines without comments, with those of the scripts that it names."""

    path: Path
    code: str

    def runs(self, verb: str) -> bool:
        """Whether it runs `vgpurun slurm VERB`."""
        return self._call(verb) is not None

    def path_without(self, verb: str) -> str | None:
        """Return the PATH on which it does not find the vgpurun of a verb that it runs, None where it may find it.

        slurmd gives its scripts no PATH: what a script does not set is its shell's own. Raises nothing.
        """
        call = self._call(verb)
        if call is None or call.group(1) or "$" in call.group(2):
            return None
        path = _shells_path(self.path)
        if path is None:
            return None
        for match in _PATH.finditer(self.code, 0, call.start(2)):
            path = re.sub(r"\$PATH\b|\$\{PATH\}", path.replace("\\", r"\\"), match.group(1).strip("\"'"))
        return None if "$" in path or shutil.which(call.group(2), path=path) else path

    def _call(self, verb: str) -> re.Match[str] | None:
        return re.search(_CALL.format(verb), self.code)


def read(path: Path) -> Script:
    """Read a script; what cannot be read carries out nothing. Raises nothing."""
    return Script(path, "\n".join(_lines(path, {path})))


def text_of(path: Path) -> str:
    """Return a file's text, empty where it cannot be read or is a binary. Raises nothing."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            text = file.read(_MOST_BYTES)
    except OSError:
        return ""
    return "" if "\0" in text else text


def is_roots(path: Path) -> bool:
    """Whether it is a file that nobody but root, or the user who asks, can have put there. Raises nothing."""
    try:
        status = path.stat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_uid in (0, os.geteuid())


def _lines(script: Path, seen: set[Path]) -> Iterator[str]:
    for line in text_of(script).splitlines():
        code = _COMMENT.sub("", line)
        for named in _named(code, script):
            if named not in seen and is_roots(named):
                seen.add(named)
                yield from _lines(named, seen)
        yield code


def _named(code: str, script: Path) -> Iterator[Path]:
    """Yield the files that a line names by their paths, and those beside the script by their names."""
    for word in _BETWEEN_WORDS.split(code):
        if "/" in word:
            yield script.parent / word.rpartition("/")[2]
        if word.startswith("/") and word.strip("/") and "**" not in word:
            for pattern in (word, f"{word}/*") if word.endswith(".d") else (word,):  # a folder is for run-parts
                with suppress(OSError, ValueError):  # no file can have such a name
                    yield from sorted(Path("/").glob(pattern.lstrip("/")))[:_MOST_NAMED]


def _shells_path(script: Path) -> str | None:
    """Return the PATH that a script's shell sets by itself, None where it does not say so."""
    shell, *_ = (*text_of(script).partition("\n")[0].removeprefix("#!").split(), "")
    try:
        shown = subprocess.run(
            [shell if _SHELL.fullmatch(shell) else "/bin/sh", "-c", 'echo "$PATH"'],
            capture_output=True, text=True, errors="replace", env={}, timeout=_PATIENCE_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return shown.stdout.strip()
