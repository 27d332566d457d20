"""The checks before anything is taken off a GPU, and the record of it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from vgpurun import abi
from vgpurun.errors import OptionError, SuspendError
from vgpurun.host import stopped
from vgpurun.limits.idle import IdlePolicy, idle_files, parse_idle, read_idle
from vgpurun.suspend import checks, record
from vgpurun.suspend.record import Phase, Record
from vgpurun.suspend.targets import Target
from vgpurun.suspend.transition import is_asked_for
from vgpurun.util.process_identity import ProcessIdentity, boot_id

GIB = 1 << 30


def process(pid: int, started_ticks: int) -> ProcessIdentity:
    return ProcessIdentity(pid, started_ticks, boot_id())


ONE = [process(7, 1)]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A /proc with one process in a cgroup of version 2 below a limited one, and 64 GiB of memory left."""
    process = tmp_path / "proc" / "7"
    process.mkdir(parents=True)
    (tmp_path / "proc" / "meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable: {64 * GIB >> 10} kB\n")
    (process / "cgroup").write_text("0::/docker/box\n")
    (process / "maps").write_text("7f00-7f01 r-xp 0 fe:00 1 /usr/lib/libnccl.so.2\n")
    box = tmp_path / "cgroup" / "docker" / "box"
    box.mkdir(parents=True)
    (box / "memory.max").write_text(str(10 * GIB))
    (box / "memory.current").write_text(str(4 * GIB))
    (box.parent / "memory.max").write_text("max\n")
    (box.parent / "memory.current").write_text(str(50 * GIB))
    for module in (checks, stopped):
        monkeypatch.setattr(module, "_PROC", tmp_path / "proc")
        monkeypatch.setattr(module, "CGROUPS", tmp_path / "cgroup")
    return tmp_path


def test_what_fits_passes(host: Path) -> None:
    checks.check("box", {ONE[0]: {"GPU-a": 6 * GIB}})


def test_the_container_s_own_limit(host: Path) -> None:
    with pytest.raises(SuspendError, match="its own limit leaves 6 GiB of host memory"):
        checks.check("box", {ONE[0]: {"GPU-a": 6 * GIB + 1}})


def test_a_limit_above_it_counts_as_well(host: Path) -> None:
    (host / "cgroup" / "docker" / "memory.max").write_text(str(51 * GIB))
    with pytest.raises(SuspendError, match="leaves 1 GiB"):
        checks.check("box", {ONE[0]: {"GPU-a": 2 * GIB}})


def test_cgroups_of_version_1(host: Path) -> None:
    (host / "proc" / "7" / "cgroup").write_text("5:cpu:/x\n3:memory:/box\n0::/\n")
    box = host / "cgroup" / "memory" / "box"
    box.mkdir(parents=True)
    (box / "memory.limit_in_bytes").write_text(str(3 * GIB))
    (box / "memory.usage_in_bytes").write_text(str(GIB))
    with pytest.raises(SuspendError, match="leaves 2 GiB"):
        checks.check("box", {ONE[0]: {"GPU-a": 3 * GIB}})


def test_each_container_of_a_slice_has_its_own_limit(host: Path) -> None:
    (host / "proc" / "8").mkdir()
    (host / "proc" / "8" / "cgroup").write_text("0::/docker/other\n")
    other = host / "cgroup" / "docker" / "other"
    other.mkdir()
    (other / "memory.max").write_text(str(10 * GIB))
    (other / "memory.current").write_text(str(4 * GIB))
    checks.check("team", {ONE[0]: {"GPU-a": 5 * GIB}, process(8, 1): {"GPU-a": 5 * GIB}})
    (host / "proc" / "8" / "cgroup").write_text("0::/docker/box\n")
    with pytest.raises(SuspendError, match="holds 10 GiB of GPU memory, and its own limit leaves 6 GiB"):
        checks.check("team", {ONE[0]: {"GPU-a": 5 * GIB}, process(8, 1): {"GPU-a": 5 * GIB}})


@pytest.mark.parametrize(
    "stat",
    ["anon 1\nfile 9\ninactive_file 1073741824\nactive_file 2147483648\n",
     "inactive_file 0\ntotal_inactive_file 1073741824\ntotal_active_file 2147483648\n"],
)  # fmt: skip
def test_files_that_a_container_has_read_are_no_hindrance(host: Path, stat: str) -> None:
    (host / "cgroup" / "docker" / "box" / "memory.stat").write_text(stat)
    checks.check("box", {ONE[0]: {"GPU-a": 9 * GIB}})
    with pytest.raises(SuspendError, match="leaves 9 GiB"):
        checks.check("box", {ONE[0]: {"GPU-a": 10 * GIB}})


def test_the_host_s_memory(host: Path) -> None:
    with pytest.raises(SuspendError, match="this host has 64 GiB of memory left"):
        checks.check("box", {ONE[0]: {"GPU-a": 65 * GIB}})


def test_what_may_talk_across_gpus(host: Path) -> None:
    two_gpus = {ONE[0]: {"GPU-a": GIB, "GPU-b": 1}}
    with pytest.raises(SuspendError, match="box has loaded NCCL and uses 2 GPUs; the driver does not bring back"):
        checks.check("box", two_gpus)
    (host / "proc" / "7" / "maps").write_text("7f00-7f01 r-xp 0 fe:00 1 /usr/lib/libcuda.so.1\n")
    checks.check("box", two_gpus)


