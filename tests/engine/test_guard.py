"""`vgpurun guard` beside real containers whose programs come to the simulated driver past the library."""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cli import PROGRAMS, WITH_PROGRAMS, Cli, guarding
from escapes import HOSTILE, PAST_THE_LIBRARY, command, past_programs
from support import CHECKOUT, LIBRARY, ROUNDS, WITH_ADMIN_FILE, assert_measured, own_gpu_config, wait_until

MIB = 1 << 20
LIMITS = ("--mem", "1g")


def said(vgpurun: Cli) -> str:
    return (vgpurun.state_dir.parent / "guard.log").read_text()


def actions(vgpurun: Cli) -> list[dict[str, Any]]:
    path = vgpurun.state_dir / "guard" / "actions"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def verbs(vgpurun: Cli) -> list[str]:
    return [each["verb"] for each in actions(vgpurun)]


def start(vgpurun: Cli, image: str, *command: str, name: str = "tenant", options: tuple[str, ...] = LIMITS) -> None:
    started = vgpurun.run("-d", "-i", "--name", name, *options, *WITH_PROGRAMS, image, "python3", "-u", *command)
    assert started.exit_code == 0, started


def status(vgpurun: Cli, name: str = "tenant") -> str:
    return str(vgpurun.engine.containers.get(name).status)


@pytest.mark.timeout(300)
def test_memory_past_the_library_is_stopped(vgpurun: Cli, debian: str, tmp_path: Path) -> None:
    """Each way in a container of its own, and once by `docker exec`; all together leave room on their GPUs.

    So however late the guard is, each program is there until it is ended.
    """
    vgpurun.environment["VGPUSIM_CONFIG"] = own_gpu_config(tmp_path, count=4)
    grow = ("grow", str(960 * MIB), str(16 * MIB))
    commands = {way: command(text, *grow) for way, text in PAST_THE_LIBRARY.items()}
    commands["docker exec"] = ["python3", "-c", "input()"]
    options = ("--mem", "600m", "--overcommit", *HOSTILE, "-v", f"{past_programs()}:/past:ro", *WITH_PROGRAMS)
    assert len(commands) >= 20

    def run(number: int, words: Sequence[str]) -> None:
        limits = ("--name", f"tenant-{number}", "--gpus", f"device={number % 4}")
        assert vgpurun.run("-d", "-i", *limits, *options, debian, *words).exit_code == 0

    with guarding(vgpurun, "--memory", "kill"), ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(len(commands)), commands.values()))
        by_exec, environment = command("FILL", *grow), {"LD_AUDIT": "/past/audit.so"}
        container = vgpurun.engine.containers.get(f"tenant-{len(commands) - 1}")
        container.exec_run(by_exec, environment=environment, detach=True)
        wait_until(lambda: "running" not in {status(vgpurun, f"tenant-{n}") for n in range(len(commands))}, "end")
    done = {each["name"]: each for each in actions(vgpurun)}
    assert len(done) == len(actions(vgpurun)), "not twice for one cause"
    for number, way in enumerate(commands):
        output = vgpurun.engine.containers.get(f"tenant-{number}").logs()
        assert f"tenant-{number}" in done, (way, output, said(vgpurun))
        action = done[f"tenant-{number}"]
        assert (action["verb"], action["cause"], way) == ("kill", "memory", way)
        assert "the library does not see" in action["words"], way


def test_the_docs_name_each_way() -> None:
    page = (CHECKOUT / "docs" / "security.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \|[^|]*\| ✓ \| (✓?) ?\|$", page, re.MULTILINE)
    assert {way for way, _ in rows} == {*PAST_THE_LIBRARY, "docker exec"}
    assert {way for way, by_time in rows if by_time} == {*COMPUTE} and len(COMPUTE) >= 10


