"""Environment variables and labels, which may also come from files."""

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from vgpurun.errors import OptionError
from vgpurun.options.values import label


def variable(text: str) -> str:
    """Check a -e: `NAME=VALUE`, or `NAME` for this process's value. Raises ValueError."""
    if not text or text.startswith("="):
        raise ValueError(
            f"invalid environment variable: {text}; write NAME=VALUE, or NAME to pass on this shell's value"
        )
    return text


def environment(
    entries: Iterable[str], env_files: Iterable[str], host: Mapping[str, str] | None = None
) -> dict[str, str | None]:
    """Join all --env-file, then all -e, the later winning. Raises OptionError.

    `NAME` alone takes this process's value. Where it has none, a file's name is passed over; an option's is None,
    which takes the variable away from the image's.
    """
    host = os.environ if host is None else host
    joined: dict[str, str | None] = {}
    for entry in (entry for file in env_files for entry in _read(file, "--env-file")):
        name, equals, value = entry.partition("=")
        if equals or name in host:
            joined[name] = value if equals else host[name]
    for entry in entries:
        name, equals, value = entry.partition("=")
        joined[name] = value if equals else host.get(name)
    return joined


def given_environment(entries: Iterable[str], env_files: Iterable[str]) -> dict[str, str]:
    """Check and join all -e and --env-file for a command that is in no image of its own. Raises OptionError."""
    try:
        found = environment([variable(entry) for entry in entries], env_files)
    except ValueError as error:
        raise OptionError(f"-e: {error}") from None
    return {name: value for name, value in found.items() if value is not None}


def labels(entries: Iterable[tuple[str, str]], label_files: Iterable[str]) -> dict[str, str]:
    """Join all --label-file, then all --label, the later winning. Raises OptionError."""
    joined: dict[str, str] = {}
    for path in label_files:
        for entry in _read(path, "--label-file"):
            try:
                name, value = label(entry)
            except ValueError as error:
                raise OptionError(f"--label-file {path}: {error}") from None
            joined[name] = value
    return {**joined, **dict(entries)}


def _read(path: str, option: str) -> list[str]:
    """Return the lines `NAME=VALUE` of a file, without comments."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise OptionError(f"{option}: open {path}: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError:
        raise OptionError(f"{option} {path} is not UTF-8 text") from None
    entries = []
    for number, line in enumerate(text.splitlines(), start=1):
        entry = line.lstrip()
        if not entry or entry.startswith("#"):
            continue
        name = entry.partition("=")[0]
        if not name or re.search(r"\s", name):
            raise OptionError(f"{option} {path}, line {number}: '{name}' is not a name")
        entries.append(entry)
    return entries


def security_option(text: str) -> str:
    """Read a --security-opt; a seccomp profile is read from its file. Raises ValueError."""
    name, separator, value = text.partition("=") if "=" in text else text.partition(":")
    if not separator and name != "no-new-privileges":
        raise ValueError(f'Invalid --security-opt: "{text}"')
    if name != "seccomp" or value in ("unconfined", "builtin"):
        return text
    try:
        profile = json.loads(Path(value).read_text(encoding="utf-8"))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ValueError(f"opening seccomp profile ({value}) failed: open {value}: {reason}") from None
    except ValueError as error:
        raise ValueError(f"compacting json for seccomp profile ({value}) failed: {error}") from None
    return f"seccomp={json.dumps(profile, separators=(',', ':'))}"
