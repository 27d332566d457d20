"""Programs that hold patterns on simulated GPUs, under `vgpurun local`, and the command line about them."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from support import CHECKOUT, LIBRARY, command_line, python_of
from vgpurun.host import checkpoint_calls
from vgpurun.host.checkpoints import ProcessState

PATTERNS = CHECKOUT / "tests" / "sim" / "programs" / "patterns.py"
SIM = LIBRARY.parent / "sim"


class Host:
    """A host with simulated GPUs of its own."""

    def __init__(self, folder: Path, memory_mib: int = 2048, count: int = 2, extra: str = "") -> None:
        self.folder = folder
        self.uuids = [f"GPU-{os.getpid():08x}-{number:04x}-0000-0000-{os.urandom(6).hex()}" for number in range(count)]
        self.configure(memory_mib, extra)
        self._driver: subprocess.Popen[str] | None = None
        kept = {name: text for name, text in os.environ.items() if not name.startswith(("VGPU", "DOCKER_"))}
        self.environment = {
            **kept,
            "VGPURUN_STATE_DIR": str(folder / "state"),
            "VGPUSIM_CONFIG": str(folder / "sim.yaml"),
            "VGPUSIM_STATE": str(folder / "sim.state"),
            "DOCKER_HOST": f"unix://{folder}/no-engine",
            "PYTHONPATH": str(CHECKOUT / "tests"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def configure(self, memory_mib: int, extra: str = "") -> None:
        devices = "".join(
            f"- uuid: {uuid}\n  memory_mib: {memory_mib}\n  checkpoint_mib_per_ms: 100\n  context_overhead_mib: 100\n"
            for uuid in self.uuids
        )
        (self.folder / "sim.yaml").write_text(f"{extra}devices:\n{devices}")

    def vgpurun(self, *words: str, user: int | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run the command line, as another user if one is given."""
        environment = {**self.environment, **variables}
        if user is None:
            return command_line.run(words, environment)
        with python_of(user) as python:
            return subprocess.run(
                [*python, "-m", "vgpurun", *words], env=environment, capture_output=True, text=True, timeout=60
            )

    def start(self, *words: str, is_group: bool = False, **variables: str) -> subprocess.Popen[str]:
        """Start the command line, in a process group of its own if need be."""
        return subprocess.Popen(
            [sys.executable, "-m", "vgpurun", *words], env={**self.environment, **variables},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=is_group,
        )  # fmt: skip

    def used_mib(self) -> list[int]:
        """Return what is used of each GPU, by NVML."""
        query = [SIM / "nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        environment = {**self.environment, "LD_LIBRARY_PATH": str(SIM)}
        shown = subprocess.run(query, env=environment, capture_output=True, text=True, check=True)
        return [int(line) for line in shown.stdout.split()]

    def state_of(self, pid: int) -> str:
        """Return the state of a process by the driver. What asks it is kept: some states are over in a second."""
        if self._driver is None:
            command = [sys.executable, "-I", "-S", checkpoint_calls.__file__, str(SIM / "libcuda.so.1")]
            self._driver = subprocess.Popen(
                command, env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            assert self._driver.stdout and self._driver.stdout.readline() == "ready\n"
        self._driver.stdin.write(f"state {pid}\n")
        self._driver.stdin.flush()
        code, state = self._driver.stdout.readline().split()
        assert code == "0", f"the driver does not know process {pid}: {code}"
        return ProcessState(int(state)).name

    def end(self) -> None:
        if self._driver is not None:
            self._driver.communicate()


class Program:
    """A program that holds patterns, under `vgpurun local`."""

    def __init__(self, host: Host, *options: str, **variables: str) -> None:
        command = ["local", "--driver", "sim", *options, "--", sys.executable, "-u", str(PATTERNS)]
        self.host = host
        self.process = subprocess.Popen(
            [sys.executable, "-m", "vgpurun", *command],
            env={**host.environment, **variables}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.pid = str(self.process.pid)
        assert self.hears() == "ready"

    @property
    def folder(self) -> Path:
        """The state folder."""
        for each in (self.host.folder / "state" / "containers").iterdir():
            with suppress(FileNotFoundError):  # another's folder, which ends
                if f'"pid": {self.pid},' in (each / "owner").read_text():
                    return each
        raise AssertionError(f"process {self.pid} has no state folder")

    def child(self) -> int:
        """The process that uses the GPU."""
        return int(Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()[0])

    def state(self) -> str:
        """The state of that process, by the driver."""
        return self.host.state_of(self.child())

    def tell(self, line: str) -> None:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hears(self) -> str:
        return self.process.stdout.readline().strip()

    def asks(self, line: str) -> str:
        self.tell(line)
        return self.hears()

    def is_silent(self, for_s: float) -> bool:
        return not select.select([self.process.stdout], [], [], for_s)[0]

    def suspend(self, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return self.host.vgpurun("suspend", "--driver", "sim", "--process", self.pid, *options, **variables)

    def resume(self, *options: str) -> subprocess.CompletedProcess[str]:
        return self.host.vgpurun("resume", "--driver", "sim", "--process", self.pid, *options)

    def move(self, gpus: str, *options: str) -> subprocess.CompletedProcess[str]:
        return self.host.vgpurun("move", "--driver", "sim", "--gpus", gpus, "--process", self.pid, *options)

    def end(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                pipe.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Kill it and the process that uses the GPU, and wait until both have ended."""
        children = [
            os.pidfd_open(int(pid)) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        ]
        for each in children:
            signal.pidfd_send_signal(each, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        for each in children:
            select.select([each], [], [], 20)
            os.close(each)


def rounds_under_fire(program: Program, code: str, rounds: int, check: Callable[[Host, Program], object]) -> int:
    """Let a process do `code` to a program without end, and kill it at any moment, again and again.

    It says `ready`, and `round` after each.
    """
    chance, host, done = random.Random(os.getpid()), program.host, 0
    while done < rounds:
        loop = subprocess.Popen(
            [sys.executable, "-c", code, program.pid], env=host.environment, stdout=subprocess.PIPE, text=True
        )
        assert loop.stdout.readline() == "ready\n"
        time.sleep(chance.uniform(0, 2.0))
        loop.kill()
        done += 1 + loop.stdout.read().count("round")
        loop.wait()
        check(host, program)
    return done


class Guard:
    """The daemon, and what it has said."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.said = host.folder / "said"
        self.start()

    def start(self) -> None:
        with self.said.open("a") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "vgpurun", "guard", "--driver", "sim"],
                env={**self.host.environment, "PYTHONUNBUFFERED": "1"}, stderr=said,
            )  # fmt: skip
        self.says("memory above a limit")

    def says(self, text: str, timeout_s: float = 60) -> None:
        deadline_s = time.monotonic() + timeout_s
        while text not in (said := self.said.read_text()):
            assert time.monotonic() < deadline_s, said
            time.sleep(0.02)

    def kill(self) -> None:
        """Kill the guard, and start the next one."""
        self.process.kill()
        self.process.wait()
        self.said.write_text("")
        self.start()

    def end(self) -> None:
        self.process.terminate()
        assert self.process.wait(30) == 0


@contextmanager
def programs(host: Host) -> Iterator[dict[str, Program]]:
    """Keep programs by their names; they end with this."""
    running: dict[str, Program] = {}
    try:
        yield running
    finally:
        for program in running.values():
            program.end()
