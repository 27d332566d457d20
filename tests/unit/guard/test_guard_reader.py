"""The container that a process is in, by the kernel's own word: real processes in real cgroups and namespaces."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from cgroup_maker import ID, running
from fakes import GIB, make_gpus

from support import wait_until
from support.programs import text_of
from vgpurun import abi
from vgpurun.engine.client import VgpurunContainer
from vgpurun.engine.containers import ContainerEngine
from vgpurun.engine.labels import Record
from vgpurun.errors import ContainerError, EngineError, GpuError
from vgpurun.guard import counting
from vgpurun.guard.containers import Containers
from vgpurun.guard.counting import Counting
from vgpurun.guard.hands import let_dying_go
from vgpurun.guard.listing import Listing
from vgpurun.guard.membership import Membership
from vgpurun.guard.processes import namespace_of
from vgpurun.guard.programs import Programs
from vgpurun.guard.reader import GuardReader
from vgpurun.guard.snapshot import Contained, Program
from vgpurun.host import gpus
from vgpurun.host.freezer import Cgroup
from vgpurun.host.gpus import Gpu, Survey
from vgpurun.limits.limits_file import limits_bytes
from vgpurun.limits.quota import Quota
from vgpurun.storage.state import SLICES
from vgpurun.util.process_identity import line_of, pid_inside

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may make cgroups")
OTHER_ID = f"{os.getpid() + (1 << 40):064x}"


class Engine:
    """Tells the first process of a container, and which there are, unless it is gone."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.pids: dict[str, int] = {}
        self.listed: list[VgpurunContainer] = []
        self.is_gone = False

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


def container(id_: str, folder: Path | str = "/none") -> VgpurunContainer:
    return VgpurunContainer(id_, "train", "image", "running", Record(str(folder), user="ann"))


def listing(**first_pids: int) -> Listing:
    """Return an answer of the engine: these containers, by their ids, with the first process of each if it told."""
    made = Listing(lambda *_: None)
    made.take({id_: container(id_) for id_ in first_pids}, {id_: pid for id_, pid in first_pids.items() if pid})
    return made


def test_whose_a_process_is(make_cgroup: Callable[[str], Cgroup]) -> None:
    ours, foreign = make_cgroup(ID), make_cgroup(OTHER_ID)
    with running(ours) as pid, running(foreign) as other, running(None) as outside:
        member = Membership(listing(**{ID: pid}))
        assert member.describe(pid).container == ID
        assert member.describe(other).container is None, "the engine has not been asked about it"
        listed = member.describe(other, is_listed=True)
        assert (listed.container, listed.foreign) == ("", OTHER_ID)
        found = member.describe(outside)
        assert (found.container, found.foreign) == ("", "")
        assert found.command.startswith("python")
    assert member.describe(pid).container is None, "it has ended"
    with running(ours) as pid:
        unlisted = Membership(Listing(lambda *_: None))
        assert unlisted.describe(pid).container is None, "the engine has not answered yet"


def test_one_that_was_moved_in_is_nobodys(make_cgroup: Callable[[str], Cgroup]) -> None:
    """A user who may write to the host's cgroups may move a process into another container's."""
    cgroup = make_cgroup(ID)
    own = ("unshare", "--fork", "--pid", "--mount-proc")
    with running(cgroup, *own) as stranger, running(cgroup, *own) as first, running(cgroup) as of_host:
        member = Membership(listing(**{ID: first}))
        assert member.describe(first).container == ID
        assert member.describe(stranger).container is None
        assert member.describe(of_host).container is None
        silent = listing(**{ID: 0})
        assert Membership(silent).describe(first).container is None and silent.unknown == {ID}


def test_a_cgroup_named_like_a_containers_is_nobodys(make_cgroup: Callable[[str], Cgroup]) -> None:
    """Users may make cgroups below their session's, and the kernel tells all users what those of containers are."""
    cgroup = make_cgroup(ID)
    forged = Cgroup(make_cgroup(OTHER_ID).folder / ID, cgroup.is_unified)
    forged.folder.mkdir()
    with running(cgroup) as first, running(forged) as stranger:
        known = listing(**{ID: first})
        member = Membership(known)
        assert [member.describe(pid).container for pid in (stranger, first, stranger)] == [None, ID, None]
        assert known.unknown == {ID}, "another may be its first process by now"
        listed = member.describe(stranger, is_listed=True)
        assert (listed.container, listed.foreign) == ("", OTHER_ID), "it is outside, where the whole path says"
        silent = Membership(listing(**{ID: 0}))
        assert silent.describe(stranger).container is None, "the engine has not said which is first"
    wait_until(lambda: not forged.pids())
    forged.folder.rmdir()


