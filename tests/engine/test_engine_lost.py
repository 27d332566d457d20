"""Suspensions and moves while the engine is killed, with and without live-restore, or the container's shim is."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import docker
import pytest

import images
from cli import WITH_PROGRAMS, Cli, clean_environment
from private_engine import lose_engine, private_engine, start_again
from support import ROUNDS, is_set, own_gpu_config, unavailable, wait_until
from support.debian_packages import UnavailableError

IMAGE = "vgpurun-test/lost:1"
CELLS = ("python3", "-u", "/programs/gpu.py", "cells", "0.2")
HELD_MIB = 520


class Lost:
    """A container on one of two GPUs, and an engine of its own, which is killed."""

    def __init__(self, host: str, flags: tuple[str, ...], folder: Path) -> None:
        self.host, self.flags = host, flags
        images.debian(docker.DockerClient(host), IMAGE)
        environment = clean_environment(host, folder / "state", folder)
        environment["VGPUSIM_CONFIG"] = own_gpu_config(folder, count=2)
        self.vgpurun = Cli(docker.DockerClient(host), environment, folder / "state")
        self.chance = random.Random(os.getpid())
        options = ("--name", "book", "--network", "none", "--mem", "6g", "--gpus", "device=0", "--movable")
        started = self.vgpurun.run("-d", *options, *WITH_PROGRAMS, IMAGE, *CELLS)
        assert started.exit_code == 0, started.stderr

    def cells(self) -> int:
        logs = self.vgpurun.engine.containers.get("book").logs()
        assert b"wrong" not in logs, logs[-2000:]
        return int(logs.count(b"right"))

    def goes_on(self) -> None:
        before = self.cells()
        wait_until(lambda: self.cells() > before, "cells", 120)

    def on_gpus(self) -> tuple[list[int], list[int]]:
        """Return what is used of each GPU, and reserved there, in MiB."""
        shown = json.loads(self.vgpurun("free", *self.vgpurun.driver, "--format", "json").stdout)
        used = json.loads(self.vgpurun("smi", *self.vgpurun.driver, "--format", "json").stdout)
        reserved = [each["memory_reserved_bytes"] >> 20 for each in shown["gpus"]]
        return [each["memory_used_bytes"] >> 20 for each in used["gpus"]], reserved

    def strike(self, verb: str, pid: int) -> str:
        """Kill a process while a verb is on its way; return what that says."""
        words = {"suspend": ("suspend", "--hold"), "resume": ("resume",)}.get(verb)
        gpu = self.on_gpus()[1].index(0) if words is None else 0
        words = words or ("move", "--gpus", str(gpu))
        with self.vgpurun.started(words[0], *self.vgpurun.driver, *words[1:], "book") as running:
            time.sleep(self.chance.uniform(0, 1.2))
            if pid:
                os.kill(pid, signal.SIGKILL)
            else:
                lose_engine(self.host)
            out, said = running.communicate(timeout=120)
            assert "Traceback" not in said and "please report" not in said, said
            assert running.returncode == 0 or len(said.splitlines()) == 1, said
        return f"{verb}: {running.returncode} {out.strip()} {said.strip()}"

    def shim(self) -> int:
        """Return the process that stands between the engine and the container."""
        container_id = self.vgpurun.engine.containers.get("book").id
        for process in Path("/proc").iterdir():
            with suppress(OSError):
                line = (process / "cmdline").read_bytes().split(b"\0")
                if b"shim" in line[0] and container_id.encode() in line:
                    return int(process.name)
        raise AssertionError("no shim")

    def back(self) -> None:
        """Resume the program: it goes on with every byte, on one GPU, which alone is reserved."""
        wait_until(lambda: self.vgpurun("resume", *self.vgpurun.driver, "book").exit_code == 0, "a resume", 120)
        self.goes_on()
        used, reserved = self.on_gpus()
        assert sorted(used) == [0, HELD_MIB]
        assert [each > 0 for each in used] == [each > 0 for each in reserved]
        assert sorted(reserved) == [0, 6144]


@pytest.fixture
def lost(request: pytest.FixtureRequest, built_library: Path, tmp_path: Path) -> Iterator[Lost]:
    flags = request.param
    try:
        with private_engine(*flags) as host:
            yield Lost(host, flags, tmp_path)
    except UnavailableError as error:
        unavailable(str(error), required=is_set("REQUIRE_ENGINE"))


@pytest.mark.exhaustive  # tests/preload/test_suspend_crashes.py has kills without an engine
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("lost", [("--live-restore",)], indirect=True)
@pytest.mark.parametrize("rounds", [1, pytest.param(ROUNDS // 6, marks=pytest.mark.exhaustive)])
def test_an_engine_that_leaves_its_containers_alone(lost: Lost, rounds: int) -> None:
    lost.goes_on()
    for verb in ("suspend", "move", "resume") * rounds:
        if verb == "resume":
            assert lost.vgpurun("suspend", *lost.vgpurun.driver, "--hold", "book").exit_code == 0
        print(lost.strike(verb, 0), flush=True)
        start_again(lost.host, *lost.flags)
        lost.back()


@pytest.mark.exhaustive
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("lost", [()], indirect=True)
@pytest.mark.parametrize("killed", ["engine", "shim"])
def test_a_container_that_ends_with_what_is_killed(lost: Lost, killed: str) -> None:
    """Nothing of it is left on a GPU, and it starts again."""
    lost.goes_on()
    for verb in ("suspend", "move", "resume"):
        if verb == "resume":
            assert lost.vgpurun("suspend", *lost.vgpurun.driver, "--hold", "book").exit_code == 0
        print(lost.strike(verb, lost.shim() if killed == "shim" else 0), flush=True)
        if killed == "engine":
            start_again(lost.host)
        book = lost.vgpurun.engine.containers.get("book")
        wait_until(lambda book=book: book.reload() or book.status == "exited", "the end of the container", 120)
        wait_until(lambda: lost.on_gpus()[0] == [0, 0], "GPUs without it", 120)
        assert lost.vgpurun("start", *lost.vgpurun.driver, "book").exit_code == 0
        lost.back()
