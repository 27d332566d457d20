"""The node agent removes what dead pods have left, never what is in use, and names pods in the metrics."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from claim_maker import claim, result
from claim_node import GPUS, ClaimNode, named
from dra_host import wait_until
from pod_resources import PodResources
from support import LIBRARY
from vgpurun import abi
from vgpurun.errors import KubernetesError
from vgpurun.host.drivers import DriverPlan
from vgpurun.kubernetes.agent_pods import read_containers
from vgpurun.kubernetes.agent_sweep import sweep
from vgpurun.kubernetes.agent_tenants import find_tenants
from vgpurun.kubernetes.state import make_folder, state_root
from vgpurun.launch.plan import DeviceQuota, shared_files
from vgpurun.limits.quota import Quota

GIB = 1 << 30
MEMORY = "alnair/vgpu-memory"


@pytest.fixture
def kubelet() -> Iterator[PodResources]:
    with tempfile.TemporaryDirectory(prefix="agent-", dir="/tmp") as folder, PodResources(Path(folder)).running() as it:
        yield it


def folder_of_units(root: Path, *units: str, gpu: int = 0) -> Path:
    quotas = [DeviceQuota(GPUS[gpu], Quota(len(units) * GIB))]
    return make_folder(root, MEMORY, units, shared_files(quotas, DriverPlan("sim")))


def hold_slot(usage: Path) -> int:
    """What a program of a container does when it starts to use a GPU."""
    file = os.open(usage, os.O_RDWR)
    wanted = struct.pack("hhxxxxqqixxxx", fcntl.F_WRLCK, os.SEEK_SET, abi.SLOT_LOCK_OFFSET + 3, 1, 0)
    fcntl.fcntl(file, fcntl.F_OFD_SETLK, wanted)
    return file


class OneClaim:
    def __init__(self, made: dict[str, Any]) -> None:
        self.made: dict[str, Any] | None = made

    def claim(self, *_: str) -> dict[str, Any] | None:
        return self.made


class TestSweep:
    def test_folders_of_pods_that_are_gone_are_removed(self, kubelet: PodResources, tmp_path: Path) -> None:
        kept, gone = folder_of_units(tmp_path, "a-0", "a-1"), folder_of_units(tmp_path, "a-2")
        kubelet.pods["lab", "alice"] = {"main": {"units": {MEMORY: ["a-0", "a-1"]}}}
        assert sweep(tmp_path, read_containers(kubelet.socket), 0) == [gone]
        assert kept.exists() and not gone.exists()
        del kubelet.pods["lab", "alice"]
        assert sweep(tmp_path, read_containers(kubelet.socket), 0) == [kept]
        assert list(state_root(tmp_path).iterdir()) == []

    def test_a_folder_in_use_stays_until_its_last_process_has_ended(self, tmp_path: Path) -> None:
        folder = folder_of_units(tmp_path, "a-0")
        process = hold_slot(folder / "run" / "usage")
        assert sweep(tmp_path, [], 0) == []
        os.close(process)
        assert sweep(tmp_path, [], 0) == [folder]

    def test_a_folder_that_was_just_made_stays(self, tmp_path: Path) -> None:
        folder = folder_of_units(tmp_path, "a-0")
        assert sweep(tmp_path, [], 60) == []
        long_ago = time.time() - 3600
        for each in (folder, folder / "etc"):
            os.utime(each, (long_ago, long_ago))
        assert sweep(tmp_path, [], 60) == [folder]

    def test_what_a_killed_agent_left_half_removed_goes(self, tmp_path: Path) -> None:
        folder = folder_of_units(tmp_path, "a-0")
        folder.rename(folder.with_name(".gone-0123"))
        sweep(tmp_path, [], 60)
        assert list(state_root(tmp_path).iterdir()) == []

    def test_without_kubelets_word_nothing_is_known(self, tmp_path: Path) -> None:
        with pytest.raises(KubernetesError, match="--kubelet-dir"):
            read_containers(tmp_path / "kubelet.sock")


class TestLostClaims:
    """The DRA plugin gives back what kubelet has forgotten."""

    def prepared(self, tmp_path: Path) -> tuple[ClaimNode, OneClaim, Path]:
        made = claim(result(GPUS[0]))
        cluster = OneClaim(made)
        node = ClaimNode(tmp_path, cluster)
        node.driver().prepare(named(made))
        return node, cluster, node.root / "claims" / made["metadata"]["uid"]

    def test_only_when_the_cluster_has_it_no_more_and_nobody_uses_it(self, tmp_path: Path) -> None:
        node, cluster, folder = self.prepared(tmp_path)
        node.driver().release_lost(0)
        assert folder.exists()
        cluster.made = None
        node.driver().release_lost(600)  # it may be about to start
        assert folder.exists()
        process = hold_slot(folder / "run" / "usage")
        node.driver().release_lost(0)
        assert folder.exists()
        os.close(process)
        node.driver().release_lost(0)
        assert node.left() == set()

    def test_also_when_there_is_another_claim_of_that_name(self, tmp_path: Path) -> None:
        node, cluster, _ = self.prepared(tmp_path)
        cluster.made = claim(result(GPUS[0]))
        node.driver().release_lost(0)
        assert node.left() == set()


class TestTenants:
    def test_units_and_claims_have_the_names_of_their_pods(self, kubelet: PodResources, tmp_path: Path) -> None:
        made = claim(result(GPUS[1], "3Gi", "40"), name="team")
        node = ClaimNode(tmp_path, OneClaim(made))
        node.driver().prepare(named(made))
        folder_of_units(node.root, "a-0", "a-1")
        folder_of_units(node.root, "a-7")  # whose pod is gone
        kubelet.pods["lab", "alice"] = {"main": {"claims": ["team"]}, "side": {"units": {MEMORY: ["a-0", "a-1"]}}}
        kubelet.pods["lab", "bob"] = {"main": {"claims": ["team"]}}
        kubelet.pods["other", "carol"] = {"main": {"claims": ["team"]}}  # another namespace's claim of that name
        found = find_tenants(node.root, read_containers(kubelet.socket))
        assert [(each.kind, each.namespace, each.pod, each.name) for each in found] == [
            ("claim", "lab", "alice,bob", "main"),
            ("units", "lab", "alice", "side"),
        ]
        assert found[0].quotas == ((GPUS[1].uuid, Quota(3 * GIB, 40)),)
        assert found[1].quotas == ((GPUS[0].uuid, Quota(2 * GIB)),)


def test_the_agent_serves_metrics_with_names_of_pods_and_sweeps(kubelet: PodResources, built_library: Path) -> None:
    root = kubelet.socket.parent.parent
    quotas = [DeviceQuota(GPUS[0], Quota(2 * GIB, 40))]
    environment = os.environ | {"VGPURUN_STATE_DIR": str(root / "state"), "VGPURUN_LIBRARY": str(LIBRARY)}
    (root / "gpu.yaml").write_text(f"devices:\n  - name: Small\n    memory_mib: 8192\n    uuid: {GPUS[0].uuid}\n")
    environment["VGPUSIM_CONFIG"] = str(root / "gpu.yaml")
    make_folder(root / "state", MEMORY, ["a-0"], shared_files(quotas, DriverPlan("sim")))
    gone = make_folder(root / "state", MEMORY, ["a-1"], shared_files(quotas, DriverPlan("sim")))
    for each in (gone, gone / "etc"):
        os.utime(each, (0, 0))
    kubelet.pods["lab", "alice"] = {"main": {"units": {MEMORY: ["a-0"]}}}
    command = [sys.executable, "-m", "vgpurun", "node-agent", "--driver", "sim", "--kubelet-dir", str(root)]
    command += ["--interval", "0.2", "--listen", "127.0.0.1:0", "--compat", "hami"]
    with (root / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        wait_until(lambda: process.poll() is not None or not gone.exists(), "sweep")
        assert process.poll() is None, (root / "log").read_text()
        url = next(word for word in (root / "log").read_text().split() if word.startswith("http"))
        text = urllib.request.urlopen(url, timeout=20).read().decode()
        labels = 'container="main"', 'namespace="lab"', 'pod="alice"'
        ours = [line for line in text.splitlines() if all(label in line for label in labels)]
        values = {line.partition("{")[0]: float(line.split()[-1]) for line in ours}
        assert values["vgpurun_container_memory_limit_bytes"] == 2 * GIB, text
        assert values["vgpurun_container_sm_limit_ratio"] == 0.4, text
        assert any(not name.startswith("vgpurun_") for name in values), text
        kubelet.pods.clear()
        wait_until(lambda: b'pod="alice"' not in urllib.request.urlopen(url, timeout=20).read(), "end of alice")
        process.terminate()
        assert process.wait(timeout=40) == 0
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
