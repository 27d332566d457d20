"""When the guard acts on memory, and when it does not."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from fakes import GIB, MIB, make_gpus
from guard_world import Rotation, World

from vgpurun.guard.memory import LEAST_SLACK_BYTES, SLACK_RATIO
from vgpurun.inventory import guarded


def test_unseen_memory_is_acted_on_within_a_second(world: Callable[..., World]) -> None:
    """A program that takes 100 MiB more every 10 ms is stopped in time, whenever in the guard's round it begins."""
    made = world(memory="kill")
    for number in range(20):
        tenant = made.add()
        program = made.put(tenant, 900 * MIB)
        made.run(random.Random(number).random())
        passed_s: list[float] = []

        def take(world: World, program: Any = program, tenant: str = tenant, passed_s: list[float] = passed_s) -> None:
            if not world.is_killed(tenant):
                program.held += 10 * MIB
                if program.held > GIB * (1 + SLACK_RATIO) and not passed_s:
                    passed_s.append(world.now_s)
            elif len(passed_s) == 1:
                passed_s.append(world.now_s)

        made.step = take
        made.run(3)
        made.step = lambda _: None
        del made.programs[program.pid]
        assert passed_s[1] - passed_s[0] <= 1.0
    assert made.verbs() == ["kill memory"] * 20


def test_once_for_each_cause(world: Callable[..., World]) -> None:
    made = world(memory="warn")
    program = made.put(made.add(), 2 * GIB)
    made.run(60)
    assert made.verbs() == ["warn memory"]
    program.held += int(2 * GIB * SLACK_RATIO)
    made.run(60)
    assert made.verbs() == ["warn memory"], "no more than 5 % above what was settled"
    program.held += GIB
    made.run(60)
    assert made.verbs() == ["warn memory"] * 2
    program.held = 500 * MIB
    made.run(5)
    program.held = 2 * GIB
    made.run(60)
    assert made.verbs() == ["warn memory"] * 3
    made.start()
    made.run(60)
    assert made.verbs() == ["warn memory"] * 3, "also after a restart"


def test_one_that_is_ended_while_frozen_is_not_thawed(world: Callable[..., World]) -> None:
    """Its memory is gone before its cgroup is."""
    made = world()
    tenant = made.add()
    program = made.put(tenant, 2 * GIB)
    made.run(2)
    assert made.is_frozen(tenant)
    del made.programs[program.pid]
    procs = made.containers[tenant].cgroup.folder / "cgroup.procs"
    nobody = procs.read_text()
    procs.write_text("")
    made.run(2)
    assert made.is_frozen(tenant) and made.verbs() == ["freeze memory"]
    procs.write_text(nobody)
    made.run(2)
    assert made.verbs() == ["freeze memory", "thaw memory"], "others of its processes live"


def test_frozen_and_thawed(world: Callable[..., World]) -> None:
    made = world()
    tenant = made.add()
    program = made.put(tenant, 2 * GIB)
    made.run(2)
    assert made.is_frozen(tenant) and made.verbs() == ["freeze memory"]
    made.is_blind = True
    made.run(10)
    made.is_blind = False
    made.gpus = []
    made.run(10)
    assert made.is_frozen(tenant), "what NVML does not tell of is not within its limit"
    made.gpus = make_gpus(1)
    made.limit(tenant, 3 * GIB)
    made.run(2)
    assert not made.is_frozen(tenant) and made.verbs() == ["freeze memory", "thaw memory"]
    program.held = 4 * GIB
    made.run(2)
    assert made.is_frozen(tenant)
    made.containers[tenant].cgroup.thaw()  # by the administrator
    made.run(30)
    assert not made.is_frozen(tenant) and made.verbs() == ["freeze memory", "thaw memory", "freeze memory"]
    assert any("thawed by somebody else" in line for line in made.said)
    program.held = 5 * GIB
    made.run(2)
    assert made.is_frozen(tenant), "more than that is another cause"


def test_without_an_engine_launches_are_guarded(world: Callable[..., World]) -> None:
    made = world()
    launch, container = made.add("process 1", is_launch=True), made.add("b")
    made.put(launch, 2 * GIB)
    made.put(container, 2 * GIB)
    made.has_engine = False
    made.run(5)
    assert made.is_frozen(launch) and made.verbs() == ["freeze memory"] and not made.is_frozen(container)
    made.has_engine = True
    made.run(5)
    assert made.is_frozen(container)


