"""Files of Debian's packages that are not installed: fetched once, and kept."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from images import ImageError, cache_dir
from private_engine import SCRIPT


def unpacked(package: str) -> Path:
    """The folder with a package's files.

    Raises:
        ImageError: it cannot be had.
    """
    folder = cache_dir() / package
    if folder.exists():
        return folder
    half_made = folder.with_name(f"{package}.{os.getpid()}")
    half_made.mkdir()
    fetch = ["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", package]
    try:
        subprocess.run(fetch, cwd=half_made, check=True, capture_output=True)
        (file,) = half_made.glob("*.deb")
        subprocess.run(["dpkg", "-x", file, half_made], check=True, capture_output=True)
        half_made.rename(folder)
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        raise ImageError(f"package {package}: {error}") from None
    finally:
        shutil.rmtree(half_made, ignore_errors=True)
    return folder


def compose_command() -> Path:
    """docker compose, as a command of its own.

    Raises:
        ImageError: it cannot be had.
    """
    if found := shutil.which("docker-compose"):
        return Path(found)
    program = cache_dir() / "compose" / "bin" / "docker-compose"
    if not program.exists():
        done = subprocess.run([SCRIPT, "compose", program.parent.parent], capture_output=True, text=True)
        if done.returncode:
            raise ImageError(f"docker compose: {done.stderr.strip()}")
    return program
