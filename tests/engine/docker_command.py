"""Docker's own command line, as the witness of what its options mean."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache

from support.debian_packages import unpacked

NEWEST = 28  # Debian has one of these; docker's versions differ in some words and values


@dataclass(frozen=True)
class DocumentedFlag:
    """An option as `docker run --help` shows it. `kind` is help's word for its value, empty for a switch."""

    names: str
    kind: str


@cache
def docker_command() -> str:
    """The path of docker's newest command line: the one that is installed, unless Debian has a newer one.

    Raises:
        UnavailableError: none can be fetched.
    """
    installed = shutil.which("docker")
    if installed and docker_version(installed) >= NEWEST:
        return installed
    return str(unpacked("docker-cli", "sid") / "usr/bin/docker")


@cache
def docker_version(docker: str) -> int:
    """The first number of its version."""
    shown = subprocess.run([docker, "--version"], capture_output=True, text=True, check=True).stdout
    return int(re.search(r"[0-9]+", shown).group())


def documented_flags(docker: str) -> list[DocumentedFlag]:
    """The options of `docker run --help`, which leaves some out when it knows the engine."""
    environment = {"PATH": os.environ["PATH"], "DOCKER_HOST": "unix:///no/engine.sock"}
    command = [docker, "run", "--help"]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    lines = re.findall(r"^ {2,6}((?:-\w, )?--[\w-]+)(?: (\S+))?", shown, re.MULTILINE)
    return [DocumentedFlag(names, kind) for names, kind in lines]
