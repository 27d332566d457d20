"""Containers and slices that move and take turns while whatever takes part in it is killed, paused, or taken away."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from cli import WITH_PROGRAMS, Cli
from support import ROUNDS, own_gpu_config, wait_until
from vgpurun.limits import limits_file

CELLS = ("python3", "-u", "/programs/gpu.py", "cells", "0.4")
PATIENCE_S = 240  # on a machine that others keep busy
MOVED = ("--gpus", "device=0", "--movable")
TURNS = ("--swap", "--mem", "9g", "--gpus", "device=0")
OPTIONS = {"book": ("--mem", "2g", *MOVED), "first": ("--slice", "team"), "second": ("--slice", "team"),
           "one": TURNS, "two": TURNS}  # fmt: skip


class Attacked:
    """A host with two GPUs, on which containers and a slice move and take turns, under a guard."""

    def __init__(self, vgpurun: Cli, image: str, chance: random.Random) -> None:
        self.vgpurun, self.image, self.chance = vgpurun, image, chance
        self.said = vgpurun.state_dir.parent / "guard.log"
        self.guard = self.start_guard()
        assert vgpurun("slice", "create", "team", *vgpurun.driver, "--mem", "2g", *MOVED).exit_code == 0
        for name in OPTIONS:
            self.run(name)

    def start_guard(self) -> subprocess.Popen[str]:
        with self.said.open("a") as log:
            self.said_before = log.tell()
            return subprocess.Popen(
                [*self.vgpurun.command, "guard", *self.vgpurun.driver],
                env=self.vgpurun.environment,
                stderr=log,
                text=True,
            )

    def guards(self) -> bool:
        return b"memory above a limit" in self.said.read_bytes()[self.said_before :]

    def kill_guard(self) -> None:
        self.guard.kill()
        self.guard.wait()
        self.guard = self.start_guard()

    def run(self, name: str) -> None:
        if OPTIONS[name] == TURNS:
            wait_until(self.guards, "guard", PATIENCE_S)  # nobody else gives turns
        started = self.vgpurun.run(
            "-d", "--name", name, "--network", "none", *OPTIONS[name], *WITH_PROGRAMS, self.image, *CELLS
        )
        assert started.exit_code == 0, started.stderr

    def container(self, name: str) -> docker.models.containers.Container:
        return self.vgpurun.engine.containers.get(name)

    def cells(self, name: str) -> int:
        logs = self.container(name).logs()
        assert b"wrong" not in logs, (name, logs[-2000:])
        return int(logs.count(b"right"))

    def start(self, *words: str) -> subprocess.Popen[str]:
        verb, *rest = words
        return subprocess.Popen(
            [*self.vgpurun.command, verb, *self.vgpurun.driver, *rest], env=self.vgpurun.environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def verbs(self) -> list[subprocess.Popen[str]]:
        """Begin one or more of what changes where memory is."""
        which = self.chance.choice((("book",), ("--slice", "team")))
        gpu = self.chance.choice("01")
        turns = self.chance.choice(("one", "two"))
        choices = (
            ("move", "--gpus", gpu, *which),
            ("move", "--gpus", gpu, *which),
            ("suspend", *which),
            ("resume", *which),
            ("suspend", turns),
            ("resume", turns),
            ("update", "--mem", self.chance.choice(("2g", "3g")), "book"),
            ("defrag", "--mem", "14g"),
        )
        return [self.start(*self.chance.choice(choices)) for _ in range(self.chance.randint(1, 3))]

    def strike(self, running: list[subprocess.Popen[str]]) -> str:
        """Do something that nobody expects."""
        name = self.chance.choice([*OPTIONS])
        strikes = ("cli", "cli", "guard", "stop", "pause", "restart", "rename", "remove", "program", "memory")
        match strike := self.chance.choice(strikes):
            case "cli":
                for each in running:
                    each.kill()
            case "guard":
                self.kill_guard()
            case "stop":  # within whatever it is at, with the locks that it has
                self.guard.send_signal(signal.SIGSTOP)
                time.sleep(self.chance.uniform(0, 2))
                self.guard.send_signal(signal.SIGCONT)
            case "memory":
                self.container(name).update(mem_limit=self.chance.choice(("2g", "3g")), memswap_limit=-1)
            case "pause":
                self.container(name).pause()
                time.sleep(self.chance.uniform(0, 1))
                self.container(name).unpause()
            case "restart":
                self.container(name).restart(timeout=0)
            case "rename":
                self.container(name).rename(f"{name}-2")
                time.sleep(self.chance.uniform(0, 0.5))
                self.container(f"{name}-2").rename(name)
            case "remove":
                self.container(name).remove(force=True)
                self.run(name)
            case "program":
                self.container(name).kill()
                self.vgpurun("start", *self.vgpurun.driver, name)
        return f"{strike} {name}"

    def check(self, what: str) -> None:
        """All go on, with every byte, each on one GPU, and nothing else is reserved."""
        for words in (("resume", "book"), ("resume", "--slice", "team"), ("resume", "one"), ("resume", "two")):
            wait_until(
                lambda words=words: self.vgpurun(words[0], *self.vgpurun.driver, *words[1:]).exit_code == 0, what,
                PATIENCE_S,
            )  # fmt: skip
        for name, count in {name: self.cells(name) for name in OPTIONS}.items():
            more = f"cells of {name} after {what}"
            wait_until(lambda name=name, count=count: self.cells(name) > count, more, PATIENCE_S)
        shown = json.loads(self.vgpurun("smi", *self.vgpurun.driver, "--format", "json").stdout)
        for each in shown["containers"] + shown["slices"]:
            assert len(each["devices"]) == 1, (what, each)
        for folder in self.folders():
            limits = limits_file.read_limits(folder / "etc" / "limits") or []
            assert len(limits) == 1, (what, folder, limits)

    def folders(self) -> list[Path]:
        """The state folders with limits of their own: what has joined a slice has none."""
        found = [each for kind in ("containers", "slices") for each in (self.vgpurun.state_dir / kind).iterdir()]
        return [each for each in found if (each / "etc" / "limits").exists()]


@pytest.fixture
def attacked(vgpurun: Cli, debian: str, tmp_path: Path) -> Iterator[Attacked]:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    vgpurun.environment["VGPUSIM_CONFIG"] = own_gpu_config(tmp_path, count=2)
    made = Attacked(vgpurun, debian, random.Random(seed))
    yield made
    made.guard.terminate()
    assert made.guard.wait(PATIENCE_S) == 0
    said = made.said.read_text()
    print(said[-6000:])
    assert "Traceback" not in said
    vgpurun.remove_containers()
    assert vgpurun("slice", "rm", *vgpurun.driver, "--force", "team").exit_code == 0


@pytest.mark.exhaustive  # tests/preload/test_moves_crashes.py and test_moves_races.py have this without containers
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("rounds", [2, pytest.param(ROUNDS // 4, marks=pytest.mark.exhaustive)])
def test_whatever_happens_meanwhile(attacked: Attacked, rounds: int) -> None:
    for number in range(rounds):
        running = attacked.verbs()
        time.sleep(attacked.chance.uniform(0, 1.5))
        what = f"round {number}: {[' '.join(map(str, each.args[4:])) for each in running]}, {attacked.strike(running)}"
        print(what, flush=True)
        for each in running:
            said, _ = each.communicate(timeout=PATIENCE_S)
            assert "Traceback" not in said and "please report" not in said, (what, said)
            print("  ", each.returncode, said.strip()[:300])
        attacked.check(what)
