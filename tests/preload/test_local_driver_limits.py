"""`vgpurun local` by root where the driver has memory limits of its own: a cgroup for each, and none left over."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sandbox import MACHINE

from support import CHECKOUT, IN_CGROUP2

pytestmark = pytest.mark.slow
FILL = [sys.executable, str(CHECKOUT / "tests" / "engine" / "programs" / "gpu.py"), "fill", str(2 << 20)]
WITHOUT_LIBRARY = ["env", "-u", "LD_PRELOAD"]
LIMITED = ("local", "--mem", "2g", "--gpus", "device=0")
CGROUPS = "/sys/fs/cgroup/vgpurun"
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def environment(built_library: Path, tmp_path: Path) -> Iterator[dict[str, str]]:
    if os.geteuid() != 0:
        pytest.skip("only root may make cgroups and set limits of the driver's own")
    if subprocess.run([IN_CGROUP2, "true"], capture_output=True).returncode:
        pytest.skip("the kernel has no cgroup v2")
    config = tmp_path / "sim.yaml"
    config.write_text(f"driver_version: 615.71\n{MACHINE}")
    unwanted = ("CUDA_", "VGPURUN_", "VGPUSIM_", "LD_PRELOAD", "DOCKER_")
    yield {name: value for name, value in os.environ.items() if not name.startswith(unwanted)} | {
        "VGPURUN_STATE_DIR": str(tmp_path / "state"),
        "VGPURUN_DRIVER": "sim",
        "VGPUSIM_CONFIG": str(config),
        "DOCKER_HOST": f"unix://{tmp_path}/none",
        "HOME": str(tmp_path),
    }
    subprocess.run([IN_CGROUP2, "rmdir", CGROUPS], stderr=subprocess.DEVNULL)  # unless another test has one in there


@pytest.fixture
def vgpurun(environment: dict[str, str]) -> Run:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [IN_CGROUP2, sys.executable, "-m", "vgpurun", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)

    return run


@pytest.mark.parametrize("prefix", [[], WITHOUT_LIBRARY], ids=["library", "none"])
def test_the_driver_holds_it(vgpurun: Run, prefix: list[str]) -> None:
    done = vgpurun(*LIMITED, "--enforce", "driver", "--", *prefix, *FILL)
    assert done.returncode == 0, done
    filled = json.loads(done.stdout)
    assert (filled["result"], filled["granted_bytes"] >> 20) == (2, 2048 - 518)


def test_the_library_alone_is_passed_without_it(vgpurun: Run) -> None:
    done = vgpurun(*LIMITED, "--enforce", "library", "--", *WITHOUT_LIBRARY, *FILL)
    assert json.loads(done.stdout)["granted_bytes"] >> 20 > 7000


def test_a_cgroup_goes_with_its_processes(vgpurun: Run, environment: dict[str, str]) -> None:
    """Also after a kill: then the next launch removes it, once what the command has left has ended."""
    names = f"ls {CGROUPS}; cat /proc/self/cgroup | grep ^0; exit 3"
    done = vgpurun(*LIMITED, "--", "sh", "-c", names)
    assert done.returncode == 3
    (own,) = [line for line in done.stdout.splitlines() if line.startswith("0::/vgpurun/local-")]
    assert not is_there(own)
    command = [IN_CGROUP2, sys.executable, "-m", "vgpurun", *LIMITED, "--", "sh", "-c", f"{names[:-6]}exec sleep 60"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as killed:
        while not (own := killed.stdout.readline().strip()).startswith("0::/vgpurun/local-"):
            pass
        killed.kill()
        killed.wait()
        assert is_there(own)
        assert vgpurun(*LIMITED, "--", "true").returncode == 0
        assert is_there(own), "a process is in it"
        for pid in map(int, cat(f"/sys/fs/cgroup{own[3:]}/cgroup.procs").split()):
            os.kill(pid, signal.SIGKILL)
    assert vgpurun(*LIMITED, "--", "true").returncode == 0
    assert not is_there(own)


def cat(path: str) -> str:
    return subprocess.run([IN_CGROUP2, "cat", path], capture_output=True, text=True, check=True).stdout


def is_there(line: str) -> bool:
    return subprocess.run([IN_CGROUP2, "test", "-d", f"/sys/fs/cgroup{line[3:]}"]).returncode == 0


def test_what_shows_it(vgpurun: Run) -> None:
    smi = [sys.executable, "-m", "vgpurun", "smi"]
    shown = vgpurun(*LIMITED, "--", *WITHOUT_LIBRARY, *smi).stdout
    assert "GPU 0: the driver itself holds the memory limit too" in shown
    (held,) = json.loads(vgpurun(*LIMITED, "--", *WITHOUT_LIBRARY, *smi, "--format", "json").stdout)["processes"]
    assert held["devices"][0]["memory_limit_driver_bytes"] == 2 << 30


def test_verify_says_what_holds(vgpurun: Run) -> None:
    tried = vgpurun("verify", "--mem", "2g", "--format", "json")
    (found,) = json.loads(tried.stdout)[:1]
    assert (found["memory_held_by"], found["passed"]) == (["library", "driver"], True), tried


def test_what_cannot_be_is_refused(vgpurun: Run, environment: dict[str, str]) -> None:
    refused = vgpurun("local", "--enforce", "driver", "--", "true")
    assert (refused.returncode, refused.stdout) == (125, "")
    assert refused.stderr.startswith("vgpurun: --enforce driver: there is no memory limit; use auto")
    Path(environment["VGPUSIM_CONFIG"]).write_text(MACHINE)
    refused = vgpurun(*LIMITED, "--enforce", "driver", "--", "true")
    assert "--enforce driver: the NVIDIA driver 580.0 has no memory limits of its own" in refused.stderr
    assert vgpurun(*LIMITED, "--", "true").returncode == 0
