"""The agent of the guard goes on, whatever it meets."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from support import wait_until
from support.second_user import UID, attacked_by, needs_two_users
from vgpurun import abi
from vgpurun.admission.tickets import Waiting
from vgpurun.engine.client import Engine, VgpurunContainer
from vgpurun.engine.labels import Record as Labelled
from vgpurun.errors import EngineError, NoEngineError
from vgpurun.host.folder_watch import NOT_WATCHED, FolderWatch
from vgpurun.limits import usage_file
from vgpurun.limits.idle import FILE, IdlePolicy, idle_files
from vgpurun.limits.limits_file import limits_bytes, set_suspended
from vgpurun.limits.quota import Quota
from vgpurun.storage import unchanged
from vgpurun.suspend import record, requests
from vgpurun.suspend.agent import deadlines, giving_way, roster
from vgpurun.suspend.agent.agent import Agent
from vgpurun.suspend.agent.care import Care
from vgpurun.suspend.agent.facts import Facts, Files
from vgpurun.suspend.agent.idling import stop
from vgpurun.suspend.agent.transitions import Transitions
from vgpurun.suspend.agent.troubles import Troubles
from vgpurun.suspend.agent.uses import Uses
from vgpurun.suspend.record import Phase, Record
from vgpurun.suspend.requests import Request
from vgpurun.suspend.targets import Target
from vgpurun.util.atomic_file import atomic_file
from vgpurun.util.process_identity import ProcessIdentity, boot_id, identify, pid_namespace
from vgpurun.util.times import boot_s

STEPS = {"end_overdue": deadlines, "slices_and_processes": roster, "queue": giving_way}


def no_engine() -> Engine:
    raise NoEngineError("there is none")


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("error", [EngineError("the engine is gone"), OverflowError("int too large")])
def test_a_step_that_fails(monkeypatch: pytest.MonkeyPatch, name: str, error: Exception) -> None:
    """The agent says so once, and does the next steps."""
    done: list[str] = []

    def fails(*_: object) -> list[object]:
        done.append(name)
        raise error

    def works(name: str) -> object:
        def work(*_: object) -> list[object]:
            done.append(name)
            return []

        return work

    monkeypatch.setattr(Engine, "connect", no_engine)
    for each, module in STEPS.items():
        monkeypatch.setattr(module, each, fails if each == name else works(each))
    said: list[str] = []
    now = [1000.0]
    looking = Agent([], "libcuda", said.append, clock=lambda: now[0])
    for now[0] in (1000.0, 1002.0):
        looking.look()
    assert all(done.count(each) >= 2 for each in STEPS)
    assert len(said) == 1 and str(error) in said[0]


def test_the_files_of_a_state_folder_are_read_again_after_each_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mostly there are none, which is remembered too."""
    folder = tmp_path / "state"
    folder.mkdir()
    facts, target = Facts(), Target("id", "train", folder)

    def files() -> Files:
        return facts.files(target)

    def settles_at(found: Record | None, policy: IdlePolicy | None) -> None:
        assert files() == (found, policy, None)
        while tmp_path.stat().st_ctime_ns == folder.stat().st_ctime_ns:  # the next change would have this time, too
            os.utime(tmp_path)
        with monkeypatch.context() as later:
            later.setattr(unchanged, "_SETTLED_NS", -1 << 62)
            files()
        assert files() is files()  # read no more

    suspended = Record(Phase.SUSPENDED, (), {}, False, "somebody", 1.0, 1)
    settles_at(None, None)
    record.write(folder, suspended)
    settles_at(suspended, None)
    with atomic_file(folder / FILE) as half_made:
        half_made.write_bytes(idle_files("2h:warn")[FILE])
    settles_at(suspended, IdlePolicy(7200, "warn"))
    record.forget(folder)
    assert files() == (None, IdlePolicy(7200, "warn"), None)
    asked = Request("suspend", "token", True, 5)
    content = {**asked._asdict(), "until_boot_s": boot_s() + 60, "boot": boot_id()}
    (folder / requests.REQUEST).write_text(json.dumps(content))
    assert files().request == asked
    requests.answer(folder, asked, "in the way")
    assert files().request is None, "it has its answer"
    (folder / requests.REQUEST).write_text(json.dumps({**content, "token": "next", "lock_timeout_ms": 1 << 60}))
    assert files().request == Request("suspend", "next", True, 60_000), "a guard that ends waits for no longer"


class OneContainer:
    """Lists one container while it runs, and stops it unless it is away; also as the ContainerEngine that it is."""

    def __init__(self, folder: Path) -> None:
        (folder / "etc").mkdir(parents=True)
        self.container = VgpurunContainer("c" * 64, "train", "image", "running", Labelled(str(folder), user="ann"))
        self.is_listed = True
        self.is_away = False
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.stopped: list[str] = []

    def containers(self, everything: bool) -> list[VgpurunContainer]:
        assert not everything
        return [self.container] if self.is_listed else []

    def stop_in_time(self, container: str, timeout_s: int | None, signal: str | None) -> None:
        assert (container, timeout_s, signal) == (self.container.id, None, None)
        self.stopped.append(container)
        assert self.may_answer.wait(60)


