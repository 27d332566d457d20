"""The container that a process is in, by the kernel's own word: real processes in real cgroups and namespaces."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from cgroup_maker import ID, running, until
from fakes import GIB, make_gpus

from support.programs import text_of
from vgpurun import abi
from vgpurun.engine.client import VgpurunContainer
from vgpurun.engine.containers import ContainerEngine
from vgpurun.engine.labels import Record
from vgpurun.errors import ContainerError, EngineError, GpuError
from vgpurun.guard.hands import let_dying_go
from vgpurun.guard.processes import pid_inside
from vgpurun.guard.reader import GuardReader
from vgpurun.guard.snapshot import Program
from vgpurun.host import gpus
from vgpurun.host.freezer import Cgroup
from vgpurun.host.gpus import Gpu, Survey
from vgpurun.inventory.programs import _line_of
from vgpurun.limits.limits_file import limits_bytes
from vgpurun.limits.quota import Quota
from vgpurun.storage.state import SLICES

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may make cgroups")
OTHER_ID = f"{os.getpid() + (1 << 40):064x}"


class Engine:
    """Tells the first process of a container, and which there are, unless it is gone."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.pids: dict[str, int] = {}
        self.listed: list[VgpurunContainer] = []
        self.is_gone = False
        self.asked_by: GuardReader | None = None

    def containers(self, everything: bool) -> list[VgpurunContainer]:
        assert not everything
        if self.is_gone:
            raise EngineError("it is gone")
        return self.listed

    def describe(self, container: str) -> dict[str, Any]:
        pid = self.pids.get(container, self.pid)
        if not pid:
            raise ContainerError(f"no such container: {container}")
        return {"Id": container, "Name": "/train", "Config": {}, "State": {"Pid": pid, "Status": "running"}}


def reader(*known: str, first_pid: int = 0) -> GuardReader:
    made = GuardReader({}, lambda *_: None, time.monotonic)
    made._listed = dict.fromkeys(known)  # type: ignore[assignment]  # who they are does not matter here
    made._has_listed = True
    made._first_pids = dict.fromkeys(known, first_pid) if first_pid else {}
    return made


def test_whose_a_process_is(make_cgroup: Callable[[str], Cgroup]) -> None:
    ours, foreign = make_cgroup(ID), make_cgroup(OTHER_ID)
    with running(ours) as pid, running(foreign) as other, running(None) as outside:
        read = reader(ID, first_pid=pid)
        assert read._read_program(pid).container == ID
        assert read._read_program(other).container is None, "the engine has not been asked about it"
        listed = read._read_program(other, is_listed=True)
        assert (listed.container, listed.foreign) == ("", OTHER_ID)
        assert (read._read_program(outside).container, read._read_program(outside).foreign) == ("", "")
        assert read._read_program(outside).command.startswith("python")
    assert read._read_program(pid).container is None, "it has ended"
    unlisted = GuardReader({}, lambda *_: None, time.monotonic)
    with running(ours) as pid:
        assert unlisted._read_program(pid).container is None, "the engine has not answered yet"


def test_one_that_was_moved_in_is_nobodys(make_cgroup: Callable[[str], Cgroup]) -> None:
    """Whoever may write to the host's cgroups may move a process into another container's."""
    cgroup = make_cgroup(ID)
    own = ("unshare", "--fork", "--pid", "--mount-proc")
    with running(cgroup, *own) as stranger, running(cgroup, *own) as first, running(cgroup) as of_host:
        read = reader(ID, first_pid=first)
        assert read._read_program(first).container == ID
        assert read._read_program(stranger).container is None
        assert read._read_program(of_host).container is None
        silent = reader(ID)
        assert silent._read_program(first).container is None and silent._unknown == {ID}


def test_a_cgroup_named_like_a_containers_is_nobodys(make_cgroup: Callable[[str], Cgroup]) -> None:
    """Users may make cgroups below their session's, and the kernel tells all users what those of containers are."""
    cgroup = make_cgroup(ID)
    forged = Cgroup(make_cgroup(OTHER_ID).folder / ID, cgroup.is_unified)
    forged.folder.mkdir()
    with running(cgroup) as first, running(forged) as stranger:
        read = reader(ID, first_pid=first)
        assert [read._read_program(pid).container for pid in (stranger, first, stranger)] == [None, ID, None]
        assert read._unknown == {ID}, "another may be its first process by now"
        listed = read._read_program(stranger, is_listed=True)
        assert (listed.container, listed.foreign) == ("", OTHER_ID), "it is outside, where the whole path says"
        assert reader(ID)._read_program(stranger).container is None, "the engine has not said which is first"
    until(lambda: not forged.pids())
    forged.folder.rmdir()


