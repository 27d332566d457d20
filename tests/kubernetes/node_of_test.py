"""A node: a kubelet double, the device plugin as a process of its own, and simulated GPUs. Used by tests/engine too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kubelet_double import Kubelet
from node_names import UUIDS
from support import short_folder

MACHINE = f"""
devices:
  - name: Simulated A
    uuid: {UUIDS[0]}
    memory_mib: 8192
  - name: Simulated B
    uuid: {UUIDS[1]}
    memory_mib: 8192
"""


@dataclass
class NodeOfTest:
    """A node under test. Its folder's path is short, as sockets need it."""

    folder: Path
    kubelet: Kubelet
    environment: dict[str, str]
    plugins: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def faults(self) -> Path:
        return self.folder / "sim.state.faults"

    def configure(self, text: str) -> None:
        (self.folder / "sim.yaml").write_text(text)

    def start_plugin(self, *options: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "vgpurun", "device-plugin", "--driver", "sim"]
        command += ["--kubelet-dir", str(self.kubelet.folder), *options]
        log = (self.folder / f"log{len(self.plugins)}").open("w")
        process = subprocess.Popen(command, env=self.environment, text=True, stdout=log, stderr=log)
        self.plugins.append(process)
        return process

    def log(self) -> str:
        return "".join(path.read_text() for path in sorted(self.folder.glob("log*")))

    def wait_for_log(self, text: str, timeout_s: float = 30) -> None:
        deadline = time.monotonic() + timeout_s
        while text not in self.log():
            assert time.monotonic() < deadline, f"no '{text}' in {self.log()}"
            time.sleep(0.05)

    def stop_plugins(self, number: int = signal.SIGTERM) -> None:
        for process in self.plugins:
            if process.poll() is None:
                process.send_signal(number)
                process.wait(30)


@contextmanager
def node_of_test(built_library: Path) -> Iterator[NodeOfTest]:
    """A node whose kubelet runs; its plugin is started by start_plugin()."""
    with short_folder("vk-") as folder:
        folder.chmod(0o755)
        (folder / "kubelet").mkdir()
        unwanted = ("CUDA_", "VGPURUN_", "VGPUSIM_", "NVIDIA_", "LD_PRELOAD")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
        environment |= {
            "VGPURUN_STATE_DIR": str(folder / "state"),
            "VGPURUN_LIBRARY": str(built_library),
            "VGPUSIM_CONFIG": str(folder / "sim.yaml"),
            "VGPUSIM_STATE": str(folder / "sim.state"),
            "PYTHONUNBUFFERED": "1",
        }
        made = NodeOfTest(folder, Kubelet(folder / "kubelet"), environment)
        made.configure(MACHINE)
        made.kubelet.start()
        try:
            yield made
        finally:
            made.stop_plugins()
            made.kubelet.stop()
            print(made.log())
