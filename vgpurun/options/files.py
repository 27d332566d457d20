"""Environment variables and labels, which may also come from files."""

import errno
import json
import os
import re
from collections.abc import Iterable, Mapping

from vgpurun.errors import OptionError
from vgpurun.options.values import label

_JSON_STRING_OR_SPACE = r"""("(?:[^"\\]|\\.)*")|\s+"""


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
    """Join all --label-file, then all --label, the later winning; a file's name alone is passed over, as by docker.

    Raises OptionError.
    """
    joined: dict[str, str] = {}
    for path in label_files:
        for entry in _read(path, "--label-file"):
            if "=" not in entry:
                continue
            try:
                name, value = label(entry)
            except ValueError as error:
                raise OptionError(f"--label-file {path}: {error}") from None
            joined[name] = value
    return {**joined, **dict(entries)}


def _read(path: str, option: str) -> list[str]:
    """Return the lines `NAME=VALUE` of a file, without comments."""
    try:
        text = _bytes_of(path).decode("utf-8-sig")
    except OSError as error:
        raise OptionError(f"{option}: invalid env file ({path}): {_reason(error, path)}") from None
    except UnicodeDecodeError as error:
        number = error.object.count(b"\n", 0, error.start) + 1
        raise OptionError(f"{option}: invalid env file ({path}): invalid utf8 bytes at line {number}") from None
    entries = []
    for line in text.split("\n"):
        entry = line.removesuffix("\r").lstrip()
        if not entry or entry.startswith("#"):
            continue
        name = entry.partition("=")[0]
        if not name:
            raise OptionError(f"{option}: invalid env file ({path}): no variable name on line '{entry}'")
        if " " in name or "\t" in name:
            raise OptionError(f"{option}: invalid env file ({path}): variable '{name}' contains whitespaces")
        entries.append(entry)
    return entries


def _bytes_of(path: str) -> bytes:
    with open(path, "rb") as file:  # noqa: PTH123 (for Path, an empty name is the current folder)
        return file.read()


def _reason(error: OSError, path: str) -> str:
    """Say what is wrong with a file in docker's words."""
    action = "read" if error.errno == errno.EISDIR else "open"
    return f"{action} {path}: {(error.strerror or str(error)).lower()}"


def security_option(text: str) -> str:
    """Read a --security-opt; a seccomp profile is read from its file. Raises ValueError."""
    name, _, value = text.partition("=") if "=" in text else text.partition(":")
    if not value and name != "no-new-privileges":
        raise ValueError(f'Invalid --security-opt: "{text}"')
    if name != "seccomp" or value in ("unconfined", "builtin"):
        return text
    try:
        profile = _bytes_of(value).decode()
        json.loads(profile)
    except OSError as error:
        raise ValueError(f"opening seccomp profile ({value}) failed: {_reason(error, value)}") from None
    except ValueError as error:
        raise ValueError(f"compacting json for seccomp profile ({value}) failed: {error}") from None
    return "seccomp=" + re.sub(_JSON_STRING_OR_SPACE, r"\1", profile)
