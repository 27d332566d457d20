"""A look at real files of tenants: what becomes a metric, and that nobody's files hide another's."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
from fakes import GIB, MIB, make_gpus

from support.scraping import label_values, parse, value
from vgpurun import __version__, abi
from vgpurun.engine.client import Engine, VgpurunContainer
from vgpurun.engine.labels import Record, read_record
from vgpurun.errors import EngineError, GpuError
from vgpurun.host import gpus, nvml
from vgpurun.host.gpus import GpuUse, Survey
from vgpurun.inventory import guarded
from vgpurun.inventory.swap_counts import add_swap
from vgpurun.limits import limits_file, usage_file
from vgpurun.limits.quota import Quota
from vgpurun.metrics.families import FAMILIES
from vgpurun.metrics.snapshot import Reader

prometheus_client = pytest.importorskip("prometheus_client")
pytest.importorskip("prometheus_client.parser")  # nobody could load it from root's home
collector = import_module("vgpurun.metrics.collector")  # which needs it
GPUS = make_gpus(2)
UUID = GPUS[0].uuid


class Listing:
    """An engine that lists these containers."""

    def __init__(self) -> None:
        self.containers_now: list[VgpurunContainer] = []
        self.error = ""

    def containers(self, everything: bool = True) -> list[VgpurunContainer]:
        assert not everything
        if self.error:
            raise EngineError(self.error)
        return self.containers_now


class World:
    """An engine with containers whose state folders are real, GPUs, and a reader of it all."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.engine = Listing()
        self.gpus_error = ""
        self.said: list[str] = []
        self.locks: list[int] = []
        monkeypatch.setenv("VGPURUN_STATE_DIR", str(folder / "state"))
        monkeypatch.setattr(Engine, "connect", lambda _=60: self.engine)
        monkeypatch.setattr(gpus, "_initialise", self._initialise)
        monkeypatch.setattr(nvml, "shutdown", lambda: None)
        monkeypatch.setattr(gpus, "survey", lambda: Survey(list(GPUS), []))
        monkeypatch.setattr(gpus, "read_use", lambda _: [GpuUse(3 * GIB, 25), GpuUse(0, None)])
        monkeypatch.setattr("vgpurun.metrics.snapshot._FRESH_S", -1.0)
        self.reader = Reader(self.said.append)

    def _initialise(self) -> None:
        if self.gpus_error:
            raise GpuError(self.gpus_error)

    def add(self, name: str, quota: Quota, usage: abi.Usage | bytes | None = None, user: str = "ann") -> Path:
        """A running container; the process of slot 0 lives."""
        state = self.folder / name
        (state / "run").mkdir(parents=True)
        (state / "etc").mkdir()
        (state / "etc" / "limits").write_bytes(limits_file.limits_bytes([(UUID, quota)]))
        path = state / "run" / "usage"
        path.write_bytes(bytes(abi.Usage() if usage is None else usage))
        self.locks.append(os.open(path, os.O_RDWR))
        lock = struct.pack("hhxxxxqqixxxx", fcntl.F_WRLCK, os.SEEK_SET, abi.SLOT_LOCK_OFFSET, 1, 0)
        fcntl.fcntl(self.locks[-1], fcntl.F_OFD_SETLK, lock)
        self.engine.containers_now.append(
            VgpurunContainer(
                f"{name}-id", name, "pytorch/pytorch", "running", Record(str(state), user=user), labels={"a": "b"}
            )
        )
        return state

    def scrape(self, *compatible: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        registry = collector.make_registry(self.reader, compatible)
        return parse(prometheus_client.generate_latest(registry).decode())


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(tmp_path, monkeypatch)
    yield made
    for lock in made.locks:
        os.close(lock)


def busy_usage() -> abi.Usage:
    usage = abi.Usage(magic=abi.USAGE_MAGIC, abi_version=abi.ABI_VERSION, slots_used=1)
    now_ns = time.monotonic_ns()
    shared = usage.devices[0]
    shared.busy_ns, shared.throttled_ns, shared.launches, shared.refusals = 2_500_000_000, 1_250_000_000, 77, 3
    shared.last_launch_ns = now_ns - 10 * 10**9
    shared.not_enforced = abi.NOT_ENFORCED_SM
    for second in range(now_ns // 10**9 - 5, now_ns // 10**9 + 5):
        shared.seconds[second % abi.SECONDS] = second << 32 | 400_000
    held = usage.processes[0].devices[0]
    held.allocated_bytes, held.overhead_bytes, held.context_bytes, held.host_bytes = 300 * MIB, 30 * MIB, 20 * MIB, 7
    held.counted_bytes, held.limiter = 330 * MIB, abi.LIMITER_LAUNCHES
    return usage


OF_CONTAINER = {
    f"vgpurun_container_{name}": expected
    for name, expected in {
        "memory_limit_bytes": 2 * GIB,
        "memory_virtual_limit_bytes": 4 * GIB,
        "memory_used_bytes": 330 * MIB,
        "memory_buffer_bytes": 300 * MIB,
        "memory_context_bytes": 20 * MIB,
        "memory_module_bytes": 10 * MIB,
        "memory_host_bytes": 7,
        "gpu_seconds_total": 2.5,
        "sm_used_ratio": 0.4,
        "sm_limit_ratio": 0.5,
        "throttled_seconds_total": 1.25,
        "launches_held": 1,
        "oom_refusals_total": 3,
        "launches_total": 77,
        "processes": 1,
        "paused": 1,
        "suspended": 0,
        "suspended_bytes": 0,
    }.items()
}
OF_GPU = {
    "vgpurun_gpu_memory_total_bytes": 8 * GIB,
    "vgpurun_gpu_memory_used_bytes": 3 * GIB,
    "vgpurun_gpu_utilization_ratio": 0.25,
    "vgpurun_gpu_memory_reserved_bytes": 2 * GIB,
    "vgpurun_gpu_sm_reserved_ratio": 0.8,
    "vgpurun_gpu_containers": 2,
}
# Each is the subject of another test, here, in test_guard_shown.py or in test_on_gpu.py.
OTHERS = {
    "vgpurun_build_info", "vgpurun_container_given_back_seconds_total", "vgpurun_container_idle_seconds_total",
    "vgpurun_container_info", "vgpurun_container_last_kernel_age_seconds", "vgpurun_container_not_enforced",
    "vgpurun_container_stopped", "vgpurun_container_swap_wait_seconds_total", "vgpurun_container_swapped_bytes_total",
    "vgpurun_container_swaps_total", "vgpurun_exporter_errors_total", "vgpurun_exporter_look_duration_seconds",
    "vgpurun_exporter_source_up", "vgpurun_guard_actions_total", "vgpurun_guard_running",
    "vgpurun_on_gpu_seconds_total",
}  # fmt: skip


def test_every_metric_is_asked_for() -> None:
    assert {each.name for each in FAMILIES} == OF_CONTAINER.keys() | OF_GPU.keys() | OTHERS


def test_every_figure_of_a_container(world: World) -> None:
    world.add("train", Quota(2 * GIB, 50, paused=True, virtual_bytes=4 * GIB), busy_usage())
    series = world.scrape()
    of_train = {"container": "train", "user": "ann", "gpu": UUID}
    assert {name: value(series, name, **of_train) for name in OF_CONTAINER} == OF_CONTAINER
    age_s = value(series, "vgpurun_container_last_kernel_age_seconds", **of_train)
    assert age_s is not None and 10 <= age_s < 60
    flags = {limit: value(series, "vgpurun_container_not_enforced", limit=limit) for limit in usage_file.NOT_ENFORCED}
    assert flags == {"memory": 0, "sm": 1}
    assert value(series, "vgpurun_container_info", image="pytorch/pytorch", id="train-id", kind="container") == 1


def test_the_time_held_idle_and_given_back(world: World) -> None:
    state = world.add("train", Quota(2 * GIB, 50), busy_usage())
    world.add("new", Quota(GIB, 50))

    def scraped() -> list[float | None]:
        series = world.scrape()
        names = ("idle_seconds_total", "given_back_seconds_total")
        return [value(series, f"vgpurun_container_{name}", container="train", gpu=UUID) for name in names]

    assert scraped() == [0, 0], "this exporter has just begun to look"
    idle_s, none = scraped()
    assert idle_s and none == 0
    (state / "etc" / "limits").write_bytes(
        limits_file.limits_bytes([(UUID, Quota(2 * GIB, 50, suspended=abi.SUSPENDED))])
    )
    after_s, given_back_s = scraped()
    assert after_s == idle_s and given_back_s
    assert value(world.scrape(), "vgpurun_container_idle_seconds_total", container="new") == 0, "it holds nothing"


def test_turns_of_memory_are_counted_and_reserved_once(world: World) -> None:
    """Time without a turn is no time given back: its memory is no more free for others then than before."""
    there = world.add("there", Quota(6 * GIB, 50, takes_turns=True), busy_usage())
    world.add("away", Quota(7 * GIB, 40, takes_turns=True, suspended=abi.SWAPPED), busy_usage())
    world.add("without", Quota(GIB, 10))
    world.add("gone", Quota(7 * GIB, 40, suspended=abi.SUSPENDED), busy_usage())
    add_swap(there, 5 * GIB)
    add_swap(there, 5 * GIB, waited_s=2.5)
    world.scrape()
    series = world.scrape()
    first = {"gpu": UUID, "index": "0", "model": "Test GPU"}
    assert value(series, "vgpurun_gpu_memory_reserved_bytes", **first) == 8 * GIB
    assert value(series, "vgpurun_gpu_sm_reserved_ratio", **first) == 0.6
    for name, expected in (("swaps", 2), ("swapped_bytes", 10 * GIB), ("swap_wait_seconds", 2.5)):
        assert value(series, f"vgpurun_container_{name}_total", container="there") == expected
        assert value(series, f"vgpurun_container_{name}_total", container="away") == 0
        assert value(series, f"vgpurun_container_{name}_total", container="without") is None
    of_away = {"container": "away", "gpu": UUID}
    assert value(series, "vgpurun_container_suspended", **of_away) == 1
    assert value(series, "vgpurun_container_suspended_bytes", **of_away) == 330 * MIB
    assert value(series, "vgpurun_container_memory_used_bytes", **of_away) == 0
    assert value(series, "vgpurun_container_given_back_seconds_total", **of_away) == 0
    (there / "swaps").write_text('{"swaps": -1, "swapped_bytes": 1e400, "waited_s": "no"}')
    assert value(world.scrape(), "vgpurun_container_swaps_total", container="there") == 0


def test_a_gpu_and_what_is_reserved_of_it(world: World) -> None:
    world.add("one", Quota(2 * GIB, 50))
    world.add("two", Quota(None, 30))
    series = world.scrape()
    first = {"gpu": UUID, "index": "0", "model": "Test GPU"}
    assert {name: value(series, name, **first) for name in OF_GPU} == OF_GPU
    assert value(series, "vgpurun_gpu_utilization_ratio", index="1") is None, "NVML does not say"
    assert value(series, "vgpurun_build_info", version=__version__) == 1
    assert 0 < (value(series, "vgpurun_exporter_look_duration_seconds") or 0) < 60


def test_what_is_not_known_has_no_sample(world: World) -> None:
    world.add("free", Quota())
    series = world.scrape()
    names = {name for name, labels in series if ("container", "free") in labels}
    assert "vgpurun_container_memory_used_bytes" in names
    for name in ("memory_limit_bytes", "sm_limit_ratio", "gpu_seconds_total", "sm_used_ratio", "launches_total"):
        assert f"vgpurun_container_{name}" not in names


def test_a_container_that_ended_leaves_nothing(world: World) -> None:
    world.add("short", Quota(GIB), busy_usage())
    assert "short" in label_values(world.scrape(), "container")
    world.engine.containers_now.clear()
    assert label_values(world.scrape(), "container") == set()
    assert world.said == []


@pytest.mark.parametrize(
    "content",
    [b"", b"x" * 100, b"\xff" * 3_000_000, bytes(abi.Usage(magic=abi.USAGE_MAGIC, abi_version=99))],
    ids=["empty", "short", "noise", "another version"],
)
def test_a_broken_usage_file_hides_nobody_else(world: World, content: bytes) -> None:
    world.add("broken", Quota(GIB), content)
    world.add("sound", Quota(GIB), busy_usage())
    series = world.scrape()
    assert label_values(series, "container") == {"sound"}
    assert value(series, "vgpurun_exporter_errors_total", source="broken") == 1
    assert len(world.said) == 1 and "broken is not shown" in world.said[0]
    world.scrape()
    assert len(world.said) == 1, "it is said once"


def test_hostile_files(world: World, tmp_path: Path) -> None:
    pipe = world.add("pipe", Quota(GIB))
    for name in ("etc/limits", "run/usage"):
        (pipe / name).unlink()
        os.mkfifo(pipe / name)
    link = world.add("link", Quota(GIB))
    (link / "run" / "usage").unlink()
    (link / "run" / "usage").symlink_to("/dev/zero")
    noise = abi.Usage(magic=abi.USAGE_MAGIC, abi_version=abi.ABI_VERSION, slots_used=2**32 - 1)
    noise.devices[0].busy_ns = noise.devices[0].throttled_ns = noise.devices[0].launches = 2**64 - 1
    noise.devices[0].last_launch_ns = -(2**63)
    noise.processes[0].devices[0].allocated_bytes = 2**64 - 1
    noise.processes[0].devices[0].context_bytes = 2**64 - 1
    world.add("liar", Quota(GIB, 50), noise)
    series = world.scrape("hami", "alnair")
    assert label_values(series, "container") == {"liar"}
    assert value(series, "vgpurun_container_memory_used_bytes", container="liar") == 8 * GIB
    assert 0 < (value(series, "vgpurun_container_gpu_seconds_total", container="liar") or 0) <= time.monotonic()


def test_no_figure_of_a_container_is_impossible(world: World) -> None:
    """Such a program writes its file itself."""
    forged = abi.Usage(magic=abi.USAGE_MAGIC, abi_version=abi.ABI_VERSION, slots_used=1)
    for part in (forged.devices[0], forged.processes[0].devices[0]):
        for name, kind in (each[:2] for each in part._fields_):
            if issubclass(kind, ctypes.c_uint64):
                setattr(part, name, 2**64 - 1)
    world.add("liar", Quota(GIB, 50, virtual_bytes=2 * GIB), forged)
    uptime_s, count = time.monotonic() + 60, 2**64
    most = {
        "host_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), "bytes": 8 * GIB, "ratio": 1,
        "throttled_seconds_total": uptime_s * abi.MAX_PROCESSES, "seconds_total": uptime_s,
        "launches_total": count, "refusals_total": count,
    }  # fmt: skip
    found = {name: number for (name, labels), number in world.scrape().items() if ("container", "liar") in labels}
    for name, number in found.items():
        assert number <= next((most[end] for end in most if name.endswith(f"_{end}")), 1), name
    assert found["vgpurun_container_memory_buffer_bytes"] == 8 * GIB


def test_hostile_labels(world: World) -> None:
    world.add("sound", Quota(GIB))
    odd = {"memory_bytes": "much", "sm_percent": None, "uuid": UUID}
    huge = {"memory_bytes": 10**400, "sm_percent": None, "uuid": UUID}
    texts = ["[" * 100_000, json.dumps([odd]), json.dumps([huge]), "5", "[{}]"]
    labels = [{"vgpurun.quota": text, "vgpurun.user": 'a"\n\\\udcff'} for text in texts]
    labels += [{"vgpurun.holds": text} for text in ("", ";::;:", f";{UUID}:{'9' * 9999}:x", f"a;{UUID}:{10**40}:-7")]
    for number, of_container in enumerate(labels):
        state = world.add(f"bad{number}", Quota(GIB))
        (state / "etc" / "limits").unlink()
        last = world.engine.containers_now.pop()
        mounts = [{"Source": f"{state}/etc", "Destination": "/.vgpurun/etc"}]
        record = read_record(last.id, {"vgpurun.state": str(state), **of_container}, mounts)
        assert record
        world.engine.containers_now.append(VgpurunContainer(last.id, last.name, "\ud800" * 999, "running", record))
    world.engine.containers_now.append(VgpurunContainer("nul", "nul", "", "running", Record("/\0")))
    series = world.scrape("hami", "alnair")
    assert value(series, "vgpurun_container_memory_limit_bytes", container="sound") == GIB
    of_bad = {name for name, labels in series if ("container", "bad1") in labels}
    assert of_bad <= {"vgpurun_container_info", "vgpurun_container_stopped"}


def test_what_the_guard_has_stopped(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.add("frozen", Quota(GIB))
    world.add("free", Quota(GIB))
    stopped = {"frozen-id": guarded.Stopped(guarded.FREEZE, "memory", 0.0)}
    monkeypatch.setattr(guarded, "stopped", lambda: stopped)
    series = world.scrape()
    assert [value(series, "vgpurun_container_stopped", container=name) for name in ("frozen", "free")] == [1, 0]


def test_two_of_one_name_are_no_double_series(world: World) -> None:
    world.add("same", Quota(GIB))
    again = world.engine.containers_now[0]
    world.engine.containers_now.append(VgpurunContainer("2", "same", "", "running", again.record))
    series = world.scrape("hami", "alnair")  # parse() refuses a series that is there twice
    assert value(series, "vgpurun_exporter_errors_total", source="broken") == 1


def test_one_source_that_fails_leaves_the_other(world: World) -> None:
    world.add("train", Quota(GIB), busy_usage())
    world.scrape()
    world.engine.error = "the engine sleeps"
    series = world.scrape()
    assert value(series, "vgpurun_exporter_source_up", source="engine") == 0
    assert value(series, "vgpurun_gpu_memory_used_bytes", index="0") == 3 * GIB
    assert label_values(series, "container") == set()
    world.engine.error = ""
    series = world.scrape()
    assert value(series, "vgpurun_exporter_source_up", source="engine") == 1
    assert "train" in label_values(series, "container")
    assert world.said == ["warning: containers are not shown: the engine sleeps", "containers are shown again"]


def test_nvml_that_fails_leaves_the_containers(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.add("train", Quota(GIB), busy_usage())
    world.scrape()

    def fail(all_gpus: object) -> None:
        raise GpuError("the driver is gone")

    with monkeypatch.context() as patched:
        patched.setattr(gpus, "read_use", fail)
        series = world.scrape()
    assert value(series, "vgpurun_exporter_source_up", source="nvml") == 0
    assert value(series, "vgpurun_gpu_memory_used_bytes", index="0") is None
    assert value(series, "vgpurun_container_memory_used_bytes", container="train") == 330 * MIB
    assert value(world.scrape(), "vgpurun_gpu_memory_used_bytes", index="0") == 3 * GIB


def test_a_folder_that_goes_while_it_is_read_is_no_error_at_once(world: World) -> None:
    state = world.add("ending", Quota(GIB))
    state.rename(state.with_name("gone"))
    assert label_values(world.scrape(), "container") == set()
    assert world.said == []
    world.scrape()
    assert len(world.said) == 1 and "ending is not shown" in world.said[0], "still listed: it has not ended"


@contextmanager
def as_nobody() -> Iterator[None]:
    """A user without root's rights, whoever runs the tests."""
    mine = os.geteuid()
    if mine:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(mine)


@pytest.mark.parametrize("closed", ["run", "."])
def test_what_this_user_may_not_read_is_said(monkeypatch: pytest.MonkeyPatch, closed: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # not pytest's own, which is root's alone
        made = World(Path(folder), monkeypatch)
        state = made.add("private", Quota(GIB))
        record = Record(str(state), quotas=((UUID, Quota(GIB)),))
        made.engine.containers_now = [replace(made.engine.containers_now[0], record=record)]
        (state / closed).chmod(0)
        with as_nobody():
            series = made.scrape()
        (state / closed).chmod(0o755)
        for lock in made.locks:
            os.close(lock)
    assert value(series, "vgpurun_container_memory_limit_bytes", container="private") == GIB
    assert value(series, "vgpurun_container_memory_used_bytes", container="private") is None
    assert value(series, "vgpurun_exporter_errors_total", source="unreadable") == 1
    assert len(made.said) == 1 and "run the exporter as root" in made.said[0]


def test_who_waits_for_a_look_shares_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vgpurun.metrics.snapshot._FRESH_S", 60.0)
    looks: list[float] = []

    def slow(everything: bool = True) -> list[VgpurunContainer]:
        looks.append(time.monotonic())
        time.sleep(0.2)
        return []

    monkeypatch.setattr(world.engine, "containers", slow)
    scrapers = [threading.Thread(target=world.reader.look) for _ in range(4)]
    for each in scrapers:
        each.start()
    for each in scrapers:
        each.join()
    assert len(looks) == 1


def test_the_names_of_hami(world: World) -> None:
    world.add("train", Quota(2 * GIB, 50), busy_usage())
    series = world.scrape("hami")
    of_train = {"pod": "train", "container": "train", "namespace": "ann", "vdevice_index": "0", "device_uuid": UUID}
    assert value(series, "hami_vgpu_memory_used_bytes", **of_train) == 330 * MIB
    assert value(series, "hami_vgpu_memory_limit_bytes", **of_train) == 2 * GIB
    assert value(series, "hami_vgpu_memory_buffer_bytes", **of_train) == 300 * MIB
    assert value(series, "hami_container_device_utilization_ratio", **of_train) == 40
    host = {"device_index": "0", "device_uuid": UUID, "device_type": "NVIDIA-Test GPU"}
    assert value(series, "hami_host_gpu_memory_used_bytes", **host) == 3 * GIB
    assert value(series, "hami_host_gpu_utilization_ratio", **host) == 25
    assert value(series, "hami_gpu_core_allocated_ratio", **host) == 50
    assert value(series, "hami_gpu_memory_allocated_bytes", **host) == 2 * GIB


def test_the_names_of_alnair(world: World) -> None:
    world.add("train", Quota(2 * GIB, 50), busy_usage())
    series = world.scrape("alnair")
    assert value(series, "alnair_gpu_util", gpu_uuid=UUID, pod_name="train", namespace="ann") == 40
    assert value(series, "alnair_gpu_mem_used", gpu_uuid=UUID, pod_name="train") == 330 * MIB
    assert value(series, "alnair_cuda_launch_kernel_cnt", pod_name="train") == 77
    assert value(series, "alnair_cuda_mem_used", pod_name="train") == 300 * MIB
