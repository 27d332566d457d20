"""A day of ordinary programs beside a guard that ends whatever it acts on: it has to do nothing.

Ordinary programs are as the library sees them: a process is counted from before it holds anything, the sum of what they
allocate never passes the limit, and the driver may take more for a while: a context that is made and refused, code that
is counted at the next allocation. A process that was killed may hold its memory for some seconds, and what comes after
it takes the same again. NVML sees it all, and rounds shares.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from fakes import GIB, MIB
from guard_world import Fake, World

CONTEXT = 518 * MIB
STEP_S = 0.25
REFUSED_S = 3.0  # until a context that passes the limit has been made, measured and undone
ENDING_S = 5.0


class Tenant:
    """A container and its programs."""

    def __init__(self, world: World, container: str, limit: int, draw: random.Random, kind: str) -> None:
        self.container, self.limit, self.draw, self.kind = container, limit, draw, kind
        self.until: dict[int, tuple[float, str]] = {}  # each process's next event, and when
        self.start(world)

    def mine(self, world: World) -> list[Fake]:
        return [each for each in world.programs.values() if each.container == self.container]

    def living(self, world: World) -> int:
        return sum(each.held for each in self.mine(world) if not each.is_ending)

    def room(self, world: World) -> int:
        return max(0, self.limit - self.living(world))

    def start(self, world: World) -> None:
        """A process makes its context, whether there is room for it or not."""
        is_refused = self.room(world) < CONTEXT
        program = world.put(self.container, CONTEXT, is_counted=True, started_ticks=int(world.now_s * 100))
        wait_s = self.draw.random() * (REFUSED_S if is_refused else 1.0)
        self.until[program.pid] = (world.now_s + wait_s, "")
        program.command = "refused" if is_refused else "running"

    def step(self, world: World) -> None:
        for program in self.mine(world):
            due_s, what = self.until.get(program.pid, (0.0, ""))
            if world.now_s < due_s:
                continue
            if what == "gone":
                del world.programs[program.pid], self.until[program.pid]
            elif program.command == "refused":
                self.end(world, program)
            else:
                self.live(world, program)
        if not self.mine(world) or (self.kind == "forks" and len(self.mine(world)) < 8 and self.draw.random() < 0.5):
            self.start(world)

    def live(self, world: World, program: Fake) -> None:
        """Allocate, free, load code, or end."""
        chance, wait_s = self.draw.random(), self.draw.random() * (0.5 if self.kind == "forks" else 20.0)
        if chance < {"forks": 0.5, "churn": 0.2}.get(self.kind, 0.02):
            self.end(world, program)
            return
        if chance < 0.6:
            program.held += int(self.room(world) * self.draw.random())
        elif chance < 0.8:
            program.held = CONTEXT + int((program.held - CONTEXT) * self.draw.random())
        elif chance < 0.85:  # code is loaded; the next allocation is refused, and the program gives some back
            program.held += int(self.draw.random() * 300 * MIB)
            self.until[program.pid] = (world.now_s + 8 * self.draw.random(), "")
            program.command = "loaded"
            return
        if self.living(world) > self.limit:
            program.held = max(CONTEXT, program.held - (self.living(world) - self.limit))
        program.command = "running"
        self.until[program.pid] = (world.now_s + wait_s, "")
        begin_s = max(0.0, self.draw.random() - 0.5)
        world.busy[program.pid] = [(world.now_s + begin_s, world.now_s + wait_s)]  # no limit that NVML could see

    def end(self, world: World, program: Fake) -> None:
        """Kill a program: its memory goes some time later, and what it loaded goes with it."""
        program.is_ending, program.is_counted = True, False
        self.until[program.pid] = (world.now_s + ENDING_S * self.draw.random(), "gone")


def administer(world: World, tenants: list[Tenant], draw: random.Random) -> None:
    """Change limits, and lose sight for a moment."""
    tenant = draw.choice(tenants)
    if draw.random() < 0.5:
        tenant.limit = int(tenant.limit * draw.choice((0.5, 2.0)))
        tenant.limit = min(max(tenant.limit, GIB), 8 * GIB)
        world.limit(tenant.container, tenant.limit)
    world.is_blind = draw.random() < 0.1


def run_day(made: World, hours: float, seed: int) -> None:
    draw = random.Random(seed)
    kinds = ("training", "notebook", "churn", "forks", "profiled")
    tenants = []
    for kind in kinds:
        container = made.add(kind, limit=2 * GIB, sm=20)
        tenants.append(Tenant(made, container, 2 * GIB, draw, kind))
    made.put("", GIB, user="root", command="Xorg")

    def step(world: World) -> None:
        for tenant in tenants:
            tenant.step(world)
        if draw.random() < 0.002:
            administer(world, tenants, draw)

    made.step = step
    made.run(3600 * hours, STEP_S)
    assert made.verbs() == [] and made.state.stopped == {}, made.said


@pytest.mark.slow
def test_an_hour(world: Callable[..., World]) -> None:
    run_day(world(memory="kill", outside="kill"), 1.0, 0)


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_a_day(world: Callable[..., World]) -> None:
    run_day(world(memory="kill", outside="kill"), 24.0, 1)


def test_one_among_them_is_found(world: Callable[..., World]) -> None:
    made = world(memory="kill")
    made.put(made.add("hostile"), 1200 * MIB)
    with pytest.raises(AssertionError, match="kill container hostile"):
        run_day(made, 0.01, 0)
