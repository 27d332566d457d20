"""Slices, the administrator's choices, and units that are not as free as kubelet takes them to be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from cuda_driver import Driver
from kubelet_double import RefusedError
from node_names import COMPUTE, MEMORY
from support import CHECKOUT, LIBRARY
from support.programs import text_of
from vgpurun import abi
from vgpurun.host import gpus
from vgpurun.host.gpus import Gpu
from vgpurun.limits import limits_file, usage_file

GIB = 1 << 30
SMALL, LARGE = "vgpurun.io/slice-small", "vgpurun.io/slice-large"
OFFER = """
slices:
  small: {mem: 1g, sm: 10, count: 2}
  large: {mem: 3g, sm: 40, gpus: [1]}
"""


def state_folder(kubelet, pod: str) -> Path:
    """Return the folder with the files of a pod's container."""
    (etc,) = {
        mount.host_path
        for given in kubelet.containers[pod, "c"].values()
        for mount in given.answer.mounts
        if mount.container_path == "/.vgpurun/etc"
    }
    return Path(etc).parent


def limits_of(kubelet, pod: str) -> list[tuple[str, usage_file.Quota]]:
    return limits_file.read_limits(state_folder(kubelet, pod) / "etc/limits") or []


@pytest.fixture
def kubelet(node):
    (node.folder / "offer.yaml").write_text(OFFER)
    node.start_plugin("--config", str(node.folder / "offer.yaml"))
    node.kubelet.wait_for_resources(MEMORY, COMPUTE, SMALL, LARGE)
    return node.kubelet


def test_slices_are_fixed_shapes_of_one_gpu_each(kubelet) -> None:
    assert [len(kubelet.plugins[name].healthy) for name in (MEMORY, COMPUTE, SMALL, LARGE)] == [9, 120, 4, 1]
    kubelet.admit("one", {"c": {LARGE: 1}})
    kubelet.start_container("one", "c")
    ((_, quota),) = limits_of(kubelet, "one")
    assert (quota.memory_bytes, quota.sm_percent, quota.paused) == (3 * GIB, 40, False)
    kubelet.admit("two", {"c": {SMALL: 2}})
    kubelet.start_container("two", "c")
    limits = limits_of(kubelet, "two")
    assert len({uuid for uuid, _ in limits}) == 2
    assert all((quota.memory_bytes, quota.sm_percent) == (GIB, 10) for _, quota in limits)
    with pytest.raises(RefusedError, match=r"3 of vgpurun.io/slice-small|3 of .* asked for, 2 free"):
        kubelet.admit("three", {"c": {SMALL: 3}})


def test_a_pod_is_placed_where_slices_leave_enough_of_both(node) -> None:
    (node.folder / "offer.yaml").write_text(OFFER.replace("gpus: [1]", "gpus: [0]"))
    node.start_plugin("--config", str(node.folder / "offer.yaml"))
    node.kubelet.wait_for_resources(MEMORY, COMPUTE, SMALL, LARGE)
    for turn in range(4):  # in either order
        node.kubelet.admit(f"pod{turn}", {"c": {MEMORY: 1, COMPUTE: 50}})
        node.kubelet.start_container(f"pod{turn}", "c")
        node.kubelet.evict(f"pod{turn}")
        node.kubelet.admit(f"next{turn}", {"c": {SMALL: 1}})  # only then the record forgets that pod
        node.kubelet.evict(f"next{turn}")


@pytest.mark.parametrize("others", [{MEMORY: 1}, {COMPUTE: 5}, {MEMORY: 1, COMPUTE: 5}, {LARGE: 1}])
def test_a_container_with_a_slice_has_nothing_besides(kubelet, others: dict[str, int]) -> None:
    kubelet.admit("pod", {"c": {SMALL: 1, **others}})
    with pytest.raises(RefusedError, match="a container with a slice has nothing besides"):
        kubelet.start_container("pod", "c")
    assert all(quota.paused for _, quota in limits_of_all(kubelet))


def limits_of_all(kubelet) -> list[tuple[str, usage_file.Quota]]:
    folders = (kubelet.folder.parent / "state/kubernetes").glob("units-*")
    return [each for folder in folders for each in limits_file.read_limits(folder / "etc/limits") or []]