def test_a_cgroup_within_named_like_anothers_hides_nobody(make_cgroup: Callable[[str], Cgroup]) -> None:
    """Root that may mount makes cgroups below its container's."""
    ours, others = make_cgroup(ID), make_cgroup(OTHER_ID)
    below = Cgroup(ours.folder / OTHER_ID, ours.is_unified)
    below.folder.mkdir()
    with running(ours) as first, running(others) as other, running(below) as hidden:
        member = Membership(listing(**{ID: first, OTHER_ID: other}))
        assert [member.describe(pid).container for pid in (hidden, other, hidden)] == [ID, OTHER_ID, ID]
    wait_until(lambda: not below.pids())
    below.folder.rmdir()


def test_a_forged_cgroup_is_outside_when_the_engine_has_answered(
    make_cgroup: Callable[[str], Cgroup], asked: Asked
) -> None:
    """The engine is asked anew: its answer before may be of a process that has ended, and whose number is another's."""
    ours, elsewhere = make_cgroup(ID), make_cgroup(OTHER_ID)
    forged = Cgroup(elsewhere.folder / f"docker-{ID}.scope", ours.is_unified)
    forged.folder.mkdir()
    engine, container_of = asked.engine, asked.container_of
    engine.listed = [container(ID)]
    engine.pids = {OTHER_ID: 0}
    with running(forged) as engine.pid, running(ours) as first:
        assert container_of(engine.pid) == ID, "the engine says that it is the first"
        engine.pid = first
        wait_until(lambda: container_of(first) == ID)
        with running(forged) as stranger:
            assert container_of(stranger) == ""
    wait_until(lambda: not forged.pids())
    forged.folder.rmdir()


class Asked:
    """An engine, and a guard that looks every two seconds at one process that holds memory of the GPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        (gpu,) = make_gpus(1)
        self.engine = Engine(0)
        self.now_s = 100.0
        self.pid = 0
        monkeypatch.setattr(ContainerEngine, "connect", lambda _: self.engine)
        monkeypatch.setattr(gpus, "held_open", nullcontext)
        monkeypatch.setattr(gpus, "survey", lambda: Survey([gpu], []))
        monkeypatch.setattr(gpus, "read_all_processes", lambda _: {gpu.uuid: {self.pid: GIB}})
        self.read = GuardReader({}, lambda *_: None, lambda: self.now_s)

    def program(self, pid: int) -> Program | None:
        self.now_s += 2
        self.pid = pid
        found = self.read.look()
        return found.programs[pid] if found else None

    def container_of(self, pid: int) -> str | None:
        program = self.program(pid)
        return program.container if program else None


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Asked]:
    made = Asked(monkeypatch)
    yield made
    made.read.close()


def test_one_that_is_started_again_is_known_again(make_cgroup: Callable[[str], Cgroup], asked: Asked) -> None:
    cgroup = make_cgroup(ID)
    engine, container_of = asked.engine, asked.container_of
    engine.listed = [container(ID)]
    for _ in range(2):
        with running(cgroup) as engine.pid:
            wait_until(lambda: container_of(engine.pid) == ID)
        wait_until(lambda: not cgroup.pids())
        cgroup.folder.rmdir()
        cgroup.folder.mkdir()


def test_one_that_leaves_its_cgroup_is_outside(make_cgroup: Callable[[str], Cgroup], asked: Asked) -> None:
    """Root in a container that has the host's cgroups moves it: none of the container's limits would hold it then."""
    cgroup = make_cgroup(ID)
    engine, container_of = asked.engine, asked.container_of
    engine.listed = [container(ID)]
    first, second = ("unshare", "--fork", "--pid", "--mount-proc"), ("nsenter", "-p", "-t")
    with running(cgroup, *first) as engine.pid, running(cgroup, *second, str(engine.pid)) as leaving:
        wait_until(lambda: container_of(leaving) == ID)
        (cgroup.folder / "inner").mkdir()
        (cgroup.folder / "inner" / "cgroup.procs").write_text(str(leaving))
        for _ in range(40):
            assert container_of(leaving) == ID, "it is below its own"
        (cgroup.folder.parent / "cgroup.procs").write_text(str(leaving))
        wait_until(lambda: container_of(leaving) == "")
        left = asked.program(leaving)
        assert left and left.foreign == ID


def test_one_that_comes_while_the_engine_answers(
    make_cgroup: Callable[[str], Cgroup],
    asked: Asked,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer to what was asked before says nothing of it."""
    engine, container_of = asked.engine, asked.container_of
    answers = threading.Event()

    def slow(everything: bool) -> list[VgpurunContainer]:
        listed = list(engine.listed)
        assert not everything and answers.wait(60)
        return listed

    monkeypatch.setattr(engine, "containers", slow)
    with running(None) as host, running(make_cgroup(ID)) as pid:
        assert container_of(host) == "", "the engine has not answered yet, but it is in no container's cgroup"
        engine.listed = [container(ID)]
        engine.pid = pid
        answers.set()
        assert [container_of(pid), container_of(pid)] == [None, ID]


