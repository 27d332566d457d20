"""A Docker Engine of the tests' own, for a machine where none answers."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import docker

from support import IN_CGROUP2
from support.debian_packages import UnavailableError, kept

SCRIPT = Path(__file__).parent / "docker-engine"


class EngineError(UnavailableError):
    """No engine can be had on this machine; the message says why."""


@contextmanager
def private_engine(*flags: str, programs: dict[str, str] | None = None, with_cgroup2: bool = False) -> Iterator[str]:
    """Start an engine, fetched first where it was not yet; yields its DOCKER_HOST.

    Args:
        flags: further arguments of dockerd; {state} in them stands for the engine's state folder.
        programs: scripts, by their names, to be put on the engine's PATH, in {state}/bin.
        with_cgroup2: in a mount namespace of its own, where /sys/fs/cgroup is the v2 hierarchy.

    Raises:
        EngineError: not root, or the engine cannot be fetched or started.
    """
    if os.geteuid() != 0:
        raise EngineError("no Docker Engine answers, and only root can start a private one")
    folder = fetched_engine()
    # Under /tmp, not the test's own folder: a socket's path is short.
    state = Path(tempfile.mkdtemp(prefix="vgpurun-engine-", dir="/tmp"))
    prefix = (IN_CGROUP2,) if with_cgroup2 else ()
    watch = [*prefix, SCRIPT, "stop-after", str(os.getpid()), state]
    watching = subprocess.Popen(watch, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        (state / "bin").mkdir()
        for name, script in (programs or {}).items():
            (state / "bin" / name).write_text(script)
            (state / "bin" / name).chmod(0o755)
        started = _run("start", folder, state, *(flag.format(state=state) for flag in flags), prefix=prefix)
        yield started.strip().removeprefix("DOCKER_HOST=")
    finally:
        _kill_containers(state)
        _run("stop", state, prefix=prefix)
        shutil.rmtree(state, ignore_errors=True)
        os.killpg(watching.pid, signal.SIGKILL)
        watching.wait()


def fetched_engine() -> Path:
    """The folder of an engine and its command line, fetched first where it was not yet.

    Raises:
        EngineError: it cannot be fetched.
    """
    return kept("engine", lambda folder: _run("fetch", folder))


def stop_engine(host: str) -> None:
    """Stop a private engine before its time; its containers are ended."""
    _run("stop", Path(host.removeprefix("unix://")).parent)


def lose_engine(host: str) -> None:
    """Kill a private engine; what it has started stays as it is."""
    engine = os.pidfd_open(int((Path(host.removeprefix("unix://")).parent / "docker.pid").read_text()))
    signal.pidfd_send_signal(engine, signal.SIGKILL)
    select.select([engine], [], [], 30)
    os.close(engine)


def start_again(host: str, *flags: str, prefix: tuple[str, ...] = ()) -> None:
    """Start one that was lost, with these arguments of dockerd."""
    _run("start", fetched_engine(), Path(host.removeprefix("unix://")).parent, *flags, prefix=prefix)


def _kill_containers(state: Path) -> None:
    """Kill what still runs: an engine that is stopped gives each container ten seconds to end by itself."""
    with suppress(OSError, docker.errors.DockerException):
        engine = docker.DockerClient(f"unix://{state}/docker.sock")
        for container in engine.containers.list(ignore_removed=True):
            with suppress(docker.errors.APIError):
                container.kill()


def _run(*arguments: object, prefix: tuple[str | Path, ...] = ()) -> str:
    command = [*prefix, SCRIPT, *map(str, arguments)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise EngineError(f"no private Docker Engine: {lines[-1]}")
    return done.stdout
