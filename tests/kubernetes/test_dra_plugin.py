"""`vgpurun dra-plugin` as a process, with a kubelet and an API server at its sockets, on the simulated GPU."""

from __future__ import annotations

import copy
import json
import os
import shutil
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from api_server import SLICES, ApiServer
from claim_maker import result
from dra_host import DRIVER, PluginHost
from dra_kubelet import HEALTH, DraKubelet
from pod_resources import PodResources
from support import short_folder, wait_until
from support.scraping import free_port
from vgpurun import abi
from vgpurun.limits.limits_file import read_limits
from vgpurun.storage import tenants

GIB = 1 << 30


@pytest.fixture
def host(server: ApiServer, built_library: Path) -> Iterator[PluginHost]:
    with short_folder("dra-") as folder:
        yield PluginHost(folder, server)


def fault(host: PluginHost, lines: str) -> None:
    with Path(f"{host.simulation_state}.faults").open("a") as file:
        file.write(f"{lines}\n")


@pytest.mark.parametrize("version", ["1.34", "1.33"])
def test_a_claim_from_its_publication_to_its_end(host: PluginHost, version: str) -> None:
    host.kubelet = DraKubelet(host.kubelet.folder, version)
    with host.running() as process, host.kubelet.plugin(DRIVER) as plugin:
        first, second = host.devices()
        made = host.add(result(first, "2Gi", "30", request="gpu/small"))
        uid = made["metadata"]["uid"]
        (device,) = plugin.prepare(made)[uid].devices
        assert (list(device.request_names), device.pool_name, device.device_name) == (["gpu"], "node-a", first)
        assert list(device.cdi_device_ids) == [f"vgpurun.io/claim={uid}-{first}"]
        limits = read_limits(host.claims / uid / "etc/limits")
        assert limits is not None
        assert [(uuid.lower(), each.memory_bytes, each.sm_percent) for uuid, each in limits] == [(first, 2 * GIB, 30)]
        assert plugin.unprepare(made, made) == {uid: ""}
        assert list(host.cdi.iterdir()) == []
        process.terminate()
        assert process.wait(timeout=60) == 0
    assert host.devices() == [first, second]  # they stay published: the next plugin goes on with them
    assert not any((host.kubelet.folder / "plugins_registry").iterdir())


def test_killed_and_started_again_it_goes_on(host: PluginHost) -> None:
    with host.running() as process, host.kubelet.plugin(DRIVER) as plugin:
        device, _ = host.devices()
        big = host.add(result(device, "5Gi"), name="big")
        prepared = plugin.prepare(big)
        process.send_signal(signal.SIGKILL)
        process.wait()
    (specification,) = host.cdi.iterdir()
    before = specification.read_bytes()
    specification.unlink()  # as after a start of the host
    writes = len(host.server.writes)
    with host.running(), host.kubelet.plugin(DRIVER) as plugin:
        assert specification.read_bytes() == before
        assert plugin.prepare(big) == prepared
        more = host.add(result(device, "5Gi"), name="more")
        assert "still prepared" in plugin.prepare(more)[more["metadata"]["uid"]].error
        plugin.unprepare(big)
        assert plugin.prepare(more)[more["metadata"]["uid"]].devices
    assert len(host.server.writes) == writes  # what is published was as it should be


def test_devices_are_offered_again_as_soon_as_kubelet_has_started(host: PluginHost) -> None:
    with host.running("--interval", "30"):
        devices = host.devices()
        host.kubelet.registered()
        for _ in range(3):
            host.kubelet.start(host.server, "node-a")
            assert host.devices() == []
            wait_until(lambda: host.devices() == devices, "slice after kubelet's start", 10)


def test_a_slice_that_is_deleted_while_nobody_listens_comes_back_soon(host: PluginHost) -> None:
    with host.running("--interval", "30"):
        devices = host.devices()
        wait_until(lambda: host.server.watches, "watch", 10)
        host.server.close_watches()
        host.server.delete_slices("node-a")
        wait_until(lambda: host.devices() == devices, "slice", 15)


def test_a_slice_that_somebody_has_changed_is_put_right(host: PluginHost) -> None:
    with host.running():
        devices = host.devices()
        wait_until(lambda: host.server.watches, "watch", 10)
        changed = copy.deepcopy(*host.server.slices.values())
        changed["spec"]["devices"].pop()
        host.server.answer("PUT", f"{SLICES}/{changed['metadata']['name']}", changed)
        wait_until(lambda: host.devices() == devices, "slice", 10)


