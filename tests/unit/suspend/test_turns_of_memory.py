"""Turns of memory in simulated time: fairness, how long turns are, idleness, and how long anyone waits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import pytest

from vgpurun.suspend.turns import LEAST_TURN_S, Exchange, Group, Turns

STEP_S = 0.05
LOOK_S = 1.0


@dataclass
class Tenant:
    """A program: what its memory takes out and back, and when it works (always, or in cells of a notebook)."""

    move_s: float = 0.0
    gpus: frozenset[str] = frozenset({"a"})
    cell_s: float = 0.0  # 0: it works without end
    pause_s: float = 0.0
    is_there: bool = False
    had_s: float = 0.0
    worked_s: float = 0.0
    of_cell_s: float = 0.0
    next_cell_s: float = 0.0
    last_busy_s: float = float("-inf")
    seen_busy_s: float = float("-inf")
    waited_s: list[float] = field(default_factory=list)
    since_s: float | None = None

    def live(self, now_s: float) -> None:
        """Go on by a step: work where it is there, else wait."""
        wants = not self.cell_s or now_s >= self.next_cell_s
        if not wants:
            return
        if not self.is_there:
            self.since_s = now_s if self.since_s is None else self.since_s
            return
        if self.since_s is not None:
            self.waited_s.append(now_s - self.since_s)
            self.since_s = None
        self.last_busy_s = now_s
        self.worked_s += STEP_S
        self.of_cell_s += STEP_S
        if self.cell_s and self.of_cell_s >= self.cell_s:
            self.of_cell_s, self.next_cell_s = 0.0, now_s + self.pause_s


class Move(NamedTuple):
    """An exchange under way: which goes or comes until when."""

    exchange: Exchange
    left: list[str]
    until_s: float
    began_s: float


class World:
    """Tenants on GPUs over simulated time, and the exchanges that the policy asks for."""

    def __init__(self, **tenants: Tenant) -> None:
        self.tenants = tenants
        self.turns = Turns()
        self.now_s = self.seen_s = 0.0
        self.moves: list[Move] = []
        self.moved_s = 0.0
        self.out_fails: set[str] = set()
        self.exchanges: list[Exchange] = []

    def run(self, for_s: float) -> None:
        end_s = self.now_s + for_s
        while self.now_s < end_s:
            self.now_s += STEP_S
            moving = {name for move in self.moves for name in (*move.exchange.out, move.exchange.into)}
            for name, tenant in self.tenants.items():
                if name not in moving or not tenant.is_there:
                    tenant.live(self.now_s)
                if tenant.is_there:
                    tenant.had_s += STEP_S
            if self.now_s - self.seen_s >= LOOK_S:  # NVML is not asked at every step
                self.seen_s = self.now_s
                for each in self.tenants.values():
                    each.seen_busy_s = each.last_busy_s
            self._go_on()
            for exchange in self.turns.decide(self.groups(), self.now_s):
                self.exchanges.append(exchange)
                self._next(exchange, [*exchange.out, *([exchange.into] if exchange.into else [])])
            self._check()

    def groups(self) -> list[Group]:
        moving = {name for move in self.moves for name in (*move.exchange.out, move.exchange.into)}
        return [
            Group(
                name, each.gpus, each.is_there, each.since_s is not None, each.seen_busy_s, self.seen_s, name in moving
            )
            for name, each in self.tenants.items()
        ]

    def _next(self, exchange: Exchange, left: list[str]) -> None:
        took_s = self.tenants[left[0]].move_s
        self.moves.append(Move(exchange, left, self.now_s + took_s, self.now_s))

    def _go_on(self) -> None:
        for move in [each for each in self.moves if self.now_s >= each.until_s]:
            self.moves.remove(move)
            name, *left = move.left
            self.moved_s += self.now_s - move.began_s
            if name == move.exchange.into:
                self.tenants[name].is_there = True
                self.turns.came(name, self.now_s, self.now_s - move.began_s)
            elif name in self.out_fails:
                self.turns.failed(name, self.now_s)
                continue
            else:
                self.tenants[name].is_there = False
                self.turns.went(name, self.now_s, self.now_s - move.began_s, name in move.exchange.idle)
            if left:
                self._next(move.exchange, left)

    def _check(self) -> None:
        """At most one is there on each GPU."""
        there = [gpu for each in self.tenants.values() if each.is_there for gpu in each.gpus]
        assert len(there) == len(set(there)), self.now_s


@pytest.mark.parametrize("move_s", [0.0, 0.2, 4.0])
def test_three_get_equal_turns_and_moving_takes_a_fifth_at_most(move_s: float) -> None:
    world = World(a=Tenant(move_s), b=Tenant(move_s), c=Tenant(move_s))
    world.run(max(60.0, 200 * move_s))
    worked = [each.worked_s for each in world.tenants.values()]
    round_s = world.turns.turn_s(frozenset("a"), world.groups()) + 2 * move_s
    assert max(worked) - min(worked) <= 1.1 * round_s
    assert world.moved_s <= 0.21 * world.now_s + 3 * move_s
    assert sum(worked) >= 0.75 * world.now_s - 6 * move_s
    assert not any(each.idle for each in world.exchanges), "one at work is never taken for idle"


@pytest.mark.slow
def test_one_with_more_memory_has_no_longer_turns() -> None:
    world = World(big=Tenant(8.0), small=Tenant(0.5))
    world.run(2000.0)
    big, small = (each.worked_s for each in world.tenants.values())
    assert big == pytest.approx(small, rel=0.1)
    assert world.moved_s <= 0.21 * world.now_s


def test_alone_it_stays() -> None:
    world = World(a=Tenant(1.0))
    world.run(100.0)
    assert world.tenants["a"].worked_s > 98.0
    assert world.exchanges == [Exchange((), "a")]


def test_an_idle_one_stays_until_another_wants_its_turn() -> None:
    world = World(a=Tenant(cell_s=1.0, pause_s=1000.0), b=Tenant(cell_s=1.0, pause_s=1000.0))
    world.tenants["b"].next_cell_s = 50.0
    world.run(49.0)
    assert world.tenants["a"].is_there
    world.run(11.0)
    assert world.exchanges[1:] == [Exchange(("a",), "b", frozenset("a"))]
    assert world.tenants["b"].waited_s == [pytest.approx(0.0, abs=3 * STEP_S)]


def test_a_notebook_beside_a_training_waits_a_turn_at_most() -> None:
    training, notebook = Tenant(4.0), Tenant(0.5, cell_s=0.3, pause_s=20.0)
    world = World(training=training, notebook=notebook)
    world.run(600.0)
    longest_s = world.turns.turn_s(frozenset("a"), world.groups())
    assert max(notebook.waited_s) <= longest_s + training.move_s + notebook.move_s + 4 * STEP_S
    assert len(notebook.waited_s) > 10
    assert training.worked_s > 0.6 * world.now_s, "an idle notebook gives the GPU back at once"


def test_pauses_of_a_program_do_not_cost_an_exchange_each() -> None:
    """Two that pause for a second after each: what moving costs decides whether a turn is over."""
    world = World(a=Tenant(4.0, cell_s=1.0, pause_s=0.9), b=Tenant(4.0, cell_s=1.0, pause_s=0.9))
    world.run(1000.0)
    assert world.moved_s <= 0.3 * world.now_s


def test_nobody_starves_behind_groups_of_other_gpus() -> None:
    """A group that takes two GPUs waits for both; those that take one do not pass it for ever."""
    world = World(
        left=Tenant(0.5, frozenset("a")), left2=Tenant(0.5, frozenset("a")), right=Tenant(0.5, frozenset("b")),
        right2=Tenant(0.5, frozenset("b")), both=Tenant(0.5, frozenset("ab")),
    )  # fmt: skip
    world.run(600.0)
    assert len(world.tenants["both"].waited_s) > 20
    assert max(world.tenants["both"].waited_s) <= 2 * (world.turns.turn_s(frozenset("ab"), world.groups()) + 2.5)


def test_one_that_cannot_go_has_another_turn_and_is_asked_again() -> None:
    world = World(a=Tenant(0.1), b=Tenant(0.1))
    world.run(1.0)
    world.out_fails = {"a"}
    world.run(20.0)
    assert world.tenants["a"].is_there and 5 <= len(world.exchanges) <= 12
    world.out_fails = set()
    world.run(2 * LEAST_TURN_S)
    assert world.tenants["b"].worked_s > 0


def test_one_that_was_at_work_comes_back_even_if_it_cannot_ask() -> None:
    """Its call may have got into the driver, and waits there."""
    turns = Turns()
    turns.came("a", 0.0, 0.1)
    turns.went("a", 10.0, 0.1, was_idle=False)
    turns.came("b", 10.0, 0.1)
    groups = [Group("a", frozenset("x"), False, False), Group("b", frozenset("x"), True, False)]
    assert turns.decide(groups, 11.0) == []
    assert turns.decide(groups, 12.5) == [Exchange(("b",), "a")]


def test_two_that_are_there_at_once() -> None:
    """By docker start, past us: the later one goes, and comes back at its turn."""
    turns = Turns()
    first = Group("a", frozenset("x"), True, False)
    assert turns.decide([first], 0.0) == []
    late = Group("b", frozenset("xy"), True, False)
    assert turns.decide([late, first], 1.0) == [Exchange(("b",), None)]
    turns.went("b", 1.5, 0.1, was_idle=False)
    assert turns.decide([late._replace(is_there=False), first], 1.6) == []
    assert turns.decide([late._replace(is_there=False), first], 2.6) == [Exchange(("a",), "b")]


def test_one_that_has_ended_is_forgotten() -> None:
    turns = Turns()
    turns.decide([Group("a", frozenset("x"), False, True)], 0.0)
    assert turns.waits_since_s("a") == 0.0
    turns.decide([], 1.0)
    assert turns.waits_since_s("a") is None
