"""The node agent removes what dead pods have left, never what is in use, and names pods in the metrics."""

from __future__ import annotations

import fcntl
import json
import os
import struct
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace

import pytest

from claim_maker import claim, result
from claim_node import GPUS, ClaimNode, OneClaim, named
from pod_resources import PodResources
from support import LIBRARY, short_folder, wait_until
from vgpurun import abi
from vgpurun.errors import KubernetesError
from vgpurun.host.drivers import DriverPlan
from vgpurun.kubernetes.agent import sweep as agent_sweep
from vgpurun.kubernetes.agent.agent import Agent
from vgpurun.kubernetes.agent.sweep import Sweeper
from vgpurun.kubernetes.agent.tenants import find_tenants
from vgpurun.kubernetes.checkpoint import FILE_NAME, Holding
from vgpurun.kubernetes.pods import read_containers
from vgpurun.kubernetes.state import alone, make_folder, state_root, write_owner
from vgpurun.limits.device_quotas import shared_files
from vgpurun.limits.limits_file import read_limits
from vgpurun.limits.model import DeviceQuota
from vgpurun.limits.quota import Quota
from vgpurun.storage import tenants

GIB = 1 << 30
MEMORY = "alnair/vgpu-memory"


@pytest.fixture
def kubelet() -> Iterator[PodResources]:
    with short_folder("agent-") as folder, PodResources(folder).running() as it:
        yield it


def folder_of_units(root: Path, *units: str, gpu: int = 0) -> Path:
    quotas = [DeviceQuota(GPUS[gpu], Quota(len(units) * GIB))]
    return make_folder(root, MEMORY, units, shared_files(quotas, DriverPlan("sim")))


def folders(root: Path) -> list[Path]:
    return [each for each in state_root(root).iterdir() if each.is_dir()]


def hold_slot(usage: Path) -> int:
    """Do what a program of a container does when it starts to use a GPU."""
    file = os.open(usage, os.O_RDWR)
    wanted = struct.pack("hhxxxxqqixxxx", fcntl.F_WRLCK, os.SEEK_SET, abi.SLOT_LOCK_OFFSET + 3, 1, 0)
    fcntl.fcntl(file, fcntl.F_OFD_SETLK, wanted)
    return file