def test_a_node_with_nothing_to_do_asks_the_api_server_for_nothing(host: PluginHost) -> None:
    """Kubelet knows which claims have pods, and the watch tells what becomes of the slice."""
    pods = PodResources(host.kubelet.folder)
    with pods.running(), host.running(), host.kubelet.plugin(DRIVER) as plugin:
        made = [host.add(result(host.devices()[0], "64Mi"), name=f"idle-{i}") for i in range(5)]
        pods.pods = {("lab", f"idle-{i}"): {"main": {"claims": [f"idle-{i}"]}} for i in range(5)}
        plugin.prepare(*made)
        for owner in host.claims.glob("*/owner"):
            os.utime(owner, (0, 0))  # prepared long ago

        def is_quiet() -> bool:
            before = host.server.requests.total()
            time.sleep(2)  # ten looks
            return host.server.requests.total() == before

        wait_until(is_quiet, "end of its requests", 20)
        assert host.server.watches
        assert len(list(host.claims.iterdir())) >= len(made)
        host.server.claims.clear()
        pods.pods.clear()
        wait_until(lambda: list(host.cdi.iterdir()) == [], "end of claims that nobody has", 10)


def test_without_the_right_to_watch_it_looks_every_now_and_then_and_says_so(host: PluginHost) -> None:
    resources = {"nodes": ["get"], "resourceslices": ["list", "create", "update", "delete"]}
    host.server.granted = {(verb, resource) for resource, verbs in resources.items() for verb in verbs}
    with host.running("--interval", "2"):
        devices = host.devices()
        host.server.delete_slices("node-a")
        wait_until(lambda: host.devices() == devices, "slice", 10)
    assert host.log.read_text().count("cannot watch resourceslices") == 1


def test_a_feature_gate_that_is_turned_off_later_is_said(host: PluginHost) -> None:
    """The slices that there are keep what the gate is about; new claims would get a whole GPU, and be refused."""
    with host.running("--interval", "30"):
        devices = host.devices()
        host.server.has_shares = False
        host.server.close_watches()  # the API server starts again with other options
        wait_until(lambda: host.devices() == [], "end of the offer", 15)
        host.server.has_shares = True
        host.server.close_watches()
        wait_until(lambda: host.devices() == devices, "slice", 15)
    assert host.log.read_text().count("turn on the feature gate DRAConsumableCapacity") == 1


NONSENSE = {
    "too many requests": (429, b"Too many requests, please try again later."),
    "no status": (200, b'{"type": "ERROR", "object": "x"}\n[]\n'),
}
MORE_NONSENSE = {
    "no path": (404, b"404 page not found"),
    "no generation": (200, b'{"metadata": {}, "items": [{"metadata": {}, "spec": {"pool": {"generation": "x"}}}]}'),
    "not ready": (503, b""),
    "nothing": (200, b""),
    "list": (200, b"[]"),
    "empty slice": (200, b'{"metadata": {"uid": 1}, "items": [{}], "spec": {}}'),
    "410": (200, b'{"type": "ERROR", "object": {"code": 410, "message": "too old resource version"}}'),
}


@pytest.mark.parametrize(
    "name", [*NONSENSE, *(pytest.param(name, marks=pytest.mark.exhaustive) for name in MORE_NONSENSE)]
)
def test_an_api_server_that_answers_nonsense_ends_nothing(host: PluginHost, name: str) -> None:
    with host.running("--interval", "1") as process, host.kubelet.plugin(DRIVER) as plugin:
        devices = host.devices()
        made, more = (host.add(result(devices[0]), name=name) for name in ("made", "more"))
        plugin.prepare(made)
        host.server.fault = {**NONSENSE, **MORE_NONSENSE}[name]
        host.server.close_watches()
        host.server.delete_slices("node-a")
        assert plugin.prepare(more)[more["metadata"]["uid"]].error
        assert plugin.prepare(made)[made["metadata"]["uid"]].devices
        assert plugin.unprepare(made) == {made["metadata"]["uid"]: ""}
        wait_until(lambda: "warning" in host.log.read_text(), "trouble in the log", 10)
        time.sleep(3)
        host.server.fault = None
        wait_until(lambda: host.devices() == devices, "slice", 15)
        assert plugin.prepare(more)[more["metadata"]["uid"]].devices
        assert process.poll() is None
    assert len(host.log.read_text().splitlines()) < 15, host.log.read_text()


