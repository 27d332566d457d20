"""The driver's own memory limits: what a host and an engine lack for them, and how they are set."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import make_gpus

from vgpurun.cdi import hook
from vgpurun.errors import EnforceError
from vgpurun.host import gpus, limits_device, memory_limits, nvml
from vgpurun.host.drivers import DeviceRequest, EngineFacts, read_cdi_devices
from vgpurun.host.gpus import Gpu
from vgpurun.inventory.cgroups import cgroup_around, cgroups_of
from vgpurun.launch.enforcement import check_host, enforcing_device
from vgpurun.limits import driver_wall
from vgpurun.limits.limits_file import limits_bytes
from vgpurun.limits.quota import Quota

GIB = 1 << 30
ID = "5e" * 32
GPU, OTHER = make_gpus(2)
NONE = memory_limits.NO_LIMIT
_IN_USE = 19  # NVML_ERROR_IN_USE


class FakeDriver:
    """NVML of a driver that keeps limits as the kernel's `dmem` does: a soft limit is added to the cgroups above."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.limits: dict[Path, tuple[int, int]] = {}
        self.used = 0
        self.answer = 0

    def call(self, name: str, device: Any, pointer: Any) -> None:
        if code := (self.get if "Get" in name else self.set)(device, pointer):
            raise nvml.NvmlError(code)

    def get(self, _: Any, pointer: Any) -> int:
        found = pointer._obj
        if Path(os.fsdecode(found.nameSpace)) not in self.limits:
            return self.answer or nvml.NOT_FOUND
        found.softLimit, found.hardLimit = self.limits[Path(os.fsdecode(found.nameSpace))]
        found.currentUsed = self.used
        return self.answer

    def set(self, _: Any, pointer: Any) -> int:
        wanted = pointer._obj
        if self.answer:
            return self.answer
        cgroup = Path(os.fsdecode(wanted.nameSpace))
        more = wanted.softLimit - self.limits.get(cgroup, (0, NONE))[0]
        self.limits[cgroup] = wanted.softLimit, wanted.hardLimit
        for above in cgroup.parents:
            if above != self.root and self.root in above.parents and (above / "dmem.min").exists():
                soft, hard = self.limits.get(above, (0, NONE))
                self.limits[above] = max(0, soft + more), hard
        return 0


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    fake = FakeDriver(tmp_path)

    @contextmanager
    def asked(gpu: Gpu) -> Iterator[object]:
        yield object()

    monkeypatch.setattr(memory_limits, "asked", asked)
    monkeypatch.setattr(nvml, "call", fake.call)
    monkeypatch.setattr(nvml, "driver_version", lambda: "580.1")
    monkeypatch.setattr(memory_limits, "CGROUPS", tmp_path)
    (tmp_path / "cgroup.controllers").touch()
    return fake


def test_what_a_host_lacks(driver: FakeDriver, tmp_path: Path) -> None:
    assert memory_limits.lacking([GPU]) == ""
    assert "MIG" in memory_limits.lacking([GPU, replace(OTHER, mig_index=0)])
    driver.answer = nvml.FUNCTION_NOT_FOUND
    assert memory_limits.lacking([GPU]) == (
        "the NVIDIA driver 580.1 has no memory limits of its own (615 or newer has)"
    )
    (tmp_path / "cgroup.controllers").unlink()
    assert memory_limits.lacking([GPU]) == f"{tmp_path} is not cgroup v2"


def test_cgroup_of_a_process(tmp_path: Path) -> None:
    for number, line in enumerate(("0::/docker/abc", "1:cpu:/x\n0::/", "0::/../other", "1:cpu:/x")):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "cgroup").write_text(line + "\n")
    found = [memory_limits.cgroup_of(number, tmp_path) for number in range(5)]
    root = memory_limits.CGROUPS
    assert found == [root / "docker/abc", root, None, None, None]


