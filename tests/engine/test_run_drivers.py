"""How the GPU's nodes and the driver's files come into a container.

The simulated driver stands in for the host's own here: NVML on this machine answers from it, and a container that gets
the same files through CDI, through NVIDIA's runtime or through mounts runs a GPU program under limits.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

import images
from cli import GPU_PROGRAM, WITH_PROGRAMS, Cli, clean_environment
from private_engine import private_engine
from support import LIBRARY
from support.programs import text_of

SIMULATED_DRIVER = LIBRARY.parent / "sim"
GIB = 1 << 30
HAS_DRIVER = Path("/dev/nvidiactl").exists()
NODES = ("nvidia0", "nvidiactl", "nvidia-uvm")


def print_where_the_driver_is() -> None:
    """Print the files that were loaded, and whether any of them can be written."""
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        ctypes.CDLL(name)
    with open("/proc/self/maps") as file:
        paths = sorted(set(re.findall("/[^ ]*/lib(?:cuda|nvidia-ml)[.]so.*", file.read())))
    print(*paths, any(os.access(path, os.W_OK) for path in paths))


@pytest.fixture
def with_host_driver(vgpurun: Cli) -> Cli:
    """The command line on a host whose NVIDIA driver is the simulated one."""
    if HAS_DRIVER:
        pytest.skip("this machine has an NVIDIA driver of its own")
    vgpurun.environment["LD_LIBRARY_PATH"] = str(SIMULATED_DRIVER)
    return vgpurun


@pytest.fixture
def nodes() -> Iterator[None]:
    """Device nodes with the names of a GPU's, that lead to /dev/null."""
    if os.geteuid() != 0:
        pytest.skip("only root can make device nodes")
    if HAS_DRIVER:
        pytest.skip("this machine has nodes of its own")
    made = [Path("/dev", name) for name in NODES]
    for node in made:
        os.mknod(node, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    yield
    for node in made:
        node.unlink()


def test_no_gpu_on_this_machine_is_said_in_one_line(vgpurun: Cli, debian: str) -> None:
    if HAS_DRIVER:
        pytest.skip("this machine has a GPU")
    for driver in ("auto", "mount", "toolkit", "cdi"):
        vgpurun("run", "--driver", driver, "--mem", "1g", debian, "true").assert_refused("sim")
    vgpurun.assert_nothing_left()


class TestSim:
    def test_the_driver_is_mounted_read_only(self, vgpurun: Cli, debian: str) -> None:
        command = ("env", "-i", "/usr/bin/python3", "-c", text_of(print_where_the_driver_is))
        for given in ((), ("--mem", "1g"), ("--mem", "1g", "-v", "/usr/lib/x86_64-linux-gnu")):
            found = vgpurun.run(*given, debian, *command)
            libcuda, nvml, is_writable = found.stdout.split()
            assert (Path(libcuda).name, Path(nvml).name, is_writable) == ("libcuda.so.1", "libnvidia-ml.so.1", "False")

    def test_there_are_no_device_nodes(self, vgpurun: Cli, debian: str) -> None:
        assert vgpurun.run("--mem", "1g", debian, "sh", "-c", "ls /dev | grep nvidia").stdout == ""

    @pytest.mark.parametrize("prefix", [(), ("env", "-i")], ids=["as it is", "env -i"])
    def test_only_the_chosen_gpu_is_there(
        self, vgpurun: Cli, debian: str, tmp_path: Path, prefix: tuple[str, ...]
    ) -> None:
        config = tmp_path / "two.yaml"
        config.write_text("devices:\n  - name: First\n  - name: Second\n    memory_mib: 4096\n")
        vgpurun.environment["VGPUSIM_CONFIG"] = str(config)
        options = ("--gpus", "device=1", "--mem", "1g", *WITH_PROGRAMS)
        seen = vgpurun.run(*options, debian, *prefix, *GPU_PROGRAM, "info").json()
        assert [device["total"] for device in seen["devices"]] == [GIB]
        listed = vgpurun.run(*options, debian, *prefix, "nvidia-smi", "-L").stdout
        assert len(listed.splitlines()) == 1
        assert "GPU 0: Second" in listed


class TestMount:
    @pytest.mark.usefixtures("nodes")
    def test_a_container_gets_the_hosts_driver_and_nodes(self, with_host_driver: Cli, debian: str) -> None:
        options = ("run", "--rm", "--driver", "mount", "--gpus", "1", "--mem", "1g", *WITH_PROGRAMS)
        seen = with_host_driver(*options, debian, *GPU_PROGRAM, "info").json()
        assert [device["total"] for device in seen["devices"]] == [GIB]
        opened = "for node in /dev/nvidia*; do : <$node && echo $node; done"
        assert with_host_driver(*options, debian, "sh", "-c", opened).stdout.split() == [
            "/dev/nvidia-uvm",
            "/dev/nvidia0",
            "/dev/nvidiactl",
        ]

    @pytest.mark.usefixtures("nodes")
    def test_auto_mounts_where_the_engine_injects_nothing(self, with_host_driver: Cli, debian: str) -> None:
        result = with_host_driver("run", "--rm", "--gpus", "1", debian, "sh", "-c", "ls /dev/nvidiactl")
        assert (result.exit_code, result.stdout) == (0, "/dev/nvidiactl\n")

    def test_a_missing_node_is_refused(self, with_host_driver: Cli, debian: str) -> None:
        result = with_host_driver("run", "--driver", "mount", debian, "true")
        result.assert_refused("/dev/nvidia0", "nvidia-modprobe")
        with_host_driver.assert_nothing_left()


class TestCdi:
    @pytest.fixture
    def specification(self) -> Iterator[None]:
        """A CDI specification as NVIDIA's tool writes them, with the simulated driver's files."""
        if os.geteuid() != 0:
            pytest.skip("only root can write a CDI specification")
        mounts = [
            {"hostPath": str((SIMULATED_DRIVER / name).resolve()), "containerPath": f"/usr/lib/x86_64-linux-gnu/{name}"}
            for name in ("libcuda.so.1", "libnvidia-ml.so.1")
        ]
        edits = {"env": ["FROM_CDI=0"], "mounts": [mount | {"options": ["ro", "bind"]} for mount in mounts]}
        devices = [{"name": "0", "containerEdits": edits}]
        # The file lies where every engine looks, as NVIDIA's files do.
        path = Path("/var/run/cdi/vgpurun-test.json")
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices}))
        yield
        path.unlink()

    @pytest.mark.usefixtures("specification")
    @pytest.mark.parametrize("mode", ["cdi", "auto"])
    def test_the_engine_injects_the_driver(self, with_host_driver: Cli, debian: str, mode: str) -> None:
        options = ("run", "--rm", "--driver", mode, "--gpus", "device=0", "--mem", "1g", *WITH_PROGRAMS)
        seen = with_host_driver(*options, debian, *GPU_PROGRAM, "info").json()
        assert seen["devices"][0]["total"] == GIB
        variables = with_host_driver(*options, debian, "env").stdout.splitlines()
        assert "FROM_CDI=0" in variables

    def test_without_a_specification_it_is_refused(self, with_host_driver: Cli, debian: str) -> None:
        with_host_driver("run", "--driver", "cdi", debian, "true").assert_refused("cdi", "nvidia-ctk")
        with_host_driver.assert_nothing_left()


