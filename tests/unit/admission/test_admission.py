"""Launches go one at a time, by a fair queue, and nobody can hold the others up for ever."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from fakes import make_gpus

from support.lock_holder import held_by_process
from support.programs import text_of
from vgpurun.admission import controller, lock, tickets, waiting
from vgpurun.admission.controller import Admission
from vgpurun.admission.grants import Grant
from vgpurun.admission.lock import admission_lock
from vgpurun.admission.placement import Placement
from vgpurun.admission.request import Request
from vgpurun.admission.tickets import Ticket, ahead
from vgpurun.admission.waiting import Line
from vgpurun.errors import NoRoomError, StateError
from vgpurun.inventory import guarded
from vgpurun.limits.model import Limits
from vgpurun.util.users import current_user, name_of


def hold() -> None:
    with admission_lock(print, Path(sys.argv[1])):
        print("held", flush=True)
        time.sleep(60)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "queue").mkdir()
    (tmp_path / "queue").chmod(0o1777)
    return tmp_path / "queue"


@pytest.fixture
def holder(folder: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", text_of(hold), folder], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def taken(folder: Path, patience_s: float = 5.0) -> list[str]:
    """Return the message about a lock that cannot be had; nothing for one that can."""
    said: list[str] = []
    with admission_lock(said.append, folder, patience_s):
        return said


def test_the_lock_is_had_again_and_again(folder: Path) -> None:
    assert taken(folder) == []
    assert taken(folder) == []


def test_a_killed_holder_lets_go(folder: Path, holder: subprocess.Popen[str]) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert taken(folder, 0.5) == []


def test_a_holder_that_never_lets_go_is_named_and_passed_over(folder: Path, holder: subprocess.Popen[str]) -> None:
    began = time.monotonic()
    (said,) = taken(folder, 0.3)
    assert time.monotonic() - began > 0.3
    assert f"process {holder.pid} of user" in said


class Clock:
    """Takes the place of `time`: it goes on only while somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in (lock, waiting):
        monkeypatch.setattr(module, "time", made)
    return made