class TestSweep:
    def test_folders_of_pods_that_are_gone_are_removed(self, kubelet: PodResources, tmp_path: Path) -> None:
        kept, gone = folder_of_units(tmp_path, "a-0", "a-1"), folder_of_units(tmp_path, "a-2")
        kubelet.pods["lab", "alice"] = {"main": {"units": {MEMORY: ["a-0", "a-1"]}}}
        sweeper = Sweeper(tmp_path, 1)
        assert sweeper.look(read_containers(kubelet.socket), []) == [gone]
        assert kept.exists() and not gone.exists()
        assert tenants.folder_of(kept).exists() and not tenants.folder_of(gone).exists()
        del kubelet.pods["lab", "alice"]
        assert sweeper.look(read_containers(kubelet.socket), []) == [kept]
        assert folders(tmp_path) == []

    def test_what_kubelets_record_has_stays(self, tmp_path: Path) -> None:
        """An init container's: the pod-resources API leaves it out."""
        folder = folder_of_units(tmp_path, "a-0", "a-1")
        sweeper = Sweeper(tmp_path, 1)
        assert sweeper.look([], [Holding("uid", "init", {MEMORY: frozenset({"a-1", "a-7"})})]) == []
        assert sweeper.look([], [Holding("uid", "init", {"another": frozenset({"a-1"})})]) == [folder]

    def test_a_folder_in_use_stays_until_its_last_process_has_ended(self, tmp_path: Path) -> None:
        folder = folder_of_units(tmp_path, "a-0")
        process = hold_slot(folder / "run" / "usage")
        sweeper = Sweeper(tmp_path, 1)
        assert sweeper.look([], []) == []
        os.close(process)
        assert sweeper.look([], []) == [folder]

    def test_a_folder_goes_when_it_was_unused_in_several_looks_on_end(self, tmp_path: Path) -> None:
        folder = folder_of_units(tmp_path, "a-0")
        held = [Holding("uid", "main", {MEMORY: frozenset({"a-0"})})]
        sweeper = Sweeper(tmp_path, 3)
        for holdings in ([], [], held, [], []):
            assert sweeper.look([], holdings) == []
        write_owner(folder, {"resource": MEMORY, "units": ["a-0"], "pod_uid": "uid"})  # its container starts
        for _ in range(2):
            assert sweeper.look([], []) == []
        assert folder_of_units(tmp_path, "a-0") == folder  # the units are given anew
        for _ in range(2):
            assert sweeper.look([], []) == []
        assert sweeper.look([], []) == [folder]

    def test_a_clock_that_is_set_changes_nothing(self, tmp_path: Path) -> None:
        folder = folder_of_units(tmp_path, "a-0")
        os.utime(folder, (0, 0))
        sweeper = Sweeper(tmp_path, 2)
        assert sweeper.look([], []) == []
        assert sweeper.look([], []) == [folder]

    def test_what_the_plugin_gives_meanwhile_stays(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The plugin is at it while the agent looks, and the agent has found the folder of before unused."""
        folder, waits = folder_of_units(tmp_path, "a-0"), threading.Event()

        def told(root: Path) -> AbstractContextManager[None]:
            waits.set()
            return alone(root)

        monkeypatch.setattr(agent_sweep, "alone", told)
        with ThreadPoolExecutor(1) as pool:
            with alone(tmp_path):
                look = pool.submit(Sweeper(tmp_path, 1).look, [], [])
                assert waits.wait(60)
                assert folder_of_units(tmp_path, "a-0") == folder
            assert look.result() == []
        assert read_limits(folder / "etc/limits")

    def test_what_a_killed_agent_left_half_removed_goes(self, tmp_path: Path) -> None:
        folder = folder_of_units(tmp_path, "a-0")
        folder.rename(folder.with_name(".gone-0123"))
        Sweeper(tmp_path, 3).look([], [])
        assert [each.name for each in state_root(tmp_path).iterdir()] == []

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

    def test_only_when_neither_kubelet_nor_the_cluster_has_it_and_nobody_uses_it(self, tmp_path: Path) -> None:
        node, cluster, folder = self.prepared(tmp_path)
        node.driver().release_lost(0, set)
        assert folder.exists()
        cluster.made = None
        node.driver().release_lost(600, set)  # it may be about to start
        assert folder.exists()
        process = hold_slot(folder / "run" / "usage")
        node.driver().release_lost(0, set)
        assert folder.exists()
        os.close(process)
        node.driver().release_lost(0, lambda: {("lab", "share")})  # a pod has it
        assert folder.exists()
        node.driver().release_lost(0, lambda: {("lab", "other"), ("other", "share")})
        assert node.left() == set()

    def test_also_when_there_is_another_claim_of_that_name(self, tmp_path: Path) -> None:
        node, cluster, _ = self.prepared(tmp_path)
        cluster.made = another = claim(result(GPUS[0]))
        node.driver().prepare(named(another))
        node.driver().release_lost(0, lambda: {("lab", "share")})  # kubelet does not say which of them
        assert [each.claim for each in node.claims.all()] == [named(another)]

    def test_kubelet_is_asked_only_where_there_may_be_one(self, tmp_path: Path) -> None:
        node, _, _ = self.prepared(tmp_path)
        node.driver().release_lost(600, lambda: pytest.fail("kubelet is asked"))


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


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_the_agent_sweeps_what_another_user_has_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abi, "LOCK_DIR", str(tmp_path / "tenants"))
    left = tmp_path / "tenants" / "program-left"
    left.mkdir(parents=True)
    os.utime(left, (0, 0))
    os.chown(left, 12345, -1)
    once = SimpleNamespace(wait=lambda _: True)
    Agent(tmp_path / "state", tmp_path / "kubelet", pytest.fail).run(once, 0)
    assert not left.exists()


def test_the_agent_serves_metrics_with_names_of_pods_and_sweeps(kubelet: PodResources, built_library: Path) -> None:
    root = kubelet.socket.parent.parent
    quotas = [DeviceQuota(GPUS[0], Quota(2 * GIB, 40))]
    environment = os.environ | {"VGPURUN_STATE_DIR": str(root / "state"), "VGPURUN_LIBRARY": str(LIBRARY)}
    (root / "gpu.yaml").write_text(f"devices:\n  - name: Small\n    memory_mib: 8192\n    uuid: {GPUS[0].uuid}\n")
    environment["VGPUSIM_CONFIG"] = str(root / "gpu.yaml")
    make_folder(root / "state", MEMORY, ["a-0"], shared_files(quotas, DriverPlan("sim")))
    gone = make_folder(root / "state", MEMORY, ["a-1"], shared_files(quotas, DriverPlan("sim")))
    (root / "device-plugins").mkdir()
    record = {"PodUID": "alice", "ContainerName": "main", "ResourceName": MEMORY, "DeviceIDs": {"-1": ["a-0"]}}
    (root / "device-plugins" / FILE_NAME).write_text(json.dumps({"Data": {"PodDeviceEntries": [record]}}))
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