def frozen(vgpurun: Cli) -> list[str]:
    try:
        state = json.loads((vgpurun.state_dir / "guard" / "state").read_text())
        return [each["cause"] for each in state["stopped"].values() if each["verb"] == "freeze"]
    except (OSError, ValueError, AttributeError):
        return ["not to be read"]


def hold(vgpurun: Cli, image: str, size_mib: int, name: str = "tenant") -> None:
    start(vgpurun, image, "/programs/escape.py", "copy", "hold", str(size_mib * MIB), name=name)


def test_frozen_until_it_is_within_again(own_gpu: Cli, debian: str) -> None:
    with guarding(own_gpu):
        hold(own_gpu, debian, 1300)
        wait_until(lambda: verbs(own_gpu) == ["freeze"] and frozen(own_gpu) == ["memory"], "freeze")
        assert "(frozen by the guard: memory)" in own_gpu("ps", "-a", *own_gpu.driver).stdout
        assert all(" frozen " in own_gpu(verb, *own_gpu.driver).stdout for verb in ("ps", "smi"))
        assert own_gpu("update", *own_gpu.driver, "--mem", "2g", "tenant").exit_code == 0
        wait_until(lambda: verbs(own_gpu) == ["freeze", "thaw"], "thaw")
        told: list[str] = []

        def is_told_twice() -> bool:
            cat = ["cat", "/.vgpurun/etc/guard"]
            told[:] = own_gpu.engine.containers.get("tenant").exec_run(cat).output.decode().splitlines()
            return len(told) > 1

        wait_until(is_told_twice, "word of the thaw")
        first, second = told
        assert "tenant: freeze: it holds" in first and "of 1 GiB on GPU 0" in first and "tenant: thaw: " in second
        own_gpu.engine.containers.get("tenant").remove(force=True)
    assert frozen(own_gpu) == []


def test_thawed_by_the_administrator(own_gpu: Cli, debian: str) -> None:
    with guarding(own_gpu):
        hold(own_gpu, debian, 1300)
        wait_until(lambda: verbs(own_gpu) == ["freeze"], "freeze")
        assert own_gpu("thaw", "tenant").stdout == "tenant\n"
        wait_until(lambda: frozen(own_gpu) == [], "thaw")
        again = own_gpu("thaw", "tenant")
        assert again.exit_code == 1 and "is not frozen by the guard" in again.stderr
        own_gpu.engine.containers.get("tenant").exec_run(["sleep", "1.5"])
        assert verbs(own_gpu) == ["freeze"], "not twice for one cause"


@pytest.mark.parametrize("end", ["kill", "stop", "rm"])
def test_a_frozen_container_can_be_ended(own_gpu: Cli, debian: str, end: str) -> None:
    with guarding(own_gpu):
        hold(own_gpu, debian, 1300)
        wait_until(lambda: verbs(own_gpu) == ["freeze"], "freeze")
        container = own_gpu.engine.containers.get("tenant")
        {"kill": container.kill, "stop": lambda: container.stop(timeout=1), "rm": lambda: container.remove(force=True)}[
            end
        ]()
        wait_until(lambda: frozen(own_gpu) == [], "end")
    assert verbs(own_gpu) == ["freeze"]


def test_a_guard_that_is_killed_finds_what_it_has_frozen(own_gpu: Cli, debian: str) -> None:
    state = own_gpu.state_dir / "guard" / "state"
    hold(own_gpu, debian, 1300)
    for damage in (None, '{"stopped": 7}', ""):
        with own_gpu.started("guard", *own_gpu.driver) as guard:
            wait_until(lambda: verbs(own_gpu) == ["freeze"] and frozen(own_gpu) == ["memory"], "freeze")
            guard.kill()
        if damage is not None:
            state.write_text(damage)
    with guarding(own_gpu):
        wait_until(lambda: frozen(own_gpu) == ["memory"], "freeze")
        assert own_gpu("update", *own_gpu.driver, "--mem", "2g", "tenant").exit_code == 0
        wait_until(lambda: verbs(own_gpu) == ["freeze", "thaw"], "thaw")


