"""The device plugin and a kubelet, on a node with two simulated GPUs of 8 GiB."""

from __future__ import annotations

import random
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from kubelet_double import Kubelet, RefusedError
from node_names import COMPUTE, MEMORY, UUIDS
from vgpurun import abi
from vgpurun.kubernetes import rpc
from vgpurun.kubernetes.proto import deviceplugin_pb2 as api
from vgpurun.limits import limits_file, usage_file

GIB = 1 << 30


def gpus_of(kubelet: Kubelet, pod: str, container: str = "c") -> set[str]:
    """The GPUs whose units a container has, of both resources."""
    given = kubelet.containers[pod, container].values()
    return {each.rpartition("_")[0] for resource in given for each in resource.ids}


def started(kubelet: Kubelet, pod: str, container: str = "c") -> list[tuple[str, usage_file.Quota]]:
    """Start a container, and read the limits that it then has."""
    for answer in kubelet.start_container(pod, container):
        for mount in answer.mounts:
            if mount.container_path == "/.vgpurun/etc":
                limits = limits_file.read_limits(Path(mount.host_path) / "limits")
                assert limits is not None
                return limits
    return []


def running_node(node, *options: str) -> Kubelet:
    node.start_plugin(*options)
    node.kubelet.wait_for_resources(MEMORY, COMPUTE)
    return node.kubelet


def test_it_offers_what_the_gpus_have(node) -> None:
    kubelet = running_node(node)
    assert len(kubelet.plugins[MEMORY].healthy) == 16
    assert len(kubelet.plugins[COMPUTE].healthy) == 200
    assert all(len(name) <= 63 for plugin in kubelet.plugins.values() for name in plugin.devices)
    assert kubelet.plugins[MEMORY].options.pre_start_required
    for socket in node.kubelet.folder.glob("*.sock"):
        assert socket.stat().st_mode & 0o077 == 0


def test_a_container_has_its_limits_once_it_starts(node) -> None:
    kubelet = running_node(node)
    kubelet.admit("pod", {"c": {MEMORY: 2, COMPUTE: 50}})
    (uuid,) = gpus_of(kubelet, "pod")
    answers = {name: given.answer for name, given in kubelet.containers["pod", "c"].items()}
    assert answers[MEMORY].envs["CUDA_DEVICE_MEMORY_LIMIT_0"] == str(2 * GIB)
    assert answers[MEMORY].envs["NVIDIA_GPU_MEMORY_LIMIT"] == "2048"  # by which the node's driver holds it too
    assert answers[MEMORY].envs["CUDA_DEVICE_MEMORY_SHARED_CACHE"] == "/.vgpurun/run/usage"
    assert dict(answers[COMPUTE].envs) == {"CUDA_DEVICE_SM_LIMIT_0": "50"}
    read_only = {mount.container_path: mount.read_only for mount in answers[MEMORY].mounts}
    assert read_only["/.vgpurun/libvgpu.so"] and read_only["/.vgpurun/etc"] and read_only["/etc/ld.so.preload"]
    assert not read_only["/.vgpurun/run/usage"] and not read_only["/.vgpurun/run/presence"]
    assert read_only["/.vgpurun/tenants"]
    assert all(Path(mount.host_path).exists() for mount in answers[MEMORY].mounts)
    (before,) = limits_file.read_limits(next((node.state / "kubernetes").glob("*/etc/limits")))
    assert before[1].paused  # until it is known what the container has, it does nothing on the GPU
    ((limited, quota),) = started(kubelet, "pod")
    assert (limited, quota.memory_bytes, quota.sm_percent, quota.paused) == (uuid, 2 * GIB, 50, False)


def test_a_container_starts_again_where_somebody_has_emptied_the_folder_of_tenants(node) -> None:
    kubelet = running_node(node)
    kubelet.admit("pod", {"c": {MEMORY: 2, COMPUTE: 50}})
    mounts = kubelet.containers["pod", "c"][MEMORY].answer.mounts
    (turns,) = (Path(mount.host_path) for mount in mounts if mount.container_path == "/.vgpurun/run/presence")
    shutil.rmtree(turns.parent)
    started(kubelet, "pod")
    assert turns.stat().st_size == abi.PRESENCE_BYTES
    ((_, quota),) = limits_file.read_limits(turns.with_name("limits")) or []
    assert (quota.sm_percent, quota.paused) == (50, False)


