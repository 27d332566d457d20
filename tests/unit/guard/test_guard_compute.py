"""How the guard holds programs past the library to their share of the time, on simulated time."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from fakes import GIB, MIB, make_gpus
from guard_world import Fake, Rotation, World

from vgpurun.guard.snapshot import Snapshot
from vgpurun.inventory import guarded

STEP_S = 0.005


class Worker:
    """A program that launches kernels as fast as it may, up to some that wait in its stream.

    What has been launched runs on while the program is frozen. `on_s` and `off_s`: it works, and then does not.
    """

    def __init__(self, kernel_s: float, queued: int, on_s: float = 1e9, off_s: float = 0.0, part: float = 1.0) -> None:
        self.kernel_s, self.queued, self.on_s, self.off_s, self.part = kernel_s, queued, on_s, off_s, part
        self.free_s = 0.0  # until when the GPU has work of it
        self.total_s = 0.0
        self.last_s: float | None = None

    def step(self, world: World, program: Fake) -> None:
        """Launch what fits, and note what ran since the last step."""
        last_s, self.last_s = self.last_s or world.now_s, world.now_s
        ran_s = max(0.0, min(world.now_s, self.free_s) - last_s) * self.part
        spans = world.busy.setdefault(program.pid, [])
        if ran_s > 0:
            spans.append((world.now_s - ran_s, world.now_s))
            del spans[:-2000]
        self.total_s += ran_s
        is_at_work = world.now_s % (self.on_s + self.off_s) < self.on_s
        if is_at_work and not world.is_frozen(program.container or ""):
            self.free_s = world.now_s + max(self.kernel_s * self.queued, STEP_S)


def busy(made: World, sm: int, limit: int | None = None, is_counted: bool = False) -> tuple[str, Fake, Worker]:
    """Add a container, and in it a program that launches as fast as it may."""
    tenant = made.add(limit=limit, sm=sm)
    program = made.put(tenant, 500 * MIB, is_counted=is_counted)
    worker = Worker(0.001, 8)
    made.step = lambda world: worker.step(world, program)
    return tenant, program, worker


WORKERS = {
    "short kernels": Worker(0.0001, 8),
    "1 ms, 8 in flight": Worker(0.001, 8),
    "10 ms, 8 in flight": Worker(0.010, 8),
    "a full stream of 100 us": Worker(0.0001, 1000),
    "30 ms": Worker(0.030, 2),
    "100 ms": Worker(0.100, 1),
    "half of the GPU": Worker(0.001, 8, part=0.5),
    "bursts of a second": Worker(0.001, 8, on_s=1.0, off_s=1.0),
    "bursts of 100 ms": Worker(0.001, 8, on_s=0.1, off_s=0.1),
    "long bursts": Worker(0.001, 8, on_s=5.0, off_s=3.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKERS)
def test_ten_escapes_at_20_percent(world: Callable[..., World], name: str) -> None:
    made = world()
    program = made.put(made.add(limit=None, sm=20), 500 * MIB)
    worker = WORKERS[name]
    made.step = lambda world: worker.step(world, program)
    made.run(random.Random(name).random(), STEP_S)
    for _ in range(4):
        assert 10 <= made.share(10, lambda: worker.total_s) <= 25
    assert made.verbs() == ["hold compute"]


@pytest.mark.parametrize("limit", [1, 50, *(pytest.param(limit, marks=pytest.mark.slow) for limit in (5, 90))])
def test_other_shares(world: Callable[..., World], limit: int) -> None:
    made = world()
    *_, worker = busy(made, sm=limit)
    made.run(20, STEP_S)
    assert made.share(30, lambda: worker.total_s) == pytest.approx(limit, abs=3)


def test_each_gpu_has_a_balance_of_its_own(world: Callable[..., World]) -> None:
    """The container stands for the sake of the one that it uses the most, whichever it was held for."""
    made = world()
    made.gpus = make_gpus(2)
    tenant = made.add(limit=None, sm=20)
    programs = [made.put(tenant, 500 * MIB, gpu=number) for number in (0, 1)]
    workers = [Worker(0.001, 8, part=0.25), Worker(0.001, 8)]

    def step(world: World) -> None:
        for worker, program in zip(workers, programs, strict=True):
            if program.pid in world.programs:
                worker.step(world, program)

    made.step = step
    made.run(20, STEP_S)
    assert made.share(20, lambda: workers[1].total_s) == pytest.approx(20, abs=5)
    del made.programs[programs[1].pid]
    made.run(20, STEP_S)
    assert made.share(20, lambda: workers[0].total_s) == pytest.approx(20, abs=5)
    assert made.verbs() == ["hold compute"]


def test_it_is_let_go(world: Callable[..., World]) -> None:
    made = world()
    tenant, program, worker = busy(made, sm=20)
    made.run(5, STEP_S)
    assert made.verbs() == ["hold compute"] and "held by the guard" in str(made.state.stopped[tenant])
    made.step = lambda _: None
    made.run(20, STEP_S)
    assert made.verbs() == ["hold compute", "release compute"] and not made.is_frozen(tenant)
    made.step = lambda world: worker.step(world, program)
    made.run(5, STEP_S)
    del made.programs[program.pid]
    made.put(tenant, 500 * MIB, is_counted=True)
    made.step = lambda _: None
    made.run(2, STEP_S)
    assert made.verbs() == ["hold compute", "release compute"] * 2 and not made.is_frozen(tenant)
    assert made.state.stopped == {}


def test_what_the_library_sees_is_left_to_it(world: Callable[..., World]) -> None:
    """NVML's shares are coarse, and the library's limit is over longer times."""
    made = world()
    busy(made, sm=20, is_counted=True)
    made.run(60)
    assert made.verbs() == []


def test_a_guard_that_is_killed_goes_on(world: Callable[..., World]) -> None:
    made = world()
    tenant, _, worker = busy(made, sm=20)
    made.run(5, STEP_S)
    for _ in range(5):
        made.run(0.3, STEP_S)
        made.start()
    assert made.share(10, lambda: worker.total_s) <= 25 and made.verbs() == ["hold compute"]
    while not made.is_frozen(tenant):
        made.run(STEP_S, STEP_S)
    made.guard.close()
    assert not made.is_frozen(tenant), "nobody would thaw it"


@pytest.mark.parametrize("is_frozen", [True, False])
def test_a_guard_that_stands_still_has_seen_nothing_meanwhile(world: Callable[..., World], is_frozen: bool) -> None:
    """By SIGSTOP, or with its machine. What it left frozen used no time, and has not kept to its share by that."""
    made = world()
    tenant, _, worker = busy(made, sm=20)
    made.run(5, STEP_S)
    while made.is_frozen(tenant) != is_frozen:
        made.run(STEP_S, STEP_S)
    made.now_s += 30
    made.step(made)
    made.run(5, STEP_S)
    assert made.share(10, lambda: worker.total_s) <= 25 and made.verbs() == ["hold compute"]


def test_a_pause_of_the_engines_is_kept(world: Callable[..., World]) -> None:
    made = world()
    tenant, *_ = busy(made, sm=20)
    made.run(5, STEP_S)
    made.containers[tenant] = made.containers[tenant]._replace(is_paused=True)
    made.containers[tenant].cgroup.freeze()
    made.run(30, STEP_S)
    assert made.is_frozen(tenant) and made.verbs() == ["hold compute"]
    made.start()
    made.run(5, STEP_S)
    made.guard.close()
    assert made.is_frozen(tenant), "also by the guard after it, and when that ends"


@pytest.mark.parametrize("is_thawed", [True, False])
def test_a_pause_that_is_over_by_now(world: Callable[..., World], is_thawed: bool) -> None:
    """The engine's list may be older: `docker commit` pauses for a moment. Whatever the guard froze then goes on."""
    made = world()
    tenant, _, worker = busy(made, sm=20)
    made.run(5, STEP_S)
    made.containers[tenant] = made.containers[tenant]._replace(is_paused=True)
    made.run(5, STEP_S)
    if is_thawed:
        made.containers[tenant].cgroup.thaw()
    made.containers[tenant] = made.containers[tenant]._replace(is_paused=False)
    made.run(2, STEP_S)
    assert made.share(20, lambda: worker.total_s) == pytest.approx(20, abs=5) and made.verbs() == ["hold compute"]


