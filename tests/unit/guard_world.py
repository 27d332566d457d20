"""A host for the guard's duties, on simulated time: containers with programs, cgroups that are plain folders."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fakes import GIB, make_gpus

from vgpurun.config.schema import GUARD
from vgpurun.guard.daemon import Guard, Hand
from vgpurun.guard.hands import HANDS
from vgpurun.guard.outside_slices import Slices
from vgpurun.guard.run import REFRESH_INTERVAL_S, duties_of
from vgpurun.guard.snapshot import Contained, Program, Snapshot, by_container
from vgpurun.guard.state import State
from vgpurun.guard.switch_keeper import OFF, SLICE
from vgpurun.guard.switches import SWITCHES, Switches
from vgpurun.guard.upkeep import follow, let_held_run
from vgpurun.host.freezer import Cgroup, run_of
from vgpurun.host.gpus import Gpu
from vgpurun.inventory import guarded
from vgpurun.limits.quota import Quota
from vgpurun.util.process_identity import ProcessIdentity

SETTINGS = {key.name: key.read(str(key.built_in)) for key in GUARD}
NO_SLICES = Slices({}, {})
NOBODY = "4194305"  # a process's number that the kernel gives to none
WINDOW_S = 1.0  # over which NVML tells the use of a GPU's time


@dataclass
class Fake:
    """A process on one GPU, by its place among them. `share` is what it would use of the GPU's time."""

    pid: int
    container: str | None
    held: int
    is_counted: bool = False
    is_ending: bool = False
    share: float = 0.0
    user: str = "ann"
    command: str = "train"
    foreign: str = ""
    started_ticks: int = 1
    gpu: int = 0


