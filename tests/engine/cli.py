"""The command line as a user runs it: a process of its own, its exit code, and what it leaves behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker

from support import command_line, wait_until
from vgpurun.engine.labels import read_record

OURS = (sys.executable, "-m", "vgpurun")
PROGRAMS = Path(__file__).parent / "programs"
GPU_PROGRAM = ("python3", "/programs/gpu.py")
# A private engine's own warning, which docker run prints too.
OF_ENGINE = "vgpurun: warning: IPv4 forwarding is disabled. Networking will not work.\n"
WITH_PROGRAMS = ("-v", f"{PROGRAMS}:/programs:ro")


@dataclass
class Result:
    """How a run of the command line ended."""

    exit_code: int
    stdout: str
    stderr: str

    def json(self) -> Any:
        """The last line of standard output, which the test programs write as JSON."""
        assert self.exit_code == 0, self
        return json.loads(self.stdout.strip().splitlines()[-1])

    def assert_refused(self, *words: str, exit_code: int = 125) -> None:
        """This exit code and one line on standard error that holds all of ``words``."""
        assert self.exit_code == exit_code, self
        assert self.stdout == "", self
        assert len(self.stderr.strip().splitlines()) == 1, self
        for word in words:
            assert word in self.stderr, self


@dataclass
class Cli:
    """Runs vgpurun against the engine, with a state folder of the tests' own."""

    engine: docker.DockerClient
    environment: dict[str, str]
    state_dir: Path
    driver: tuple[str, ...] = ("--driver", "sim")
    command: tuple[str, ...] = OURS

    def __call__(self, *arguments: str, stdin: str | bytes | None = None, timeout_s: float = 60) -> Result:
        """`vgpurun ARGUMENTS`, waited for."""
        if stdin is None and self.command == OURS:
            done = command_line.run(arguments, self.environment, timeout_s=timeout_s)
            return Result(done.returncode, done.stdout, done.stderr.replace(OF_ENGINE, ""))
        binary = isinstance(stdin, bytes)
        done = subprocess.run(
            [*self.command, *arguments],
            env=self.environment,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=not binary,
            timeout=timeout_s,
        )
        if binary:
            return Result(done.returncode, done.stdout.decode("latin-1"), done.stderr.decode().replace(OF_ENGINE, ""))
        return Result(done.returncode, done.stdout, done.stderr.replace(OF_ENGINE, ""))

    def run(self, *arguments: str, stdin: str | bytes | None = None) -> Result:
        """`vgpurun run` on the simulated GPU, with --rm unless it is detached."""
        removed = () if "-d" in arguments else ("--rm",)
        return self("run", *self.driver, *removed, *arguments, stdin=stdin)

    @contextmanager
    def started(self, *arguments: str, **popen: Any) -> Iterator[subprocess.Popen[str]]:
        """`vgpurun ARGUMENTS` in the background; killed at the end if it still runs."""
        options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen([*self.command, *arguments], env=self.environment, text=True, **(options | popen))
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def wait_for_output(self, name: str, text: bytes) -> None:
        """Wait until a container has written this."""
        container = self.engine.containers.get(name)
        wait_until(lambda: text in container.logs(), f"{text!r} in the output of {name}")

    def containers(self) -> list[Any]:
        """Every container that this vgpurun made, stopped ones included; an engine may have others."""
        made = self.engine.containers.list(all=True, filters={"label": "vgpurun.state"}, ignore_removed=True)
        return [container for container in made if self.state_folder(container).is_relative_to(self.state_dir)]

    def remove_containers(self) -> None:
        """Remove whatever is left, also of what the engine removes itself at the same time."""
        for container in self.containers():
            with suppress(docker.errors.NotFound):
                try:
                    container.remove(force=True)
                except docker.errors.APIError as error:
                    if "already in progress" not in str(error):
                        raise
                    container.wait(condition="removed")

    def owner(self, name: str) -> dict[str, Any]:
        """Return what the state folder of a container says of it."""
        folder = self.state_folder(self.engine.containers.get(name))
        return dict(json.loads((folder / "owner").read_bytes()))

    def state_folder(self, container: Any) -> Path:
        """Return the state folder of a container of ours."""
        record = read_record(container.id, container.labels, container.attrs["Mounts"])
        return Path(record.state_folder if record else "/")

    def states(self) -> list[str]:
        """The names of the state folders."""
        folder = self.state_dir / "containers"
        return sorted(entry.name for entry in folder.iterdir()) if folder.exists() else []

    def assert_nothing_left(self) -> None:
        """No container and no state folder."""
        left = [(container.name, container.status) for container in self.containers()]
        assert (left, self.states()) == ([], [])


@contextmanager
def cli_beside(client: docker.DockerClient, host: str, folder: Path) -> Iterator[Cli]:
    """The command line in the mount namespace of a private engine, also when that is killed."""
    home, config = folder / "home", folder / "sim.yaml"
    home.mkdir()
    uuid = f"GPU-{os.urandom(4).hex()}-0000-0000-0000-000000000000"
    config.write_text(f"driver_version: 615.71\ndevices:\n  - uuid: {uuid}\n    memory_mib: 16384\n")
    environment = clean_environment(host, folder / "state", home) | {"VGPUSIM_CONFIG": str(config)}
    pid = (Path(host.removeprefix("unix://")).parent / "docker.pid").read_text().strip()
    with Path(f"/proc/{pid}/ns/mnt").open() as namespace:
        inside = ("nsenter", f"--mount=/proc/{os.getpid()}/fd/{namespace.fileno()}", "--")
        yield Cli(client, environment, folder / "state", command=(*inside, sys.executable, "-m", "vgpurun"))


@contextmanager
def guarding(vgpurun: Cli, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A guard that has looked once. It writes to guard.log, beside the state folder."""
    said = vgpurun.state_dir.parent / "guard.log"
    with said.open("a+") as log, vgpurun.started("guard", *vgpurun.driver, *options, stderr=log) as guard:
        wait_until(lambda: "memory above a limit" in said.read_text(), "guard")
        try:
            yield guard
        finally:
            print(said.read_text())  # pytest shows it where the test fails
        if guard.poll() is None:
            guard.terminate()
            assert guard.wait(60) == 0, said.read_text()


def clean_environment(docker_host: str, state_dir: Path, home: Path) -> dict[str, str]:
    """This process's environment without what would change a run's outcome."""
    unwanted = ("CUDA_", "VGPURUN_", "VGPUSIM_", "NVIDIA_", "LD_PRELOAD", "DOCKER_", "LIBCUDA_", "WRAPPER_", "ALNAIR_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    return kept | {"DOCKER_HOST": docker_host, "VGPURUN_STATE_DIR": str(state_dir), "HOME": str(home)}
