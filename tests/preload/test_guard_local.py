"""`vgpurun guard` where no engine runs: launches of `vgpurun local` past the library are held, and thawed by name."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen

import pytest

from support import CHECKOUT, wait_until
from support.suspension import Guard, Host
from vgpurun.errors import CgroupError
from vgpurun.host import freezer
from vgpurun.host.freezer import Cgroup

ESCAPE = CHECKOUT / "tests" / "engine" / "programs" / "escape.py"
MIB = 1 << 20
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the guard takes root")


@pytest.fixture(autouse=True)
def _has_cgroups() -> None:
    """A program can be frozen only in a cgroup of its own."""
    try:
        freezer.made_below(os.getpid(), f"vgpurun-trial-{os.getpid()}").folder.rmdir()
    except CgroupError as error:
        pytest.skip(str(error))


@contextmanager
def escaped(host: Host, *limits: str) -> Iterator[Popen[str]]:
    """A launch whose program takes 1.3 GiB past the library."""
    hold = ["env", "-u", "LD_PRELOAD", sys.executable, str(ESCAPE), "copy", "hold", str(1300 * MIB)]
    launch = host.start("local", "--driver", "sim", *limits, "--", *hold)
    try:
        yield launch
    finally:
        cgroup = cgroup_of(launch)
        launch.kill()
        if cgroup:
            cgroup.kill()  # ends frozen processes, too
        launch.communicate(timeout=20)


def cgroup_of(launch: Popen[str]) -> Cgroup | None:
    """The one in which the guard has gathered what a launch has started."""
    children = Path(f"/proc/{launch.pid}/task/{launch.pid}/children").read_text().split()
    found = [cgroup for each in children if (cgroup := freezer.of_process(int(each)))]
    return next((each for each in found if each.folder.name.startswith("vgpurun-local-")), None)


def is_frozen(launch: Popen[str]) -> bool:
    cgroup = cgroup_of(launch)
    return cgroup is not None and cgroup.is_frozen()


def test_a_launch_past_the_library_is_frozen(host: Host, guard: Guard) -> None:
    with escaped(host, "--gpus", "device=0", "--mem", "1g") as launch:
        guard.says(f"freeze process {launch.pid}")
        wait_until(lambda: is_frozen(launch))
        thawed = host.vgpurun("thaw", "--process", str(launch.pid))
        assert (thawed.returncode, thawed.stdout) == (0, f"process {launch.pid}\n"), thawed
        guard.says(f"process {launch.pid} was thawed by somebody else")
        assert not is_frozen(launch)


def test_one_in_a_slice_is_frozen(host: Host, guard: Guard) -> None:
    made = host.vgpurun("slice", "create", "team", "--driver", "sim", "--mem", "1g", "--gpus", "device=0")
    assert made.returncode == 0, made.stderr
    with escaped(host, "--slice", "team") as launch:
        guard.says(f"freeze process {launch.pid}")
        wait_until(lambda: is_frozen(launch))
        thawed = host.vgpurun("thaw", "--slice", "team")
        assert (thawed.returncode, thawed.stdout) == (0, f"process {launch.pid}\n"), thawed
        assert not is_frozen(launch)