@pytest.mark.parametrize(
    ("cgroup", "file", "content"),
    [
        ("0::/docker/box\n", "docker/box/cgroup.events", "populated 1\nfrozen 1\n"),
        ("4:freezer:/box\n", "freezer/box/freezer.state", "FROZEN\n"),
    ],
)
def test_what_is_frozen(host: Path, cgroup: str, file: str, content: str) -> None:
    (host / "proc" / "7" / "cgroup").write_text(cgroup)
    checks.check_runs("box", ONE)
    (host / "cgroup" / file).parent.mkdir(parents=True, exist_ok=True)
    (host / "cgroup" / file).write_text(content)
    with pytest.raises(SuspendError, match="process 7 of box is stopped"):
        checks.check_runs("box", ONE)


def test_what_is_stopped(host: Path) -> None:
    (host / "proc" / "7" / "stat").write_text("7 (a) b) T 1 7\n")
    with pytest.raises(SuspendError, match="is stopped"):
        checks.check_runs("box", ONE)


def test_a_process_that_has_ended(host: Path) -> None:
    checks.check("box", {process(8, 1): {"GPU-a": GIB, "GPU-b": 1}})


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert record.read(tmp_path) is None
    written = Record(Phase.RESUMING, (process(7, 1),), {"GPU-a": 5}, True, "idle", 1.5, 9)
    record.write(tmp_path, written)
    assert record.read(tmp_path) == written
    assert written.total_bytes == 5
    record.forget(tmp_path)
    record.forget(tmp_path)
    assert record.read(tmp_path) is None


SOUND = {
    "phase": "suspended", "processes": [[7, 1]], "held_bytes": {"a": 1}, "is_held": False, "by": "", "since_s": 0,
    "since_ns": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    "wrong",
    [{"held_bytes": [1]}, {"held_bytes": {"a": "many"}}, {"held_bytes": 5}, {"held_bytes": {"a": float("inf")}},
     {"processes": [[float("inf"), 1]]}, {"processes": {"a": 1}}, {"processes": 7}, {"since_ns": "x"},
     {"since_s": []}, {"since_s": 10**400}, {"phase": []}],
)  # fmt: skip
def test_a_record_of_other_types(tmp_path: Path, wrong: dict[str, object]) -> None:
    (tmp_path / "suspension").write_text(json.dumps({**SOUND, **wrong}))
    assert record.read(tmp_path) is None


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"phase": "resting"}', "\0\1", "{" * 5000])
def test_a_record_that_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "suspension").write_text(content)
    assert record.read(tmp_path) is None


def test_a_record_of_a_version_before(tmp_path: Path) -> None:
    """The record is of this boot, or else its processes are nobody's."""
    (tmp_path / "suspension").write_text(json.dumps(SOUND))
    found = record.read(tmp_path)
    assert found is not None and found.processes == (process(7, 1),)


def asks(folder: Path, asked_ns: int) -> None:
    (folder / "run").mkdir(exist_ok=True)
    usage = abi.UsageHead(magic=abi.USAGE_MAGIC, abi_version=abi.ABI_VERSION, asked_ns=asked_ns)
    (folder / "run" / "usage").write_bytes(bytes(usage))


def test_a_program_asks_for_what_was_suspended_before_a_reboot(tmp_path: Path) -> None:
    """The clock by which both are written down began anew."""
    target = Target("team", "team", tmp_path)
    suspended = Record(Phase.SUSPENDED).begun_now()
    now_ns = time.monotonic_ns()
    asks(tmp_path, now_ns)
    later = suspended._replace(since_ns=now_ns + 10**18)
    assert not is_asked_for(target, later), "in this boot it was asked before that"
    assert is_asked_for(target, later._replace(boot_id="of the boot before"))
    assert is_asked_for(target, suspended._replace(since_ns=now_ns - 1))
    for of_boot_before in (now_ns + 10**18, now_ns - 10**10, 0):
        asks(tmp_path, of_boot_before)
        assert not is_asked_for(target, suspended._replace(since_ns=5, boot_id="of the boot before"))


def test_idle_policies(tmp_path: Path) -> None:
    assert parse_idle("15m") == IdlePolicy(900, "suspend")
    assert parse_idle("2h:warn") == IdlePolicy(7200, "warn")
    assert parse_idle("1d:stop") == IdlePolicy(86400, "stop")
    assert parse_idle("never") is None
    for text in ("", "m", "15", "0s", "15m:sleep", ":warn"):
        with pytest.raises(OptionError, match="is not TIME"):
            parse_idle(text)
    assert (idle_files("never"), idle_files("")) == ({}, {})
    for name, content in idle_files("5m:warn").items():
        (tmp_path / name).write_bytes(content)
    assert read_idle(tmp_path) == IdlePolicy(300, "warn")
    (tmp_path / "idle").write_bytes(b"\xff")
    assert read_idle(tmp_path) is None


@pytest.mark.parametrize("value", ["1" + "0" * 400, "Infinity", "null", "[]", "[[1]]", '"x"', '{"a": {}}', "[" * 50000])
@pytest.mark.parametrize("name", Record._fields)
def test_a_users_own_record_breaks_nothing(tmp_path: Path, name: str, value: str) -> None:
    record.write(tmp_path, Record(Phase.SUSPENDED, (process(1, 2),), {"GPU-1": GIB}))
    written = json.loads((tmp_path / "suspension").read_text())
    fields = [f'"{each}": {value if each == name else json.dumps(written[each])}' for each in written]
    (tmp_path / "suspension").write_text(f"{{{', '.join(fields)}}}")
    found = record.read(tmp_path)
    assert found is None or found.total_bytes >= 0
