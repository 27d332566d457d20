"""The guard takes programs off a real GPU by its own scheduler, whatever they have loaded. As root, with an engine:

pytest -s tests/gpu/test_gpu_guard_scheduler.py
"""

from __future__ import annotations

import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from runners import MAY_UNMOUNT, Container, answer, vgpurun

from support import CHECKOUT, unavailable
from vgpurun.host.channels import Driver, ProcessChannels
from vgpurun.util.process_identity import identify

sys.path.insert(0, str(Path(__file__).parents[1] / "bench" / "compute"))
from runs import Bench, Process, Programs, gpus

SECONDS = 8.0
POINTS = 1.5
TRAINING_S = float(os.environ.get("TRAINING_S", "600"))
KILLS = 100
START_S = 1.0  # of a guard
BEGIN_S = 20.0  # by then a container trains
SETTLE_S = 3.0
MOST_STALLED_MS = 1000


@pytest.fixture(scope="module", autouse=True)
def root() -> None:
    if os.geteuid() != 0:
        unavailable("another process's descriptors take root")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(Programs(tmp_path_factory.mktemp("programs")), tuple(gpus()[:1]), {})


def driver_s_log() -> list[str]:
    done = subprocess.run(["dmesg"], capture_output=True, text=True)
    if done.returncode:
        unavailable(f"the kernel's log cannot be read: {done.stderr.strip()}")
    return [line for line in done.stdout.splitlines() if "NVRM" in line or "Xid" in line]


def channels_of(process: Process) -> ProcessChannels:
    identity = identify(process.pid)
    assert identity
    return ProcessChannels(identity, Driver())


@contextmanager
def in_turn(channels: ProcessChannels, on_s: float, off_s: float) -> Iterator[None]:
    """Have it on for so long, and off for so long."""
    ending = threading.Event()

    def run() -> None:
        while not ending.is_set():
            channels.switch(True)
            time.sleep(off_s)
            channels.switch(False)
            time.sleep(on_s)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


@pytest.mark.parametrize("program", ["1ms", "300ms", "train"])
def test_channels_are_found_in_silence(bench: Bench, program: str) -> None:
    before, process = driver_s_log(), bench.start(program, 30, bench.native())
    try:
        time.sleep(10 if program == "train" else 3)
        channels, began_s = channels_of(process), time.monotonic()
        count = channels.find()
        print(f"{program}: {count} channels in {1000 * (time.monotonic() - began_s):.1f} ms")
        for off in (True, False):
            began_s = time.monotonic()
            assert channels.switch(off) == count > 0
            print(f"{program}: {'off' if off else 'on'} in {1000 * (time.monotonic() - began_s):.1f} ms")
        channels.close()
        assert driver_s_log() == before
    finally:
        bench.programs.end(process)


@pytest.mark.parametrize("program", ["50us", "5ms", "300ms"])
def test_off_is_off(bench: Bench, program: str) -> None:
    """Half of the time, in periods of 20 ms: a program without the library has half of its pace."""
    alone = bench.run(program, SECONDS, bench.native()).per_second
    process = bench.start(program, SECONDS, bench.native(), settle_s=4)
    time.sleep(2)
    channels = channels_of(process)
    channels.find()
    with in_turn(channels, 0.01, 0.01):
        (found,) = bench.finish(process, SECONDS + 4)
    print(f"{program}: {100 * found.per_second / alone:.2f} % of its pace, on for half of the time")
    assert 100 * found.per_second / alone == pytest.approx(50, abs=5)


