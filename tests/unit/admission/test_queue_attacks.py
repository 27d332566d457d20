"""The queue of `--wait` against another user: he takes places of his own, and can do nothing to those of others."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.lock_holder import held_by_process
from support.second_user import UID, attacked_by, needs_two_users
from vgpurun.admission import lock, tickets
from vgpurun.admission.tickets import Ticket, ahead
from vgpurun.util.process_identity import identify

pytestmark = needs_two_users


@pytest.fixture
def folder() -> Iterator[Path]:
    """The shared folder as root makes it, where others can get to it."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o1777)
        yield Path(made)


def does(act: Callable[[], object], folder: Path) -> None:
    """Let the second user do this in a folder, and end."""

    def attack() -> None:
        os.chdir(folder)
        act()

    with attacked_by(attack):
        pass


def test_a_link_in_the_place_of_a_ticket_is_not_written_through(folder: Path, tmp_path: Path) -> None:
    """In a folder of his own, say one that he was the first to make, he can replace whatever is there."""
    (tmp_path / "precious").write_text("mine")
    os.chown(folder, UID, UID)
    ticket = Ticket.take(["a"], folder)

    def replace() -> None:
        os.unlink(ticket.path.name)
        os.symlink(tmp_path / "precious", ticket.path.name)

    does(replace, folder)
    ticket.wait_for(["b"])
    ticket.touch()
    assert (tmp_path / "precious").read_text() == "mine"
    ticket.close()


def refused(act: Callable[[], object]) -> Callable[[], None]:
    def tried() -> None:
        try:
            act()
        except PermissionError:
            return
        raise AssertionError("it was not refused")

    return tried


def test_a_ticket_of_another_cannot_be_written_replaced_or_removed(folder: Path) -> None:
    ticket = Ticket.take(["a"], folder)
    name = ticket.path.name

    def put_another_there() -> None:
        Path("mine").touch()
        os.rename("mine", name)

    for act in (lambda: os.open(name, os.O_WRONLY), lambda: os.unlink(name), lambda: os.utime(name), put_another_there):
        does(refused(act), folder)
    with held_by_process(ticket.path):
        ticket.wait_for(["b"])
        assert [each.uuids for each in tickets.queue(folder)] == [{"b"}]
    ticket.close()


def forge(name: str, process: object) -> None:
    Path(name).write_text(" ".join(map(str, process)) + "\na\n# : \n")  # type: ignore[call-overload]


def waits_before(folder: Path, since_ns: int, process: object) -> int:
    """Return how many places a ticket that another user has forged takes."""
    name = f"vgpurun-wait-{since_ns:020d}-forged"
    does(lambda: forge(name, process), folder)
    try:
        return ahead(["a"], None, folder)
    finally:
        (folder / name).unlink(missing_ok=True)


def test_a_ticket_counts_for_a_living_process_of_its_owner_alone(folder: Path) -> None:
    now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    mine = identify(os.getpid())
    assert mine is not None
    assert waits_before(folder, now_ns, mine) == 0, "another user's process"
    child = os.fork()
    if not child:
        os.setuid(UID)
        time.sleep(60)
        os._exit(0)
    try:
        own = identify(child)
        assert own is not None
        while Path(f"/proc/{child}").stat().st_uid != UID:
            time.sleep(0.01)
        assert waits_before(folder, now_ns + 10**9, own) == 1
        assert waits_before(folder, 0, own) == 0, "before it has started"
        assert waits_before(folder, now_ns + 10**9, own._replace(started_ticks=own.started_ticks - 1)) == 0
        assert waits_before(folder, now_ns + 10**9, own._replace(boot_id="another boot")) == 0
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert waits_before(folder, now_ns + 10**9, own) == 0, "it has ended"


@contextmanager
def waiting_user(folder: Path, write: Callable[[], object]) -> Iterator[None]:
    """A process of another user, which stays while it has written what it likes into the folder."""

    def attack() -> None:
        os.chdir(folder)
        write()

    with attacked_by(attack):
        yield


def own_ticket(since: str, gpu: str = "a") -> None:
    own = identify(os.getpid())
    Path(f"vgpurun-wait-{since}-forged").write_text(f"{own.pid} {own.started_ticks} {own.boot_id}\n{gpu}\n# : \n")


def now_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def test_a_longer_number_is_no_earlier_place(folder: Path) -> None:
    """A 0..01 of more digits comes, as text, before every time of twenty, and as a number after the process's start."""
    with waiting_user(folder, lambda: own_ticket(f"{now_ns():030d}")):
        ticket = Ticket.take(["a"], folder)
        assert ahead(["a"], ticket, folder) == 0
        ticket.close()


def test_names_of_gpus_steer_no_terminal(folder: Path) -> None:
    with waiting_user(folder, lambda: own_ticket(f"{now_ns():020d}", gpu="GPU-\x1b[2J")):
        assert [each.uuids for each in tickets.queue(folder)] == [{"GPU-\N{REPLACEMENT CHARACTER}[2J"}]


def test_thousands_of_tickets_of_one_user_are_not_read(folder: Path) -> None:
    def fill() -> None:
        for _ in range(1000):
            own_ticket(f"{now_ns():020d}")

    first = Ticket.take(["a"], folder)
    with waiting_user(folder, fill):
        last = Ticket.take(["a"], folder)
        assert ahead(["a"], last, folder) == 1 + 256
        assert ahead(["a"], first, folder) == 0
        last.close()
    first.close()


@pytest.mark.parametrize("is_there", [True, False], ids=["another's", "none yet"])
def test_the_shared_folder_is_roots(folder: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool) -> None:
    run_folder = folder / "vgpurun"
    monkeypatch.setattr(lock, "RUN_FOLDER", run_folder)
    if is_there:
        does(lambda: run_folder.mkdir() or run_folder.chmod(0o1777), folder)  # type: ignore[func-returns-value]

    def found() -> Path:
        return lock.shared_folder()

    def meets_in(expected: Path) -> Callable[[], None]:
        def compare() -> None:
            assert found() == expected

        return compare

    does(meets_in(Path("/tmp")), folder)
    assert found() == run_folder
    assert run_folder.stat().st_uid == 0 and run_folder.stat().st_mode & 0o7777 == 0o1777
    does(meets_in(run_folder), folder)