def test_what_kubelet_no_longer_waits_for_is_not_prepared(host: PluginHost) -> None:
    """Kubelet has given the claim back meanwhile, and would never do so again."""
    with host.running(), host.kubelet.plugin(DRIVER) as plugin:
        made = host.add(result(host.devices()[0]))
        host.server.answers_after_s = 2
        with pytest.raises(grpc.RpcError, match="DEADLINE_EXCEEDED"):
            plugin.prepare(made, timeout_s=0.5)
        assert plugin.unprepare(made) == {made["metadata"]["uid"]: ""}
        wait_until(lambda: "kubelet no longer waits for it" in host.log.read_text(), "end of the request", 10)
        assert not (host.claims / made["metadata"]["uid"]).exists()
        host.server.answers_after_s = 0
        assert plugin.prepare(made)[made["metadata"]["uid"]].devices


def test_what_somebody_has_removed_comes_back(host: PluginHost) -> None:
    with host.running():
        for path in (host.kubelet.folder / "plugins_registry").iterdir():
            path.unlink()
        wait_until(lambda: host.kubelet.registered(), "registration")


def test_a_folder_among_the_tenants_that_somebody_has_removed_comes_back(host: PluginHost) -> None:
    with host.running(), host.kubelet.plugin(DRIVER) as plugin:
        made = host.add(result(host.devices()[0]))
        plugin.prepare(made)
        tenant = tenants.folder_of(host.claims / made["metadata"]["uid"])
        shutil.rmtree(tenant.rename(f"{tenant}-removed"))  # what is there comes back at any time
        wait_until(lambda: (tenant / abi.PRESENCE_NAME).exists(), "folder among the tenants")
        assert (tenant / "limits").exists()
        plugin.unprepare(made)
        assert not tenant.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_what_another_user_has_left_among_the_tenants_goes(host: PluginHost) -> None:
    tenants.make_lock_dir()
    left = Path(abi.LOCK_DIR) / f"program-{os.getpid():x}-0"
    left.mkdir()
    os.utime(left, (0, 0))
    os.chown(left, 12345, -1)
    with host.running():
        wait_until(lambda: not left.exists(), "sweep")