@contextmanager
def guarding(*options: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "vgpurun", "guard", *options]
    with subprocess.Popen(command, cwd=CHECKOUT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None and "memory above a limit" in process.stderr.readline()
        yield process
        process.terminate()


@pytest.mark.parametrize("percent", [30, 50])
@pytest.mark.parametrize("program", ["1ms", "300ms"])
def test_a_container_without_its_preload(
    bench: Bench, python: str, host_image: Path, program: str, percent: int
) -> None:
    alone = bench.run(program, SECONDS, bench.native()).per_second
    container = Container(python, host_image)
    words = " ".join(bench.programs.command(program, SECONDS, None, 10))
    folder = str(Path(bench.programs.command(program, 1, None, 0)[0]).parent)
    options = ["--gpus", "device=0", "--sm", str(percent), "-v", f"{folder}:{folder}:ro", *MAY_UNMOUNT]
    before = driver_s_log()
    with guarding("--compute", "unheld"):
        done = container.run(options, ["sh", "-c", f"umount /etc/ld.so.preload && exec {words}"])
    share = 100 * answer(done)["per_second"] / alone
    print(f"{program} at {percent}: {share:.2f}")
    assert share == pytest.approx(percent, abs=POINTS)
    assert driver_s_log() == before


def kill_guards(until_s: float) -> int:
    """Start guards that hold everybody, each of which is killed after a random time; return how many."""
    each_s, kills = (until_s - time.time()) / KILLS, 0
    while kills < KILLS and time.time() < until_s:
        with guarding("--compute", "all") as guard:
            time.sleep(random.uniform(0, 2 * max(each_s - START_S, 0)))
            guard.kill()
        kills += 1
    return kills


@dataclass
class Training:
    """A container that trains, and what it says of itself at its end."""

    name: str
    process: subprocess.Popen[str]
    said: dict[str, Any] = field(default_factory=dict)

    def per_second(self, began_s: float, ended_s: float) -> float:
        """Steps, without the seconds in which that begins and ends."""
        return statistics.fmean(self.said["steps"].get(str(at_s), 0) for at_s in range(int(began_s) + 1, int(ended_s)))


def test_ten_minutes_of_training(python: str, host_image: Path) -> None:
    """A container that has taken its preload away, and one that has it, are both held by the guard, at 30 and 50 and
    the other way round. Then it is killed again and again: nobody stays off. All compute what they do without a limit.
    """
    container = Container(python, host_image)
    program = container.program("trained.py")
    alone = answer(container.run(["--gpus", "device=0"], [*program, "20"]))
    native = statistics.fmean(list(alone["steps"].values())[1:-1])
    without = ["sh", "-c", 'umount /etc/ld.so.preload && exec "$@"', "sh"]
    before, began_s, part_s = driver_s_log(), time.time(), TRAINING_S / 5
    with ExitStack() as stack:

        def started(kind: str, percent: int, options: Sequence[str], *words: str) -> Training:
            name = f"training-{kind}-{os.getpid()}"
            limits = ["--name", name, "--gpus", "device=0", "--sm", str(percent)]
            command = [*words, *program, str(TRAINING_S)]
            return Training(name, stack.enter_context(container.start([*limits, *options], command)))

        guard = stack.enter_context(guarding("--compute", "all"))
        unseen, seen = started("unseen", 30, MAY_UNMOUNT, *without), started("seen", 50, ())
        time.sleep(BEGIN_S + part_s)
        for training, percent in ((unseen, 50), (seen, 30)):
            done = vgpurun(["update", "--sm", str(percent), training.name])
            assert done.returncode == 0, done.stderr
        exchanged_s = time.time()
        time.sleep(SETTLE_S + part_s)
        guard.terminate()
        guard.wait()
        ended_s, after = time.time(), driver_s_log()
        kills = kill_guards(began_s + TRAINING_S)
        for training in (unseen, seen):
            training.said = json.loads(training.process.communicate()[0].splitlines()[-1])
    parts = ((began_s + BEGIN_S, exchanged_s), (exchanged_s + SETTLE_S, ended_s))
    shares = [100 * each.per_second(*part) / native for part in parts for each in (unseen, seen)]
    longest_ms = [max(each.said["longest_ms"].values()) for each in (unseen, seen)]
    checksums = [each["checksums"] for each in (alone, unseen.said, seen.said)]
    counts = [len(each) for each in checksums]
    said = f"shares {shares}, {kills} kills, longest steps {longest_ms} ms, checksums {counts}"
    print(said)
    for theirs in itertools.combinations(checksums, 2):
        assert all(one == other for one, other in zip(*theirs, strict=False)), "the same to the bit"
    assert after == before, said  # to be killed with records open may cost a line, by a timer of the driver's
    assert max(longest_ms) < MOST_STALLED_MS, said
    assert shares == pytest.approx([30, 50, 50, 30], abs=1), said


def test_a_guard_that_is_killed_leaves_nothing_off(bench: Bench, python: str, host_image: Path) -> None:
    name, container = f"paused-{os.getpid()}", Container(python, host_image)
    try:
        limits = ["-d", "-i", "--name", name, "--mem", "4g", "--gpus", "device=0"]
        assert container.run(limits, container.program("followed.py")).returncode == 0
        time.sleep(15)
        for _ in range(20):
            with guarding("--compute", "unheld") as guard:
                vgpurun(["pause", "--gpu", name])
                time.sleep(1.5)
                guard.kill()
                guard.wait()
            vgpurun(["unpause", "--gpu", name])
            began = vgpurun(["logs", name]).stdout
            time.sleep(2)
            assert vgpurun(["logs", name]).stdout != began, "it goes on"
    finally:
        vgpurun(["rm", "-f", name])
