"""Programs of a slice that work at the same time on a real GPU: what it gives, its walls, and what is left of it.

One run, as root: pytest -s tests/gpu/test_gpu_together.py. It takes four minutes; TOGETHER_SECONDS=2 and
TOGETHER_STARTS=60 make it two.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import pytest
from runners import vgpurun

from support import CHECKOUT, LIBRARY, unavailable
from vgpurun.diagnostics.verify import OK, Trial, check_memory
from vgpurun.host import gpus as host_gpus
from vgpurun.together import server as mps
from vgpurun.together.group import Group

sys.path.insert(0, str(CHECKOUT / "tests" / "bench" / "compute"))
from runs import Bench, Launch, Programs, gpus

SECONDS = float(os.environ.get("TOGETHER_SECONDS", "4"))
SLICE = "team"
STARTS = int(os.environ.get("TOGETHER_STARTS", "200"))
AT_ONCE = 8


def loaded(path: Path) -> ModuleType:
    """A program of tests/bench whose name a test's helper has, too."""
    spec = importlib.util.spec_from_file_location("bench_together", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


facts = loaded(CHECKOUT / "tests" / "bench" / "together.py")


@pytest.fixture(scope="module")
def bench(built_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(Programs(tmp_path_factory.mktemp("programs")), tuple(gpus()[:1]), {"main": LIBRARY})


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The state folder of a host with the slice, in a place that leaves room for a socket's path."""
    if os.geteuid():
        unavailable("slices are made by root")
    with TemporaryDirectory(prefix="vgpurun-", dir="/tmp") as state:
        monkeypatch.setenv("VGPURUN_STATE_DIR", state)
        made = vgpurun(["slice", "create", SLICE, "--mem", "40g", "--gpus", "device=0", "--together"])
        if "is not on the PATH" in made.stderr:
            unavailable(made.stderr)
        assert made.returncode == 0, made
        yield Path(state)
        await_end(Path(state))
        assert vgpurun(["slice", "rm", "--force", SLICE]).returncode == 0


def member(*options: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "vgpurun", "local", "--slice", SLICE, *options, "--")


def group_of(folder: Path) -> Path:
    return folder / "together" / f"{Group.of(folder / 'slices' / SLICE).key}"


def await_end(folder: Path) -> None:
    group = group_of(folder)
    give_up_s = time.monotonic() + 30
    while group.exists() or mps.processes(group / "pipe"):
        assert time.monotonic() < give_up_s, (list(group.rglob("*")), mps.processes(group / "pipe"))
        time.sleep(0.1)


def shares(bench: Bench, launch: Launch, count: int, alone: float, program: str = "50us") -> list[float]:
    runs = bench.together([program] * count, [launch] * count, SECONDS)
    return [round(100 * run.per_second / alone, 2) for run in runs]


@pytest.mark.parametrize("count", [2, 4])
def test_small_programs_have_what_bare_mps_gives_them(bench: Bench, folder: Path, count: int) -> None:
    alone = bench.run("50us", SECONDS, bench.native()).per_second
    with facts.server(bench.gpus[0].uuid) as bare:
        of_bare = shares(bench, Launch((), {**bench.native().environment, **bare.client}), count, alone)
    together = shares(bench, Launch(member()), count, alone)
    in_turns = shares(bench, bench.limited(100, "main", "--mem", "4g"), count, alone)
    print(f"{count} programs: bare MPS {of_bare}, together {together}, in turns {in_turns}")
    assert sum(together) > 0.97 * sum(of_bare)
    assert sum(together) > 1.6 * sum(in_turns)


@pytest.mark.parametrize("program", ["1ms", "50us"])
def test_the_time_of_all_is_limited(bench: Bench, folder: Path, program: str) -> None:
    alone = bench.run(program, SECONDS, bench.native()).per_second
    free = shares(bench, Launch(member()), 2, alone, program)
    assert vgpurun(["slice", "update", "--sm", "60", SLICE]).returncode == 0
    held = shares(bench, Launch(member()), 2, alone, program)
    (found,) = json.loads(vgpurun(["slice", "inspect", SLICE]).stdout)
    print(f"{program}: {free} without a limit, {held} at 60; {found['together']}")
    assert 100 * sum(held) / sum(free) == pytest.approx(60, abs=1.5)


def test_beside_another_tenant_the_slice_has_its_part(bench: Bench, folder: Path) -> None:
    alone = bench.run("1ms", SECONDS, bench.native()).per_second
    assert vgpurun(["slice", "update", "--sm", "60", SLICE]).returncode == 0
    launches = [Launch(member()), Launch(member()), bench.limited(40, "main", "--mem", "4g")]
    runs = bench.together(["1ms"] * len(launches), launches, SECONDS)
    found = [round(100 * run.per_second / alone, 2) for run in runs]
    (described,) = json.loads(vgpurun(["slice", "inspect", SLICE]).stdout)
    print(f"a slice at 60 beside a tenant at 40: {found}; {described['together']}")
    for each in found[:2]:  # they work at the same time
        assert each == pytest.approx(60, abs=3)
    assert found[2] > 36


def refused(words: list[str]) -> set[str]:
    """Return the ways to take memory that are refused at a limit of 2 GiB; none must not be."""
    gpu = next(each for each in host_gpus.survey().gpus if each.index == 0)
    command = [*words, "--mem", "2g", "--", str(LIBRARY.parent / "vgpurun-verify")]
    checks = list(check_memory(Trial(command, command, False, lambda pid: pid), gpu, 2 << 30))
    for check in checks:
        print(f"{check.status:4}  {check.name:31}  {check.words}")
    assert not [each for each in checks if each.status == "FAIL"]
    return {each.name for each in checks if each.status == OK and "refused" in each.words}


def test_no_way_to_take_memory_passes_a_member_s_limit(folder: Path) -> None:
    assert refused(["local", "--slice", SLICE]) == refused(["local"]) != set()


def play(number: int, text: str) -> Any:
    """Start a member, and let it end, be killed at work, or fault."""
    process = subprocess.Popen(
        [*member(), sys.executable, "-c", text], cwd=CHECKOUT, text=True, start_new_session=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    line = process.stdout.readline()
    if number % 4 == 1:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=120)
    return json.loads(line) if line else None


def test_starts_kills_and_faults_leave_nothing(folder: Path) -> None:

    began_s = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        said = list(
            pool.map(lambda number: play(number, facts.FAULTY if number % 10 == 9 else facts.PROBE), range(STARTS))
        )
    probes = [each for number, each in enumerate(said) if number % 10 != 9 and each is not None]
    good = sum(each.get("alloc") == 0 for each in probes)
    alone = [each for each in probes if each.get("init") == 0 and not each.get("mps")]
    print(f"{STARTS} starts in {time.monotonic() - began_s:.0f} s: {good} of {len(probes)} got memory beside faults")
    assert not alone, "none runs without the server in silence"
    await_end(folder)
    assert play(0, facts.PROBE)["alloc"] == 0
    await_end(folder)
    assert [each.name for each in (folder / "together").iterdir()] == [".lock"]
    assert json.loads(vgpurun(["slice", "inspect", SLICE]).stdout)[0]["members"] == []


def test_a_member_has_its_part_of_the_sms(bench: Bench, folder: Path) -> None:
    alone = shares(bench, Launch(member()), 1, 1, "wide")[0]
    quarter = shares(bench, Launch(member("--sm", "25")), 1, 1, "wide")[0]
    print(f"a program that fills all SMs, with a quarter of them: {100 * quarter / alone:.1f} %")
    assert 20 < 100 * quarter / alone < 30
