"""Launches, changes and starts whose steps come in the worst order reserve nothing twice."""

from __future__ import annotations

import itertools
import os
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from fakes import GIB, make_gpus

from vgpurun.admission import controller
from vgpurun.admission.controller import Admission
from vgpurun.admission.grants import Grant
from vgpurun.admission.request import Request
from vgpurun.engine.client import VgpurunContainer
from vgpurun.engine.labels import Record
from vgpurun.errors import EngineError, NoRoomError, StateError
from vgpurun.host.gpus import Gpu, GpuUse
from vgpurun.inventory.reservations import is_abandoned
from vgpurun.limits import limits_file, update
from vgpurun.limits.model import DeviceQuota, Limits, quotas_to_json
from vgpurun.limits.quota import Quota
from vgpurun.storage import state
from vgpurun.storage.state import StateFolder

GPUS = make_gpus(1)
OF_EACH = Quota(5 * GIB)  # the GPU has 8


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VGPURUN_STATE_DIR", str(tmp_path))
    monkeypatch.setattr(controller.devices, "read_use", lambda gpus: [GpuUse(0, None) for _ in gpus])
    return tmp_path


class Launch:
    """A local process that asks for 5 of 8 GiB, step by step, and without a lock."""

    def __init__(self, pid: int) -> None:
        self.pid = str(pid)
        self.folder: StateFolder | None = None
        self.is_refused = False
        request = Request(Limits.read(f"{OF_EACH.memory_bytes}"))
        self.admission = Admission(request, GPUS, Grant("alice"), None, 0, print, print)
        self.steps = iter((self._look, self._take, self._confirm))

    def go_on(self) -> None:
        step = next(self.steps)
        if not self.is_refused:
            step()

    def _look(self) -> None:
        try:
            self.admission._placement = self.admission.look()
        except NoRoomError:
            self.is_refused = True

    def _take(self) -> None:
        quota = quotas_to_json([DeviceQuota(GPUS[0], OF_EACH)])
        owner = {"engine": None, "pid": self.pid, "user": "alice", "quota": quota}
        self.folder = StateFolder.make(state.new_folder_path("local"), {}, owner)

    def _confirm(self) -> None:
        assert self.folder is not None
        try:
            self.admission.confirm(self.pid)
        except NoRoomError:
            self.is_refused = True
            self.folder.remove()


@pytest.mark.parametrize("order", sorted(set(itertools.permutations("AAABBB"))), ids="".join)
def test_without_a_lock_nothing_is_reserved_twice_in_any_order(order: Sequence[str]) -> None:
    launches = {"A": Launch(1), "B": Launch(2)}
    for name in order:
        launches[name].go_on()
    admitted = [each for each in launches.values() if not each.is_refused]
    assert len(admitted) <= 1
    if order in (tuple("AAABBB"), tuple("BBBAAA")):
        assert len(admitted) == 1, "who comes later does not harm who was there"
    for each in admitted:
        assert each.folder is not None
        each.folder.remove()


def test_only_reservations_count_when_it_looks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launch could not have known the memory that programs without a limit have taken since."""
    launch = Launch(1)
    launch.go_on()
    monkeypatch.setattr(controller.devices, "read_use", lambda gpus: [GpuUse(7 * GIB, None) for _ in gpus])
    launch.go_on()
    launch.go_on()
    assert not launch.is_refused


@dataclass(frozen=True)
class Container:
    """A container, as far as a change of limits needs one."""

    limits_folder: Path
    id: str = "1"
    name: str = "holder"


@pytest.fixture
def container() -> Container:
    files = {"etc/limits": limits_file.limits_bytes([(GPUS[0].uuid, Quota(2 * GIB, 50))])}
    folder = StateFolder.make(state.new_folder_path(), files, {"engine": "engine"})
    folder.close()
    return Container(folder.path)


def limits_of(container: Container) -> Quota:
    limits = limits_file.read_limits(container.limits_folder / "etc" / "limits")
    return limits[0][1]


def test_two_changes_at_once_both_count(container: Container, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one begins while the first one waits for its admission, and has what it wrote."""
    waits, lock_in_time = threading.Event(), update.lock_in_time
    second = threading.Thread(target=update.set_paused, args=(container, True))

    def tell(*arguments: object) -> bool:
        if threading.current_thread() is second:
            waits.set()
        return lock_in_time(*arguments)  # type: ignore[arg-type]

    @contextmanager
    def admit(_: object, __: Sequence[tuple[Gpu, Quota]], ___: Mapping[str, Quota]) -> Iterator[None]:
        second.start()
        assert waits.wait(60)
        yield

    monkeypatch.setattr(update, "lock_in_time", tell)
    update.update(container, GPUS, Limits.read("3g"), admit)
    second.join(60)
    assert limits_of(container) == Quota(3 * GIB, 50, paused=True)