@pytest.mark.parametrize("lost", [0, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_a_lost_gpu_takes_no_other_away(host: PluginHost, lost: int) -> None:
    with host.running(), host.kubelet.plugin(DRIVER) as plugin:
        devices = host.devices()
        other = devices[1 - lost]
        on_lost, on_other = (host.add(result(each), name=each) for each in (devices[lost], other))
        plugin.prepare(on_lost, on_other)
        fault(host, f"lost GPU-{devices[lost][4:]}")
        wait_until(lambda: host.devices() == [other], "slice without the lost GPU")
        more = host.add(result(other), name="more")
        answers = plugin.prepare(on_lost, on_other, more)
        assert "does not have now" in answers.pop(on_lost["metadata"]["uid"]).error
        assert not any(each.error for each in answers.values())
        fault(host, f"xid GPU-{other[4:]} 79")  # is noticed all the same
        wait_until(lambda: host.devices() == [], "slice without any GPU")
    assert host.log.read_text().count(f"warning: GPU {lost} cannot be used: GPU is lost") == 1
    with host.running(), host.kubelet.plugin(DRIVER) as plugin:  # a start of the plugin while it is lost
        assert host.devices() == [other]
        assert not plugin.prepare(on_other)[on_other["metadata"]["uid"]].error
        assert plugin.unprepare(on_lost) == {on_lost["metadata"]["uid"]: ""}
        fault(host, f"back GPU-{devices[lost][4:]}")
        wait_until(lambda: host.devices() == devices, "slice with both GPUs")


def told(updates: Iterator[dict[str, tuple[str, str]]], expected: dict[str, tuple[str, str]]) -> None:
    """Until kubelet is told that; the same may be said more than once. It waits a minute in all."""
    assert any(seen == expected for seen in updates)


@pytest.mark.parametrize("service", HEALTH)
def test_kubelet_is_told_of_faults(host: PluginHost, service: str) -> None:
    with host.running() as process, host.kubelet.plugin(DRIVER) as plugin, plugin.health(service) as updates:
        faulty, sound = host.devices()
        told(updates, {faulty: ("HEALTHY", ""), sound: ("HEALTHY", "")})
        # 13 is a program's own mistake, 79 a GPU that has fallen off the bus.
        fault(host, f"xid GPU-{sound[4:]} 13\nxid GPU-{faulty[4:]} 79")
        unhealthy = {faulty: ("UNHEALTHY", "the driver has reported XID 79"), sound: ("HEALTHY", "")}
        told(updates, unhealthy)
        wait_until(lambda: host.devices() == [sound], "slice without the faulty GPU")
        fault(host, f"lost GPU-{sound[4:]}")
        told(updates, unhealthy | {sound: ("UNHEALTHY", "the driver does not list it any more")})
        fault(host, f"back GPU-{sound[4:]}")
        told(updates, unhealthy)
        fault(host, f"xid GPU-{sound[4:]} 48")  # it is watched again
        told(updates, unhealthy | {sound: ("UNHEALTHY", "the driver has reported XID 48")})
        process.terminate()
        assert process.wait(timeout=60) == 0  # though kubelet still listens


def test_a_second_plugin_waits_for_the_first(host: PluginHost) -> None:
    with host.running() as first:
        made = host.add(result(host.devices()[0]))
        with host.running() as second:
            wait_until(lambda: "this one waits for it to end" in host.log.read_text(), "second plugin")
            with host.kubelet.plugin(DRIVER) as plugin:
                assert plugin.prepare(made)[made["metadata"]["uid"]].devices
            first.terminate()
            assert first.wait(timeout=60) == 0
            wait_until(host.kubelet.registered, "registration of the second plugin")
            with host.kubelet.plugin(DRIVER) as plugin:
                assert plugin.unprepare(made) == {made["metadata"]["uid"]: ""}
            assert second.poll() is None


def test_probes_tell_whether_it_is_registered_and_published(host: PluginHost) -> None:
    def status(path: str) -> int:
        try:
            return int(urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10).status)
        except urllib.error.HTTPError as error:
            return error.code

    port = free_port()
    with host.running("--health-port", str(port), "--interval", "30"):
        assert status("/healthz") == 200
        assert status("/readyz") == 503
        host.kubelet.registered()
        wait_until(lambda: status("/readyz") == 200, "readiness", 5)
        assert status("/") == 404
        with host.server.lock:
            del host.server.nodes["node-a"]
        host.server.delete_slices("node-a")
        wait_until(lambda: status("/readyz") == 503, "trouble")
        assert status("/healthz") == 200
    assert "no node 'node-a'" in host.log.read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="no engine is told to run what others than root can change")
def test_a_claim_that_works_at_the_same_time_has_pipes_and_a_hook_and_leaves_nothing(host: PluginHost) -> None:
    with host.running(), host.kubelet.plugin(DRIVER) as plugin:
        device, _ = host.devices()
        made = host.add(result(device, "2Gi", "30"), together=True)
        uid = made["metadata"]["uid"]
        for _ in range(2):
            assert not plugin.prepare(made)[uid].error
        limits = read_limits(host.claims / uid / "etc/limits")
        assert limits and limits[0][1].together
        edits = json.loads((host.cdi / f"vgpurun.io-claim-{uid}.json").read_text())["containerEdits"]
        (hook,) = edits["hooks"]
        assert hook["args"][-3:-1] == ["vgpurun.kubernetes.dra.together", str(host.claims / uid)]
        assert "CUDA_MPS_PIPE_DIRECTORY=/.vgpurun/mps" in edits["env"]
        (pipes,) = (each["hostPath"] for each in edits["mounts"] if each["containerPath"] == "/.vgpurun/mps")
        assert Path(pipes).is_dir() and Path(pipes).is_relative_to(host.folder / "state/together")
        assert plugin.unprepare(made, made) == {uid: ""}
        assert not Path(pipes).parent.exists() and list(host.cdi.iterdir()) == []


def test_no_claim_works_at_the_same_time_where_the_plugin_runs_in_a_pod(
    host: PluginHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine would run the hook on the node, where another program may have its path, or none."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    with host.running(), host.kubelet.plugin(DRIVER) as plugin:
        device, _ = host.devices()
        made = host.add(result(device), together=True)
        error = plugin.prepare(made)[made["metadata"]["uid"]].error
        assert "lab/share has together, which this node cannot give: engines run hooks on the node itself" in error
        assert list(host.cdi.iterdir()) == [] and not list(host.claims.glob("[!.]*"))
