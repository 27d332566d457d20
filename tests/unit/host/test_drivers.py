"""How the driver comes into a container."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from fakes import make_gpus

from vgpurun.errors import DriverError
from vgpurun.host import drivers
from vgpurun.host.drivers import EngineFacts, device_nodes, find_driver_folder, plan_driver, read_cdi_devices

GPUS = make_gpus(2)
CDI = frozenset({"nvidia.com/gpu=0", "nvidia.com/gpu=1", "nvidia.com/gpu=all"})


@pytest.fixture
def driver_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A driver as its installer lays it out: versioned files, and links by their SONAMEs."""
    folder = tmp_path / "nvidia" / "lib64"
    folder.mkdir(parents=True)
    for name in ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler"):
        (folder / f"{name}.so.580.1").touch()
        (folder / f"{name}.so.1").symlink_to(f"{name}.so.580.1")
        (folder / f"{name}.so").symlink_to(f"{name}.so.1")
    (folder / "libnvidia-gpucomp.so.580.1").touch()
    (folder / "libnvidia-nvvm.so.4").touch()
    (folder / "libGLX_nvidia.so.0").touch()
    smi = folder.parent / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    smi.touch()
    smi.chmod(0o755)
    monkeypatch.setattr(drivers, "_loaded_nvml_folders", lambda: [])
    monkeypatch.setenv("LD_LIBRARY_PATH", f":{tmp_path}/none:{folder}")
    monkeypatch.setattr(drivers, "device_nodes", lambda gpus: [f"/dev/nvidia{gpu.minor_number}" for gpu in gpus])
    return folder


@pytest.mark.parametrize(
    ("facts", "mode"),
    [
        (EngineFacts(), "mount"),
        (EngineFacts(cdi_devices=CDI), "cdi"),
        (EngineFacts(cdi_devices=CDI, runtimes=frozenset({"nvidia"})), "cdi"),
        (EngineFacts(cdi_devices=frozenset({"nvidia.com/gpu=0"}), runtimes=frozenset({"runc", "nvidia"})), "toolkit"),
        (EngineFacts(has_toolkit_hook=True), "toolkit"),
    ],
)
@pytest.mark.usefixtures("driver_folder")
def test_auto_takes_what_the_engine_has(facts: EngineFacts, mode: str) -> None:
    assert plan_driver("auto", GPUS, facts).mode == mode


def test_cdi_names_gpus_by_uuid_where_it_can() -> None:
    by_uuid = frozenset({f"nvidia.com/gpu={GPUS[1].uuid}"})
    plan = plan_driver("cdi", GPUS, EngineFacts(cdi_devices=CDI | by_uuid))
    (request,) = plan.device_requests
    assert (request.driver, request.device_ids) == ("cdi", ("nvidia.com/gpu=0", f"nvidia.com/gpu={GPUS[1].uuid}"))
    assert plan.devices == ()


def test_the_runtime_is_asked_for_the_chosen_gpus() -> None:
    plan = plan_driver("toolkit", GPUS[1:], EngineFacts(runtimes=frozenset({"nvidia"})))
    assert (plan.runtime, plan.environment["NVIDIA_VISIBLE_DEVICES"]) == ("nvidia", GPUS[1].uuid)


def test_without_the_runtime_the_toolkits_hook_is_asked() -> None:
    plan = plan_driver("toolkit", GPUS[:1], EngineFacts(has_toolkit_hook=True))
    assert plan.runtime is None
    assert plan.device_requests[0].device_ids == (GPUS[0].uuid,)
    assert "gpu" in plan.device_requests[0].capabilities


@pytest.mark.parametrize("mode", ["cdi", "toolkit"])
def test_what_the_engine_has_not_is_refused_with_a_way_out(mode: str) -> None:
    with pytest.raises(DriverError, match=f"--driver {mode}.*nvidia-ctk.*--driver mount"):
        plan_driver(mode, GPUS, EngineFacts())


def test_mount_binds_the_hosts_files_by_their_sonames(driver_folder: Path) -> None:
    plan = plan_driver("mount", GPUS, EngineFacts(runtimes=frozenset({"nvidia"})))
    assert plan.libraries["libcuda.so.1"] == str(driver_folder / "libcuda.so.580.1")
    assert {"libnvidia-gpucomp.so.580.1", "libnvidia-nvvm.so.4"} <= set(plan.libraries)
    assert not {"libGLX_nvidia.so.0", "libcuda.so"} & set(plan.libraries)
    assert plan.tools == {"nvidia-smi": str(driver_folder.parent / "bin" / "nvidia-smi")}
    assert plan.folder is None, "the host's folder has much else"
    assert plan.devices == ("/dev/nvidia10", "/dev/nvidia11")
    assert plan.environment == {"NVIDIA_VISIBLE_DEVICES": "void"}, "a default runtime of NVIDIA's adds no GPU"


