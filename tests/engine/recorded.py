"""The command lines in the documentation and what they printed: run again, and compared.

A recording stands between <!-- recorded --> and <!-- /recorded -->: lines that begin with `$` are commands, the others
what they printed. The recordings of a page are one session, in their order.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

_RECORDING = re.compile(r"<!-- recorded -->\n\n(.*?)\n<!-- /recorded -->", re.DOTALL)
_INDENT = "    "
# These differ from run to run, or from machine to machine.
_VARIES = (
    (r"\b[0-9a-f]{64}\b|\b[0-9a-f]{12}\b", "ID"),
    (r"GPU-[0-9a-f-]{36}", "UUID"),
    (r"\b[0-9]+s\b", "AGE"),
    (r"[0-9.]+ / ([0-9]+ ?%)", r"N / \1"),
    (r"[0-9.]+ % of its work", "N % of its work"),
    (r"\b(Docker Engine|version) [0-9][\w.+~-]*", r"\1 N"),
    (r" +", " "),
)
_OF_THE_MACHINE = (
    "Networking will not work", "cgroups", "SELinux", "AppArmor", "tenants folder", "configuration", "memory limits",
    "a container itself",
)  # fmt: skip


def recordings(page: str) -> list[str]:
    """The recordings of a page."""
    return [match.group(1) for match in _RECORDING.finditer(page)]


def commands(recording: str) -> list[str]:
    """Its commands."""
    return [line[len(_INDENT) + 2 :] for line in recording.splitlines() if line.startswith(f"{_INDENT}$ ")]


def play(recording: str, run: Callable[[str], str]) -> str:
    """Run its commands and return it with what they print now."""
    lines = []
    for command in commands(recording):
        lines.append(f"$ {command}")
        lines += run(command).splitlines()
    return "".join(f"{_INDENT}{line}".rstrip() + "\n" for line in lines)


def essence(recording: str) -> list[str]:
    """Return the part that must be the same each time."""
    lines = [line for line in recording.splitlines() if not any(word in line for word in _OF_THE_MACHINE)]
    for pattern, word in _VARIES:
        lines = [re.sub(pattern, word, line) for line in lines]
    return [line.strip() for line in lines if line.strip()]


def replayed(page: str, play_one: Callable[[str], str]) -> str:
    """A page with all its recordings made anew."""
    return _RECORDING.sub(lambda match: f"<!-- recorded -->\n\n{play_one(match.group(1))}\n<!-- /recorded -->", page)


def shell(environment: dict[str, str], folder: Path) -> Callable[[str], str]:
    """Runs commands as a user at a terminal sees them: standard output and error together."""

    def run(command: str) -> str:
        done = subprocess.run(
            ["bash", "-c", command], env=environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=100, check=False,
        )  # fmt: skip
        return "\n".join(line for line in done.stdout.splitlines() if "Networking will not work" not in line)

    return run