def test_memory_alone_is_no_limit_of_compute(node) -> None:
    kubelet = running_node(node)
    kubelet.admit("pod", {"c": {MEMORY: 3}})
    ((_, quota),) = started(kubelet, "pod")
    assert (quota.memory_bytes, quota.sm_percent) == (3 * GIB, None)


def test_compute_alone_never_starts(node) -> None:
    kubelet = running_node(node)
    kubelet.admit("pod", {"c": {COMPUTE: 30}})
    with pytest.raises(RefusedError, match=r"compute alone, which gives it no GPU; ask for alnair/vgpu-memory too"):
        kubelet.start_container("pod", "c")


def test_what_fits_on_no_single_gpu_is_refused_at_admission(node) -> None:
    kubelet = running_node(node)
    for pod in ("first", "second"):
        kubelet.admit(pod, {"c": {MEMORY: 5}})
    with pytest.raises(RefusedError, match=r"4 of .* are on no single GPU; the most that one has left is 3"):
        kubelet.admit("third", {"c": {MEMORY: 4}})
    kubelet.admit("fourth", {"c": {MEMORY: 3}})


def test_the_rest_of_a_container_follows_its_first_part_or_fails_early(node) -> None:
    kubelet = running_node(node)
    kubelet.admit("a", {"c": {MEMORY: 2, COMPUTE: 70}})
    kubelet.admit("b", {"c": {MEMORY: 2, COMPUTE: 70}})
    assert gpus_of(kubelet, "a").isdisjoint(gpus_of(kubelet, "b"))
    with pytest.raises(RefusedError, match=r"40 of alnair/vgpu-compute are (on no single GPU|not left on GPU)"):
        kubelet.admit("c", {"c": {MEMORY: 1, COMPUTE: 40}})


@pytest.mark.parametrize("first", [MEMORY, COMPUTE])
def test_the_rest_of_a_container_is_where_its_first_part_is(node, first: str) -> None:
    kubelet = running_node(node)
    second = COMPUTE if first == MEMORY else MEMORY
    for turn, uuid in enumerate(UUIDS[::-1] * 2):  # by what is left it would be the other one
        kubelet.give(f"pod{turn}", first, [f"{uuid}_{turn}"])
        kubelet.admit(f"pod{turn}", {"c": {second: 1}})
        assert gpus_of(kubelet, f"pod{turn}") == {uuid}
        started(kubelet, f"pod{turn}")
    kubelet.give("torn", first, [f"{UUIDS[0]}_7"])
    with pytest.raises(RefusedError, match=f"of GPU {UUIDS[1]}, but the rest of this container is on GPU {UUIDS[0]}"):
        kubelet.give("torn", second, [f"{UUIDS[1]}_7"])


def test_a_pod_that_is_made_again_is_placed_where_both_are_left(node) -> None:
    """Much memory is left on the one GPU and much compute on the other; only the refusal tells what is asked for."""
    kubelet = running_node(node)
    a, b = UUIDS
    for pod, uuid, memory, compute in (("a", a, 7, 20), ("b", b, 2, 80)):
        kubelet.give(pod, MEMORY, [f"{uuid}_{number}" for number in range(memory)])
        kubelet.give(pod, COMPUTE, [f"{uuid}_{number}" for number in range(compute)])
        kubelet.write_record()
    refusals = 0
    for turn in range(6):  # in either order
        try:
            kubelet.admit(f"pod{turn}", {"c": {MEMORY: 1, COMPUTE: 50}})
        except RefusedError:
            refusals += 1
        else:
            assert gpus_of(kubelet, f"pod{turn}") == {a}
            started(kubelet, f"pod{turn}")
            kubelet.evict(f"pod{turn}")
            kubelet.admit("other", {"c": {MEMORY: 6}})  # of another kind, in between
            kubelet.evict("other")
    assert refusals <= 1