def test_a_cgroup_within_named_like_anothers_hides_nobody(make_cgroup: Callable[[str], Cgroup]) -> None:
    """Root that may mount makes cgroups below its container's."""
    ours, others = make_cgroup(ID), make_cgroup(OTHER_ID)
    below = Cgroup(ours.folder / OTHER_ID, ours.is_unified)
    below.folder.mkdir()
    with running(ours) as first, running(others) as other, running(below) as hidden:
        read = reader(ID, OTHER_ID)
        read._first_pids = {ID: first, OTHER_ID: other}
        assert [read._read_program(pid).container for pid in (hidden, other, hidden)] == [ID, OTHER_ID, ID]
    until(lambda: not below.pids())
    below.folder.rmdir()


def test_a_forged_cgroup_is_outside_when_the_engine_has_answered(
    make_cgroup: Callable[[str], Cgroup], asked: tuple[Engine, Callable[[int], str | None]]
) -> None:
    """It is asked anew: what it said before may be of a process that has ended, and whose number is another's."""
    ours, elsewhere = make_cgroup(ID), make_cgroup(OTHER_ID)
    forged = Cgroup(elsewhere.folder / f"docker-{ID}.scope", ours.is_unified)
    forged.folder.mkdir()
    engine, container_of = asked
    engine.listed = [VgpurunContainer(ID, "train", "image", "running", Record("/none", user="ann"))]
    engine.pids = {OTHER_ID: 0}
    with running(forged) as engine.pid, running(ours) as first:
        assert container_of(engine.pid) == ID, "the engine says that it is the first"
        engine.pid = first
        until(lambda: container_of(first) == ID)
        with running(forged) as stranger:
            assert container_of(stranger) == ""
    until(lambda: not forged.pids())
    forged.folder.rmdir()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> tuple[Engine, Callable[[int], str | None]]:
    """An engine, and what is known of a process's container after two more seconds."""
    engine = Engine(0)
    monkeypatch.setattr(ContainerEngine, "connect", lambda _: engine)
    now = [100.0]
    engine.asked_by = read = GuardReader({}, lambda *_: None, lambda: now[0])

    def container_of(pid: int) -> str | None:
        now[0] += 2
        read._programs = {pid: read._programs.get(pid) or read._read_program(pid)}
        read._list_containers(now[0])
        return read._programs[pid].container

    return engine, container_of


def test_one_that_is_started_again_is_known_again(
    make_cgroup: Callable[[str], Cgroup], asked: tuple[Engine, Callable[[int], str | None]]
) -> None:
    cgroup = make_cgroup(ID)
    engine, container_of = asked
    engine.listed = [VgpurunContainer(ID, "train", "image", "running", Record("/none", user="ann"))]
    for _ in range(2):
        with running(cgroup) as engine.pid:
            until(lambda: container_of(engine.pid) == ID)
        until(lambda: not cgroup.pids())
        cgroup.folder.rmdir()
        cgroup.folder.mkdir()


def test_one_that_leaves_its_cgroup_is_outside(
    make_cgroup: Callable[[str], Cgroup], asked: tuple[Engine, Callable[[int], str | None]]
) -> None:
    """Root in a container that has the host's cgroups moves it: none of the container's limits would hold it then."""
    cgroup = make_cgroup(ID)
    engine, container_of = asked
    engine.listed = [VgpurunContainer(ID, "train", "image", "running", Record("/none", user="ann"))]
    first, second = ("unshare", "--fork", "--pid", "--mount-proc"), ("nsenter", "-p", "-t")
    with running(cgroup, *first) as engine.pid, running(cgroup, *second, str(engine.pid)) as leaving:
        until(lambda: container_of(leaving) == ID)
        (cgroup.folder / "inner").mkdir()
        (cgroup.folder / "inner" / "cgroup.procs").write_text(str(leaving))
        for _ in range(40):
            assert container_of(leaving) == ID, "it is below its own"
        (cgroup.folder.parent / "cgroup.procs").write_text(str(leaving))
        until(lambda: container_of(leaving) == "")
        assert engine.asked_by and engine.asked_by._programs[leaving].foreign == ID