def test_a_held_one_that_takes_memory_too(world: Callable[..., World]) -> None:
    made = world(memory="kill")
    tenant, program, _ = busy(made, limit=GIB, sm=5)
    made.run(5, STEP_S)
    program.held = 2 * GIB
    made.run(2, STEP_S)
    assert made.verbs() == ["hold compute", "kill memory"] and made.is_killed(tenant)


def test_with_another_policy_all_are_let_go(world: Callable[..., World]) -> None:
    made = world()
    tenant, *_ = busy(made, sm=5)
    while not (made.state.stopped and made.is_frozen(tenant)):
        made.run(STEP_S, STEP_S)
    made.settings = {"compute": "off"}
    made.start()
    assert not made.is_frozen(tenant)
    made.run(5, STEP_S)
    assert made.verbs() == ["hold compute", "release compute"] and made.state.stopped == {}


def test_a_cgroup_that_refuses_does_not_keep_the_guard_busy(world: Callable[..., World]) -> None:
    made = world()
    tenant, *_ = busy(made, sm=20)
    made.run(3, STEP_S)
    (made.containers[tenant].cgroup.folder / "cgroup.freeze").unlink()
    (made.containers[tenant].cgroup.folder / "cgroup.freeze").mkdir()
    made.step = lambda _: None
    steps = 0

    def count(_: World) -> None:
        nonlocal steps
        steps += 1

    made.step = count
    made.run(10, step_s=1.0)
    assert steps < 100 and sum("cannot be written" in line for line in made.said) == 1


