"""A guard that is killed anywhere: no action is lost, and none is done or recorded twice."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes import GIB
from guard_world import World

from vgpurun.errors import CgroupError, GuardError
from vgpurun.guard import state as state_module
from vgpurun.guard.hands import HANDS
from vgpurun.guard.notice_file import tell
from vgpurun.guard.state import State
from vgpurun.inventory import guarded
from vgpurun.inventory.guarded import Action, Done


class Killed(BaseException):
    """The guard's end at some moment: nothing after it is done."""


class Countdown:
    """Ends the guard at its n-th step that others can see."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def __call__(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Killed


def killing_at(monkeypatch: pytest.MonkeyPatch, countdown: Countdown) -> dict[str, Any]:
    """Let the countdown go on before and after everything that is written or done."""

    def around(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            countdown()
            result = function(*arguments)
            countdown()
            return result

        return call

    monkeypatch.setattr(State, "write", around(State.write))
    monkeypatch.setattr(state_module, "_append", around(state_module._append))
    return {verb: around(hand) for verb, hand in HANDS.items()}


@pytest.mark.parametrize("policy", ["freeze", "kill", "warn"])
def test_killed_at_every_step(world: Callable[..., World], policy: str) -> None:
    steps = 0
    was_killed = True
    while was_killed:
        steps += 1
        was_killed = False
        with pytest.MonkeyPatch.context() as patches:
            made = world(memory=policy)
            tenant = made.add(f"tenant-{steps}")
            made.put(tenant, 2 * GIB)
            made.hands = killing_at(patches, Countdown(steps))
            try:
                made.start()
                made.run(3)
            except Killed:
                was_killed = True
        made.hands = HANDS
        made.start()
        made.run(5)
        made.start()
        made.run(5)
        found = [each.action.verb for each in guarded.actions() if each.action.name == f"tenant-{steps}"]
        assert found == [policy], steps
        assert made.is_frozen(tenant) == (policy == "freeze") and made.is_killed(tenant) == (policy == "kill")
        assert guarded.counts()[policy, "memory"] == steps
        assert len({each.id for each in guarded.actions()}) == steps
        shutil.rmtree(made.containers[tenant].cgroup.folder)  # the container has ended
        made.programs.clear()
        made.run(1)
        made.state.close()
    assert steps > 5


def test_a_hand_that_fails_is_tried_again(world: Callable[..., World]) -> None:
    made = world(memory="kill")
    tries: list[str] = []

    def fail(action: Action) -> None:
        tries.append(action.name)
        if len(tries) < 4:
            raise CgroupError("it is held")

    made.hands = {**HANDS, "kill": fail}
    made.start()
    made.put(made.add(), 2 * GIB)
    made.run(10)
    assert len(tries) == 4 and made.verbs() == ["kill memory"]
    assert sum("it is held" in line for line in made.said) == 1, "said once"


@pytest.mark.parametrize(
    "damage", ["", "[]", "{", '{"stopped": 1}', '{"stopped": {"a": {}}}', '{"pending": [{}]}', "[" * 9999]
)
def test_with_a_damaged_state_the_record_holds(world: Callable[..., World], damage: str) -> None:
    made = world(outside="warn")
    frozen, thawed = made.add(), made.add("b")
    made.put(frozen, 2 * GIB)
    made.put(thawed, 2 * GIB)
    made.put("", GIB)
    made.run(20)
    made.limit(thawed, 3 * GIB)
    made.run(2)
    before = made.verbs()
    (guarded.folder() / guarded.STATE).write_text(damage)
    made.start()
    assert any("damaged" in line for line in made.said)
    assert (guarded.folder() / "state.damaged").read_text() == damage
    assert guarded.counts() == {} and made.state.stopped.keys() == {frozen}
    made.run(60)
    assert made.verbs() == before and made.is_frozen(frozen), "nothing is repeated"
    made.limit(frozen, 3 * GIB)
    made.run(2)
    assert made.verbs() == [*before, "thaw memory"] and not made.is_frozen(frozen)
    assert [each.id for each in guarded.actions()] == list(range(1, len(before) + 2)), "numbers go on"
    assert sum(guarded.counts().values()) == len(before) + 1


def test_with_a_damaged_state_no_warning_is_repeated(world: Callable[..., World]) -> None:
    made = world(memory="warn")
    program = made.put(made.add(), 2 * GIB)
    made.run(2)
    (guarded.folder() / guarded.STATE).write_text("")
    made.start()
    made.run(60)
    assert made.verbs() == ["warn memory"]
    program.held = 3 * GIB
    made.run(2)
    assert made.verbs() == ["warn memory"] * 2


def test_one_guard_at_a_time(world: Callable[..., World]) -> None:
    assert not guarded.is_running()
    made = world()
    assert guarded.is_running()
    with pytest.raises(GuardError, match="another guard runs"):
        State(print)
    made.state.close()
    assert not guarded.is_running()


def test_no_lock_of_another_user_keeps_the_guard_from_starting_or_passes_for_it(world: Callable[..., World]) -> None:
    made = world()
    lock = guarded.folder() / guarded.LOCK
    assert stat.S_IMODE(lock.stat().st_mode) == 0o600, "nobody else may open it"
    made.state.close()
    lock.chmod(0o644)  # an old guard's mode
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert not guarded.is_running()
        made = world()
        assert guarded.is_running()
        made.state.close()


def test_a_guard_that_was_killed_does_not_run(world: Callable[..., World]) -> None:
    made = world()
    process = guarded.folder() / guarded.PROCESS
    pid, started_ticks, boot_id = json.loads(process.read_text())
    assert pid == os.getpid()
    for another in ((1 << 22, started_ticks, boot_id), (pid, started_ticks + 1, boot_id), (pid, started_ticks, "old")):
        process.write_text(json.dumps(another))
        assert not guarded.is_running()
    for damage in ("", "7", "[]", "[null, 1, 2]", "[" * 100_000):
        process.write_text(damage)
        assert not guarded.is_running()
    made.state.close()


def test_nothing_of_a_boot_before_is_acted_on(world: Callable[..., World]) -> None:
    """Numbers of processes, and of cgroups, begin anew with the boot: an action under way is about others by now."""
    made = world()
    tenant = made.add()
    made.put(tenant, 2 * GIB)
    made.run(2)
    assert made.verbs() == ["freeze memory"] and guarded.stopped().keys() == {tenant}
    outside = Action("kill", "outside", "", "x", "ann", pid=made.last_pid, started_ticks=1)
    made.state.begin(outside)
    path = guarded.folder() / guarded.STATE
    before = json.loads(path.read_text())
    path.write_text(json.dumps({**before, "boot_id": "of the boot before"}))
    assert guarded.stopped() == {}
    killed: list[Action] = []
    made.hands = {**HANDS, "kill": killed.append}
    made.start()
    assert killed == [] and made.state.stopped == {} and made.state.pending == {}
    assert guarded.counts() == {("freeze", "memory"): 1}
    path.write_text(json.dumps({key: value for key, value in before.items() if key != "boot_id"}))  # an old file
    made.start()
    assert killed == [outside] and made.state.stopped.keys() == {tenant}


def test_a_container_that_was_started_again_is_another(world: Callable[..., World]) -> None:
    made = world()
    tenant = made.add()
    program = made.put(tenant, 2 * GIB)
    made.run(2)
    cgroup = made.containers[tenant].cgroup.folder
    aside = cgroup.rename(cgroup.with_name("gone"))
    made.programs.clear()
    made.run(2)
    assert guarded.stopped() == {}
    made.containers.clear()
    fresh = made.add()
    assert fresh == tenant and aside.exists()
    made.programs[program.pid] = program
    made.run(2)
    assert made.verbs() == ["freeze memory"] * 2


def test_what_cannot_be_written_down_is_not_done(world: Callable[..., World], monkeypatch: pytest.MonkeyPatch) -> None:
    made = world(memory="kill")
    tenant = made.add()
    made.put(tenant, 2 * GIB)

    def full(self: State) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patches:
        patches.setattr(State, "write", full)
        made.run(5)
    assert not made.is_killed(tenant) and sum("No space left" in line for line in made.said) == 1
    made.run(2)
    assert made.is_killed(tenant) and made.verbs() == ["kill memory"]


def test_the_record_is_bounded_and_half_lines_are_left_out(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = world(memory="warn")
    monkeypatch.setattr(state_module, "_MOST_RECORD_BYTES", 2000)
    for _ in range(30):
        program = made.put(made.add(), 2 * GIB)
        made.run(2)
        del made.programs[program.pid]
        with (guarded.folder() / guarded.ACTIONS).open("a") as record:
            record.write('{"id": 7')
    found = list(guarded.actions())
    assert 3 < len(found) < 30 and found[-1].id == 30
    assert sum(path.stat().st_size for path in guarded.folder().glob("actions*")) < 6000


def test_the_word_for_users_follows_no_link(tmp_path: Path) -> None:
    done = Done(1, 0.0, Action("freeze", "memory", "it holds 2 GiB of 1 GiB", "train", "ann", "a" * 64))
    folder, elsewhere = tmp_path / "state", tmp_path / "elsewhere"
    for each in (folder / "etc", elsewhere / "etc"):
        each.mkdir(parents=True)
    secret = tmp_path / "secret"
    secret.write_text("kept\n")
    (folder / "etc" / "guard").symlink_to(secret)
    for _ in range(50):
        tell(folder, done)
    assert secret.read_text() == "kept\n"
    assert (folder / "etc" / "guard").read_text().count("train: freeze: it holds") == 20
    assert [each.name for each in (folder / "etc").iterdir()] == ["guard"]
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "etc").symlink_to(elsewhere / "etc")
    with pytest.raises(NotADirectoryError):
        tell(linked, done)
    assert not list((elsewhere / "etc").iterdir())


def test_what_is_read_of_the_state_raises_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VGPURUN_STATE_DIR", str(tmp_path))
    assert (guarded.stopped(), guarded.counts(), list(guarded.actions()), guarded.is_running()) == ({}, {}, [], False)
    guarded.folder().mkdir()
    for content in ("7", '{"stopped": [], "counts": {"a": 1, "b c": "x"}}', json.dumps({"counts": 3})):
        (guarded.folder() / guarded.STATE).write_text(content)
        (guarded.folder() / guarded.ACTIONS).write_text('[]\n{"id": 1}\nnull\n{}')
        assert (guarded.stopped(), guarded.counts(), list(guarded.actions())) == ({}, {}, [])