@pytest.mark.usefixtures("driver_folder")
def test_no_driver_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "")
    monkeypatch.setattr(drivers, "_ldconfig_folders", lambda: [])
    monkeypatch.setattr(drivers, "_OTHER_LIBRARY_FOLDERS", ())
    monkeypatch.setattr(drivers, "platform", SimpleNamespace(machine=lambda: "no-such-machine"))
    with pytest.raises(DriverError, match=r"libcuda\.so\.1 was not found"):
        plan_driver("mount", GPUS, EngineFacts())


def test_an_ldconfig_that_does_not_answer_is_passed_over(
    driver_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ldconfig = tmp_path / "ldconfig"
    ldconfig.write_text("#!/bin/sh\nexec sleep 100\n")
    ldconfig.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(drivers, "_LDCONFIG_S", 0.2)
    assert find_driver_folder() == driver_folder


def make_nodes(dev: Path, *names: str) -> None:
    for name in names:
        (dev / name).parent.mkdir(parents=True, exist_ok=True)
        (dev / name).touch()


def test_the_nodes_of_the_chosen_gpus_only(tmp_path: Path) -> None:
    shared = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
    make_nodes(tmp_path, "nvidia10", "nvidia11", *shared, "nvidia-caps/nvidia-cap1", "nvidia-caps/nvidia-cap2")
    names = [Path(node).name for node in device_nodes(GPUS[1:], tmp_path)]
    assert names == ["nvidia11", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"], "none that makes or watches instances"


def test_a_missing_node_is_an_error_but_for_the_tools(tmp_path: Path) -> None:
    make_nodes(tmp_path, "nvidia10", "nvidiactl")
    with pytest.raises(DriverError, match=r"nvidia-uvm does not exist.*nvidia-modprobe"):
        device_nodes(GPUS[:1], tmp_path)
    make_nodes(tmp_path, "nvidia-uvm")
    assert len(device_nodes(GPUS[:1], tmp_path)) == 3


def test_cdi_specifications_are_read_whatever_they_hold(tmp_path: Path) -> None:
    specification = {"kind": "nvidia.com/gpu", "devices": [{"name": "0"}, {"name": "all"}]}
    (tmp_path / "a.json").write_text(json.dumps(specification))
    (tmp_path / "b.yaml").write_text("kind: nvidia.com/gpu\ndevices:\n- name: '1'\n")
    (tmp_path / "other.yaml").write_text("kind: vendor.com/net\ndevices:\n- name: '7'\n")
    (tmp_path / "bad.yaml").write_text("{[")
    (tmp_path / "list.yaml").write_text("- 1\n")
    (tmp_path / "bad.json").write_bytes(b"\xff")
    (tmp_path / "notes.txt").write_text("kind: nvidia.com/gpu")
    found = read_cdi_devices([str(tmp_path), "/no/such/folder"])
    assert found == {"nvidia.com/gpu=0", "nvidia.com/gpu=all", "nvidia.com/gpu=1"}


def test_a_mig_instance_is_opened_by_its_own_capabilities_alone(tmp_path: Path) -> None:
    make_nodes(tmp_path / "dev", "nvidia10", "nvidiactl", "nvidia-uvm")
    make_nodes(tmp_path / "dev" / "nvidia-caps", *(f"nvidia-cap{minor}" for minor in (1, 2, 66, 67, 75, 76)))
    instance = tmp_path / "capabilities" / "gpu10" / "mig" / "gi8"
    for folder, minor in ((instance, 75), (instance / "ci0", 76)):
        folder.mkdir(parents=True)
        (folder / "access").write_text(f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
    gpu = replace(GPUS[0], mig_index=1, mig_ids=(8, 0))
    nodes = device_nodes([gpu], tmp_path / "dev", tmp_path / "capabilities")
    names = [Path(node).name for node in nodes]
    assert names == ["nvidia10", "nvidiactl", "nvidia-uvm", "nvidia-cap75", "nvidia-cap76"]
    with pytest.raises(DriverError, match="gi9/access"):
        device_nodes([replace(gpu, mig_ids=(9, 0))], tmp_path / "dev", tmp_path / "capabilities")


@pytest.mark.parametrize(
    ("flags", "answer"),
    [("cx16 fpu lahf_lm popcnt sse4_1 sse4_2 ssse3 x", True), ("fpu cx16 lahf_lm sse4_1 ssse3", False), ("", False)],
)
def test_for_which_processors_glibc_has_folders(tmp_path: Path, flags: str, answer: bool) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\n\nprocessor\t: 1\n")
    assert drivers.has_hwcaps(tmp_path / "cpuinfo") is answer