def test_the_example_pod_runs_as_it_is(node) -> None:
    node.start_plugin()
    node.kubelet.wait_for_resources(MEMORY, COMPUTE)
    pod = yaml.safe_load((CHECKOUT / "examples/kubernetes/pods/alnair.yaml").read_text())
    (container,) = pod["spec"]["containers"]
    node.kubelet.admit("example", {"c": container["resources"]["limits"]})
    node.kubelet.start_container("example", "c")
    ((_, quota),) = limits_of(node.kubelet, "example")
    assert (quota.memory_bytes, quota.sm_percent) == (2 * GIB, 50)


@pytest.mark.parametrize("options", [(), ("--allow-disable-control",)])
def test_only_the_administrator_lets_programs_lift_their_limits(node, options: tuple[str, ...]) -> None:
    node.start_plugin(*options)
    node.kubelet.wait_for_resources(MEMORY, COMPUTE)
    node.kubelet.admit("pod", {"c": {MEMORY: 1}})
    for _ in range(2):
        content = (state_folder(node.kubelet, "pod") / "etc/limits").read_bytes()
        assert abi.Limits.from_buffer_copy(content).may_disable == bool(options)
        node.kubelet.start_container("pod", "c")


def hold() -> None:
    driver = Driver.started()
    driver.mem_alloc(1 << 20)
    print("holding", flush=True)
    input()


def test_units_that_a_process_uses_are_not_given_again(node) -> None:
    """Kubelet has lost its record while a container runs: for kubelet all units are free."""
    node.start_plugin()
    kubelet = node.kubelet
    kubelet.wait_for_resources(MEMORY, COMPUTE)
    kubelet.admit("old", {"c": {MEMORY: 2}})
    kubelet.start_container("old", "c")
    units, folder = kubelet.containers["old", "c"][MEMORY].ids, state_folder(kubelet, "old")
    simulated = LIBRARY.parent / "sim"
    environment = node.environment | {
        "LD_LIBRARY_PATH": str(simulated),
        "LD_PRELOAD": str(LIBRARY),
        "PYTHONPATH": str(CHECKOUT / "tests"),
        "CUDA_VISIBLE_DEVICES": next(iter(units)).rpartition("_")[0],
        "VGPURUN_LIMITS_FILE": str(folder / "etc/limits"),
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(folder / "run/usage"),
    }
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", text_of(hold)], env=environment, **pipes) as process:
        assert process.stdout.readline() == "holding\n"
        kubelet.containers.clear()
        with pytest.raises(RefusedError, match="a process still uses alnair/vgpu-memory that kubelet takes for free"):
            kubelet.allocate(MEMORY, units)
        assert folder.exists()
        process.communicate("\n")
    kubelet.allocate(MEMORY, units)


def test_where_a_gpu_is(tmp_path: Path) -> None:
    gpu = Gpu(0, "GPU-0", "A GPU", GIB, 0, "00000000:81:00.0")
    assert gpus.numa_node(gpu, tmp_path) is None
    (tmp_path / "0000:81:00.0").mkdir()
    for text, node in (("1\n", 1), ("-1\n", None), ("x", None)):
        (tmp_path / "0000:81:00.0/numa_node").write_text(text)
        assert gpus.numa_node(gpu, tmp_path) == node


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--config", "/nowhere/config"], "No such file"),
        (["--driver", "cdi"], "CDI"),
        (["--driver", "other"], "other"),
    ],
)
def test_what_is_wrong_is_one_line(node, arguments: list[str], said: str) -> None:
    # An instance: this host may have a CDI specification with a GPU 0, which a real one or another test brings.
    instance = "MIG-5c1e0000-1111-0000-0000-000000000000"
    node.configure(f"devices:\n  - uuid: {instance}\n    mig_gpu: 16\n    memory_mib: 8192\n")
    environment = node.environment | {"LD_LIBRARY_PATH": str(LIBRARY.parent / "sim")}
    command = [sys.executable, "-m", "vgpurun", "device-plugin", "--kubelet-dir", str(node.kubelet.folder), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 125
    assert said in done.stderr and len(done.stderr.strip().splitlines()) == 1
    assert not os.path.exists(node.kubelet.folder / "vgpurun-alnair-vgpu-memory.sock")