def test_programs_that_the_library_sees_are_left_alone(own_gpu: Cli, debian: str, tmp_path: Path) -> None:
    """Containers, and local processes that have left their parents; others are not."""
    admin = tmp_path / "admin.yaml"
    admin.write_text("guard:\n  memory: kill\n  outside: kill\n  outside_grace: 1s\n  users: []\n")
    guard = replace(own_gpu, command=(sys.executable, "-c", WITH_ADMIN_FILE, str(admin)))
    hold = f"import sys; sys.argv[1:] = ['daemon-plain', 'hold', '{MIB}']; exec(open('{PROGRAMS}/escape.py').read())"
    local = (*own_gpu.driver, "--mem", "1g", "--", sys.executable, "-c", hold)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    stranger = [sys.executable, f"{PROGRAMS}/gpu.py", "hold", str(MIB)]
    outside = own_gpu.environment | {"LD_LIBRARY_PATH": str(LIBRARY.parent / "sim")}
    with guarding(guard), own_gpu.started("local", *local, **pipes) as inside:
        start(own_gpu, debian, "/programs/gpu.py", "hold", str(450 * MIB))
        filled = own_gpu.run(*LIMITS, *WITH_PROGRAMS, debian, "python3", "/programs/gpu.py", "fill", str(64 * MIB))
        assert filled.json()["result"] == 2
        outside["VGPUSIM_STATE"] = str(next(own_gpu.state_dir.glob("sim-*.state")))
        with subprocess.Popen(stranger, env=outside, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.wait(60) == -signal.SIGKILL
        assert status(own_gpu) == "running" and inside.poll() is None
    assert [(each["verb"], each["cause"], each["pid"]) for each in actions(own_gpu)] == [
        ("kill", "outside", process.pid)
    ]


def test_a_program_that_root_brings_into_a_container(own_gpu: Cli, debian: str, tmp_path: Path) -> None:
    """By nsenter, so that it is in another cgroup: the library holds it; past that it is a program outside."""
    admin = tmp_path / "admin.yaml"
    admin.write_text("guard:\n  outside: kill\n  outside_grace: 1s\n  users: []\n")
    guard = replace(own_gpu, command=(sys.executable, "-c", WITH_ADMIN_FILE, str(admin)))
    start(own_gpu, debian, "-c", "input()")
    first = own_gpu.engine.containers.get("tenant").attrs["State"]["Pid"]
    enter = ("nsenter", f"--target={first}", "--mount", "--pid", "--", "env", "-i", "/usr/bin/python3")

    def entered(way: str) -> subprocess.Popen[str]:
        words = [*enter, "/programs/escape.py", way, "hold", str(16 * MIB)]
        return subprocess.Popen(words, stdin=subprocess.PIPE, text=True)

    filled = subprocess.run([*enter, "/programs/gpu.py", "fill", str(2 * MIB)], capture_output=True, text=True)
    assert json.loads(filled.stdout) == {"granted_bytes": (1024 - 518) * MIB, "result": 2}
    with guarding(guard), entered("plain") as inside:
        with entered("copy") as outside:
            assert outside.wait(60) == -signal.SIGKILL
        assert inside.poll() is None
        inside.communicate()
    assert [(each["verb"], each["cause"]) for each in actions(own_gpu)] == [("kill", "outside")]


# To the topmost cgroup of each hierarchy, which a container on cgroup v1 sees.
LEAVE = """
mkdir /m; umount /etc/ld.so.preload
while IFS=: read number what path; do
  mkdir /m/$number
  case $what in
    "") mount -t cgroup2 none /m/$number ;;
    name=*) mount -t cgroup -o none,$what none /m/$number ;;
    *) mount -t cgroup -o $what none /m/$number ;;
  esac
  echo $$ >/m/$number/cgroup.procs
done </proc/self/cgroup
"""


def test_a_program_that_leaves_its_cgroup_is_outside(own_gpu: Cli, debian: str, tmp_path: Path) -> None:
    """Although it is root's, who may use GPUs outside: it has its container's PID namespace still."""
    if own_gpu.engine.info()["CgroupVersion"] != "1":
        pytest.skip("a container on cgroup v2 sees no cgroup but its own")
    admin = tmp_path / "admin.yaml"
    admin.write_text("guard:\n  outside: kill\n  outside_grace: 1s\n")
    guard = replace(own_gpu, command=(sys.executable, "-c", WITH_ADMIN_FILE, str(admin)))
    with guarding(guard):
        words = ("sh", "-c", f"{LEAVE} python3 /programs/escape.py plain hold {2048 * MIB}")
        started = own_gpu.run("-d", "-i", "--name", "tenant", *LIMITS, *HOSTILE, *WITH_PROGRAMS, debian, *words)
        assert started.exit_code == 0, started
        wait_until(lambda: actions(own_gpu), "end")
        wait_until(lambda: status(own_gpu) == "exited", "end")
    (done,) = actions(own_gpu)
    id_ = own_gpu.engine.containers.get("tenant").id
    assert (done["verb"], done["cause"], done["user"]) == ("kill", "outside", "root")
    assert f"in container {id_[:12]}" in done["words"]


# Escapes with the length of their kernels, in milliseconds.
COMPUTE = {
    "second copy of the driver": 1, "dlmopen": 10, "raw export table": 1, "loader of its own": 10,
    "loader of its own, once it is counted": 1, "traced loader": 10, "static program": 1, "program of musl": 10,
    "program in no file": 1, "daemon": 10, "unmounted preload": 1, "new namespaces": 10, "auditor": 1,
    "child that shares memory": 10,
}  # fmt: skip


@pytest.mark.real_time
@pytest.mark.timeout(300)
@pytest.mark.exhaustive  # test_guard_compute.py has it on simulated time
def test_compute_past_the_library_is_held(vgpurun: Cli, debian: str, tmp_path: Path) -> None:
    """Each way on a GPU of its own, all at a time. How exactly on a host that is never late: test_guard_compute.py."""
    vgpurun.environment["VGPUSIM_CONFIG"] = own_gpu_config(tmp_path, count=len(COMPUTE))
    go = tmp_path / "go"
    go.mkdir()
    options = (*HOSTILE, "-v", f"{past_programs()}:/past:ro", "-v", f"{go}:/go:ro", *WITH_PROGRAMS)

    def share(way: str, kernel_ms: int) -> float:
        """Return the part of ten seconds in which a program had its GPU, at a limit of 20 %."""
        container = vgpurun.engine.containers.get(f"tenant-{list(COMPUTE).index(way)}")
        launches, _, _, seconds, _ = container.logs(stderr=False).decode().splitlines()[-1].split()
        return int(launches) * kernel_ms / 1000 / float(seconds)

    def shares() -> dict[str, float]:
        (go / "now").unlink(missing_ok=True)
        vgpurun.remove_containers()
        for number, (way, kernel_ms) in enumerate(COMPUTE.items()):
            words = command(PAST_THE_LIBRARY[way], "spin", f"spin_{kernel_ms}ms", "10", "/go/now")
            limits = ("--gpus", f"device={number}", "--sm", "20")
            started = vgpurun.run("-d", "-i", "--name", f"tenant-{number}", *limits, *options, debian, *words)
            assert started.exit_code == 0, started
        (go / "now").touch()
        for number in range(len(COMPUTE)):
            vgpurun.wait_for_output(f"tenant-{number}", b" launches in ")
        return {way: share(way, kernel_ms) for way, kernel_ms in COMPUTE.items()}

    with guarding(vgpurun):
        assert_measured(shares, lambda found: all(0.1 < each <= 0.25 for each in found.values()))
    assert verbs(vgpurun).count("hold") >= len(COMPUTE)


@pytest.mark.parametrize("policy", ["kill", "freeze"])
def test_short_processes_that_hold_memory_in_turn(own_gpu: Cli, debian: str, policy: str) -> None:
    """None is there at two looks, nor has more than a context takes. Beside them are others that the library counts."""
    in_turn = f"while :; do timeout 0.25 /past/static grow {700 * MIB} {700 * MIB}; done &"
    options = (*LIMITS, "-v", f"{past_programs()}:/past:ro")
    counted = f"import os\nwhile True:\n    os.system('python3 /programs/gpu.py fill {1 << 26}')\n"
    with guarding(own_gpu, "--memory", policy):
        start(own_gpu, debian, "-c", counted, name="counted")
        start(own_gpu, debian, "-c", f"import os; os.system({f'{in_turn * 4} wait'!r})", options=options)
        wait_until(lambda: verbs(own_gpu) == [policy], "action")
        own_gpu.engine.containers.get("counted").exec_run(["sleep", "3"])
        assert [(each["name"], each["verb"]) for each in actions(own_gpu)] == [("tenant", policy)]


@pytest.mark.real_time
@pytest.mark.timeout(300)
@pytest.mark.exhaustive  # test_guard_compute.py has it on simulated time
def test_150_short_processes_are_held_to_their_share(own_gpu: Cli, debian: str) -> None:
    """Each works for a third of a second, past the library, at a limit of 20 %."""
    rotate = "for i in $(seq 150); do /past/static spin spin_1ms 0.33 /past/static; done"
    options = ("--sm", "20", "-v", f"{past_programs()}:/past:ro")

    def share() -> float:
        own_gpu.remove_containers()
        assert own_gpu.run("-d", "--name", "tenant", *options, debian, "sh", "-c", rotate).exit_code == 0
        time.sleep(30)
        lines = own_gpu.engine.containers.get("tenant").logs(stderr=False).decode().splitlines()
        return sum(int(line.split()[0]) for line in lines) / 1000 / 30

    with guarding(own_gpu):
        assert_measured(share, lambda found: 0.1 < found <= 0.25)
    assert "hold" in verbs(own_gpu)


@pytest.mark.parametrize(
    "count", [6, pytest.param(ROUNDS, marks=[pytest.mark.exhaustive, pytest.mark.timeout(3600)])], ids=["some", "many"]
)
def test_launches_and_kills_leave_nothing_frozen(own_gpu: Cli, debian: str, count: int) -> None:
    """Programs past both limits are frozen and held, and ended at any time; so is the guard."""
    draw = random.Random(count)
    command = ("python3", "/programs/escape.py", "copy")

    def launch(number: int) -> None:
        work = ("spin", "spin_1ms", "60") if number % 3 == 0 else ("hold", str(1300 * MIB))
        options = ("-d", "-i", "--name", f"tenant-{number}", "--mem", "1g", "--sm", "5", "--overcommit", *WITH_PROGRAMS)
        started = own_gpu.run(*options, debian, *command, *work)
        assert started.exit_code == 0, started
        time.sleep(3 * draw.random())
        container = own_gpu.engine.containers.get(f"tenant-{number}")
        if draw.random() < 0.5:
            container.kill()
        container.remove(force=True)

    with guarding(own_gpu) as guard, ThreadPoolExecutor(3) as pool:
        done = [pool.submit(launch, number) for number in range(count // 2)]
        for each in done:
            each.result()
        guard.kill()
        guard.wait()
        with own_gpu.started("guard", *own_gpu.driver):
            for each in [pool.submit(launch, number) for number in range(count // 2, count)]:
                each.result()
            wait_until(lambda: not json.loads((own_gpu.state_dir / "guard" / "state").read_text())["stopped"], "end")
    assert own_gpu.containers() == []
    assert {"freeze", "hold"} & set(verbs(own_gpu))
