"""Docker's own command line, as the witness of what its options mean."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass

from private_engine import fetched_engine


@dataclass(frozen=True)
class DocumentedFlag:
    """An option as `docker run --help` shows it. `kind` is help's word for its value, empty for a switch."""

    names: str
    kind: str


def docker_command() -> str:
    """The path of docker's command line: the one that is installed, or else the fetched engine's.

    Raises:
        EngineError: there is none, and none can be fetched.
    """
    return shutil.which("docker") or str(fetched_engine() / "bin" / "docker")


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
