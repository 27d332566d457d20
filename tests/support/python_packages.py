"""Packages of PyPI that are fetched once and kept, and vgpurun as it is installed from a wheel."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from support import CHECKOUT, LIBRARY
from support.debian_packages import UnavailableError, kept
from support.own_machine import OwnMachine

_OF_THIS_CHECKOUT = ("vgpurun", "_vgpurun")


def packages(name: str, *asked: str) -> Path:
    """The folder with these packages of PyPI and what they need, for the Python that runs. Raises UnavailableError."""

    def fetch(folder: Path) -> None:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), *asked]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise UnavailableError(done.stderr.strip().splitlines()[-1])

    return kept(f"{name}-py{sys.version_info[0]}.{sys.version_info[1]}", fetch)


def copy_checkout(folder: Path) -> None:
    """Copy the files of this checkout that git knows."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=CHECKOUT, capture_output=True, check=True).stdout
    for name in listed.decode().split("\0"):
        if name and (CHECKOUT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(CHECKOUT / name, folder / name)


def wheel(folder: Path) -> Path:
    """Make the wheel of this checkout that `make dist` makes, but with what lib/build has. Raises UnavailableError."""
    source, machine = folder / "source", platform.machine()
    copy_checkout(source)
    (source / "lib" / "build-dist").mkdir()
    (source / "lib" / "build-dist" / machine).symlink_to(LIBRARY.parent)
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder], cwd=source, check=True,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(packages("hatchling", "hatchling>=1.27")), "VGPURUN_WHEEL_FOR": machine},
    )  # fmt: skip
    (made,) = folder.glob("vgpurun-*.whl")
    return made


def virtual_environment(machine: OwnMachine, folder: str, *more: Path) -> None:
    """Make one, with pip, that has the packages of this Python's too, but not vgpurun, and those of further folders.

    So pip finds there what vgpurun asks for, and has nothing to fetch.
    """
    machine.ask(f"{shlex.quote(sys.executable)} -m venv --without-pip {folder}")
    made = machine.path(folder)
    links = made / "of-others"
    links.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.startswith(_OF_THIS_CHECKOUT) and path.suffix != ".pth":
            (links / path.name).symlink_to(path)
    (site,) = made.glob("lib/python*/site-packages")
    (site / "others.pth").write_text("".join(f"{path}\n" for path in (*more, f"{folder}/of-others")))
    add_script(machine, f"{folder}/bin/pip", f'#!/bin/sh\nexec {folder}/bin/python -m pip "$@"\n')


def add_script(machine: OwnMachine, path: str, text: str) -> None:
    """Put a program there."""
    machine.path(path).write_text(text)
    machine.path(path).chmod(0o755)