def test_a_new_start_is_not_frozen_for_the_old_one(world: Callable[..., World]) -> None:
    """A restart between two snapshots leaves the cgroup's path as it was."""
    made = world()
    tenant, program, _ = busy(made, sm=20)
    made.run(5, STEP_S)
    made.step = lambda _: None
    while made.is_frozen(tenant):
        made.run(STEP_S, STEP_S)
    made.start_again(tenant)
    del made.programs[program.pid]
    made.run(5, STEP_S)
    assert made.state.stopped == {} and not made.is_frozen(tenant)


def test_one_that_cannot_be_let_go_keeps_no_other(world: Callable[..., World]) -> None:
    made = world()
    tenants = [made.add(name, limit=None, sm=20) for name in "ab"]
    programs = [made.put(tenant, 500 * MIB) for tenant in tenants]
    workers = [Worker(0.001, 8, part=0.5) for _ in tenants]

    def step(world: World) -> None:
        for worker, program in zip(workers, programs, strict=True):
            worker.step(world, program)

    made.step = step
    while not all(made.is_frozen(tenant) for tenant in tenants):
        made.run(STEP_S, STEP_S)
    freeze = made.containers[tenants[0]].cgroup.folder / "cgroup.freeze"
    freeze.unlink()
    freeze.mkdir()
    made.guard.close()
    assert not made.is_frozen(tenants[1])


def test_it_warns_once(world: Callable[..., World]) -> None:
    """No later guard says it again, whatever has become of the state, until the container is started again."""
    made = world(compute="warn")
    tenant, _, _ = busy(made, 20)
    made.run(10)
    assert made.verbs() == ["warn compute"] and not made.is_frozen(tenant)
    made.start()
    made.run(10)
    (guarded.folder() / guarded.STATE).write_text("{")
    made.start()
    made.run(10)
    assert made.verbs() == ["warn compute"]
    made.start_again(tenant)
    made.run(10)
    assert made.verbs() == ["warn compute"] * 2


