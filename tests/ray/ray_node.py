"""A node of Ray with two simulated GPUs: each test's program is a driver that starts one for itself, and ends it.

Ray is fetched once for each of its versions and kept (support/debian_packages.py); it is not among this project's own
packages. `ray stop` is never used: it ends every Ray of the host.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support import CHECKOUT, LIBRARY
from support.python_packages import packages
from vgpurun.storage import tenants

NEWEST, OLDEST = "2.60.0", "2.45.0"
OF_ITS_TIME = {OLDEST: ("protobuf<6",)}  # its Serve fails with what pip finds today
PROGRAMS = Path(__file__).parent / "programs"
# GPUs of this run of the tests alone: programs on GPUs of one UUID meet in abi.LOCK_DIR.
UUIDS = tuple(f"GPU-{os.getpid():08x}-{part * 4}-1111-0000-000000000000" for part in "ab")
MACHINE = "devices:\n" + "".join(f"  - uuid: {uuid}\n    memory_mib: 8192\n" for uuid in UUIDS)
# The variables that docs/ray.md has for each node, as they stand there.
PAGE = dict(
    shlex.split(each)[0].split("=", 1)
    for each in re.findall(r"(?m)^    export (.*)$", (CHECKOUT / "docs" / "ray.md").read_text())
)
PLUGINS, HOOK, REFUSING = "RAY_RUNTIME_ENV_PLUGINS", "RAY_RUNTIME_ENV_HOOK", "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"
TIMEOUT_S = 560  # workers start one after the other on a busy machine


def ray_packages(version: str, extras: str = "") -> Path:
    """The folder with a version of Ray and what it needs; `extras` are names of its parts. Raises UnavailableError."""
    asked = f"ray[{extras}]=={version}" if extras else f"ray=={version}"
    name = "-".join(["ray", version, *filter(None, extras.split(","))])
    return packages(name, asked, *OF_ITS_TIME.get(version, ()))


class RayNode:
    """The node's folder, whose path is short as Ray's sockets need it, and the environment of `ray start` on it."""

    def __init__(self, folder: Path, version: str, extras: str = "") -> None:
        self.folder = folder
        self.python = Path(sys.executable)
        self.packages = ray_packages(version, extras)
        self.state = folder / "state"  # by a link, as homes often are: the kernel names files by where they really are
        (folder / "real").mkdir()
        self.state.symlink_to("real")
        (folder / "libvgpu.so").symlink_to(LIBRARY)
        (folder / "sim.yaml").write_text(MACHINE)
        unwanted = ("CUDA_", "VGPURUN_", "VGPUSIM_", "NVIDIA_", "LD_PRELOAD", "RAY_", "PYTHONPATH")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
        self.environment = {
            **inherited,
            "PYTHONPATH": os.pathsep.join([str(self.packages), str(CHECKOUT), str(CHECKOUT / "tests")]),
            "RAY_AUTH_MODE": "disabled",  # else Ray writes a token into the home
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_DEDUP_LOGS": "0",
            "RAY_TMPDIR": str(folder),
            **{name: value for name, value in PAGE.items() if name != REFUSING},
            "VGPURUN_DRIVER": "sim",
            "VGPURUN_LIBRARY": str(folder / "libvgpu.so"),
            "VGPURUN_STATE_DIR": str(self.state),
            "VGPUSIM_CONFIG": str(folder / "sim.yaml"),
            "VGPUSIM_STATE": str(folder / "sim.state"),
        }

    def run(
        self, program: str, *arguments: str, within: Sequence[str] = (), **variables: str
    ) -> tuple[dict[str, Any], str]:
        """Run a driver, and return the values that it tells by their names, and all that was said.

        `within` are options of `vgpurun local`, under which it runs then.
        """
        local = [str(self.python), "-m", "vgpurun", "local", *within, "--"] if within else []
        command = [*local, str(self.python), str(PROGRAMS / program), *arguments]
        environment = {name: value for name, value in (self.environment | variables).items() if value}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd=self.folder
        )
        assert done.returncode == 0, done.stdout + done.stderr
        found: dict[str, Any] = {}
        for line in (self.folder / "found").read_text().splitlines():
            found |= json.loads(line)
        return found, done.stdout + done.stderr


@contextmanager
def ray_node(version: str = NEWEST, extras: str = "") -> Iterator[RayNode]:
    """Make a node's folder, and remove it at the end."""
    folder = Path(tempfile.mkdtemp(prefix="vr-", dir="/tmp"))
    try:
        yield RayNode(folder, version, extras)
    finally:
        for left in folder.glob("state/containers/*"):  # workers that the end of the cluster has killed
            tenants.remove(left)
        shutil.rmtree(folder, ignore_errors=True)