class Scheduler(Switches):
    """The GPUs' own scheduler. `taken` are the processes that are off now, which none of `hidden` can be."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.taken: set[int] = set()
        self.hidden: set[int] = set()
        self.slices_us: dict[int, int] = {}

    def _done(self, verb: str, processes: Iterable[ProcessIdentity], *more: int) -> set[ProcessIdentity]:
        done = {each for each in processes if each.pid not in self.hidden}
        for each in done:
            if verb == SLICE:
                self.slices_us[each.pid] = more[0]
            else:
                (self.taken.add if verb == OFF else self.taken.discard)(each.pid)
        return done


@dataclass
class World:
    """The host, and a guard on it. `step` is what happens between two moments."""

    folder: Path
    settings: Mapping[str, Any] = field(default_factory=dict)
    slices: Slices = NO_SLICES
    hands: Mapping[str, Hand] = field(default_factory=lambda: HANDS)
    now_s: float = 1000.0
    gpus: list[Gpu] = field(default_factory=lambda: make_gpus(1))
    containers: dict[str, Contained] = field(default_factory=dict)
    programs: dict[int, Fake] = field(default_factory=dict)
    last_pid: int = 100
    is_blind: bool = False
    has_engine: bool = True
    silent: set[str] = field(default_factory=set)  # UUIDs of GPUs that NVML says nothing of
    said: list[str] = field(default_factory=list)
    step: Callable[[World], None] = lambda _: None
    busy: dict[int, list[tuple[float, float]]] = field(default_factory=dict)
    guard: Guard = None  # type: ignore[assignment]
    switches: Scheduler = None  # type: ignore[assignment]
    state: State = None  # type: ignore[assignment]

    def start(self) -> World:
        """Start a guard, as after one that was killed: its lock is gone, and nothing was closed."""
        if self.state is not None:
            self.state.close()
        self.state = State(self.said.append, lambda: self.now_s)
        settings = {**SETTINGS, **self.settings}
        self.switches = Scheduler(self.state.memory_of(SWITCHES), self.state.write, self._note)
        duties = duties_of(settings, self.slices, self.state, self.switches)
        self.duties = duties
        hands = {verb: hand for each in duties for verb, hand in each.hands.items()}
        self.guard = Guard(self.state, duties, {**self.hands, **hands}, self.said.append, lambda _: None)
        self.guard.resume()
        let_held_run(self.state)
        self._refresh_at_s = self.now_s
        return self

    def _note(self, source: str, trouble: str) -> None:
        self.guard.note(source, trouble)

    def add(self, name: str = "a", limit: int | None = GIB, sm: int | None = None, slice_name: str = "",
            is_launch: bool = False, **around: int) -> str:  # fmt: skip
        """Make a container; return its id. `around` are the slices that it has a part of, and their limits."""
        number = len(self.containers) + 1
        id_ = str(number) if is_launch else f"{number:064x}"
        cgroup = self.folder / f"cgroup-{number}"
        cgroup.mkdir()
        files = {"cgroup.freeze": "0", "cgroup.events": "frozen 1", "cgroup.kill": "0", "cgroup.procs": NOBODY}
        for file, text in files.items():
            (cgroup / file).write_text(text)
        made = Cgroup(cgroup, True)
        quotas = {gpu.uuid: Quota(limit, sm) for gpu in self.gpus}
        self.containers[id_] = Contained(id_, name, "ann", self.folder, made, run_of(made), quotas, slice_name)
        self.containers[id_] = self.containers[id_]._replace(
            around={f"slice {name}": {gpu.uuid: Quota(size) for gpu in self.gpus} for name, size in around.items()},
            is_launch=is_launch,
        )
        return id_

    def start_again(self, container: str) -> None:
        """Give a container that runs a new cgroup, of the path that it has."""
        old = self.containers[container].cgroup
        aside = old.folder.rename(f"{old.folder}-before")
        shutil.copytree(aside, old.folder)  # the folder before is there still, so it has another number
        (old.folder / "cgroup.freeze").write_text("0")
        self.containers[container] = self.containers[container]._replace(run=run_of(old))

    def limit(self, container: str, limit: int | None) -> None:
        """Change a memory limit."""
        quotas = {uuid: replace(quota, memory_bytes=limit) for uuid, quota in self.containers[container].quotas.items()}
        self.containers[container] = self.containers[container]._replace(quotas=quotas)

    def put(self, container: str | None, held: int, **more: Any) -> Fake:
        """Start a process."""
        pid = self.last_pid = self.last_pid + 1
        self.programs[pid] = Fake(pid, container, held, **more)
        return self.programs[pid]

    def is_frozen(self, container: str) -> bool:
        return self._is_set(container, "cgroup.freeze")

    def is_killed(self, container: str) -> bool:
        return self._is_set(container, "cgroup.kill")

    def _is_set(self, container: str, name: str) -> bool:
        """Read a file of a single digit, which each step of simulated time does: Path.read_text() takes much longer."""
        file = os.open(f"{self.containers[container].cgroup.folder}/{name}", os.O_RDONLY)
        try:
            return os.read(file, 1) == b"1"
        finally:
            os.close(file)

    def look(self) -> Snapshot:
        programs = {
            each.pid: Program(each.pid, each.started_ticks, self.named(each), each.user, each.command, each.foreign)
            for each in self.programs.values()
        }
        in_use = {each.container for each in self.programs.values()} | self.state.stopped.keys()
        held = {gpu.uuid: {each.pid: each.held for each in self.programs.values() if each.gpu == number}
                for number, gpu in enumerate(self.gpus) if gpu.uuid not in self.silent}  # fmt: skip
        return Snapshot(
            self.now_s, self.gpus, held, programs,
            {id_: each for id_, each in self.containers.items() if id_ in in_use and self.is_known(each)},
            lambda container: frozenset(
                each.pid for each in self.programs.values() if each.container == container.id and each.is_counted
            ),
            lambda gpu: {pid: self.percent(pid) for pid in held[gpu.uuid]},
            lambda pid: self.programs[pid].is_ending,
            lambda pid: self.programs[pid].is_counted,
            by_container(held, programs),
            self.now_s,
            {},
            self.has_engine,
        )  # fmt: skip

    def is_known(self, container: Contained) -> bool:
        """Whether a container is listed by the engine, or needs none."""
        return self.has_engine or container.is_launch

    def named(self, program: Fake) -> str | None:
        """Return the container of a program, None where that cannot be told."""
        container = self.containers.get(program.container or "")
        return program.container if container is None or self.is_known(container) else None

    def percent(self, pid: int) -> float:
        """Return what NVML says of a process: whole percents of the last second."""
        spans = self.busy.get(pid, ())
        began_s = self.now_s - WINDOW_S
        return int(100 * sum(max(0.0, end - max(start, began_s)) for start, end in spans if end > began_s) / WINDOW_S)

    def run(self, seconds: float, step_s: float = 0.02) -> None:
        """Let time pass, and the guard do what it does."""
        end_s = self.now_s + seconds
        while self.now_s < end_s - 1e-9:
            if self.now_s >= self._refresh_at_s:
                follow(self.state, self.said.append)
                if not self.is_blind:
                    self.guard.look(self.look())
                self._refresh_at_s = self.now_s + REFRESH_INTERVAL_S
            self.guard.tick(self.now_s)
            self._refresh_at_s, next_s = self.guard.next_s(self._refresh_at_s)
            self.now_s = min(max(next_s, self.now_s + 1e-4), self.now_s + step_s, end_s)
            self.step(self)

    def share(self, seconds: float, worked_s: Callable[[], float], step_s: float = 0.005) -> float:
        """Let time pass; return how many percent of it were worked."""
        before_s = worked_s()
        self.run(seconds, step_s)
        return 100 * (worked_s() - before_s) / seconds

    def verbs(self) -> list[str]:
        """Return what the guard has done, by the record."""
        return [f"{each.action.verb} {each.action.cause}" for each in guarded.actions()]


class Rotation:
    """A program in a container, which is another process each time it has run for so long, as NVML alone can see it."""

    def __init__(self, world: World, container: str, lives_s: float, held: int, **more: Any) -> None:
        self.container, self.lives_s, self.held, self.more = container, lives_s, held, more
        self.ran_s = 0.0  # GPU time, in all
        self.had_s = 0.0  # for how long it held memory, in all
        self._last_s = world.now_s
        self._begin(world)

    def _begin(self, world: World) -> None:
        self._left_s = self.lives_s
        ticks = int(world.now_s * 100)
        self._program = world.put(self.container, self.held, started_ticks=ticks, **self.more)

    def step(self, world: World) -> None:
        """Let it run on, unless it is frozen or killed."""
        span_s, self._last_s = world.now_s - self._last_s, world.now_s
        if world.is_killed(self.container):
            world.programs.pop(self._program.pid, None)
            return
        self.had_s += span_s
        if world.is_frozen(self.container):
            return
        self._left_s -= span_s
        if self._program.share:
            self.ran_s += span_s
            world.busy.setdefault(self._program.pid, []).append((world.now_s - span_s, world.now_s))
        if self._left_s <= 0:
            del world.programs[self._program.pid]
            self._begin(world)
