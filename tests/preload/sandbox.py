"""The built library on the simulated driver: programs are started under limits as `vgpurun` would start them."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cuda_driver import CudaError, Driver
from support import BARE_PYTHON, LIBRARY, PYTHON_PATH
from support.programs import Program, text_of
from vgpurun import abi
from vgpurun.limits.limits_file import limits_bytes
from vgpurun.limits.quota import Quota
from vgpurun.profiles.reader import FileProfile, read_profiles

SIMULATED_DRIVER = LIBRARY.parent / "sim"
PROGRAMS = Path(__file__).parent / "programs"
# GPUs of this run of the tests alone: programs on GPUs of one UUID meet in abi.LOCK_DIR.
UUID = f"GPU-{os.getpid():08x}-aaaa-0000-0000-000000000000"
MACHINE = f"""
devices:
  - name: Simulated A
    uuid: {UUID}
    memory_mib: 8192
  - name: Simulated B
    uuid: GPU-{os.getpid():08x}-bbbb-0000-0000-000000000000
    memory_mib: 8192
"""
# Programs launch 32 kernels ahead. A busy machine that holds them up leaves no GPU idle then, and they wait for no more
# than these at their end.
BUSY_MACHINE = MACHINE.replace("    memory", "    launch_queue_depth: 32\n    memory")


def tenant_of(usage: Path) -> Path:
    """The folder that programs with this usage file make, to be seen by others, where `vgpurun` has made none."""
    status = usage.lstat()
    return Path(abi.LOCK_DIR) / f"program-{status.st_dev:x}-{status.st_ino:x}"


@dataclass(frozen=True)
class Sandbox:
    """A simulated machine: its environment, where limits are set by variables, and its first GPU."""

    folder: Path
    environment: Mapping[str, str]
    uuid: str = UUID

    def variables(self, **limits: str) -> dict[str, str]:
        """The environment of a limited program."""
        return {**self.environment, "LD_PRELOAD": str(LIBRARY), **limits}

    def own_gpu(self, quota: Quota | None = None) -> dict[str, str]:
        """The variables of a program that has a simulated GPU of its own, as in a container of its own.

        It is as this machine's; `quota` is in a limits file then.
        """
        folder, own = Path(tempfile.mkdtemp(dir=self.folder)), f"GPU-{uuid.uuid4()}"
        (folder / "sim.yaml").write_text((self.folder / "sim.yaml").read_text().replace(self.uuid, own))
        files = {"VGPUSIM_CONFIG": "sim.yaml", "VGPUSIM_STATE": "state", "CUDA_DEVICE_MEMORY_SHARED_CACHE": "usage"}
        if quota:
            files["VGPURUN_LIMITS_FILE"] = "limits"
            (folder / "limits").write_bytes(limits_bytes([(own, quota)]))
        return {variable: str(folder / file) for variable, file in files.items()}

    def run(
        self, command: Sequence[str | Path], timeout_s: float = 60, **limits: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a program under the library."""
        return subprocess.run(
            list(command), env=self.variables(**limits), capture_output=True, text=True, timeout=timeout_s, check=False
        )

    def python(self, program: Program, timeout_s: float = 60, **limits: str) -> str:
        """Run a Python program under the library and return what it printed; it must succeed."""
        result = self.run([*BARE_PYTHON, "-c", text_of(program)], timeout_s, **limits)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout.strip()

    def profile_of(self, folder: Path, program: Program, **limits: str) -> FileProfile:
        """Run a Python program with a profile in this folder, and return that."""
        self.python(program, PFLOG=str(folder), **limits)
        [profile] = read_profiles(folder)
        return profile

    def start_python(self, program: Program, **limits: str) -> subprocess.Popen[str]:
        """Start a Python program under the library; its standard streams are pipes."""
        return subprocess.Popen(
            [*BARE_PYTHON, "-u", "-c", text_of(program)],
            env=self.variables(**limits),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )


def fill(d: Driver, most: int = 99) -> int:
    """Return how often 100 MiB could be had, of so many times at most."""
    for count in range(most):
        try:
            d.mem_alloc(100 << 20)
        except CudaError:
            return count
    return most


def without_scheduler(sandbox: Sandbox) -> None:
    """Keep programs from the GPU's scheduler: the library holds launches then."""
    config = sandbox.folder / "sim.yaml"
    config.write_text(f"nvidiactl: false\n{config.read_text()}")


@contextmanager
def simulated_machine(folder: Path, machine: str = MACHINE, first_gpu: str = UUID) -> Iterator[Sandbox]:
    """Yield a machine whose files are in this folder; nothing of its tenants is left at the end."""
    config = folder / "sim.yaml"
    config.write_text(machine)
    environment = {
        "PATH": os.environ["PATH"],
        "LD_LIBRARY_PATH": str(SIMULATED_DRIVER),
        "VGPUSIM_CONFIG": str(config),
        "VGPUSIM_STATE": str(folder / "sim.state"),
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(folder / "usage"),
        "PYTHONPATH": PYTHON_PATH,
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    try:
        yield Sandbox(folder, environment, first_gpu)
    finally:
        for file in folder.rglob("*"):
            shutil.rmtree(tenant_of(file), ignore_errors=True)