@pytest.mark.parametrize("first", [MEMORY, COMPUTE])
def test_a_container_with_one_of_the_two_does_not_draw_the_next_one_to_its_gpu(node, first: str) -> None:
    """Kubelet's record tells them apart: what a container has is in it before the next one is asked for."""
    kubelet = running_node(node)
    second = COMPUTE if first == MEMORY else MEMORY
    for uuid, other in (UUIDS, UUIDS[::-1]):
        kubelet.give(f"alone{uuid}", first, [f"{uuid}_0"])
        kubelet.write_record()
        kubelet.give(f"next{uuid}", second, [f"{other}_0"])
        kubelet.write_record()


def test_containers_of_one_pod_and_init_containers(node) -> None:
    kubelet = running_node(node)
    kubelet.admit("pod", {"one": {MEMORY: 1, COMPUTE: 10}, "two": {MEMORY: 2, COMPUTE: 20}})
    # The application's container gets the units of an init container, as kubelet does it.
    kubelet.containers["pod", "application"] = dict(kubelet.containers["pod", "two"])
    kubelet.containers["pod", "two"].pop(COMPUTE)
    kubelet.write_record()
    for name, percent in (("one", 10), ("two", 20), ("application", 20)):
        ((_, quota),) = started(kubelet, "pod", name)
        assert quota.sm_percent == percent


def test_memory_and_compute_are_on_one_gpu_whatever_happens(node) -> None:
    """Admissions interleaved at random, which a kubelet does not do, also by one that asks for no preference.

    Whatever of it starts has one GPU, and no GPU is reserved twice.
    """
    kubelet = running_node(node)
    started_pods = [interleave(kubelet, seed) for seed in range(8)]
    assert sum(started_pods) > 20


def interleave(kubelet: Kubelet, seed: int) -> int:
    """Many pods at once on an empty node. Returns how many of them have started."""
    chance = random.Random(seed)
    kubelet.random = random.Random(seed)
    kubelet.asks_preference = seed % 3 != 2
    running: dict[str, dict[str, int]] = {}
    count = 0
    wanted = {f"pod{seed}-{i}": {MEMORY: chance.randint(1, 3), COMPUTE: chance.randint(5, 40)} for i in range(24)}
    admissions = {pod: kubelet.admission(pod, {"c": resources}) for pod, resources in wanted.items()}
    while admissions:
        pod = chance.choice(sorted(admissions))
        try:
            admissions[pod].pop(0)()
        except RefusedError:
            admissions[pod].clear()
        if pod in admissions and not admissions[pod]:
            del admissions[pod]
    for pod in wanted:
        if (pod, "c") not in kubelet.containers or len(kubelet.containers[pod, "c"]) < 2:
            continue
        try:
            ((uuid, quota),) = started(kubelet, pod)
        except RefusedError as error:
            assert "on different GPUs" in str(error)  # noqa: PT017
            continue
        assert gpus_of(kubelet, pod) == {uuid}
        assert (quota.memory_bytes, quota.sm_percent) == (wanted[pod][MEMORY] * GIB, wanted[pod][COMPUTE])
        count += 1
        running.setdefault(uuid, {MEMORY: 0, COMPUTE: 0})
        for resource in (MEMORY, COMPUTE):
            running[uuid][resource] += wanted[pod][resource]
    assert all(sums[MEMORY] <= 8 and sums[COMPUTE] <= 100 for sums in running.values())
    for pod in wanted:
        kubelet.evict(pod)
    return count


def test_pods_one_after_the_other_are_all_admitted_while_there_is_room(node) -> None:
    """Kubelet heeds the preferred units: then steering is enough, and nothing is refused at a container's start."""
    kubelet = running_node(node)
    for i in range(16):
        kubelet.admit(f"pod{i}", {"c": {MEMORY: 1, COMPUTE: 12}})
        assert len(gpus_of(kubelet, f"pod{i}")) == 1
        started(kubelet, f"pod{i}")