def test_what_is_known_of_containers_outlasts_a_start_without_an_engine(world: Callable[..., World]) -> None:
    """Neither is a cause forgotten, nor what was there before this guard."""
    made = world(memory="warn")
    made.put(made.add(), 2 * GIB)
    made.run(60)
    made.put(made.add("b"), 3 * GIB, is_counted=True)
    made.has_engine = False
    made.start()
    made.run(5)
    made.has_engine = True
    made.run(60)
    assert made.verbs() == ["warn memory"]


def test_a_pause_of_the_engines_is_kept(world: Callable[..., World]) -> None:
    made = world(memory="kill")
    paused, frozen = made.add(), made.add("b")
    made.put(paused, 2 * GIB)
    made.containers[paused].cgroup.freeze()
    made.run(10)
    assert made.verbs() == [] and not made.is_killed(paused)
    made.programs.clear()
    made.settings = {"memory": "freeze"}
    made.start()
    program = made.put(frozen, 2 * GIB)
    made.run(2)
    made.containers[frozen] = made.containers[frozen]._replace(is_paused=True)
    program.held = 500 * MIB
    made.run(10)
    assert made.is_frozen(frozen) and made.verbs() == ["freeze memory"]
    made.containers[frozen] = made.containers[frozen]._replace(is_paused=False)
    made.run(1)
    assert not made.is_frozen(frozen), "the engine's word was old: nobody else would thaw it"


def test_counted_programs_have_more_and_longer(world: Callable[..., World]) -> None:
    made = world(memory="kill")
    tenant = made.add()
    program = made.put(tenant, 900 * MIB, is_counted=True)
    made.run(5)
    program.held = 2 * GIB
    made.run(60)
    assert made.verbs() == [], "the driver's own memory, at the most"
    program.held = GIB
    made.run(1)
    for _ in range(5):
        program.held = 3 * GIB
        made.run(9)
        program.held = GIB
        made.run(1)
    assert made.verbs() == [], "it was within its limit in between"
    program.held = 3 * GIB
    made.run(12)
    assert made.verbs() == ["kill memory"]


def test_what_a_guard_finds_counted_at_its_start_is_let_be(world: Callable[..., World]) -> None:
    made = world(memory="kill")
    counted, unseen = made.add(), made.add()
    program = made.put(counted, 3 * GIB, is_counted=True)
    made.put(unseen, 3 * GIB)
    made.run(60)
    assert made.is_killed(unseen) and not made.is_killed(counted)
    program.held = 5 * GIB
    made.run(12)
    assert made.is_killed(counted)


def test_what_comes_counted_later_is_not_let_be(world: Callable[..., World]) -> None:
    """A tenant may have its programs end, and forge the count of one that takes all at once."""
    made = world(memory="kill")
    fresh, known = made.add(), made.add("b")
    first = made.put(known, 500 * MIB, is_counted=True)
    made.run(5)
    del made.programs[first.pid]
    made.run(1)
    for tenant in (fresh, known):
        made.put(tenant, 5 * GIB, is_counted=True)
    made.run(15)
    assert made.verbs() == ["kill memory"] * 2 and made.is_killed(fresh) and made.is_killed(known)


@pytest.mark.parametrize("held", [GIB, GIB + LEAST_SLACK_BYTES])
def test_up_to_five_percent_is_nothing(world: Callable[..., World], held: int) -> None:
    made = world(memory="kill")
    made.put(made.add(), held)
    made.run(60)
    assert made.verbs() == []


def test_a_limit_that_is_lowered_is_the_librarys_affair(world: Callable[..., World]) -> None:
    made = world(memory="kill")
    tenant = made.add(limit=4 * GIB)
    program = made.put(tenant, 3 * GIB, is_counted=True)
    made.run(2)
    made.limit(tenant, GIB)
    made.run(60)
    made.start()
    made.run(60)
    assert made.verbs() == []
    program.held = 5 * GIB
    made.run(12)
    assert made.verbs() == ["kill memory"]


def test_processes_that_end_do_not_count(world: Callable[..., World]) -> None:
    made = world(memory="kill")
    tenant = made.add()
    made.put(tenant, 900 * MIB, is_ending=True)
    made.put(tenant, 900 * MIB, is_counted=True)
    made.run(60)
    assert made.verbs() == []


def test_what_cannot_be_named_is_left_alone(world: Callable[..., World]) -> None:
    made = world(memory="kill", outside="kill")
    made.add()
    made.put(None, 8 * GIB)
    made.run(60)
    assert made.verbs() == []