def test_a_new_guard_waits_for_a_silent_gpu(world: Callable[..., World]) -> None:
    """Before it lets one go that the guard before it has held: it would be held a second time for the same."""
    made = world()
    made.gpus = make_gpus(2)
    busy(made, 20)
    made.run(3, STEP_S)
    made.silent = {made.gpus[0].uuid}
    made.start()
    made.run(3, STEP_S)
    made.silent = set()
    made.run(3, STEP_S)
    assert made.verbs() == ["hold compute"]


def test_what_is_off_is_let_be(world: Callable[..., World]) -> None:
    made = world(memory="off", compute="off", outside="off")
    tenant, program, _ = busy(made, 20, limit=GIB)
    program.held = 8 * GIB
    made.put("", GIB)
    made.run(60)
    assert made.verbs() == [] and not made.is_frozen(tenant)


@pytest.mark.parametrize("limit", [20, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("lives_s", "more"), [(0.33, 7), (0.15, 12), (0.6, 7)])
def test_short_processes_one_after_the_other(
    world: Callable[..., World], lives_s: float, more: int, limit: int
) -> None:
    """NVML tells nothing of those that have ended. What each uses after the last look at it is estimated."""
    random.seed(lives_s)
    made = world()
    tenant = made.add(limit=None, sm=limit)
    rotation = Rotation(made, tenant, lives_s, 500 * MIB, share=1.0)
    made.step = rotation.step
    made.run(5, STEP_S)
    assert made.verbs() == ["hold compute"]
    assert made.share(20, lambda: rotation.ran_s) <= limit + more


def test_short_processes_that_the_library_counts_are_left_to_it(world: Callable[..., World]) -> None:
    made = world()
    counted = Rotation(made, made.add(limit=None, sm=20), 0.33, 500 * MIB, share=1.0, is_counted=True)
    idle = Rotation(made, made.add("b", limit=None, sm=20), 0.33, 500 * MIB)

    def step(world: World) -> None:
        counted.step(world)
        idle.step(world)

    made.step = step
    made.run(30, STEP_S)
    assert made.verbs() == [], "one is within its share, and the other one is seen"


@pytest.mark.slow
def test_a_pause_between_short_processes_pays_for_nothing(world: Callable[..., World]) -> None:
    """Processes run one at a time for 0.3 s, then none for 1.13: the guard does not forget their excess meanwhile."""
    random.seed(3)
    made = world()
    tenant = made.add(limit=None, sm=10)
    ran_s, left_s, last_s, program = 0.0, 0.0, made.now_s, None

    def step(world: World) -> None:
        nonlocal ran_s, left_s, last_s, program
        span_s, last_s = world.now_s - last_s, world.now_s
        if world.is_frozen(tenant):
            return
        left_s -= span_s
        if program is not None and left_s > 0:
            ran_s += span_s
            world.busy.setdefault(program.pid, []).append((world.now_s - span_s, world.now_s))
        elif program is not None:
            del world.programs[program.pid]
            program, left_s = None, 1.13
        elif left_s <= 0:
            program, left_s = made.put(tenant, 500 * MIB, share=1.0, started_ticks=int(world.now_s * 100)), 0.3

    made.step = step
    made.run(60, STEP_S)
    assert made.share(60, lambda: ran_s) <= 13
    assert len(made.verbs()) <= 6, "it is not let go in each pause"


class Asked(Snapshot):
    """A snapshot that counts how often it is asked about a container."""

    times = 0

    def pids_of(self, container: str, uuid: str) -> Sequence[int]:
        Asked.times += 1
        return super().pids_of(container, uuid)


def test_containers_at_rest_cost_next_to_nothing(world: Callable[..., World]) -> None:
    made = world()
    programs = [made.put(made.add(str(number), sm=20), MIB, is_counted=True) for number in range(50)]
    made.run(5)
    Asked.times = 0
    made.now_s += 1
    made.guard.look(Asked(*made.look()))
    assert Asked.times == 0
    made.now_s += 1
    made.busy[programs[0].pid] = [(made.now_s - 1, made.now_s)]
    made.guard.look(Asked(*made.look()))
    assert Asked.times > 0, "one of them works"