class Idle:
    """An agent, on simulated time, beside a container that uses no GPU and is to be stopped after two hours."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.engine = OneContainer(folder)
        (folder / FILE).write_bytes(idle_files("2h:stop")[FILE])
        self.now_s = 1000.0
        self.said: list[str] = []
        self.agent = Agent([], "libcuda", self.said.append, clock=lambda: self.now_s)
        monkeypatch.setattr(Engine, "connect", self._connect)
        monkeypatch.setattr(roster, "slices_and_processes", list)
        monkeypatch.setattr(giving_way, "queue", list)

    def _connect(self) -> OneContainer:
        if self.engine.is_away:
            raise EngineError("the engine is gone")
        return self.engine

    def look_after(self, hours: float) -> None:
        """Look at that time, and as long after it as the engine is not asked again."""
        self.now_s += hours * 3600
        for _ in range(12):
            self.agent.look()
            self.now_s += 1


@pytest.fixture
def idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Idle:
    return Idle(tmp_path / "state", monkeypatch)


def test_one_that_is_started_again_is_not_idle_since_before(idle: Idle) -> None:
    idle.look_after(0)
    idle.look_after(1)
    idle.engine.is_listed = False
    idle.look_after(1)
    idle.engine.is_listed = True
    idle.look_after(60)
    assert idle.engine.stopped == []
    idle.look_after(3)
    assert idle.engine.stopped == [idle.engine.container.id]


def test_a_stop_that_fails_is_tried_again(idle: Idle) -> None:
    idle.look_after(0)
    idle.engine.is_away = True
    idle.look_after(3)
    idle.engine.is_away = False
    idle.look_after(0)
    assert idle.engine.stopped == [idle.engine.container.id]
    assert [line.partition(" for ")[0] for line in idle.said[:1]] == ["stop train: idle"]
    assert idle.said[1:] == ["warning: train: the engine is gone"]


def test_a_trouble_is_forgotten_with_its_target(idle: Idle, monkeypatch: pytest.MonkeyPatch) -> None:
    """So it is said again where the container is started again."""

    def fails(*_: object) -> None:
        raise EngineError("it does not end")

    monkeypatch.setattr(Care, "see_to", fails)
    idle.look_after(0)
    idle.look_after(1)
    assert idle.said == ["warning: train: it does not end"]
    idle.engine.is_listed = False
    idle.look_after(1)
    idle.engine.is_listed = True
    idle.look_after(1)
    assert idle.said == ["warning: train: it does not end"] * 2


def test_a_launch_of_before_the_host_was_started_is_no_use(idle: Idle, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock begins anew; what the usage file says may be days ahead."""
    launches_s = [1000.0 + 86400]
    monkeypatch.setattr(
        usage_file,
        "read_usage",
        lambda *_: [usage_file.DeviceReading("GPU-0", last_launch_ns=int(each * 1e9)) for each in launches_s],
    )
    idle.look_after(0)
    launches_s.append(idle.now_s)
    idle.look_after(1.5)
    assert idle.engine.stopped == []
    idle.look_after(1)
    assert len(idle.engine.stopped) == 1


def test_one_that_takes_long_to_stop_holds_nobody_up(idle: Idle, monkeypatch: pytest.MonkeyPatch) -> None:
    """The container has a --stop-timeout of a day; the same goes for one that has reached its --for limit."""
    ended: list[object] = []

    def slow(*_: object) -> list[str]:
        ended.append(_)
        assert idle.engine.may_answer.wait(60)
        return ["container late"]

    monkeypatch.setattr(deadlines, "end_overdue", slow)
    idle.look_after(0)
    idle.engine.may_answer.clear()
    ended.clear()
    looking = threading.Thread(target=lambda: [idle.look_after(3), idle.look_after(24)], daemon=True)
    looking.start()
    looking.join(20)
    assert not looking.is_alive() and len(ended) == len(idle.engine.stopped) == 1, "once, and it is not waited for"
    idle.engine.may_answer.set()

    def has_ended_both() -> bool:
        """Whether its end is seen to, and it was stopped again: it was started meanwhile, which no look has seen."""
        idle.look_after(3)
        return len(idle.engine.stopped) >= 2 and "stop container late: it reached its --for limit" in idle.said

    wait_until(has_ended_both)


@pytest.mark.parametrize("is_watched", [True, False])
def test_whatever_brings_a_target_into_question_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_watched: bool
) -> None:
    """Also where the kernel has no watch left."""
    if not is_watched:
        monkeypatch.setattr(FolderWatch, "add", lambda *_: NOT_WATCHED)
    facts, targets = Facts(), [Target("id", "train", tmp_path)]
    (tmp_path / "etc").mkdir()
    limits = tmp_path / "etc" / "limits"

    def in_question() -> list[Target]:
        return [each.target for each in facts.of(targets) if each.is_in_question]

    assert in_question() == []
    limits.write_bytes(limits_bytes([]))
    assert in_question() == []
    (tmp_path / FILE).write_bytes(idle_files("2h:warn")[FILE])
    assert in_question() == in_question() == targets
    (tmp_path / FILE).unlink()
    assert in_question() == []
    limits.write_bytes(limits_bytes([("GPU-0", Quota(1 << 30))]))
    set_suspended(limits, abi.SUSPENDED)
    assert in_question() == in_question() == targets
    set_suspended(limits, abi.NOT_SUSPENDED)
    assert in_question() == []
    facts.close()


