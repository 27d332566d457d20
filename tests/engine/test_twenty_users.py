"""Twenty users of two groups on four GPUs: what quotas allow starts without options, and refusals say what helps."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from cli import Cli, Result
from support import unavailable

pytestmark = pytest.mark.exhaustive

STUDENTS, STAFF = 16, 4
CONFIG = """
defaults:
  mem: 20%
  sm: 20
  groups:
    students: {mem: 15%, sm: 15}
    staff: {mem: 40%, sm: 40}
quotas:
  default: {containers: 2, overcommit: false}
  groups:
    students: {memory_per_gpu: 10%, sm_per_gpu: 10}
    staff: {memory_per_gpu: 50%, sm_per_gpu: 50}
"""
IN_OTHER_ETC = ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc && exec "$@"')


@pytest.fixture
def users(vgpurun: Cli, tmp_path: Path) -> dict[str, Cli]:
    """The command line as each user has it, by their names: with an /etc of their host's."""
    if os.geteuid():
        unavailable("only root can be twenty users")
    etc = tmp_path / "etc"
    etc.mkdir()
    for name in ("ld.so.cache", "nsswitch.conf", "localtime"):
        if Path("/etc", name).exists():
            shutil.copy(Path("/etc", name), etc / name)
    ids = {f"student{number}": 20000 + number for number in range(STUDENTS)}
    ids |= {f"staff{number}": 21000 + number for number in range(STAFF)}
    people = "".join(f"{name}:x:{uid}:{20000 if uid < 21000 else 21000}::/:/bin/sh\n" for name, uid in ids.items())
    (etc / "passwd").write_text(f"root:x:0:0::/root:/bin/sh\n{people}")
    (etc / "group").write_text("root:x:0:\nstudents:x:20000:\nstaff:x:21000:\n")
    (etc / "vgpurun").mkdir()
    (etc / "vgpurun" / "config.yaml").write_text(CONFIG)
    config = tmp_path / "four.yaml"
    gpus = "".join(
        f"- uuid: GPU-{os.urandom(4).hex()}-0000-0000-0000-000000000000\n  memory_mib: 16384\n" for _ in range(4)
    )
    config.write_text(f"devices:\n{gpus}")
    environment = {**vgpurun.environment, "VGPUSIM_CONFIG": str(config), "VGPURUN_DRIVER": "sim"}
    command = (*IN_OTHER_ETC, str(etc), *vgpurun.command)
    return {
        name: replace(vgpurun, command=command, environment={**environment, "SUDO_UID": str(uid)})
        for name, uid in ids.items()
    }


def launch(user: Cli, debian: str, *options: str) -> Result:
    return user("run", "-d", *options, debian, "sleep", "600")


def test_what_quotas_allow_starts_and_refusals_say_what_helps(users: dict[str, Cli], debian: str) -> None:
    first = {name: launch(user, debian) for name, user in users.items()}
    assert {name: each.stderr for name, each in first.items() if each.exit_code} == {}
    lowered = [name for name, each in first.items() if "lowered" in each.stderr or "quota" in each.stderr]
    assert sorted(lowered) == sorted(name for name in users if name.startswith("student")), "their default is more"

    anyone = users["staff0"]
    held = Counter(anyone("ps", "--format", "{{.User}} {{.SMLimit}}").stdout.splitlines())
    assert held == {f"{name} {10 if name.startswith('student') else 40} %": 1 for name in users}

    more = launch(users["student0"], debian, "--mem", "8g")
    more.assert_refused("student0", "memory_per_gpu", "; give or lower --mem")
    launch(users["student0"], debian, "--overcommit").assert_refused("overcommit")
    assert launch(users["student1"], debian).exit_code == 0
    third = launch(users["student1"], debian).stderr.splitlines()[0]  # a table of who holds what comes after it
    assert "2 of the 2 for user student1 (containers, " in third and "; " in third

    second = [launch(users[f"student{number}"], debian) for number in range(2, STUDENTS)]
    refused = [each for each in second if each.exit_code]
    assert len(second) - len(refused) == 7, "80 % were left"
    assert all("queue with --wait" in each.stderr for each in refused)