def test_a_hundred_allocations_at_once(node) -> None:
    node.configure("devices:\n" + "".join(f"  - memory_mib: 25600\n    name: G{i}\n" for i in range(4)))
    kubelet = running_node(node)
    units = sorted(kubelet.plugins[MEMORY].healthy)
    assert len(units) == 100
    with ThreadPoolExecutor(100) as pool:
        answers = list(pool.map(lambda unit: kubelet.allocate(MEMORY, [unit]), units))
    folders = {mount.host_path for each in answers for mount in each.mounts if mount.container_path == "/.vgpurun/etc"}
    assert len(folders) == 100
    for unit, answer in zip(units, answers, strict=True):
        (etc,) = (Path(mount.host_path) for mount in answer.mounts if mount.container_path == "/.vgpurun/etc")
        ((uuid, quota),) = limits_file.read_limits(etc / "limits") or []
        assert unit.startswith(uuid) and quota.memory_bytes == GIB


def test_kubelet_restarts(node) -> None:
    kubelet = running_node(node)
    kubelet.admit("pod", {"c": {MEMORY: 2, COMPUTE: 50}})
    for cleans_up in (True, False, True):
        kubelet.restart(cleans_up)
        kubelet.wait_for_resources(MEMORY, COMPUTE)
        assert sorted(kubelet.registrations) == [COMPUTE, MEMORY]
    started(kubelet, "pod")
    kubelet.admit("next", {"c": {MEMORY: 2, COMPUTE: 50}})
    started(kubelet, "next")


def test_a_plugin_is_killed_and_nothing_is_reserved_twice(node) -> None:
    """Also in the middle of an admission: the next plugin knows all from kubelet's record and the state folders."""
    kubelet = running_node(node)
    kubelet.admit("old", {"c": {MEMORY: 6, COMPUTE: 60}})
    limits = started(kubelet, "old")
    steps = kubelet.admission("cut", {"c": {MEMORY: 2, COMPUTE: 50}})
    steps.pop(0)()
    node.stop_plugins(signal.SIGKILL)
    kubelet.wait_for(lambda: not any(plugin.is_connected for plugin in kubelet.plugins.values()), "lost plugin")
    running_node(node)
    cut_off = None
    try:
        for step in steps:
            step()
        started(kubelet, "cut")
    except RefusedError as error:
        cut_off = str(error)
    assert cut_off is None or "different GPUs" in cut_off or "not left" in cut_off
    assert started(kubelet, "old") == limits  # its container starts again, as it was
    kubelet.evict("cut")
    kubelet.admit("new", {"c": {MEMORY: 6, COMPUTE: 60}})
    assert gpus_of(kubelet, "new").isdisjoint(gpus_of(kubelet, "old"))
    with pytest.raises(RefusedError):
        kubelet.admit("more", {"c": {MEMORY: 3, COMPUTE: 10}})
    kubelet.evict("old")
    kubelet.admit("more", {"c": {MEMORY: 6, COMPUTE: 60}})
    started(kubelet, "more")


def test_a_second_plugin_waits_for_the_first(node) -> None:
    kubelet = running_node(node)
    node.start_plugin()
    node.wait_for_log("this one waits for it to end")
    kubelet.admit("pod", {"c": {MEMORY: 1, COMPUTE: 5}})
    first, second = node.plugins
    first.send_signal(signal.SIGTERM)
    assert first.wait(30) == 0
    kubelet.wait_for(lambda: len(kubelet.registrations) >= 4, "registration of the second plugin")
    kubelet.wait_for_resources(MEMORY, COMPUTE)
    started(kubelet, "pod")
    assert second.poll() is None


HOSTILE = [
    [],
    [""],
    ["_0"],
    ["{a}_8"],
    ["{a}_-1"],
    ["{a}_00"],
    ["{a}_٣"],
    ["{a}_" + "9" * 5000],
    ["{a}"],
    ["{a}_0", "{a}_0"],
    ["{a}_0", "{b}_0"],
    ["../../../etc/passwd_0"],
    ["GPU-ffffffff-0000-0000-0000-000000000000_0"],
    ["{a}_0\x00"],
]