def test_in_a_slice_the_unseen_one_is_at_fault(world: Callable[..., World]) -> None:
    made = world(memory="kill")
    good, bad = made.add("good", slice_name="s"), made.add("bad", slice_name="s")
    made.put(good, 600 * MIB, is_counted=True)
    made.put(bad, 600 * MIB)
    made.run(60)
    assert made.is_killed(bad) and not made.is_killed(good)


def test_in_a_slice_of_counted_ones_nobody_is(world: Callable[..., World]) -> None:
    made = world(memory="kill")
    programs = [made.put(made.add(name, slice_name="s"), 400 * MIB, is_counted=True) for name in ("x", "y")]
    made.run(2)
    for program in programs:
        program.held = 2 * GIB
    made.run(60)
    assert set(made.verbs()) == {"warn memory"}


@pytest.mark.parametrize("is_part_first", [True, False])
def test_a_part_of_a_slice_has_limits_of_its_own(world: Callable[..., World], is_part_first: bool) -> None:
    made = world(memory="kill")
    parts = [made.add("part", s=8 * GIB)] if is_part_first else []
    whole = made.add("whole", limit=8 * GIB, slice_name="s")
    part = (parts or [made.add("part", s=8 * GIB)])[0]
    within = made.put(part, 900 * MIB)
    made.put(whole, 4 * GIB, is_counted=True)
    made.run(2)
    made.put(whole, 400 * MIB)
    made.run(10)
    assert made.verbs() == [], "it is not held to the part's limit"
    within.held = 6 * GIB

    def end(world: World) -> None:
        within.is_ending = world.is_killed(part)

    made.step = end
    made.run(10)
    assert made.verbs() == ["kill memory"] and made.is_killed(part), "once, although both limits are passed"


def test_a_part_of_a_slice_counts_in_it(world: Callable[..., World]) -> None:
    """The library does not see what it takes, and gives the others as much as if it were not there."""
    made = world(memory="kill")
    whole, part = made.add("whole", limit=8 * GIB, slice_name="s"), made.add("part", s=8 * GIB)
    made.put(whole, 8 * GIB, is_counted=True)
    made.put(part, 900 * MIB)
    made.run(10)
    assert made.is_killed(part) and not made.is_killed(whole)
    assert ["its slice holds" in each.action.words for each in guarded.actions()] == [True]


def test_what_the_library_counts_elsewhere_is_asked_again(world: Callable[..., World]) -> None:
    """A local program may replace itself by one past the library."""
    made = world(outside="kill", users=())
    killed: list[int] = []
    made.hands = {**made.hands, "kill": lambda action: killed.append(action.pid)}
    made.start()
    program = made.put("", GIB, is_counted=True)
    made.run(100)
    assert killed == []
    program.is_counted = False
    made.run(21)
    assert killed == [program.pid]


def test_outside(world: Callable[..., World]) -> None:
    made = world(outside="kill", users=("root",))
    killed: list[int] = []
    made.hands = {**made.hands, "kill": lambda action: killed.append(action.pid)}
    made.start()
    stranger, _ = made.put("", GIB), made.put("", GIB, user="root")
    foreign = made.put("", GIB, user="root", foreign="f" * 64)
    made.run(9)
    assert killed == []
    made.run(60)
    assert sorted(killed) == [stranger.pid, foreign.pid] and made.verbs() == ["kill outside"] * 2
    made.start()
    made.run(60)
    assert len(killed) == 2


