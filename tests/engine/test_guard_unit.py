"""examples/vgpurun-guard.service under a real systemd, in a machine of its own with eight simulated GPUs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from support import CHECKOUT, LIBRARY, unavailable
from support.debian_packages import UnavailableError, with_packages

HERE = Path(__file__).parent
UNIT = "vgpurun-guard"
GPUS = 8
PATIENCE_S = 60
# The unit does not know where the checkout is, nor that the GPUs are simulated.
# Its state is on no overlay, where the kernel has two names for a file that is mapped.
SETUP = """
mkdir /var/lib/vgpurun
mount -t tmpfs -o mode=755 tmpfs /var/lib/vgpurun
printf '#!/bin/sh\\nexec %s -m vgpurun "$@"\\n' "$PYTHON" >/usr/local/bin/vgpurun
chmod +x /usr/local/bin/vgpurun
cp "$CHECKOUT/examples/vgpurun-guard.service" /etc/systemd/system/
mkdir -p /etc/systemd/system.conf.d
printf '[Manager]\\nDefaultEnvironment=%s\\n' "$SETTINGS" >/etc/systemd/system.conf.d/tests.conf
"""


class Machine:
    """A machine that systemd has booted, by a process of its."""

    def __init__(self, pid: int, settings: dict[str, str]) -> None:
        self._enter = ["nsenter", f"--target={pid}", "--mount", "--pid", "--net", "--uts", "--ipc"]
        self._settings = [f"{name}={value}" for name, value in settings.items()]

    def start(self, *command: str) -> subprocess.Popen[str]:
        environment = ["env", "-i", "PATH=/usr/local/bin:/usr/bin:/usr/sbin:/bin:/sbin", *self._settings]
        return subprocess.Popen(
            [*self._enter, *environment, *command], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )  # fmt: skip

    def ask(self, *command: str) -> str:
        """Run a command that has to succeed, and return its output."""
        with self.start(*command) as process:
            out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, (command, out, err)
        return out

    def property(self, name: str) -> str:
        """Return what systemd says of the guard's unit."""
        return self.ask("systemctl", "show", UNIT, "--property", name, "--value").strip()

    def journal(self) -> str:
        return self.ask("journalctl", "--no-pager", "--output=cat", f"--unit={UNIT}")

    def says(self, text: str) -> None:
        self.until(lambda: text in self.journal(), f"the guard does not say {text!r}")

    def until(self, is_so: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not is_so():
            assert time.monotonic() < deadline_s, (what, self.journal())
            time.sleep(0.1)

    def doctor(self) -> str:
        with self.start("vgpurun", "doctor", "--driver", "sim") as process:
            out, _ = process.communicate(timeout=PATIENCE_S)
        return next(line for line in out.splitlines() if line.split()[1:2] == ["guard"])

    def local(self, *options: str, program: str, words: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        """Start a program of tests/sim."""
        path = CHECKOUT / "tests" / "sim" / "programs" / program
        return self.start(
            "vgpurun", "local", "--driver", "sim", *options, "--", sys.executable, "-u", str(path), *words
        )


@pytest.fixture(scope="module")
def booted(built_library: Path) -> Iterator[Machine]:
    if os.geteuid() != 0:
        unavailable("systemd can only be booted by root")
    try:
        packages = with_packages("systemd").parent if shutil.which("systemctl") is None else None
    except UnavailableError as error:
        unavailable(str(error), required=True)
    with tempfile.TemporaryDirectory(prefix="vgpurun-booted-", dir="/var/tmp") as folder:
        root, empty = Path(folder, "root"), Path(folder, "none")
        root.mkdir()
        empty.mkdir()
        devices = "".join(
            f"- uuid: GPU-{os.urandom(4).hex()}-0000-0000-0000-{number:012x}\n  memory_mib: 1024\n"
            "  context_overhead_mib: 64\n  checkpoint_mib_per_ms: 1\n"
            for number in range(GPUS)
        )
        settings = {
            "VGPURUN_STATE_DIR": "/var/lib/vgpurun", "VGPURUN_LIBRARY": str(LIBRARY), "VGPURUN_DRIVER": "sim",
            "VGPUSIM_CONFIG": "/run/sim.yaml", "VGPUSIM_STATE": "/run/sim.state", "DOCKER_HOST": "unix:///none.sock",
            "PYTHONPATH": f"{CHECKOUT}:{CHECKOUT / 'tests'}", "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/root",
        }  # fmt: skip
        setup = f"printf '%s' \"$DEVICES\" >/run/sim.yaml\n{SETUP}"
        described = {
            "DEVICES": f"devices:\n{devices}", "CHECKOUT": str(CHECKOUT), "PYTHON": sys.executable,
            "SETTINGS": " ".join(f"{name}={value}" for name, value in settings.items()),
        }  # fmt: skip
        machine = subprocess.Popen(
            [HERE / "booted-machine", root, packages or empty, CHECKOUT, "--", "sh", "-ec", setup],
            stdin=subprocess.DEVNULL, env={**os.environ, **described},
        )  # fmt: skip
        try:
            yield _when_booted(machine, settings)
        finally:
            machine.kill()  # and so everything in its namespaces
            machine.wait()
            remove_cgroups(f"vgpurun-booted-{machine.pid}")


def _when_booted(machine: subprocess.Popen[bytes], settings: dict[str, str]) -> Machine:
    deadline_s = time.monotonic() + PATIENCE_S
    while machine.poll() is None and time.monotonic() < deadline_s:
        children = Path(f"/proc/{machine.pid}/task/{machine.pid}/children").read_text().split()
        if children:
            booted = Machine(int(children[0]), settings)
            with booted.start("systemctl", "is-active", "tests.target") as asked:
                if asked.communicate()[0] == "active\n":
                    return booted
        time.sleep(0.1)
    raise AssertionError("systemd does not boot")


def remove_cgroups(name: str) -> None:
    """Remove what the machine has left, whose last processes end now."""
    deadline_s = time.monotonic() + 20
    # os.walk passes over folders that end meanwhile, as other tests' do.
    while groups := [Path(path) for path, _, _ in os.walk("/sys/fs/cgroup") if name in Path(path).parts]:
        assert time.monotonic() < deadline_s, groups
        for group in sorted(groups, reverse=True):
            with suppress(OSError):
                group.rmdir()
        time.sleep(0.05)


@pytest.fixture
def machine(booted: Machine) -> Iterator[Machine]:
    """The machine with the unit as it is shipped, just started."""
    booted.ask("systemctl", "enable", "--now", UNIT)
    booted.says("memory above a limit")
    yield booted
    booted.ask("systemctl", "revert", UNIT)
    booted.ask("systemctl", "disable", "--now", UNIT)


@pytest.mark.timeout(300)
def test_two_take_turns_on_each_of_eight_gpus(machine: Machine) -> None:
    """Each exchange is a thread of the guard's, and a program that loads the driver."""
    trainings = []
    for number in range(2 * GPUS):
        options = ("--swap", "--mem", "90%", "--wait=60s", "--gpus", f"device={number % GPUS}")
        trainings.append(machine.local(*options, program="training.py", words=("600", "200", "50")))
        if number < GPUS:  # has its turn before the other asks for it
            assert trainings[-1].stdout and trainings[-1].stdout.readline()
    for each in trainings:
        assert each.stdout.read().endswith("right\n"), (each.stderr.read(), machine.journal())
    assert machine.property("NRestarts") == "0", machine.journal()
    # On a busy host they are seldom all on their way at once: then there are two exchanges on each GPU, and each is a
    # thread, a program and that one's threads.
    most = machine.property("TasksMax")
    assert most == "infinity" or int(most) >= 8 * GPUS


def test_one_that_waits_gets_room_from_one_that_idles(machine: Machine) -> None:
    """The queue of launches is where the unit sees it."""
    notebook = machine.local("--mem", "800m", "--gpus", "device=0", "--idle", "2s", program="patterns.py")
    assert notebook.stdout and notebook.stdout.readline() == "ready\n"
    waiting = machine.local("--mem", "800m", "--gpus", "device=0", "--wait=60s", program="patterns.py")
    assert waiting.stdout and waiting.stdout.readline() == "ready\n", (waiting.communicate(), machine.journal())
    assert "suspend process" in machine.journal()
    for each in (waiting, notebook):
        each.communicate()


def test_a_thread_that_cannot_start_ends_the_guard_and_systemd_starts_it_again(machine: Machine) -> None:
    """More often than systemd's own limit, of five times in ten seconds, until it can."""
    assert machine.doctor().startswith("ok ") and "it runs" in machine.doctor()
    machine.ask("systemctl", "set-property", "--runtime", UNIT, "TasksMax=2")
    machine.ask("systemctl", "restart", UNIT)
    machine.until(lambda: int(machine.property("NRestarts")) > 7, "it is not started again")
    assert "can't start new thread" in machine.journal()
    machine.ask("systemctl", "set-property", "--runtime", UNIT, "TasksMax=infinity")
    machine.until(lambda: "it runs" in machine.doctor(), "no guard runs")
    before = machine.property("MainPID")
    machine.ask("sh", "-c", f"kill -KILL {before}")
    machine.until(lambda: machine.property("MainPID") not in ("0", before), "it is not started again")
    machine.ask("systemctl", "stop", UNIT)
    assert "none runs" in machine.doctor()
