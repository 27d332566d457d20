"""CDI devices: what a container gets of a share, and how their file is written."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest
import yaml
from fakes import GIB, make_gpus

from vgpurun import abi
from vgpurun.cdi.edits import driver_edits, joined
from vgpurun.cdi.files import write_specification
from vgpurun.cdi.nvidia import nvidia_edits
from vgpurun.cdi.of_slices import Host, forget, keep, kept_at, refresh
from vgpurun.cdi.specification import CDI_VERSION, Share, cdi_device, specification
from vgpurun.errors import DriverError, OptionError, OutputError
from vgpurun.host.drivers import DeviceRequest, DriverPlan
from vgpurun.launch import plan
from vgpurun.limits.model import DeviceQuota
from vgpurun.limits.quota import Quota
from vgpurun.slices import store
from vgpurun.storage import tenants

GPUS = make_gpus(2)
LIBRARY = Path("/opt/vgpurun/libvgpu.so")
FOLDER = Path("/var/lib/vgpurun/slices/alice")
DRIVER = DriverPlan(
    "mount",
    libraries={"libcuda.so.1": "/usr/lib/libcuda.so.580"},
    devices=("/dev/nvidia10", "/dev/nvidiactl"),
    environment={"NVIDIA_VISIBLE_DEVICES": "void"},
)


def share(name: str = "alice", *quotas: Quota) -> Share:
    chosen = quotas or (Quota(2 * GIB, 30),)
    return Share(name, tuple(DeviceQuota(gpu, each) for gpu, each in zip(GPUS, chosen, strict=False)), FOLDER)


def edits_of(**settings: object) -> dict[str, list]:
    device = cdi_device(share(), LIBRARY, driver_edits(DRIVER), **settings)
    assert device["name"] == "alice"
    return device["containerEdits"]


def test_a_device_brings_the_driver_the_library_the_limits_and_the_tenants() -> None:
    edits = edits_of()
    mounts = {each["containerPath"]: (each["hostPath"], each["options"][-1]) for each in edits["mounts"]}
    assert mounts == {
        "/usr/lib64/libcuda.so.1": ("/usr/lib/libcuda.so.580", "ro"),
        f"/usr/lib/{platform.machine()}-linux-gnu/libcuda.so.1": ("/usr/lib/libcuda.so.580", "ro"),
        abi.CONTAINER_LIBRARY: (str(LIBRARY), "ro"),
        "/.vgpurun/etc": (f"{FOLDER}/etc", "ro"),
        abi.CONTAINER_USAGE: (f"{FOLDER}/run/usage", "rw"),
        "/etc/ld.so.preload": (f"{FOLDER}/etc/ld.so.preload", "ro"),
        "/etc/ld-nix.so.preload": (f"{FOLDER}/etc/ld.so.preload", "ro"),
        abi.CONTAINER_TENANTS: (abi.LOCK_DIR, "ro"),
        abi.CONTAINER_PRESENCE: (str(tenants.presence_file(FOLDER)), "rw"),
    }
    assert edits["deviceNodes"] == [{"path": "/dev/nvidia10"}, {"path": "/dev/nvidiactl"}]
    assert edits["env"] == [
        "NVIDIA_VISIBLE_DEVICES=void",
        "CUDA_DEVICE_MEMORY_LIMIT_0=2147483648",
        "CUDA_DEVICE_SM_LIMIT_0=30",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE=/.vgpurun/run/usage",
        "NVIDIA_GPU_MEMORY_LIMIT=2048",
    ]


def test_no_variable_takes_the_place_of_one_that_images_set() -> None:
    names = {each.partition("=")[0] for each in edits_of()["env"]}
    assert not names & {"PATH", "LD_LIBRARY_PATH", "LD_PRELOAD"}


def test_each_gpu_has_its_limits_by_its_place() -> None:
    device = cdi_device(share("two", Quota(GIB), Quota(None, 50)), LIBRARY, {})
    assert device["containerEdits"]["env"][:2] == ["CUDA_DEVICE_MEMORY_LIMIT_0=1073741824", "CUDA_DEVICE_SM_LIMIT_1=50"]
    assert "deviceNodes" not in device["containerEdits"], "without a driver there is none to bring"


def test_the_files_of_the_folder_are_those_of_a_container() -> None:
    files = plan.shared_files(share().quotas, DRIVER)
    assert set(files) == {"etc/limits", "etc/ld.so.preload"}
    assert files["etc/ld.so.preload"] == b"/.vgpurun/libvgpu.so\n"


@pytest.mark.parametrize("name", ["", "-a", "a-", "a b", "a/b", "a=b", "é", "x" * 64, "a\n"])
def test_names_that_no_device_can_have(name: str) -> None:
    with pytest.raises(OptionError, match="cannot be a name"):
        cdi_device(share(name), LIBRARY, {})


@pytest.mark.parametrize("name", ["a", "0", "x" * 63, "team-a_1.b"])
def test_names_that_a_device_can_have(name: str) -> None:
    assert cdi_device(share(name), LIBRARY, {})["name"] == name


def test_a_driver_that_the_engine_brings_is_no_device_of_ours() -> None:
    with pytest.raises(DriverError, match="mount"):
        driver_edits(DriverPlan("cdi", device_requests=(DeviceRequest("cdi", ("nvidia.com/gpu=0",)),)))


def test_nvidias_own_edits_are_joined_with_those_of_all_its_devices(tmp_path: Path) -> None:
    devices = [
        {"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia10"}]}},
        {"name": GPUS[1].uuid, "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia11"}]}},
        {"name": "all", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia99"}]}},
    ]
    of_all = {"mounts": [{"hostPath": "/a", "containerPath": "/b"}], "additionalGids": [7]}
    own = {"cdiVersion": "0.7.0", "kind": "nvidia.com/gpu", "containerEdits": of_all, "devices": devices}
    (tmp_path / "a-broken.yaml").write_text("kind: [")
    (tmp_path / "other.json").write_text(json.dumps({**own, "kind": "vendor.com/nic"}))
    assert nvidia_edits(GPUS, [str(tmp_path), "/nowhere"]) is None
    (tmp_path / "nvidia.yaml").write_text(yaml.safe_dump(own))
    edits = nvidia_edits(GPUS, [str(tmp_path)])
    assert edits == {
        **of_all,
        "deviceNodes": [{"path": "/dev/nvidia10"}, {"path": "/dev/nvidia11"}],
    }
    assert nvidia_edits(make_gpus(1, first_index=5), [str(tmp_path)]) is None
    assert specification([cdi_device(share(), LIBRARY, edits)])["cdiVersion"] == "0.7.0"


def test_edits_are_joined_in_their_order_and_what_is_empty_is_left_out() -> None:
    assert joined([{"env": ["A=1"], "mounts": []}, {"env": ["B=2"]}]) == {"env": ["A=1", "B=2"]}


@pytest.mark.parametrize("name", ["vgpurun.yaml", "vgpurun.json"])
def test_a_file_is_replaced_as_a_whole(tmp_path: Path, name: str) -> None:
    path = tmp_path / "cdi" / name
    for share_name in ("first", "second"):
        write_specification(path, specification([cdi_device(share(share_name), LIBRARY, {})]))
    read = yaml.safe_load(path.read_text())  # JSON is YAML too
    assert (read["cdiVersion"], read["kind"]) == (CDI_VERSION, "vgpurun.io/gpu")
    assert [device["name"] for device in read["devices"]] == ["second"]
    assert path.stat().st_mode & 0o777 == 0o644
    assert [each.name for each in path.parent.iterdir()] == [name]


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "vgpurun.yaml").mkdir()
    with pytest.raises(OutputError, match=r"vgpurun\.yaml cannot be written"):
        write_specification(tmp_path / "vgpurun.yaml", specification([]))
    assert [each.name for each in tmp_path.iterdir()] == ["vgpurun.yaml"]
    with pytest.raises(OutputError, match="choose such a name"):
        write_specification(tmp_path / "vgpurun.txt", specification([]))


def test_a_file_that_cannot_be_kept_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VGPURUN_STATE_DIR", str(tmp_path / "state"))
    store.make("alice", share().quotas, plan.shared_files(share().quotas, DRIVER))
    host = Host("host", GPUS, LIBRARY, lambda _: driver_edits(DRIVER))
    (tmp_path / "taken.yaml").mkdir()
    for name in ("vgpurun.txt", "taken.yaml"):
        with pytest.raises(OutputError, match=name):
            keep("host", tmp_path / name, lambda: host)
        assert kept_at("host") is None
    keep("host", tmp_path / "kept.yaml", lambda: host)
    assert (kept_at("host"), kept_at("sim")) == (tmp_path / "kept.yaml", None)
    assert forget("host") == tmp_path / "kept.yaml"
    assert refresh("host", lambda: host) is None
    assert not (tmp_path / "kept.yaml").exists()
