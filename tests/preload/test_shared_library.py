"""A vgpurun that is installed: what root has built serves every user, also on a host without a compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

import vgpurun
from support import CHECKOUT, assert_refused, open_to_all, own_gpu_config, unavailable
from vgpurun import abi
from vgpurun.host.library import PARTS

pytestmark = pytest.mark.slow

Run = Callable[..., subprocess.CompletedProcess[str]]
NOBODY = 65534
VERSION = f"{vgpurun.__version__}-{abi.ABI_VERSION}"


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that other users can look into, which pytest's own is not."""
    if os.geteuid():
        unavailable("another user can be had by root alone")
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def python_of_all_users() -> str:
    def runs(candidate: str) -> bool:
        test = [candidate, "-c", "import sys; sys.exit(sys.version_info < (3, 10))"]
        with suppress(OSError):
            return subprocess.run(test, user=NOBODY, cwd="/", capture_output=True).returncode == 0
        return False

    found = next(filter(runs, (sys.executable, "/usr/bin/python3")), None)
    return found or unavailable("other users may run no Python 3.10 or newer")


@pytest.fixture
def packages() -> Iterator[str]:
    """The folders of the packages that vgpurun needs, as PYTHONPATH has them."""
    with ExitStack() as opened:
        folders = [Path(each) for each in sys.path if "site-packages" in each]
        yield ":".join(str(opened.enter_context(open_to_all(each))) for each in folders)


@pytest.fixture
def run(built_library: Path, place: Path, packages: str) -> Run:
    """Run an installed vgpurun, whose root's folder is below `place`, as a user without a compiler."""
    python = python_of_all_users()
    site, home = place / "site", place / "home"
    shutil.copytree(CHECKOUT / "vgpurun", site / "vgpurun", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(CHECKOUT / "lib", site / "vgpurun" / "_lib", ignore=shutil.ignore_patterns("build*"))
    state = site / "vgpurun" / "storage" / "state.py"
    state.write_text(state.read_text().replace('Path("/var/lib/vgpurun")', f"Path({str(place / 'var')!r})"))
    home.mkdir()
    os.chown(home, NOBODY, NOBODY)
    environment = {
        "HOME": str(home), "PATH": str(home), "VGPURUN_DRIVER": "sim", "VGPUSIM_CONFIG": own_gpu_config(place),
        "PYTHONPATH": f"{site}:{packages}",
        "PYTHONDONTWRITEBYTECODE": "1", "DOCKER_HOST": f"unix://{place}/no-engine.sock",
    }  # fmt: skip

    def run(*arguments: str, user: int = NOBODY) -> subprocess.CompletedProcess[str]:
        command = [python, "-m", "vgpurun", *arguments]
        return subprocess.run(
            command, env=environment, cwd=place, capture_output=True, text=True, timeout=100, user=user, group=user
        )

    return run


def share(place: Path, parts: tuple[str, ...] = PARTS) -> Path:
    folder = place / "var" / "lib" / VERSION
    for part in parts:
        (folder / part).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CHECKOUT / "lib" / "build" / part, folder / part)
    return folder


def test_what_root_has_built_serves_a_user_without_a_compiler(run: Run, place: Path) -> None:
    folder = share(place)
    launched = run("local", "--mem", "1g", "--", "/bin/true")
    assert (launched.returncode, launched.stderr) == (0, "")
    found = run("doctor")
    assert f"ok    library               {folder}/libvgpu.so" in found.stdout and "not built" not in found.stdout
    tried = run("verify", "--mem", "1200m")
    assert tried.returncode == 0 and tried.stdout.splitlines()[-1].endswith(" hold"), tried.stderr


def test_doctor_says_what_cannot_be_built(run: Run, place: Path) -> None:
    share(place, PARTS[:1])
    found = [line for line in run("doctor", "--driver", "auto").stdout.splitlines() if "not built yet" in line]
    assert len(found) == 2 and all("make is not installed" in line for line in found), found
    assert_refused(run("verify"), "make is not installed")


@pytest.mark.parametrize("damage", ["file", "folder", "writable"])
def test_what_a_user_could_have_put_there_is_not_used(run: Run, place: Path, damage: str) -> None:
    folder = share(place)
    open_to_others = folder.parent if damage == "folder" else folder / "libvgpu.so"
    if damage == "writable":
        open_to_others.chmod(0o777)
    else:
        os.chown(open_to_others, NOBODY, NOBODY)
    assert_refused(run("local", "--mem", "1g", "--", "/bin/true"), f"{place}/home/.cache/vgpurun")
    words = f"others than root can write in {open_to_others}"
    assert f"none is used: {words}\n" in run("doctor").stdout
    launched = run("local", "--mem", "1g", "--", "/bin/true", user=0)
    assert launched.returncode == 125 and words in launched.stderr
    found = [line for line in run("doctor", user=0).stdout.splitlines() if line.startswith("FAIL  library ")]
    assert len(found) == 1 and found[0].endswith(words), found
    _, _, way_out = launched.stderr.partition("as root: ")
    subprocess.run(way_out.replace("vgpurun build", "true"), shell=True, check=True)
    assert "others than root" not in run("doctor", user=0).stdout, "so the way out is one"


def test_doctor_goes_on_where_a_user_can_write_nothing(run: Run, place: Path) -> None:
    share(place)
    (place / "home").chmod(0o555)
    found = run("doctor").stdout
    assert f"FAIL  driver                cannot make {place}/home/.local/state" in found
    assert "FAIL  state folder " in found
