"""`vgpurun guard --compute unheld` beside real containers: it stops their work in the middle of a kernel."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from cli import PROGRAMS, WITH_PROGRAMS, Cli, guarding
from escapes import HOSTILE, PAST_THE_LIBRARY, command, past_programs
from support import LIBRARY, assert_measured, own_gpu_config, wait_until
from test_guard import actions

MIB = 1 << 20
GUARD = ("--compute", "unheld")
ESCAPED = f"""
import sys
sys.path.insert(0, "/programs")
import ctypes, escape
cuda, context, module, function = escape.open_driver("copy"), *(ctypes.c_void_p() for _ in range(3))
assert cuda.cuInit(0) == cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
text = b".version 8.0\\n.target sm_90\\n.address_size 64\\n"
assert cuda.cuModuleLoadData(ctypes.byref(module), text) == 0
assert cuda.cuModuleGetFunction(ctypes.byref(function), module, b"spin_500s") == 0
assert cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, None, None) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t({1300 * MIB})) == 0
sys.stdin.read()
"""


def simulation(vgpurun: Cli) -> Path:
    return next(vgpurun.state_dir.glob("sim-*.state"))


def busy_percent(vgpurun: Cli) -> int:
    """Return for which part of the last second the GPU has worked."""
    question = [LIBRARY.parent / "sim" / "nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
    folder = {"LD_LIBRARY_PATH": str(LIBRARY.parent / "sim"), "VGPUSIM_STATE": str(simulation(vgpurun))}
    environment = {**vgpurun.environment, **folder}
    return int(subprocess.run(question, env=environment, capture_output=True, text=True, check=True).stdout)


def works(vgpurun: Cli) -> None:
    wait_until(lambda: busy_percent(vgpurun) == 100, "work")


def stands(vgpurun: Cli) -> None:
    wait_until(lambda: busy_percent(vgpurun) == 0, "standstill")


def start(vgpurun: Cli, image: str, limit: tuple[str, ...], *command: str) -> None:
    started = vgpurun.run("-d", "-i", "--name", "tenant", *limit, *WITH_PROGRAMS, image, "python3", "-u", *command)
    assert started.exit_code == 0, started


def test_a_freeze_stops_the_kernel_that_runs(own_gpu: Cli, debian: str) -> None:
    start(own_gpu, debian, ("--mem", "1g"), "-c", ESCAPED)
    works(own_gpu)
    with guarding(own_gpu, *GUARD):
        stands(own_gpu)
        assert own_gpu("update", *own_gpu.driver, "--mem", "2g", "tenant").exit_code == 0
        works(own_gpu)
        assert own_gpu("update", *own_gpu.driver, "--mem", "1g", "tenant").exit_code == 0


def test_a_pause_stops_it_as_long_as_there_is_a_guard(own_gpu: Cli, debian: str) -> None:
    """Work launched before goes on when the guard is killed; the library holds what comes after."""
    start(own_gpu, debian, ("--mem", "1g"), "/programs/gpu.py", "spin", "spin_500s", "1")
    works(own_gpu)
    assert own_gpu("pause", "--gpu", "tenant").exit_code == 0
    with own_gpu.started("guard", *own_gpu.driver, *GUARD) as guard:
        stands(own_gpu)
        guard.kill()
        guard.wait()
    works(own_gpu)
    with guarding(own_gpu, *GUARD):
        stands(own_gpu)
        assert own_gpu("unpause", "--gpu", "tenant").exit_code == 0
        works(own_gpu)
        assert own_gpu("pause", "--gpu", "tenant").exit_code == 0
        stands(own_gpu)
    works(own_gpu)


def test_a_program_that_launches_on_and_on_is_paused_and_goes_on(own_gpu: Cli, debian: str) -> None:
    """Without a limit of compute it is found to need one by its next launch, while the guard has taken it off."""
    start(own_gpu, debian, ("--mem", "1g"), "/programs/gpu.py", "spin", "spin_2ms", "3600")
    wait_until(lambda: busy_percent(own_gpu) > 50, "work")
    for _ in range(3):
        with own_gpu.started("guard", *own_gpu.driver, *GUARD) as guard:
            assert own_gpu("pause", "--gpu", "tenant").exit_code == 0
            stands(own_gpu)
            time.sleep(1)
            guard.kill()
            guard.wait()
        assert own_gpu("unpause", "--gpu", "tenant").exit_code == 0
        wait_until(lambda: busy_percent(own_gpu) > 50, "work")


def test_what_is_paused_can_be_suspended(own_gpu: Cli, debian: str) -> None:
    """Its work has to end for that, and so goes on."""
    start(own_gpu, debian, ("--mem", "1g"), "/programs/gpu.py", "spin", "spin_3s", "1")
    works(own_gpu)
    with guarding(own_gpu, *GUARD):
        assert own_gpu("pause", "--gpu", "tenant").exit_code == 0
        stands(own_gpu)
        assert own_gpu("suspend", *own_gpu.driver, "--timeout", "2m", "tenant").exit_code == 0


def keepers(guard: subprocess.Popen[str]) -> list[int]:
    """Return the processes of a guard that put back what is off when it is killed."""
    children = [pid for of in Path(f"/proc/{guard.pid}/task").glob("*/children") for pid in of.read_text().split()]
    return [int(pid) for pid in children if b"switch_keeper" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def stop_while_off(vgpurun: Cli, guard: subprocess.Popen[str], chance: random.Random) -> None:
    """Have a guard stand still while the program that it holds is off its GPU."""
    while True:
        os.kill(guard.pid, signal.SIGSTOP)
        wait_until(lambda: busy_percent(vgpurun) in (0, 100), "end of turns")
        if busy_percent(vgpurun) == 0:
            return
        os.kill(guard.pid, signal.SIGCONT)
        time.sleep(chance.uniform(0, 0.2))


def test_guards_that_are_killed_again_and_again(own_gpu: Cli, debian: str) -> None:
    """Each holds a program that has work for hours; every third time its keeper is killed with it."""
    options = ("--sm", "20", "-v", f"{past_programs()}:/past:ro")
    spin = ("/past/static", "spin", "spin_500s", "1")
    assert own_gpu.run("-d", "--name", "tenant", *options, debian, *spin).exit_code == 0
    works(own_gpu)
    chance = random.Random(1)
    for both in (False, False, True) * 2:
        with own_gpu.started("guard", *own_gpu.driver, *GUARD) as guard:
            wait_until(lambda: 0 < busy_percent(own_gpu) < 50, "hold")
            time.sleep(chance.uniform(0, 0.2))
            if both:
                stop_while_off(own_gpu, guard, chance)
            for pid in [*(keepers(guard) if both else []), guard.pid]:
                os.kill(pid, signal.SIGKILL)
            guard.wait()
        if both:
            time.sleep(1.5)  # longer than the use of a GPU is averaged over
            assert busy_percent(own_gpu) == 0, "it stays as it was, until the next guard"
        else:
            works(own_gpu)
    with guarding(own_gpu, *GUARD):
        wait_until(lambda: 0 < busy_percent(own_gpu) < 50, "hold")
    works(own_gpu)


# Escapes with the length of their kernels, in milliseconds.
HELD = {"static program": 10, "loader of its own": 1000, "unmounted preload": 10, "new namespaces": 10, "daemon": 10}


@pytest.mark.real_time
@pytest.mark.timeout(300)
@pytest.mark.exhaustive  # test_guard_switched.py has it on simulated time
def test_compute_past_the_library_is_held(vgpurun: Cli, debian: str, tmp_path: Path) -> None:
    """Each way on a GPU of its own, all at a time; no container is frozen."""
    vgpurun.environment["VGPUSIM_CONFIG"] = own_gpu_config(tmp_path, count=len(HELD))
    options = (*HOSTILE, "-v", f"{past_programs()}:/past:ro", *WITH_PROGRAMS)

    def percent(number: int, kernel_ms: int) -> float:
        vgpurun.wait_for_output(f"tenant-{number}", b" launches in ")
        words = vgpurun.engine.containers.get(f"tenant-{number}").logs(stderr=False).decode().split()
        return 100 * int(words[0]) * kernel_ms / 1000 / float(words[3])

    def percents() -> list[float]:
        vgpurun.remove_containers()
        for number, (way, kernel_ms) in enumerate(HELD.items()):
            words = command(PAST_THE_LIBRARY[way], "spin", f"spin_{kernel_ms}ms", "20")
            limits = ("--gpus", f"device={number}", "--sm", "20")
            started = vgpurun.run("-d", "-i", "--name", f"tenant-{number}", *limits, *options, debian, *words)
            assert started.exit_code == 0, started
        return [percent(number, kernel_ms) for number, kernel_ms in enumerate(HELD.values())]

    with guarding(vgpurun, *GUARD):
        assert_measured(percents, lambda found: all(18 < each < 22 for each in found))
    assert not Path(f"{simulation(vgpurun)}.log").exists(), "the driver was asked for no wrong client"
    said = (vgpurun.state_dir.parent / "guard.log").read_text()
    assert "frozen and thawed" not in said
    assert {each["name"] for each in actions(vgpurun)} == {f"tenant-{number}" for number in range(len(HELD))}


# Ways past the library for a program of `vgpurun local`.
OF_LOCAL = {
    "static program": "exec PAST/static WORK",
    "program of musl": "exec env -u LD_PRELOAD PAST/ld-musl PAST/musl WORK",
    "unset preload": "exec env -u LD_PRELOAD ESCAPE loader WORK",
    "no variables": "exec env -i VGPUSIM_CONFIG=$VGPUSIM_CONFIG VGPUSIM_STATE=$VGPUSIM_STATE PAST/static WORK",
    "daemon": "(setsid sh -c 'echo $$ >daemon; exec PAST/static WORK' &); sleep 60",
}


@contextmanager
def launched(vgpurun: Cli, options: tuple[str, ...], text: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A launch of `vgpurun local` with a shell, which may write the PID of a daemon of its own to `daemon`."""
    python = f"/usr/bin/python3 {PROGRAMS}/escape.py"
    words = text.replace("ESCAPE", python).replace("PAST", str(past_programs())).replace("WORK", "spin spin_500s 60")
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True, "cwd": folder}
    with vgpurun.started("local", *vgpurun.driver, *options, "--", "sh", "-c", words, **quiet) as launch:
        try:
            yield launch
        finally:
            os.killpg(launch.pid, signal.SIGKILL)
            if (folder / "daemon").exists():
                os.kill(int((folder / "daemon").read_text()), signal.SIGKILL)