def test_units_that_are_none_are_refused(node) -> None:
    kubelet = running_node(node)
    a, b = sorted({unit.rpartition("_")[0] for unit in kubelet.plugins[MEMORY].devices})
    for ids in HOSTILE:
        named = [each.replace("{a}", a).replace("{b}", b) for each in ids]
        with pytest.raises(RefusedError) as refused:
            kubelet.allocate(MEMORY, named)
        assert str(refused.value).startswith("vgpurun: ") and len(str(refused.value)) < 300
        with pytest.raises(grpc.RpcError):
            kubelet.plugins[MEMORY].stub.pre_start_container(api.PreStartContainerRequest(devices_ids=named))
    assert not list((node.state / "kubernetes").glob("units-*"))
    kubelet.allocate(MEMORY, [f"{a}_0"])


def test_requests_that_are_none_are_refused(node) -> None:
    kubelet = running_node(node)
    stub = kubelet.plugins[MEMORY].stub
    with pytest.raises(grpc.RpcError, match="no container asks for"):
        stub.allocate(api.AllocateRequest())
    for available, wanted, count in (([], [], 1), ([], [], 0), ([], [], -1), (["x_0"], [], 1), ([], ["x_0"], 1)):
        one = api.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=wanted, allocation_size=count
        )
        with pytest.raises(grpc.RpcError):
            stub.get_preferred_allocation(api.PreferredAllocationRequest(container_requests=[one]))
    path = node.kubelet.folder / kubelet.plugins[MEMORY].request.endpoint
    with grpc.insecure_channel(f"unix:{path}") as channel:
        for method in ("Allocate", "PreStartContainer", "NoSuchMethod"):
            call = channel.unary_unary(f"/v1beta1.DevicePlugin/{method}")  # raw bytes
            with pytest.raises(grpc.RpcError):
                call(b"\xff" * 100, timeout=10)
    kubelet.admit("pod", {"c": {MEMORY: 1, COMPUTE: 1}})
    started(kubelet, "pod")


def test_a_record_that_cannot_be_read_starts_nothing(node) -> None:
    kubelet = running_node(node)
    kubelet.admit("pod", {"c": {MEMORY: 1, COMPUTE: 1}})
    path = kubelet.folder / "kubelet_internal_checkpoint"
    good = path.read_text()
    for record in ("", "{", "[]", '{"Data": {"PodDeviceEntries": [{}]}}', '{"Data": 3}', "[" * 100000):
        path.write_text(record)
        with pytest.raises(RefusedError, match="kubelet's record"):
            kubelet.start_container("pod", "c")
    path.write_text(good)
    started(kubelet, "pod")


def test_a_state_folder_that_is_damaged_is_made_again(node) -> None:
    kubelet = running_node(node)
    kubelet.admit("pod", {"c": {MEMORY: 2, COMPUTE: 30}})
    before = started(kubelet, "pod")
    (folder,) = (node.state / "kubernetes").glob("units-*")
    for path in (folder / "etc/limits", folder / "owner"):
        for damage in (path.unlink, lambda path=path: path.write_bytes(b"")):
            damage()
            assert started(kubelet, "pod") == before


def test_the_sockets_come_back_when_they_are_removed(node) -> None:
    kubelet = running_node(node)
    (kubelet.folder / kubelet.plugins[MEMORY].request.endpoint).unlink()
    kubelet.wait_for(lambda: len(kubelet.registrations) >= 4, "new registration")
    kubelet.wait_for_resources(MEMORY, COMPUTE)
    kubelet.admit("pod", {"c": {MEMORY: 1, COMPUTE: 1}})


def test_rpc_refuses_a_path_that_no_socket_can_have(tmp_path: Path) -> None:
    with pytest.raises(rpc.KubernetesError, match="too long for a socket"):
        rpc.Server(tmp_path / ("x" * 108))
