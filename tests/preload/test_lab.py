"""A lab server: 20 users in three groups, defaults and quotas, four GPUs, and launches without any option."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from support import WITH_ADMIN_FILE, own_gpu_config, unavailable

pytestmark = pytest.mark.exhaustive

GIB = 1 << 30
GPUS = 4
GROUPS = {"staff": range(6), "students": range(6, 16), "guests": range(16, 20)}
LAB = """
defaults:
  mem: 25%
  sm: 50
  groups:
    students: {mem: 10%, sm: 20}
quotas:
  default: {memory_per_gpu: 50%, containers: 3, overcommit: false}
  groups:
    students: {memory_per_gpu: 25%, sm_per_gpu: 25, containers: 2}
    guests: {gpus: [3], containers: 1, sm_per_gpu: 10}
"""
# A launch without options: its memory, its compute, and how many a user may have.
PLAIN = {"staff": (2 * GIB, 50, 3), "students": (8 * GIB // 10, 20, 2), "guests": (2 * GIB, 10, 1)}
FIRST_UID = 61000


@pytest.fixture
def environment(built_library: Path, tmp_path: Path) -> dict[str, str]:
    if os.geteuid():
        unavailable("only root may act for other users")
    gpu = Path(own_gpu_config(tmp_path)).read_text()
    devices = "".join(f"- uuid: GPU-51a00000-0000-4000-8000-{os.getpid():011d}{each}\n" for each in range(GPUS))
    config = tmp_path / "four.yaml"
    config.write_text(f"devices:\n{devices}{gpu.partition('devices:')[0]}")
    # The users and groups that this host has, and these.
    users = [f"user{each}:x:{FIRST_UID + each}:{FIRST_UID}::/:/bin/sh\n" for each in range(20)]
    (tmp_path / "passwd").write_text(Path("/etc/passwd").read_text() + "".join(users))
    groups = [f"{name}:x:{FIRST_UID + 100 + number}:{','.join(f'user{each}' for each in members)}\n"
              for number, (name, members) in enumerate(GROUPS.items())]  # fmt: skip
    kept = [line for line in Path("/etc/group").read_text().splitlines(True) if line.split(":")[0] not in GROUPS]
    (tmp_path / "group").write_text("".join([*kept, *groups]))
    (tmp_path / "lab.yaml").write_text(LAB)
    kept_variables = {name: text for name, text in os.environ.items() if not name.startswith(("VGPU", "DOCKER_"))}
    return kept_variables | {
        "VGPURUN_STATE_DIR": str(tmp_path / "state"),
        "VGPURUN_DRIVER": "sim",
        "VGPUSIM_CONFIG": str(config),
        "VGPUSIM_STATE": str(tmp_path / "sim.state"),
        "DOCKER_HOST": f"unix://{tmp_path}/no-engine.sock",
    }


def end(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


class Lab:
    """Users that launch programs, which stay until the end."""

    def __init__(self, environment: dict[str, str], folder: Path, at_end: ExitStack) -> None:
        self._environment = environment
        self._folder = folder
        self._at_end = at_end

    def _command(self, *arguments: str) -> list[str]:
        mounts = " && ".join(f"mount --bind {self._folder}/{name} /etc/{name}" for name in ("passwd", "group"))
        own = [sys.executable, "-c", WITH_ADMIN_FILE, str(self._folder / "lab.yaml"), *arguments]
        return ["unshare", "--mount", "sh", "-c", f'{mounts} && exec "$@"', "sh", *own]

    def launch(self, user: int) -> str:
        """Launch a program without options; return why it was refused, or nothing."""
        process = subprocess.Popen(
            self._command("local", "--", "sh", "-c", "echo in; exec sleep 600"),
            env=self._environment | {"SUDO_UID": str(FIRST_UID + user)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self._at_end.callback(process.communicate)
        self._at_end.callback(end, process)
        return "" if process.stdout.readline() == "in\n" else process.stderr.read()

    def free(self, user: int) -> list[dict[str, Any]]:
        """Return what the user is told of each GPU."""
        done = subprocess.run(
            self._command("free", "--format", "json"), env=self._environment | {"SUDO_UID": str(FIRST_UID + user)},
            capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
        found: list[dict[str, Any]] = json.loads(done.stdout)["gpus"]
        return found


@contextmanager
def lab_of(environment: dict[str, str], folder: Path) -> Iterator[Lab]:
    with ExitStack() as at_end:
        yield Lab(environment, folder, at_end)


def would_start(gpus: list[dict[str, Any]], memory_bytes: int, sm_percent: int) -> bool:
    largest = [gpu["largest_launch"] for gpu in gpus if gpu["largest_launch"]]
    return any(each["memory_bytes"] >= memory_bytes and (each["sm_percent"] or 0) >= sm_percent for each in largest)


@pytest.mark.timeout(300)
def test_every_launch_that_the_quotas_allow_starts_and_every_refusal_names_the_way_out(
    environment: dict[str, str], tmp_path: Path
) -> None:
    group_of = {user: name for name, members in GROUPS.items() for user in members}
    running: Counter[int] = Counter()
    refusals: Counter[str] = Counter()
    with lab_of(environment, tmp_path) as lab:
        for _ in range(4):
            for user, group in group_of.items():
                memory_bytes, sm_percent, most = PLAIN[group]
                if running[user] >= most + 1 or (refusals and running[user] < most and user % 3):
                    continue  # the machine is full, or the user is: some are enough
                expected = would_start(lab.free(user), memory_bytes, sm_percent)
                refused = lab.launch(user)
                assert bool(refused) == (not expected), (user, group, refused, lab.free(user))
                if not refused:
                    running[user] += 1
                    continue
                first = refused.splitlines()[0]
                assert first.startswith("vgpurun: ") and "ask for less, or queue with --wait" in first, refused
                refusals["own" if "are in use" in first else "full"] += 1
    assert {group_of[user] for user in running} == set(GROUPS)
    assert all(running[user] <= PLAIN[group_of[user]][2] for user in running)
    assert refusals["own"] and refusals["full"]