def idle_target(folder: Path, name: str) -> Target:
    """A target that has a GPU and allows to be suspended when it has been idle for a second."""
    target = Target(name, name, folder / name)
    (target.limits_folder / "etc").mkdir(parents=True)
    (target.limits_folder / "etc" / "limits").write_bytes(limits_bytes([("GPU-0", Quota(1 << 30))]))
    (target.limits_folder / FILE).write_bytes(idle_files("1s:suspend")[FILE])
    return target


def test_the_longest_idle_gives_way_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what the library measured; one whose use was not noted is not idle for certain."""
    now_s = time.monotonic()
    last_s = {"short": now_s - 20, "long": now_s - 60, "unnoted": now_s - 90}

    def launched(usage: Path, _: object) -> list[usage_file.DeviceReading]:
        return [usage_file.DeviceReading("GPU-0", last_launch_ns=int(last_s[usage.parents[1].name] * 1e9))]

    monkeypatch.setattr(usage_file, "read_usage", launched)
    waiting = Waiting("ann", 5.0, frozenset({"GPU-0"}), "--mem 1g")
    monkeypatch.setattr(giving_way, "queue", lambda: [waiting])
    targets = [idle_target(tmp_path, name) for name in last_s]
    listed, facts, asked = roster.Roster(), Facts(), list[str]()
    listed.targets = targets
    uses = Uses([], facts, time.monotonic)
    uses.keep(targets, now_s - 100)
    uses.note(targets[:2], now_s)
    monkeypatch.setattr(Transitions, "suspend_idle", lambda _, target, __: asked.append(target.id))
    troubles = Troubles(asked.append, time.monotonic)
    transitions = Transitions([], "libcuda", asked.append, troubles)
    giving_way.GivingWay(listed, facts, uses, transitions, troubles).let_in(now_s)
    assert asked == ["long", "short"]


def local(folder: Path, launcher: int, named: Sequence[ProcessIdentity]) -> Target:
    """Make the state folder of `vgpurun local`, whose own process had this number."""
    folder.mkdir()
    record = {"pid_namespace": pid_namespace(), "processes": [each._asdict() for each in named]}
    (folder / "owner").write_text(json.dumps({"engine": None, "pid": launcher, "holders": record}))
    return Target(str(launcher), f"process {launcher}", folder)


@pytest.fixture
def sleepers() -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Start processes that would sleep on."""
    with ExitStack() as ending:

        def start() -> subprocess.Popen[bytes]:
            process = subprocess.Popen(["sleep", "60"])
            ending.callback(process.wait)
            ending.callback(process.kill)
            return process

        yield start


def identity(process: subprocess.Popen[bytes]) -> ProcessIdentity:
    found = identify(process.pid)
    assert found is not None
    return found


def test_a_local_process_that_idles_is_told_to_end(
    tmp_path: Path, sleepers: Callable[[], subprocess.Popen[bytes]]
) -> None:
    launcher, child = sleepers(), sleepers()
    stop(local(tmp_path / "state", launcher.pid, [identity(launcher), identity(child)]), [])
    assert launcher.wait(10) == -signal.SIGTERM
    assert child.poll() is None, "the first passes it on by itself"


def test_no_process_that_has_the_number_by_now_is_ended(
    tmp_path: Path, sleepers: Callable[[], subprocess.Popen[bytes]]
) -> None:
    """The idle program goes on without the command that started it."""
    stranger, left = sleepers(), sleepers()
    before = identity(stranger)._replace(started_ticks=identity(stranger).started_ticks - 100)
    stop(local(tmp_path / "state", stranger.pid, [before, identity(left)]), [])
    assert left.wait(10) == -signal.SIGTERM
    assert stranger.poll() is None


@needs_two_users
def test_no_user_lets_root_end_a_process_of_another(
    tmp_path: Path, sleepers: Callable[[], subprocess.Popen[bytes]]
) -> None:
    """The folder of a user's own says whatever that user likes."""
    victim = sleepers()
    target = local(tmp_path / "state", victim.pid, [identity(victim)])
    os.chown(target.limits_folder, UID, UID)
    stop(target, [])
    time.sleep(0.1)
    assert victim.poll() is None
    with attacked_by(lambda: None) as own:
        process = identify(own)
        target = local(tmp_path / "own", own, [process])
        os.chown(target.limits_folder, UID, UID)
        with process.opened() as file:
            stop(target, [])
            assert select.select([file], [], [], 10)[0], "its own is"
