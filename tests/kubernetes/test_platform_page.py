"""docs/platform.md: its figures are those of its file, and what it says of upgrades and removal is so."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

import vgpurun
from api_server import ApiServer
from claim_maker import result
from dra_host import DRIVER, PluginHost
from helm_program import PACKAGES, helm
from installs import FOLDER, by_kubectl
from kubelet_double import RECORD
from node_names import COMPUTE, MEMORY
from node_of_test import NodeOfTest
from support import CHECKOUT, short_folder
from vgpurun.storage import tenants

PAGE = CHECKOUT / "docs" / "platform.md"


def test_the_tables_are_those_of_what_was_measured() -> None:
    paths = os.pathsep.join(str(CHECKOUT / each) for each in ("tests", "tests/kubernetes"))
    command = [sys.executable, str(CHECKOUT / "tests" / "bench" / "cluster_costs.py"), "--check"]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, check=True)


def test_the_objects_that_the_page_names_are_installed() -> None:
    kinds = {"daemonset": "DaemonSet", "deviceclass": "DeviceClass"}
    installed = {key for way in ("dra", "device-plugin") for key in by_kubectl(FOLDER / way)}
    named = re.findall(r"(?m)^ +kubectl .*?(daemonset|deviceclass)[/ ]([^<>\n#]+)", PAGE.read_text())
    assert named
    for kind, names in named:
        for name in names.split():
            assert (kinds[kind], name) in installed


def listed() -> set[Path]:
    """Read from the page what is left on a node."""
    (rows,) = re.findall(r"\n\| Left on a node .*\n\|[-|]+\n((?:\|.*\n)+)", PAGE.read_text())
    return {Path(each) for row in rows.splitlines() for each in re.findall(r"`(/[^`]+)`", row.split("|")[1])}


def lines_of(left: set[Path]) -> set[Path]:
    """The lines of the page that these files are in; each is in one."""
    found = set()
    for path in left:
        (line,) = (each for each in listed() if any(part.match(str(each)) for part in (path, *path.parents)))
        found.add(line)
    return found


def files_below(*folders: tuple[Path, str]) -> set[Path]:
    """The files below folders, by the places of these on a node."""
    return {
        Path(place, each.relative_to(folder))
        for folder, place in folders
        for each in folder.rglob("*")
        if not each.is_dir()
    }


def test_a_claim_outlives_an_upgrade_and_what_comes_meanwhile_waits(server: ApiServer) -> None:
    with short_folder("dra-") as folder:
        host = PluginHost(folder, server)
        with host.running() as old, host.kubelet.plugin(DRIVER) as plugin:
            made = host.add(result(host.devices()[0], "64Mi"))
            first = plugin.prepare(made)
            limits = host.claims / made["metadata"]["uid"] / "etc" / "limits"
            before = limits.stat()
            old.send_signal(signal.SIGTERM)
            assert old.wait(20) == 0
            with pytest.raises(grpc.RpcError):
                plugin.unprepare(made)
        assert limits.stat().st_ino == before.st_ino
        with host.running(), host.kubelet.plugin(DRIVER) as plugin:
            assert plugin.prepare(made) == first
            assert limits.stat().st_ino == before.st_ino
            assert plugin.unprepare(made) == {made["metadata"]["uid"]: ""}
        assert not limits.exists()


def test_what_the_dra_plugin_leaves_on_a_node_is_listed(server: ApiServer) -> None:
    with short_folder("dra-") as folder:
        host = PluginHost(folder, server)
        with host.running() as process, host.kubelet.plugin(DRIVER) as plugin:
            made = host.add(result(host.devices()[0], "64Mi"))
            plugin.prepare(made)
            process.send_signal(signal.SIGTERM)
            process.wait(20)
        tenant = tenants.folder_of(host.claims / made["metadata"]["uid"])
        places = [(host.kubelet.folder, "/var/lib/kubelet"), (host.cdi, "/var/run/cdi")]
        places += [(folder / "state", "/var/lib/vgpurun"), (tenant, f"/var/tmp/vgpulock/{tenant.name}")]
        assert lines_of(files_below(*places)) == listed()
        (specification,) = host.cdi.glob("vgpurun.io-claim-*.json")
        assert f"lib/{vgpurun.__version__}" in specification.read_text(), "by which the page finds older libraries"
        shutil.rmtree(tenant)


def test_what_the_device_plugin_leaves_on_a_node_is_listed(node: NodeOfTest) -> None:
    node.start_plugin()
    node.kubelet.wait_for_resources(MEMORY, COMPUTE)
    node.kubelet.admit("pod", {"c": {MEMORY: 1, COMPUTE: 5}})
    node.kubelet.start_container("pod", "c")
    node.stop_plugins()
    state = next((node.state / "kubernetes").glob("units-*"))
    tenant = tenants.folder_of(state)
    places = [(node.kubelet.folder, "/var/lib/kubelet/device-plugins"), (node.state, "/var/lib/vgpurun")]
    places.append((tenant, f"/var/tmp/vgpulock/{tenant.name}"))
    left = files_below(*places) - {Path("/var/lib/kubelet/device-plugins", own) for own in (RECORD, "kubelet.sock")}
    assert lines_of(left) == {Path("/var/lib/vgpurun"), Path("/var/tmp/vgpulock/*")}
    shutil.rmtree(tenant)


def test_helm_has_the_options_of_the_page() -> None:
    (command,) = re.findall(r"(?m)^ +helm (upgrade .*)", PAGE.read_text())
    done = subprocess.run([helm(max(PACKAGES)), "upgrade", "--help"], capture_output=True, text=True, check=True)
    options = re.findall(r" (--[a-z-]+)", command)
    assert len(options) == 3
    for option in options:
        assert option in done.stdout
