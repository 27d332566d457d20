"""Whatever the guard has taken off its GPU comes back, at whatever step the guard, its keeper or both are killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from simulated import Machine, driver
from test_channels_from_outside import begun, said, work

from support import wait_until
from vgpurun.util.process_identity import identify

GUARD = """
import json, os, pathlib, signal, sys
from vgpurun.guard.switches import Switches
from vgpurun.util.process_identity import identify
file, stops = pathlib.Path(sys.argv[1]), []
memory = json.loads(file.read_text()) if file.exists() else {}
def stop(place):
    if place in stops:
        os.kill(os.getpid(), signal.SIGSTOP)
def keep():
    stop("before the record")
    half = file.with_suffix(".new")
    half.write_text(json.dumps(memory))
    half.replace(file)
    stop("behind the record")
switches = Switches(memory, keep, lambda source, trouble: print("trouble:", trouble, flush=True) if trouble else None)
print("ready", flush=True)
for line in sys.stdin:
    verb, pid, *stops = line.rstrip().split(" ", 2)
    them = [identify(int(pid) or os.getpid())]
    if verb == "off":
        switches.take_off(them)
    elif verb == "run":
        switches.let_run(them)
    elif verb == "back":
        switches.put_back(them if int(pid) else switches.off)
    elif verb == "slice":
        switches.set_slices({each: int(stops[0]) for each in them if int(stops[0])})
    elif verb == "close":
        switches.close()
    print("done", flush=True)
"""


class Guard:
    """A process with switches, which does as it is told."""

    def __init__(self, machine: Machine) -> None:
        self.record = machine.folder / "record"
        self.process = subprocess.Popen(
            [sys.executable, "-c", GUARD, str(self.record)],
            env=machine.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        machine.started.append(self.process)
        self.keeper = 0
        assert self.process.stdout.readline() == "ready\n"

    def ask(self, verb: str, pid: int = 0, stop: str = "") -> None:
        self.process.stdin.write(f"{verb} {pid} {stop}\n")
        self.process.stdin.flush()

    def __call__(self, verb: str, pid: int = 0, stop: str = "") -> None:
        self.ask(verb, pid, stop)
        self.answered()

    def answered(self) -> None:
        assert (answer := self.process.stdout.readline()) == "done\n", answer
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        *_, self.keeper = 0, *(int(each) for each in children if identify(int(each)))  # the last, if one was killed

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def runs(target: subprocess.Popen[str]) -> bool:
    return said(target) == "True"


def comes_back(target: subprocess.Popen[str]) -> None:
    wait_until(lambda: runs(target))


def ended(pid: int) -> None:
    """Wait until a process that is nobody's child any more has ended."""
    wait_until(lambda: identify(pid) is None)


def stopped(pid: int) -> None:
    wait_until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] == "T")


@pytest.fixture
def target(machine: Machine) -> subprocess.Popen[str]:
    return begun(machine, work)


def test_off_and_back(machine: Machine, target: subprocess.Popen[str]) -> None:
    guard = Guard(machine)
    guard("off", target.pid)
    assert not runs(target)
    guard("run", target.pid)
    assert runs(target) and json.loads(guard.record.read_text())["off"], "it may be off at any time"
    guard("off", target.pid)
    assert not runs(target)
    guard("back", target.pid)
    assert runs(target) and json.loads(guard.record.read_text()) == {"off": []}
    guard("off", target.pid)
    guard("close")
    assert runs(target)


@pytest.mark.parametrize("place", ["before the record", "behind the record"])
@pytest.mark.parametrize("verb", ["off", "back"])
def test_a_guard_that_is_killed_while_it_writes(
    machine: Machine, target: subprocess.Popen[str], verb: str, place: str
) -> None:
    guard = Guard(machine)
    if verb == "back":
        guard("off", target.pid)
    guard.ask(verb, target.pid, place)
    stopped(guard.process.pid)
    guard.kill()
    comes_back(target)


@pytest.mark.parametrize("verb", ["off", "run", "back"])
def test_a_guard_that_is_killed_while_its_keeper_works(
    machine: Machine, target: subprocess.Popen[str], verb: str
) -> None:
    guard = Guard(machine)
    guard("off", target.pid)
    if verb == "off":
        guard("run", target.pid)
    os.kill(guard.keeper, signal.SIGSTOP)
    guard.ask(verb, target.pid)
    time.sleep(0.05)
    guard.kill()
    os.kill(guard.keeper, signal.SIGCONT)
    comes_back(target)
    ended(guard.keeper)


def test_a_guard_that_is_killed(machine: Machine, target: subprocess.Popen[str]) -> None:
    """A signal that would end the keeper with it does not."""
    guard = Guard(machine)
    guard("off", target.pid)
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(guard.keeper, each)
    guard.kill()
    comes_back(target)
    ended(guard.keeper)


@pytest.mark.parametrize("is_asked", [False, True])
@pytest.mark.parametrize("verb", ["off", "run", "back"])
def test_a_keeper_that_is_killed(machine: Machine, target: subprocess.Popen[str], verb: str, is_asked: bool) -> None:
    """Another one does what it was told, and knows what is off when the guard is killed, too."""
    guard = Guard(machine)
    guard("off", target.pid)
    if verb == "off":
        guard("run", target.pid)
    first = guard.keeper
    if is_asked:
        os.kill(first, signal.SIGSTOP)
        guard.ask(verb, target.pid)
        time.sleep(0.05)
        os.kill(first, signal.SIGKILL)
        guard.answered()
    else:
        os.kill(first, signal.SIGKILL)
        guard(verb, target.pid)
    assert guard.keeper != first
    assert runs(target) == (verb != "off")
    guard.kill()
    comes_back(target)