@pytest.fixture(scope="module")
def nvidia_host() -> Iterator[str]:
    """An engine with NVIDIA's runtime; here that is runc under its name."""
    script = '#!/bin/sh\nexec runc "$@"\n'
    flags = ("--add-runtime", "nvidia={state}/bin/nvidia-container-runtime")
    with private_engine(*flags, programs={"nvidia-container-runtime": script}) as host:
        yield host


class TestToolkit:
    @pytest.fixture
    def on_nvidia_host(self, nvidia_host: str, tmp_path: Path) -> Iterator[Cli]:
        if HAS_DRIVER:
            pytest.skip("this machine has an NVIDIA driver of its own")
        state_dir = tmp_path / "state"
        environment = clean_environment(nvidia_host, state_dir, tmp_path) | {"LD_LIBRARY_PATH": str(SIMULATED_DRIVER)}
        client = docker.DockerClient(base_url=nvidia_host)
        images.busybox(client, "vgpurun-test/busybox:1")
        cli = Cli(client, environment, state_dir)
        yield cli
        cli.remove_containers()
        client.close()

    @pytest.mark.parametrize("mode", ["toolkit", "auto"])
    def test_the_runtime_is_asked_for_the_chosen_gpu_alone(self, on_nvidia_host: Cli, mode: str) -> None:
        options = ("run", "--driver", mode, "-d", "--name", f"toolkit-{mode}", "--gpus", "device=0", "--mem", "1g")
        assert on_nvidia_host(*options, "vgpurun-test/busybox:1", "sleep", "60").exit_code == 0
        attributes = on_nvidia_host.engine.containers.get(f"toolkit-{mode}").attrs
        variables = dict(variable.split("=", 1) for variable in attributes["Config"]["Env"])
        assert attributes["HostConfig"]["Runtime"] == "nvidia"
        assert variables["NVIDIA_VISIBLE_DEVICES"].startswith("GPU-")
        assert "," not in variables["NVIDIA_VISIBLE_DEVICES"]
        assert not attributes["HostConfig"]["Devices"]

    def test_an_engine_without_it_is_refused(self, with_host_driver: Cli, debian: str) -> None:
        with_host_driver("run", "--driver", "toolkit", debian, "true").assert_refused("toolkit", "nvidia-ctk")
        with_host_driver.assert_nothing_left()
