"""A node with the DRA plugin on it as a process, on the simulated GPU; kubelet and the API server are doubles."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from api_server import ApiServer, devices_of
from claim_maker import claim, parameters
from dra_kubelet import DraKubelet
from support import LIBRARY, wait_until

DRIVER = "gpu.vgpurun.io"


class PluginHost:
    """A node's folders, and the plugin's process on it. The folder's path is short, as a socket's must be."""

    def __init__(self, folder: Path, server: ApiServer, cdi: Path | None = None) -> None:
        self.folder = folder
        self.server = server
        self.kubelet = DraKubelet(folder / "kubelet")
        self.cdi = cdi or folder / "cdi"
        self.claims = folder / "state" / "claims"
        self.log = folder / "log"
        self.simulation_state = folder / "gpus.state"
        (folder / "gpus.yaml").write_text(
            "devices:\n  - name: First\n    memory_mib: 8192\n  - name: Second\n    memory_mib: 8192\n"
        )
        for each in (self.kubelet.folder, self.cdi):
            each.mkdir(exist_ok=True)

    @contextmanager
    def running(self, *options: str) -> Iterator[subprocess.Popen[bytes]]:
        command = [sys.executable, "-m", "vgpurun", "dra-plugin", "--driver", "sim", "--node", "node-a"]
        command += ["--kubeconfig", self.server.kubeconfig(self.folder), "--kubelet-dir", str(self.kubelet.folder)]
        command += ["--cdi-dir", str(self.cdi), "--interval", "0.2", *options]
        environment = os.environ | {
            "VGPURUN_STATE_DIR": str(self.folder / "state"),
            "VGPUSIM_CONFIG": str(self.folder / "gpus.yaml"),
            "VGPUSIM_STATE": str(self.simulation_state),
            "VGPURUN_LIBRARY": str(LIBRARY),
        }
        with self.log.open("ab") as log:
            process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            wait_until(lambda: self.is_up(process), "plugin")
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()

    def is_up(self, process: subprocess.Popen[bytes]) -> bool:
        assert process.poll() is None, self.log.read_text()
        registry = self.kubelet.folder / "plugins_registry"
        return self.devices() != [] and registry.exists() and any(registry.iterdir())

    def devices(self) -> list[str]:
        """The names of the devices that are published."""
        return [each["name"] for found in list(self.server.slices.values()) for each in devices_of(found)]

    def add(self, *results: dict[str, Any], name: str = "share", **parameters_of: Any) -> dict[str, Any]:
        """`parameters_of` are what the claim has in its configuration."""
        made = claim(*results, name=name, config=(parameters(**parameters_of),) if parameters_of else ())
        self.server.add_claim(made)
        return made