def test_one_that_the_engine_lists_late(make_cgroup: Callable[[str], Cgroup], asked: Asked) -> None:
    """The engine lists a container after noting that it runs: by then a program may have held memory for long."""
    engine, container_of = asked.engine, asked.container_of
    with running(make_cgroup(ID)) as engine.pid, running(make_cgroup(OTHER_ID)) as other:
        engine.pids = {OTHER_ID: 0}
        assert container_of(engine.pid) == ID
        assert container_of(other) == "", "the engine knows nothing of it"
        engine.pids = {OTHER_ID: other}
        engine.listed = [container(OTHER_ID)]
        wait_until(lambda: container_of(other) == OTHER_ID)


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
                found = Membership(listing(**{ID: pid})).describe(pid)
                assert (found.container, found.command.isprintable()) == (ID, True)
                assert pid_inside(pid) == pid and list(line_of(pid))[:2] == [pid, os.getpid()]
                cgroup.freeze()
                let_dying_go(cgroup)
                assert cgroup.pids() == [pid], "no signal is pending"
                cgroup.thaw()
            finally:
                process.kill()
        wait_until(lambda: not cgroup.pids())
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

    def limited(id_: str) -> VgpurunContainer:
        folder = tmp_path / id_
        (folder / "etc").mkdir(parents=True)
        (folder / "etc" / "limits").write_bytes(limits_bytes([(gpu.uuid, Quota(GIB))]))
        return container(id_, folder)

    def look() -> dict[int, str | None]:
        now[0] += 2
        found = read.look()
        return {pid: each.container for pid, each in found.programs.items()}

    first, second = make_cgroup(ID), make_cgroup(OTHER_ID)
    engine.listed.append(limited(ID))
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
        engine.listed.append(limited(OTHER_ID))
        assert look() == {pid: ID, other: OTHER_ID}
        (tmp_path / ID / "etc" / "limits").write_bytes(limits_bytes([(gpu.uuid, Quota(2 * GIB))]))
        look()
        found = read.look()
        assert found is not None and found.containers[ID].quotas[gpu.uuid].memory_bytes == 2 * GIB
        engine.listed.clear()
        held.clear()
        assert look() == {}


def test_one_that_has_the_number_of_another_is_not_taken_for_it(make_cgroup: Callable[[str], Cgroup]) -> None:
    """The kernel had no watch left for the one before."""
    with running(make_cgroup(ID)) as pid:
        programs = Programs(Membership(listing(**{ID: pid})))
        programs.by_pid = {pid: Program(pid, 1, OTHER_ID)}
        programs.keep({pid})
        assert programs.by_pid[pid].container == ID
        programs.close()