def test_holders_that_take_turns_cannot_hold_others_up_for_ever(
    folder: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is another one, so that none of them is waited for too long."""
    numbers = count()
    monkeypatch.setattr(lock, "holder_of", lambda _: str(next(numbers)))
    monkeypatch.setattr(lock, "MOST_S", 30.0)
    with open(folder / "vgpurun-lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        (said,) = taken(folder, 3)
    assert "goes ahead without it" in said
    assert lock.MOST_S < clock.now_s - 100 < lock.MOST_S + 1


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "dangling"])
def test_what_is_no_plain_file_is_no_lock(folder: Path, tmp_path: Path, kind: str) -> None:
    path, elsewhere = folder / "vgpurun-lock", tmp_path / "elsewhere"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        if kind == "link":
            elsewhere.write_text("precious")
        path.symlink_to(elsewhere)
    (said,) = taken(folder)
    assert "is not a lock" in said and str(path) in said
    assert not elsewhere.exists() or elsewhere.read_text() == "precious"


def test_a_lock_that_is_replaced_while_waited_for(folder: Path, holder: subprocess.Popen[str]) -> None:
    (folder / "vgpurun-lock").unlink()
    assert taken(folder, 0.5) == [], "the file that is there counts"


def test_modes_do_not_depend_on_the_umask(folder: Path) -> None:
    before = os.umask(0o077)
    try:
        taken(folder)
        ticket = Ticket.take(["GPU-a"], folder)
    finally:
        os.umask(before)
    assert (folder / "vgpurun-lock").stat().st_mode & 0o777 == 0o644
    assert ticket.path.stat().st_mode & 0o777 == 0o644
    ticket.close()


def test_a_place_that_cannot_be_taken_is_an_error(folder: Path) -> None:
    with pytest.raises(StateError, match=f"cannot wait in {folder}/none: .*; leave out --wait"):
        Ticket.take(["a"], folder / "none")


def test_places_in_the_queue(folder: Path) -> None:
    first, other, second = (Ticket.take(uuids, folder) for uuids in (["a", "b"], ["c"], ["b"]))
    assert [ahead(["a", "b"], first, folder), ahead(["b"], second, folder), ahead(["b"], None, folder)] == [0, 1, 2]
    assert ahead(["c"], other, folder) == 0, "who waits for other GPUs does not count"
    first.close()
    assert ahead(["b"], second, folder) == 0
    for ticket in (other, second):
        ticket.close()
    assert list(folder.iterdir()) == []


def taken_by_another(folder: Path) -> Path:
    """Return the ticket of a process that has ended, as if it had been killed."""
    child = os.fork()
    if not child:
        Ticket.take(["a"], folder)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    return max(folder.glob("vgpurun-wait-*"))


def test_the_ticket_of_a_process_that_has_ended_is_removed(folder: Path) -> None:
    path = taken_by_another(folder)
    assert ahead(["a"], None, folder) == 0
    assert not path.exists()


def test_a_lock_that_another_holds_keeps_nobody_from_the_queue(folder: Path) -> None:
    """Everybody may open what is in the folder."""
    dead = taken_by_another(folder)
    with held_by_process(dead):
        assert ahead(["a"], None, folder) == 0
    ticket = Ticket.take(["a"], folder)
    with held_by_process(ticket.path):
        ticket.wait_for(["b"])
        assert [each.uuids for each in tickets.queue(folder)] == [{"b"}]
    ticket.close()


def test_a_ticket_whose_holder_is_stopped_is_passed_over(folder: Path) -> None:
    stopped, second = Ticket.take(["a"], folder), Ticket.take(["a"], folder)
    then = time.time() - 60
    os.utime(stopped.path, (then, then))
    assert ahead(["a"], second, folder) == 0
    stopped.touch()
    assert ahead(["a"], second, folder) == 1
    for ticket in (stopped, second):
        ticket.close()


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "binary"])
def test_nonsense_in_the_queue_counts_for_nothing(folder: Path, tmp_path: Path, kind: str) -> None:
    forged = folder / f"vgpurun-wait-{0:020d}-forged"
    if kind == "pipe":
        os.mkfifo(forged)
    elif kind == "folder":
        forged.mkdir()
    elif kind == "link":
        (tmp_path / "real").write_text("a")
        forged.symlink_to(tmp_path / "real")
    else:
        forged.write_bytes(os.urandom(100_000))
    file = os.open(forged, os.O_RDONLY | os.O_NONBLOCK)
    fcntl.flock(file, fcntl.LOCK_EX)
    assert ahead(["GPU-of-nobody"], None, folder) == 0  # chance does not write such a name
    os.close(file)
    assert kind != "link" or (tmp_path / "real").exists()


def refusal() -> NoRoomError:
    return NoRoomError("no room", "wait", "who holds what")


@pytest.mark.usefixtures("clock")
def test_who_does_not_wait_looks_twice_and_takes_no_ticket(folder: Path) -> None:
    line = Line(["a"], 0, print, folder)
    line.join()
    line.wait(refusal())
    with pytest.raises(NoRoomError, match="no room; wait"):
        line.wait(refusal())
    assert list(folder.iterdir()) == []


@pytest.mark.usefixtures("clock")
def test_a_wait_ends_in_time_and_says_why(folder: Path) -> None:
    said: list[str] = []
    line = Line(["a"], 0.2, said.append, folder)
    line.join()
    line.wait(refusal())
    with pytest.raises(NoRoomError, match=r"waited 0\.2 s in vain: no room") as caught:
        line.wait(refusal())
    assert caught.value.details == "who holds what"
    assert said == ["waiting in place 1 of the queue: no room; Ctrl-C leaves it"]
    line.close()
    assert list(folder.iterdir()) == []


@pytest.mark.usefixtures("clock")
def test_who_waits_goes_behind_who_waits_already(folder: Path) -> None:
    first = Ticket.take(["a"], folder)
    said: list[str] = []
    line = Line(["a"], 30, said.append, folder)
    assert line.is_behind()
    assert not Line(["a"], 0, print, folder).is_behind(), "who does not wait takes what is there"
    assert not Line(["b"], 30, print, folder).is_behind()
    line.join()
    first.close()
    line.wait(None)
    assert said == ["waiting in place 1 of the queue; Ctrl-C leaves it"]
    assert not line.is_behind()
    line.close()
    assert tickets.ahead(["a"], None, folder) == 0


def test_who_waits_for_the_end_of_something_of_the_own_holds_up_nobody(folder: Path) -> None:
    """The GPUs have room: the user may have no more of them at the same time."""
    first, second = (Line(["a", "b"], 30, print, folder) for _ in range(2))
    first.join()
    first.wait(NoRoomError("you have enough", "end one", gpus=()))
    assert not second.is_behind()
    first.wait(NoRoomError("no room on b", "wait", gpus=("b",)))
    assert second.is_behind()
    assert not Line(["a"], 30, print, folder).is_behind()
    first.close()


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(
    ("is_guarded", "gpus", "words"),
    [
        (True, None, "waited 30 s in vain: no room; --preempt-idle: nothing idle that may be suspended made way; wait"),
        (False, None, "no room; --preempt-idle: no vgpurun guard runs to suspend idle ones; wait"),
        (True, (), "no room; wait"),
    ],
    ids=["in vain", "no guard", "of no use"],
)
def test_a_launch_waits_for_idle_ones_to_make_way_and_no_longer(
    folder: Path, monkeypatch: pytest.MonkeyPatch, is_guarded: bool, gpus: tuple[str, ...] | None, words: str
) -> None:
    said: list[str] = []

    def look(_: Admission) -> Placement:
        raise NoRoomError("no room", "wait", gpus=gpus)

    monkeypatch.setattr(Admission, "look", look)
    monkeypatch.setattr(controller, "Line", partial(Line, folder=folder))
    monkeypatch.setattr(controller, "admission_lock", partial(lock.admission_lock, folder=folder))
    monkeypatch.setattr(guarded, "is_running", lambda: is_guarded)
    launch = Admission(
        Request(Limits.read("5g")), make_gpus(1), Grant("ann"), None, 0, said.append, print, preempts_idle=True
    )
    with pytest.raises(NoRoomError) as caught, launch.granted():
        pass
    assert str(caught.value) == words
    assert bool(said) == words.startswith("waited")


def test_what_killed_launches_left_of_the_queue_is_swept(folder: Path) -> None:
    taken_by_another(folder)
    alive = Ticket.take(["a"], folder)
    taken_by_another(folder)
    old, new = folder / "vgpurun-new-old", folder / "vgpurun-new-new"
    for unready in (old, new):
        unready.touch()
    os.utime(old, (time.time() - 60,) * 2)
    tickets.sweep(folder)
    assert {path.name for path in folder.iterdir()} == {alive.path.name, new.name}
    alive.close()


def test_the_queue_says_who_waits_for_what(folder: Path) -> None:
    began_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    first = Line(["a", "b"], 30, print, folder, asked="--mem 2g")
    first.join()
    second = Ticket.take(["c"], folder, asked="--mem 1g\x1b[2J")
    found = tickets.queue(folder)
    assert [(each.uuids, each.asked) for each in found] == [({"a", "b"}, "--mem 2g"), ({"c"}, "--mem 1g\ufffd[2J")]
    assert {each.user for each in found} == {current_user()}
    took_s = time.clock_gettime(time.CLOCK_BOOTTIME) - began_s
    assert all(0 < each.waited_s <= took_s for each in found)
    first.wait(NoRoomError("no room on b", "wait", gpus=("b",)))
    assert (tickets.queue(folder)[0].uuids, tickets.queue(folder)[0].asked) == ({"b"}, "--mem 2g")
    first.close()
    process, *_ = second.path.read_text().split("\n")
    second.path.write_text(f"{process}\nnothing that anybody would write\n# \n")
    assert [(each.user, each.asked) for each in tickets.queue(folder)] == [(name_of(os.getuid()), "")]
    second.close()
    assert tickets.queue(folder) == []
