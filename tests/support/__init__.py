"""For every test tier: where the checkout is, and how something that is missing is reported."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NoReturn, TypeVar

import pynvml
import pytest

from vgpurun import abi
from vgpurun.storage.shared_file import read_regular

CHECKOUT = Path(__file__).resolve().parent.parent.parent
LIBRARY = CHECKOUT / "lib" / "build" / "libvgpu.so"
IN_CGROUP2 = CHECKOUT / "tests" / "support" / "in_cgroup2"
# For the programs of hundreds of tests: to look for installed packages takes a third of Python's start. They have some.
BARE_PYTHON = (sys.executable, "-S")
PYTHON_PATH = f"{CHECKOUT / 'tests'}:{Path(pynvml.__file__).parent}"
# How often the longest tests do their thing; a release wants a thousand.
ROUNDS = int(os.environ.get("VGPURUN_STRESS_ROUNDS", "60"))
T = TypeVar("T")
# For python -c: the command line with another file, its first argument, in place of the administrator's.
WITH_ADMIN_FILE = (
    "import sys; from pathlib import Path; from vgpurun import cli; from vgpurun.config import values as config;"
    "config.ADMIN_FILE = Path(sys.argv.pop(1)); sys.exit(cli.main(sys.argv[1:]))"
)


def assert_measured(measure: Callable[[], T], holds: Callable[[T], bool], tries: int = 4) -> None:
    """Measure in real time until it holds.

    A busy machine holds programs up, which is no fault of what is tested, and passes; what is wrong stays wrong.
    """
    seen: list[T] = []
    while not (seen and holds(seen[-1])):
        assert len(seen) < tries, seen
        seen.append(measure())


def wait_until(condition: Callable[[], T], what: str = "end of the wait", timeout_s: float = 60) -> T:
    """Wait for ``condition`` to hold and return its value.

    Raises:
        AssertionError: it did not hold within ``timeout_s`` seconds.
    """
    deadline_s = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline_s, f"no {what} within {timeout_s} s"
        time.sleep(0.02)
    return value


def assert_refused(done: subprocess.CompletedProcess[str], words: str) -> None:
    """A command line has ended as one that vgpurun refuses, and has said this."""
    assert done.returncode == 125 and words in done.stderr, done


def go_on_together(programs: Sequence[subprocess.Popen[str]]) -> None:
    """Let programs go on that say `ready` and read a line: none before all of them are ready."""
    for program in programs:
        assert program.stdout is not None and program.stdout.readline() == "ready\n"
    for program in programs:
        program.stdin.write("go\n")
        program.stdin.flush()


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[Path]:
    """Yield a folder, made if need be, to one process at a time, which tests side by side share."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


@contextmanager
def short_folder(prefix: str) -> Iterator[Path]:
    """Yield a folder whose path is short, as a socket's must be. It is removed at the end, with its tenants."""
    with tempfile.TemporaryDirectory(prefix=prefix, dir="/tmp") as name:
        try:
            yield Path(name)
        finally:
            remove_tenants(Path(name))


def remove_tenants(folder: Path) -> None:
    """Remove what launches with state in here have left where programs on one GPU know of each other.

    Every launch looks through all of that: a thousand double its time.
    """
    for name in os.listdir(abi.LOCK_DIR) if Path(abi.LOCK_DIR).exists() else ():
        if _state_of(name).startswith(f"{folder}/"):
            shutil.rmtree(Path(abi.LOCK_DIR, name), ignore_errors=True)


@cache
def _state_of(tenant: str) -> str:
    """The path of a tenant's state folder, which its name is a hash of; nothing where it has none, or is gone."""
    try:
        return os.fsdecode(read_regular(Path(abi.LOCK_DIR, tenant, "of"), 4096) or b"")
    except OSError:
        return ""


@contextmanager
def open_to_all(folder: Path) -> Iterator[Path]:
    """Yield a path at which every user may read a folder, also where it lies in root's home. It takes root."""
    with tempfile.TemporaryDirectory(prefix="vgpurun-open-", dir="/tmp") as name:
        Path(name).chmod(0o755)
        opened = Path(name, folder.name)
        opened.mkdir()
        subprocess.run(["mount", "-o", "bind,ro", folder, opened], check=True)
        try:
            yield opened
        finally:
            subprocess.run(["umount", opened], check=True)


@contextmanager
def python_of(user: int, groups: str = "--clear-groups") -> Iterator[tuple[str, ...]]:
    """Yield the command of a Python that has this checkout and runs as another user. It takes root."""
    with open_to_all(CHECKOUT) as checkout:  # may lie in root's home
        become = ("env", f"--chdir={checkout}", "setpriv", f"--reuid={user}", f"--regid={user}", groups, "--")
        python = (*become, sys.executable.replace(str(CHECKOUT), str(checkout), 1))
        if not _runs(python, user, groups):
            unavailable(f"other users cannot run {Path(sys.executable).resolve()}")
        yield python


def python_for_all(folder: Path, user: int) -> str:
    """Make a Python with this checkout that a user's programs can start, too: the tests' own may be in root's home."""
    subprocess.run(["/usr/bin/python3", "-m", "venv", "--without-pip", folder], check=True)
    (place,) = folder.glob("lib/*/site-packages")
    (place / "tests.pth").write_text(f"{CHECKOUT}\n{sysconfig.get_path('purelib')}\n")
    python = str(folder / "bin" / "python3")
    tried = ["setpriv", f"--reuid={user}", "--clear-groups", "--", python, "-c", "import vgpurun"]
    if subprocess.run(tried, cwd="/", capture_output=True).returncode:
        unavailable(f"other users cannot read {CHECKOUT}")
    return python


_runs_of: dict[tuple[int, str], bool] = {}


def _runs(python: tuple[str, ...], user: int, groups: str) -> bool:
    """Whether the command runs as that user, which is tried once for each."""
    if (user, groups) not in _runs_of:
        done = subprocess.run([*python, "-m", "vgpurun", "--version"], capture_output=True)
        _runs_of[user, groups] = done.returncode == 0
    return _runs_of[user, groups]


def own_gpu_config(folder: Path, count: int = 1) -> str:
    """Write what VGPUSIM_CONFIG names for GPUs of 16 GiB that no other test's programs, nor any left over, are on."""
    config = folder / "sim.yaml"
    uuids = [f"GPU-{os.urandom(4).hex()}-0000-0000-0000-{number:012}" for number in range(count)]
    devices = "".join(f"  - name: Simulated\n    uuid: {uuid}\n    memory_mib: 16384\n" for uuid in uuids)
    config.write_text(f"devices:\n{devices}")
    return str(config)


def unavailable(reason: str, *, required: bool = False) -> NoReturn:
    """Skip the test with ``reason``; fail it instead where what is missing was declared to be ``required``."""
    if required:
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def python_with_torch() -> str | None:
    """The interpreter for programs that need PyTorch: GPU_PYTHON, this one, or python3, whichever has it first."""
    for candidate in (os.environ.get("GPU_PYTHON"), sys.executable, shutil.which("python3")):
        if candidate and subprocess.run([candidate, "-c", "import torch"], capture_output=True).returncode == 0:
            return candidate
    return None


def is_set(variable: str) -> bool:
    """Whether a switch such as REQUIRE_ENGINE is set in the environment, to anything but nothing and 0."""
    return os.environ.get(variable, "0") not in ("", "0")