def test_one_that_comes_while_the_engine_answers(
    make_cgroup: Callable[[str], Cgroup],
    asked: tuple[Engine, Callable[[int], str | None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer to what was asked before says nothing of it."""
    engine, container_of = asked
    answers = threading.Event()

    def slow(everything: bool) -> list[VgpurunContainer]:
        listed = list(engine.listed)
        assert not everything and answers.wait(60)
        return listed

    monkeypatch.setattr(engine, "containers", slow)
    with running(None) as host, running(make_cgroup(ID)) as pid:
        assert container_of(host) is None, "the engine has not answered yet"
        engine.listed = [VgpurunContainer(ID, "train", "image", "running", Record("/none", user="ann"))]
        engine.pid = pid
        answers.set()
        assert [container_of(pid), container_of(pid)] == [None, ID]


def test_one_that_the_engine_lists_late(
    make_cgroup: Callable[[str], Cgroup], asked: tuple[Engine, Callable[[int], str | None]]
) -> None:
    """It lists a container when it has written down that it runs: by then a program may hold memory for long."""
    engine, container_of = asked
    with running(make_cgroup(ID)) as engine.pid, running(make_cgroup(OTHER_ID)) as other:
        engine.pids = {OTHER_ID: 0}
        assert container_of(engine.pid) == ID
        assert container_of(other) == "", "the engine knows nothing of it"
        engine.pids = {OTHER_ID: other}
        engine.listed = [VgpurunContainer(OTHER_ID, "train", "image", "running", Record("/none", user="ann"))]
        until(lambda: container_of(other) == OTHER_ID)


def test_a_name_hides_nobody_and_forges_nothing(make_cgroup: Callable[[str], Cgroup]) -> None:
    """A program names itself, and the cgroups that it makes, by any bytes but a newline."""
    cgroup = make_cgroup(ID)
    inner = Path(os.fsdecode(os.fsencode(cgroup.folder) + b"/\xff\x0b0::"))
    inner.mkdir()
    for name in (b"\xff", b"\x0bNSpid:\t1", b"\x0bShdPnd:\t100", b") R 1 (", b"a\nb"):
        program = f"import time; open('/proc/self/comm', 'wb').write({name!r}); print(flush=True); time.sleep(600)"
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None and process.stdout.readline()
            pid = process.pid
            (inner / "cgroup.procs").write_text(str(pid))
            try:
                read = reader(ID, first_pid=pid)._read_program(pid)
                assert (read.container, read.command.isprintable()) == (ID, True)
                assert pid_inside(pid) == pid and list(_line_of(pid))[:2] == [pid, os.getpid()]
                cgroup.freeze()
                let_dying_go(cgroup)
                assert cgroup.pids() == [pid], "no signal is pending"
                cgroup.thaw()
            finally:
                process.kill()
        until(lambda: not cgroup.pids())
    inner.rmdir()


def test_the_engine_and_nvml_come_and_go(
    make_cgroup: Callable[[str], Cgroup], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A known process stays known, a new one is nobody's, and nothing is known without NVML."""
    (gpu,) = make_gpus(1)
    held: dict[int, int] = {}
    is_up = [True]
    said: list[tuple[str, str]] = []
    now = [100.0]

    def read_all_processes(found: Sequence[Gpu]) -> dict[str, dict[int, int] | GpuError]:
        return {each.uuid: held if is_up[0] else GpuError("NVML is gone") for each in found}

    monkeypatch.setattr(gpus, "held_open", nullcontext)
    monkeypatch.setattr(gpus, "survey", lambda: Survey([gpu], []))
    monkeypatch.setattr(gpus, "read_all_processes", read_all_processes)
    engine = Engine(0)
    monkeypatch.setattr(ContainerEngine, "connect", lambda _: engine)
    read = GuardReader({}, lambda *words: said.append(words), lambda: now[0])

    def container(id_: str) -> VgpurunContainer:
        folder = tmp_path / id_
        (folder / "etc").mkdir(parents=True)
        (folder / "etc" / "limits").write_bytes(limits_bytes([(gpu.uuid, Quota(GIB))]))
        return VgpurunContainer(id_, "train", "image", "running", Record(str(folder), user="ann"))

    def look() -> dict[int, str | None]:
        now[0] += 2
        found = read.look()
        assert found is not None
        return {pid: each.container for pid, each in found.programs.items()}

    first, second = make_cgroup(ID), make_cgroup(OTHER_ID)
    engine.listed.append(container(ID))
    with running(first) as pid, running(second) as other:
        held[pid] = GIB
        engine.pids = {ID: pid, OTHER_ID: other}
        assert look() == {pid: ID}
        engine.is_gone = True
        held[other] = GIB
        assert look() == look() == {pid: ID, other: None}
        found = read.look()
        assert found is not None and found.containers[ID].quotas[gpu.uuid].memory_bytes == GIB
        assert [words for source, words in said if source == "engine"][
            -1
        ] == "new containers are not guarded: it is gone"
        is_up[0] = False
        assert read.look() is None and said[-1] == ("nvml", "the guard does not see GPU 0: NVML is gone")
        is_up[0] = True
        assert look() == {pid: ID, other: None}
        engine.is_gone = False
        engine.listed.append(container(OTHER_ID))
        assert look() == {pid: ID, other: OTHER_ID}
        read._programs[pid] = Program(pid, 1, OTHER_ID)  # one that had its number before
        read._watch.keep({other})  # and has ended
        assert look() == {pid: ID, other: OTHER_ID}
        (tmp_path / ID / "etc" / "limits").write_bytes(limits_bytes([(gpu.uuid, Quota(2 * GIB))]))
        look()
        found = read.look()
        assert found is not None and found.containers[ID].quotas[gpu.uuid].memory_bytes == 2 * GIB
        engine.listed.clear()
        held.clear()
        assert look() == {}


def test_limits_of_a_part_and_of_what_is_around_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = own, share, slice_ = tmp_path / "own", tmp_path / "share", tmp_path / SLICES / "s"
    for number, folder in enumerate(folders, 1):
        (folder / "etc").mkdir(parents=True)
        (folder / "etc" / "limits").write_bytes(limits_bytes([("GPU-0", Quota(number * GIB))]))
    record = Record(str(own), str(slice_), user="ann", parents=(str(share), str(slice_)))
    read = reader()
    read._listed = {ID: VgpurunContainer(ID, "train", "image", "running", record)}
    read._programs = {1: Program(1, 1, ID)}
    monkeypatch.setattr(read, "_cgroup_of", lambda _: (Cgroup(tmp_path, True), "1"))

    def limits() -> dict[str, int | None]:
        found = read._contained()[ID]
        assert found.slice_name == "" and found.folder == own
        around = {name: quotas["GPU-0"].memory_bytes for name, quotas in found.around.items()}
        return {"": found.quotas["GPU-0"].memory_bytes, **around}

    assert limits() == limits() == {"": GIB, f"share {share}": 2 * GIB, "slice s": 3 * GIB}
    (slice_ / "etc" / "limits").write_bytes(limits_bytes([("GPU-0", Quota(5 * GIB))]))
    assert limits() == {"": GIB, f"share {share}": 2 * GIB, "slice s": 5 * GIB}
    read.close()


def look_at_a_server_that_is_gone() -> None:
    place = sys.argv[1]
    file = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={file},rootmode=40000,user_id=0,group_id=0".encode()
    assert ctypes.CDLL(None).mount(b"gone", place.encode(), b"fuse", 0, options) == 0
    read = GuardReader({}, lambda *words: print(*words, flush=True), time.monotonic)
    for name in (f"{place}/usage", f"{place}/usage", f"{place}/usage", "/none"):
        with subprocess.Popen(["sleep", "600"], env={abi.ENV_USAGE_FILE: name}) as program:
            while not Path(f"/proc/{program.pid}/environ").read_bytes():  # what it runs is not there yet
                time.sleep(0.01)
            began_s = time.monotonic()
            print(read._is_counted_elsewhere(program.pid), time.monotonic() - began_s < 20, flush=True)
            program.kill()
    os._exit(0)


def test_a_usage_file_that_never_answers_holds_nobody_up(tmp_path: Path) -> None:
    """A process names its file itself, which may be on a server that is gone: it is let be, and that is said."""
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        pytest.skip("only root mounts a file system that never answers")
    command = ["unshare", "--mount", sys.executable, "-c", text_of(look_at_a_server_that_is_gone), str(tmp_path)]
    seen = subprocess.run(command, capture_output=True, text=True, timeout=100)
    said = [line for line in seen.stdout.splitlines() if line.startswith("file of ")]
    answers = [line for line in seen.stdout.splitlines() if line not in said]
    assert answers == ["True True"] * 3 + ["False True"], seen
    assert sum("does not answer" in line for line in said) == 3


def test_an_engine_that_hangs_holds_nobody_up(
    make_cgroup: Callable[[str], Cgroup], monkeypatch: pytest.MonkeyPatch
) -> None:
    (gpu,) = make_gpus(1)
    monkeypatch.setattr(gpus, "held_open", nullcontext)
    monkeypatch.setattr(gpus, "survey", lambda: Survey([gpu], []))
    answers = threading.Event()

    class Hanging(Engine):
        def containers(self, everything: bool) -> list[VgpurunContainer]:
            assert not everything and answers.wait(60)
            return []

    monkeypatch.setattr(ContainerEngine, "connect", lambda _: Hanging(0))
    read = GuardReader({}, lambda *_: None, time.monotonic)
    with running(make_cgroup(ID)) as pid:
        monkeypatch.setattr(gpus, "read_all_processes", lambda _: {gpu.uuid: {pid: GIB}})
        for _ in range(3):
            assert read.look() is None, "what a guard before this one remembers of containers would seem to be over"
        answers.set()

        def is_foreign() -> bool:
            found = read.look()
            return found is not None and found.programs[pid].foreign == ID

        until(is_foreign)