def test_limits_of_a_part_and_of_what_is_around_it(tmp_path: Path, make_cgroup: Callable[[str], Cgroup]) -> None:
    folders = own, share, slice_ = tmp_path / "own", tmp_path / "share", tmp_path / SLICES / "s"
    for number, folder in enumerate(folders, 1):
        (folder / "etc").mkdir(parents=True)
        (folder / "etc" / "limits").write_bytes(limits_bytes([("GPU-0", Quota(number * GIB))]))
    record = Record(str(own), str(slice_), user="ann", parents=(str(share), str(slice_)))
    with running(make_cgroup(ID)) as pid:
        known = Listing(lambda *_: None)
        known.take({ID: VgpurunContainer(ID, "train", "image", "running", record)}, {ID: pid})
        programs = Programs(Membership(known))
        programs.keep({pid})
        containers = Containers(known, programs, {})

        def limits() -> dict[str, int | None]:
            found = containers.read()[ID]
            assert found.slice_name == "" and found.folder == own
            around = {name: quotas["GPU-0"].memory_bytes for name, quotas in found.around.items()}
            return {"": found.quotas["GPU-0"].memory_bytes, **around}

        assert limits() == limits() == {"": GIB, f"share {share}": 2 * GIB, "slice s": 3 * GIB}
        (slice_ / "etc" / "limits").write_bytes(limits_bytes([("GPU-0", Quota(5 * GIB))]))
        assert limits() == {"": GIB, f"share {share}": 2 * GIB, "slice s": 5 * GIB}
        containers.close()
        programs.close()


def test_a_usage_file_that_counts_nobody_is_read_again_when_it_has_changed(
    tmp_path: Path, make_cgroup: Callable[[str], Cgroup], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ask about a counted one, too: it may become a program past the library without a write to the file."""
    slots = set[tuple[int, int]]()
    reads: list[Path] = []

    def read(file: Path) -> frozenset[tuple[int, int]]:
        reads.append(file)
        return frozenset(slots)

    monkeypatch.setattr(counting, "read_counted", read)
    (tmp_path / "run").mkdir()
    usage = tmp_path / "run" / "usage"
    cgroup = make_cgroup(ID)
    with running(cgroup) as first, running(cgroup) as second:
        programs = Programs(Membership(listing(**{ID: first})))
        programs.keep({first})
        contained = Contained(ID, "train", "ann", tmp_path, cgroup, "1", {})
        counts = Counting(programs, lambda *_: None)

        def counted(now_s: float) -> frozenset[int] | None:
            counts.begin_look(programs.by_pid.keys(), now_s)
            return counts.counted_by(contained)

        assert [counted(now_s) for now_s in (1, 2, 10)] == [frozenset()] * 3 and len(reads) == 1
        assert counted(11) == frozenset() and len(reads) == 2, "a write through a mapping may have been missed"
        programs.keep({first, second})
        assert counted(12) == frozenset() and len(reads) == 3, "another process may be counted already"
        slots.add((namespace_of(first), pid_inside(first)))
        usage.write_bytes(b"1")
        assert [counted(now_s) for now_s in (13, 14)] == [{first}] * 2 and len(reads) == 5
        slots.clear()
        assert counted(15) == frozenset()
        counts.close()
        programs.close()


def look_at_a_server_that_is_gone() -> None:
    place = sys.argv[1]
    file = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={file},rootmode=40000,user_id=0,group_id=0".encode()
    assert ctypes.CDLL(None).mount(b"gone", place.encode(), b"fuse", 0, options) == 0
    counts = Counting(Programs(Membership(Listing(print))), lambda *words: print(*words, flush=True))
    for name in (f"{place}/usage", f"{place}/usage", f"{place}/usage", "/none"):
        with subprocess.Popen(["sleep", "600"], env={abi.ENV_USAGE_FILE: name}) as program:
            while not Path(f"/proc/{program.pid}/environ").read_bytes():  # the program is not executed yet
                time.sleep(0.01)
            began_s = time.monotonic()
            print(counts.is_counted_elsewhere(program.pid), time.monotonic() - began_s < 20, flush=True)
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


def test_where_no_engine_runs_a_process_in_no_container_is_known(
    make_cgroup: Callable[[str], Cgroup], asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: float) -> None:
        raise EngineError("no engine runs")

    monkeypatch.setattr(ContainerEngine, "connect", refuse)
    with running(None) as host, running(make_cgroup(ID)) as inside:
        for _ in range(3):
            assert [asked.container_of(pid) for pid in (host, inside)] == ["", None]


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
            found = read.look()
            assert found is not None and found.programs[pid].container is None
            assert not found.are_listed, "what a guard before this one remembers of containers would seem to be over"
        answers.set()

        def is_foreign() -> bool:
            found = read.look()
            return found is not None and found.programs[pid].foreign == ID

        wait_until(is_foreign)