def test_another_keeper_knows_all_that_is_off(machine: Machine, target: subprocess.Popen[str]) -> None:
    guard, other = Guard(machine), begun(machine, work)
    guard("off", target.pid)
    guard("off", other.pid)
    os.kill(guard.keeper, signal.SIGKILL)
    guard("back", other.pid)
    assert runs(other) and not runs(target)
    guard.kill()
    comes_back(target)


def test_both_killed(machine: Machine, target: subprocess.Popen[str]) -> None:
    guard = Guard(machine)
    guard("off", target.pid)
    os.kill(guard.process.pid, signal.SIGSTOP)
    os.kill(guard.keeper, signal.SIGKILL)
    guard.kill()
    assert not runs(target), "it is off until the next guard comes"
    following = Guard(machine)
    following("back")
    assert runs(target)


@pytest.mark.slow
def test_killed_at_random(machine: Machine, target: subprocess.Popen[str]) -> None:
    for seed in range(20):
        chance = random.Random(seed)
        guard = Guard(machine)
        guard("back")
        assert runs(target), seed
        guard("off", target.pid)
        for verb in ("run", "off", "back", "off", "run", "off"):
            guard.ask(verb, target.pid)
        time.sleep(chance.uniform(0, 0.05))
        for pid in chance.sample([guard.process.pid, guard.keeper], chance.randint(1, 2)):
            with suppress(ProcessLookupError):  # a keeper ends by itself, too
                os.kill(pid, signal.SIGKILL)
        guard.kill()
    following = Guard(machine)
    following("back")
    comes_back(target)


def test_a_process_that_ends_while_it_is_off(machine: Machine, target: subprocess.Popen[str]) -> None:
    guard = Guard(machine)
    guard("off", target.pid)
    target.kill()
    target.wait()
    guard("back")
    assert json.loads(guard.record.read_text()) == {"off": []}


def files_of(pid: int) -> int:
    """Return how many files of the driver a process has open."""
    count = 0
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed just now
            count += "nvidiactl" in str(each.readlink())
    return count


def test_a_process_that_ends_leaves_nothing_of_the_driver_open(machine: Machine, target: subprocess.Popen[str]) -> None:
    """A card's driver frees the memory of a process only then."""
    guard, other = Guard(machine), begun(machine, work)
    guard("off", target.pid)
    guard("off", other.pid)
    assert files_of(guard.keeper) == 2
    target.kill()
    target.wait()
    wait_until(lambda: files_of(guard.keeper) == 1)
    guard("back", other.pid)
    assert runs(other)


def test_a_process_that_becomes_another_program(machine: Machine) -> None:
    """Its number and its start stay the same. What it had is let go at once, and what it has now is found."""

    def program() -> None:
        kernel = driver.kernel("spin_1ms")
        print("ready")
        for line in sys.stdin:
            if line == "exec\n":
                os.execv("/proc/self/exe", Path("/proc/self/cmdline").read_bytes().split(b"\0")[:-1])
            driver.launch(kernel)
            time.sleep(0.05)
            print(driver.stream_is_done())

    guard, target = Guard(machine), begun(machine, program)
    guard("off", target.pid)
    assert not runs(target)
    assert said(target, "exec") == "ready"
    wait_until(lambda: files_of(guard.keeper) == 0)
    assert runs(target)
    guard("off", target.pid)
    assert not runs(target)
    guard("back", target.pid)
    assert runs(target)


SLICES = """
import sys
from vgpurun.host.channels import Driver, ProcessChannels
from vgpurun.util.process_identity import identify
for line in sys.stdin:
    driver, found = Driver(), ProcessChannels(identify(int(line)), Driver())
    found.find()
    ((client),) = found._clients.values()
    groups = [handle for handle, each in client._objects.items() if each.class_ == 0xA06C]
    asked = [driver.control(client._file, client._handle, group, 0xA06C0104, bytes(8)) for group in groups]
    print(*(int.from_bytes(answer, "little") for status, answer in asked if not status), flush=True)
    del client, groups, found, driver
"""


@pytest.fixture
def slices_us(machine: Machine, target: subprocess.Popen[str]) -> Callable[[], list[int]]:
    asker = subprocess.Popen(
        [sys.executable, "-c", SLICES],
        env=machine.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    machine.started.append(asker)
    return lambda: [int(each) for each in said(asker, str(target.pid)).split()]


def test_time_slices(machine: Machine, target: subprocess.Popen[str], slices_us: Callable[[], list[int]]) -> None:
    guard = Guard(machine)
    assert slices_us() == [2048, 1024]
    guard("slice", target.pid, "150")
    assert slices_us() == [150, 1024]
    assert [each[0] for each in json.loads(guard.record.read_text())["sliced"]] == [target.pid]
    guard("slice", target.pid, "0")
    assert slices_us() == [2048, 1024] and json.loads(guard.record.read_text())["sliced"] == []
    guard("slice", target.pid, "150")
    guard("close")
    assert slices_us() == [2048, 1024]


def test_time_slices_of_a_guard_that_is_killed(
    machine: Machine, target: subprocess.Popen[str], slices_us: Callable[[], list[int]]
) -> None:
    guard = Guard(machine)
    guard("slice", target.pid, "150")
    guard.kill()
    wait_until(lambda: slices_us() == [2048, 1024])
    guard = Guard(machine)
    guard("slice", target.pid, "150")
    os.kill(guard.keeper, signal.SIGKILL)
    guard.kill()
    assert slices_us() == [150, 1024], "nobody is there who would"
    Guard(machine)("slice", target.pid, "0")
    assert slices_us() == [2048, 1024]