def test_a_container_that_starts_during_a_change_is_not_forgotten(
    container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its hook has set what the file said before, after the change had looked which ones there are."""
    settled: list[tuple[list[Path], int | None]] = []

    def settle(cgroups: Sequence[Path], quotas: Sequence[tuple[Gpu, Quota]]) -> list[object]:
        settled.append((list(cgroups), quotas[0][1].memory_bytes))
        return []

    @contextmanager
    def admit(_: object, __: Sequence[tuple[Gpu, Quota]], ___: Mapping[str, Quota]) -> Iterator[None]:
        yield

    there = [Path("one")]
    monkeypatch.setattr(update, "settle", settle)
    write = limits_file.write_limits

    def write_limits(*arguments: object) -> None:
        there.append(Path("two"))
        write(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(limits_file, "write_limits", write_limits)
    update.update(container, GPUS, Limits.read("3g"), admit, lambda: list(there))
    assert settled == [([Path("one")], 3 * GIB), ([Path("two")], 3 * GIB)]


def test_a_change_that_cannot_be_confirmed_is_taken_back(container: Container) -> None:
    @contextmanager
    def admit(_: object, __: Sequence[tuple[Gpu, Quota]], ___: Mapping[str, Quota]) -> Iterator[None]:
        yield
        assert limits_of(container).memory_bytes == 3 * GIB, "others see it before it is confirmed"
        raise NoRoomError("another was faster", "try again")

    with pytest.raises(NoRoomError):
        update.update(container, GPUS, Limits.read("3g"), admit)
    assert limits_of(container) == Quota(2 * GIB, 50)


def test_who_holds_a_change_up_does_so_for_a_time(container: Container) -> None:
    with (
        update.patience(0.1),
        update.changing(container),
        pytest.raises(StateError, match="limits of holder are being changed by another command"),
    ):
        update.set_paused(container, True)


@pytest.mark.timeout(10)
def test_a_pipe_in_the_place_of_its_lock_holds_no_change_up(container: Container) -> None:
    """The folder may be another user's than who makes the change, say root."""
    (container.limits_folder / "changing").unlink()
    os.mkfifo(container.limits_folder / "changing", 0o600)
    update.set_paused(container, True)
    assert limits_of(container).paused


def test_a_folder_that_is_gone_has_a_way_out(container: Container) -> None:
    shutil.rmtree(container.limits_folder)
    with pytest.raises(StateError, match="changing is gone; remove holder, and run its image again"):
        update.set_paused(container, True)


class EngineOfOld:
    """Says what was true before: the launcher is about to start the container."""

    def state_of(self, container: str, patience_s: float) -> str:  # noqa: ARG002
        return "created"


def test_a_launch_that_cannot_be_seen_from_here_has_time_to_start(root: Path) -> None:
    """This process may be in a container, with the engine's socket and without the host's files."""
    folder = root / "containers" / "of-the-host"
    made = VgpurunContainer("1", "new", "image", "created", Record(str(folder)), created_s=time.time())
    assert not is_abandoned(made, EngineOfOld())  # type: ignore[arg-type]
    assert is_abandoned(replace(made, created_s=time.time() - 100), EngineOfOld())  # type: ignore[arg-type]
    folder.mkdir(parents=True)
    assert is_abandoned(made, EngineOfOld()), "nobody holds it"  # type: ignore[arg-type]


class StuckEngine:
    """Says nothing of a container: it is at its start, and the driver does not answer."""

    def state_of(self, container: str, patience_s: float) -> str:
        raise EngineError(f"no answer about {container} in {patience_s} s")


def test_a_container_whose_start_is_stuck_holds_its_part_and_nobody_up(root: Path) -> None:
    """Its launcher was killed meanwhile: nobody holds its folder."""
    container = VgpurunContainer("1", "stuck", "image", "created", Record(str(root / "containers" / "stuck")))
    assert not is_abandoned(container, StuckEngine())  # type: ignore[arg-type]