def test_one_that_ends_while_its_count_is_read_is_let_be(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = world(outside="kill")
    program, look = made.put("", GIB), made.look

    def is_counted(pid: int) -> bool:
        program.is_ending = True
        return False

    monkeypatch.setattr(made, "look", lambda: look()._replace(is_counted_elsewhere=is_counted))
    made.run(60)
    assert made.verbs() == []


def test_one_that_cannot_be_named_for_a_while_is_no_new_cause(world: Callable[..., World]) -> None:
    """A process in a PID namespace of its own, while the first process of some container is dead."""
    made = world(outside="warn")
    program = made.put("", GIB)
    made.run(15)
    program.container = None
    made.run(15)
    program.container = ""
    made.run(30)
    assert made.verbs() == ["warn outside"]


def test_a_gpu_that_is_silent_for_a_while_is_no_new_cause(world: Callable[..., World]) -> None:
    made = world(memory="warn", outside="warn", compute="warn")
    made.put("", GIB)
    made.put(made.add(), 2 * GIB)
    made.gpus = make_gpus(2)
    made.run(15)
    before = made.verbs()
    made.silent = {made.gpus[0].uuid}
    made.run(15)
    made.silent = set()
    made.run(30)
    assert made.verbs() == before == ["warn memory", "warn outside"]


def test_what_is_over_for_a_moment_only_is_not_seen(world: Callable[..., World]) -> None:
    """Nothing but the driver's limits stops this, as docs/security.md says."""
    made = world(memory="kill")
    program = made.put(made.add(), 500 * MIB)

    def swing(world: World) -> None:
        program.held = 4 * GIB if world.now_s % 1.0 < 0.35 else 500 * MIB

    made.step = swing
    made.run(60, step_s=0.01)
    assert made.verbs() == []


def test_times_of_grace_are_as_configured(world: Callable[..., World]) -> None:
    made = world(memory="warn", grace=3.0, counted_grace=40.0, outside="warn", outside_grace=20.0)
    counted = made.put(made.add("counted"), 900 * MIB, is_counted=True)
    made.run(1)
    counted.held = 3 * GIB
    made.put(made.add("unseen"), 2 * GIB)
    made.put("", GIB)
    seen = []
    for _ in range(50):
        before = len(made.verbs())
        made.run(1)
        seen += [made.now_s - 1001] * (len(made.verbs()) - before)
    assert made.verbs() == ["warn memory", "warn outside", "warn memory"]
    assert [round(at_s) for at_s in seen] == [4, 21, 41], "in the second after it"


def test_programs_that_are_allowed_outside(world: Callable[..., World], monkeypatch: pytest.MonkeyPatch) -> None:
    """By the name of their file, whoever runs them; in a container of somebody else's any file may have that name."""
    made = world(outside="warn", programs=("Xorg",))
    display, other = made.put("", GIB, command="train"), made.put("", GIB, command="Xorg")
    foreign = made.put("", GIB, foreign="f" * 64)
    files = {display.pid: "Xorg", other.pid: "", foreign.pid: "Xorg"}
    monkeypatch.setattr("vgpurun.guard.outside.program_of", files.get)
    made.run(60)
    assert sorted(each.action.pid for each in guarded.actions()) == [other.pid, foreign.pid]


@pytest.mark.parametrize("policy", ["kill", "freeze"])
@pytest.mark.parametrize("lives_s", [0.05, 0.33, 0.6])
def test_short_processes_one_after_the_other(world: Callable[..., World], policy: str, lives_s: float) -> None:
    """None is there at two looks. The container is."""
    made = world(memory=policy)
    made.run(random.Random(lives_s).random())
    tenant, beside = made.add(limit=2 * GIB), made.add("b", limit=2 * GIB)
    rotation = Rotation(made, tenant, lives_s, 11 * GIB)
    innocent = Rotation(made, beside, lives_s, 2 * GIB, is_counted=True)

    def step(world: World) -> None:
        rotation.step(world)
        innocent.step(world)

    made.step = step
    made.run(22)
    assert made.verbs() == [f"{policy} memory"]
    stopped = made.is_killed if policy == "kill" else made.is_frozen
    assert stopped(tenant) and not stopped(beside)
    if policy == "kill":
        assert rotation.had_s <= 1.0


def test_many_small_short_processes(world: Callable[..., World]) -> None:
    """Each holds no more than a context."""
    made = world(memory="kill")
    tenant = made.add(limit=2 * GIB)
    rotations = [Rotation(made, tenant, 0.25 + number / 100, 500 * MIB) for number in range(16)]

    def step(world: World) -> None:
        for each in rotations:
            each.step(world)

    made.step = step
    made.run(2)
    assert made.verbs() == ["kill memory"]


def test_two_moments_are_no_time(world: Callable[..., World]) -> None:
    """A limit that is passed at one look, and long after that at another, is not passed for the time of grace."""
    made = world(memory="kill")
    tenant = made.add()
    for _ in range(10):
        program = made.put(tenant, 2 * GIB)
        made.run(0.3)
        del made.programs[program.pid]
        made.run(11)
    assert made.verbs() == []


def test_bursts_between_which_it_is_within_its_limit(world: Callable[..., World]) -> None:
    made = world(memory="kill")
    tenant = made.add()
    draw = random.Random(4)
    bursts = 0
    while not made.verbs():
        program = made.put(tenant, 2 * GIB)
        made.run(0.3)
        del made.programs[program.pid]
        made.run(0.5 + draw.random())
        bursts += 1
        assert bursts < 10
    assert made.verbs() == ["kill memory"]
