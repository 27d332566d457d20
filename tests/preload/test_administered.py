"""The administrator's grants, on simulated GPUs: to processes and slices, without an engine."""

from __future__ import annotations

import grp
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from support import CHECKOUT, WITH_ADMIN_FILE, own_gpu_config, unavailable
from vgpurun.util.users import current_user

pytestmark = pytest.mark.slow

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def admin(tmp_path: Path) -> Path:
    return tmp_path / "admin.yaml"


@pytest.fixture
def vgpurun(built_library: Path, tmp_path: Path, admin: Path) -> Run:
    kept = {
        name: text for name, text in os.environ.items() if not name.startswith(("VGPU", "DOCKER_", "SUDO_", "XDG_"))
    }
    environment = kept | {
        "VGPURUN_STATE_DIR": str(tmp_path / "state"),
        "VGPURUN_DRIVER": "sim",
        "VGPUSIM_CONFIG": own_gpu_config(tmp_path),
        "DOCKER_HOST": f"unix://{tmp_path}/no-engine.sock",
        "COLUMNS": "200",
    }

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", WITH_ADMIN_FILE, str(admin), *arguments]
        return subprocess.run(command, env=environment | variables, capture_output=True, text=True, timeout=60)

    return run


def test_limits_are_lowered_and_not_raised_with_a_broken_file(vgpurun: Run, admin: Path) -> None:
    if os.geteuid():
        unavailable("slices are root's")
    assert vgpurun("slice", "create", "one", "--mem", "4g", "--sm", "40").returncode == 0
    admin.write_text("quotas: {default: {memroy: 8g}}\n")
    listed = vgpurun("slice", "ls")
    assert listed.returncode == 0 and "4 GiB" in listed.stdout
    lowered = vgpurun("slice", "update", "--mem", "2g", "one")
    assert (lowered.returncode, lowered.stdout) == (0, "one, GPU 0: 4 GiB, 40 % -> 2 GiB, 40 %\n")
    assert f"until this is corrected: {admin}:1: unknown key 'memroy'" in lowered.stderr
    raised = vgpurun("slice", "update", "--sm", "50", "one")
    assert (raised.returncode, raised.stdout) == (125, "")
    assert raised.stderr.splitlines()[1:] == [
        f"vgpurun: {admin}:1: unknown key 'memroy' in quotas; did you mean 'memory'?"
    ]
    for verb in (("top", "--once"), ("smi",)):
        looked = vgpurun(*verb)
        assert looked.returncode == 0 and "GPU" in looked.stdout and looked.stderr.count("memroy") == 1


def test_the_example_of_a_lab_server_lets_a_student_work(vgpurun: Run, admin: Path) -> None:
    group = grp.getgrgid(os.getgid()).gr_name
    admin.write_text((CHECKOUT / "examples" / "lab.yaml").read_text())
    everybody = vgpurun("local", "--dry-run", "--", "true")
    assert (everybody.returncode, everybody.stderr) == (0, "")
    admin.write_text(admin.read_text().replace("students:", f"{group}:"))
    launched = vgpurun("local", "--", "true")
    assert (launched.returncode, launched.stdout) == (0, "")
    assert launched.stderr == f"vgpurun: the default --sm is lowered to 25 %, the most for user {current_user()}\n"
    (device,) = yaml.safe_load(vgpurun("local", "--dry-run", "--", "true").stdout)["gpus"]
    assert (device["memory_limit"], device["sm_limit"]) == (f"{4 << 30} (4 GiB)", "25%")
    asked = vgpurun("local", "--sm", "50", "--", "true")
    assert asked.returncode == 125 and "counts as 50 % on GPU 0, more than the 25 % for user" in asked.stderr


def test_less_than_a_context_is_warned_of(vgpurun: Run) -> None:
    words = "a CUDA context alone takes 518 MiB on an H200: with 100 MiB programs may be out of memory at their start"
    launched = vgpurun("local", "--mem", "100m", "--", "true")
    assert (launched.returncode, launched.stderr) == (0, f"vgpurun: warning: {words}\n")
    assert vgpurun("local", "--mem", "518m", "--", "true").stderr == ""
    if os.geteuid():
        unavailable("slices are root's")
    made = vgpurun("slice", "create", "one", "--mem", "2g", "--sm", "10")
    assert (made.stdout, made.stderr) == ("one\n", "")
    assert vgpurun("slice", "update", "--mem", "100m", "one").stderr == f"vgpurun: warning: {words}\n"
    assert vgpurun("slice", "update", "--sm", "20", "one").stderr == "", "said once"