def holds(vgpurun: Cli) -> list[tuple[str, str]]:
    """Return what the guard has done, by verb and name."""
    return [(each["verb"], each["name"]) for each in actions(vgpurun)]


@pytest.mark.parametrize("way", OF_LOCAL)
def test_a_program_of_local_is_held(own_gpu: Cli, way: str, tmp_path: Path) -> None:
    with guarding(own_gpu, *GUARD), launched(own_gpu, ("--sm", "20"), OF_LOCAL[way], tmp_path) as launch:
        wait_until(lambda: holds(own_gpu) == [("hold", f"process {launch.pid}")], "hold")
        wait_until(lambda: 0 < busy_percent(own_gpu) < 50, "share")
        assert "is frozen and thawed" not in (own_gpu.state_dir.parent / "guard.log").read_text()


def test_two_launches_in_a_slice_share_its_limit(own_gpu: Cli, tmp_path: Path) -> None:
    assert own_gpu("slice", "create", *own_gpu.driver, "--sm", "20", "--mem", "4g", "team").exit_code == 0
    ways, options = ("static program", "unset preload"), ("--slice", "team")
    with guarding(own_gpu, *GUARD), ExitStack() as stack:
        launches = [stack.enter_context(launched(own_gpu, options, OF_LOCAL[way], tmp_path)) for way in ways]
        wait_until(lambda: {*holds(own_gpu)} == {("hold", f"process {each.pid}") for each in launches}, "holds")
        wait_until(lambda: 0 < busy_percent(own_gpu) < 50, "share")