def test_the_hook_limits_no_cgroup_that_others_are_in(
    driver: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as that of a shell, where Podman was told to make none for the container."""
    monkeypatch.setattr(gpus, "list_gpus", lambda: [GPU])
    found = {os.getpid(): "user.slice/ann/shell", 1: "user.slice/ann/shell", 2: "user.slice", 3: "", 4: "user.slice/x"}
    monkeypatch.setattr(memory_limits, "cgroup_of", lambda pid: tmp_path / found[pid])
    limits = tmp_path / "limits"
    limits.write_bytes(limits_bytes([(GPU.uuid, Quota(GIB))]))
    for pid in (1, 2, 3):
        with pytest.raises(EnforceError, match="no cgroup v2 of its own"):
            hook.set_limits(pid, limits)
    assert driver.limits == {}
    hook.set_limits(4, limits)
    assert driver.limits == {tmp_path / "user.slice/x": (0, GIB)}


def test_an_update_while_a_container_starts_reaches_it(
    driver: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever is the first: the hook's limits, and the change of the file."""
    own, limits = tmp_path / "own", tmp_path / "limits"
    monkeypatch.setattr(gpus, "list_gpus", lambda: [GPU])
    monkeypatch.setattr(memory_limits, "cgroup_of", lambda pid: own if pid == 4 else None)
    limits.write_bytes(limits_bytes([(GPU.uuid, Quota(GIB))]))
    write, changes = memory_limits.write, iter([Quota(2 * GIB), Quota(3 * GIB)])

    def change_and_write(gpu: Gpu, cgroup: Path, most_bytes: int | None, guaranteed_bytes: int = 0) -> None:
        if change := next(changes, None):
            limits.write_bytes(limits_bytes([(GPU.uuid, change)]))
        write(gpu, cgroup, most_bytes, guaranteed_bytes)

    monkeypatch.setattr(memory_limits, "write", change_and_write)
    hook.set_limits(4, limits)
    assert driver.limits == {own: (0, 3 * GIB)}


def test_the_cgroup_of_a_container_is_not_a_users(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").touch()
    own = tmp_path / "system.slice" / f"docker-{ID}.scope"
    own.mkdir(parents=True)
    assert cgroups_of({ID}, tmp_path) == {ID: own}
    own.rmdir()
    users = tmp_path / "user.slice"
    (users / ID).mkdir(parents=True)
    if os.geteuid() != 0:
        pytest.skip("only root may give a folder away")
    os.chown(users, 65534, 65534)
    assert cgroups_of({ID}, tmp_path) == {}


def test_a_process_leads_to_no_cgroup_but_one_that_it_is_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user may put a slice's usage file where a container has it, in a cgroup named like a container's."""
    own, users = tmp_path / f"docker-{ID}.scope", tmp_path / "user.slice" / ID
    for place in (own, users):
        place.mkdir(parents=True)
    found = {1: own, 2: own / "below" / ID, 3: users, 4: tmp_path / "user.slice", 5: None}
    monkeypatch.setattr(memory_limits, "cgroup_of", found.get)
    assert [cgroup_around(pid, ID) for pid in found] == [own, own, users, None, None]
    assert cgroup_around(1, "") is None


def test_nothing_stays_reserved_above_a_cgroup_that_goes(driver: FakeDriver, tmp_path: Path) -> None:
    """Under dmem a soft limit is added to all cgroups above, and stays there when the cgroup is removed."""
    top = tmp_path / "system.slice"
    for name in ("one", "two"):
        (top / name).mkdir(parents=True)
    (top / "dmem.min").touch()
    memory_limits.write(GPU, top / "one", 8 * GIB, 4 * GIB)
    memory_limits.write(GPU, top / "two", 2 * GIB, GIB)
    assert driver.limits == {top / "one": (4 * GIB, 8 * GIB), top / "two": (GIB, 2 * GIB), top: (0, NONE)}
    memory_limits.write(GPU, top, 10 * GIB, 3 * GIB)  # somebody's own limit of the topmost
    assert driver.limits[top] == (3 * GIB, 10 * GIB)


def test_refusals_of_the_driver(driver: FakeDriver, tmp_path: Path) -> None:
    driver.answer = nvml.NO_PERMISSION
    with pytest.raises(EnforceError, match="only root may set the driver's own limit on GPU 0"):
        memory_limits.write(GPU, tmp_path / "a", GIB)
    driver.answer = _IN_USE
    with pytest.raises(EnforceError, match=r"refuses a memory limit for .*/a on GPU 0"):
        memory_limits.write(GPU, tmp_path / "a", GIB)


def test_settling(driver: FakeDriver, tmp_path: Path) -> None:
    """A limit below its use stays, a lifted one is that of the whole GPU, and a container without one is left alone."""
    held, free = tmp_path / "held", tmp_path / "free"
    driver.limits[held] = (0, 4 * GIB)
    driver.used = 2 * GIB
    (left,) = driver_wall.settle([held, free], [(GPU, Quota(GIB))])
    assert str(left) == ("the driver's own limit on GPU 0 stays at 4 GiB: 2 GiB is in use, and the driver refuses less")
    assert driver_wall.settle([held, free], [(GPU, Quota(3 * GIB))]) == []
    assert driver.limits == {held: (0, 3 * GIB)}
    assert driver_wall.settle([held], [(GPU, Quota())]) == []
    assert driver.limits == {held: (0, GPU.memory_bytes)}
    driver.answer = nvml.NO_PERMISSION
    assert driver_wall.settle([held], [(GPU, Quota(GIB))]) == []  # cannot even be read


def test_only_what_root_alone_can_change_is_run_as_root(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("files of root are made by root")
    tmp_path.chmod(0o755)
    program = tmp_path / "program"
    program.touch(mode=0o644)
    assert limits_device.distrusted([program]) is None
    program.chmod(0o664)
    assert limits_device.distrusted([program]) == program
    program.chmod(0o644)
    os.chown(tmp_path, 65534, 65534)
    assert limits_device.distrusted([program]) == tmp_path


def test_the_device_is_one_that_engines_and_we_find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits_device, "distrusted", lambda: None)
    limits_device.write_device(tmp_path, None)
    limits_device.write_device(tmp_path, tmp_path)
    assert read_cdi_devices([str(tmp_path)]) == {"vgpurun.io/limits=host", "vgpurun.io/limits=sim"}
    written = json.loads(limits_device.specification_path(tmp_path, True).read_text())
    (hook,) = written["devices"][0]["containerEdits"]["hooks"]
    assert (hook["hookName"], hook["args"][-1]) == ("createRuntime", str(tmp_path))
    assert os.access(hook["path"], os.X_OK)


def test_what_an_engine_lacks(driver: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def device(mode: str, facts: EngineFacts) -> DeviceRequest | None:
        return enforcing_device(mode, [GPU], facts, None, is_dry_run=False)

    folders = (str(tmp_path / "cdi"),)
    monkeypatch.setattr(limits_device, "distrusted", lambda: None)
    for facts, words in (
        (EngineFacts(), "no CDI"),
        (EngineFacts(cdi_folders=folders), "lacks the CDI device vgpurun.io/limits=host, which a launch by root makes"),
        (EngineFacts(cdi_folders=folders, is_rootless=True), "rootless"),
    ):
        assert device("auto", facts) is None
        with pytest.raises(EnforceError, match=words):
            device("driver", facts)
    wanted = DeviceRequest("cdi", ("vgpurun.io/limits=host",))
    assert device("driver", EngineFacts(cdi_folders=folders, cdi_devices=frozenset(wanted.device_ids))) == wanted
    assert not Path(*folders).exists()
    monkeypatch.setattr(limits_device, "distrusted", lambda: tmp_path)
    in_sight = EngineFacts(cdi_folders=folders, has_this_root=True)
    with pytest.raises(EnforceError, match="as root, but others can change"):
        device("driver", in_sight)
    assert device("auto", in_sight) is None
    monkeypatch.setattr(limits_device, "distrusted", lambda: None)
    assert device("auto", in_sight) == wanted
    assert read_cdi_devices(folders) == set(wanted.device_ids)
    assert device("library", EngineFacts(cdi_folders=folders)) is None
    driver.answer = nvml.NOT_SUPPORTED
    assert device("auto", EngineFacts(cdi_folders=folders)) is None
    with pytest.raises(EnforceError, match=r"--enforce driver: the NVIDIA driver 580.1 .*use auto"):
        check_host("driver", [GPU])
    check_host("auto", [GPU])
