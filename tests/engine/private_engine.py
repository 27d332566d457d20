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

import images
from support import IN_CGROUP2
from support.debian_packages import UnavailableError, kept, tool

SCRIPT = Path(__file__).parent / "docker-engine"


class EngineError(UnavailableError):
    """No engine can be had on this machine; the message says why."""


@contextmanager
def private_engine(
    *flags: str, programs: dict[str, str] | None = None, with_cgroup2: bool = False, has_debian: bool = True
) -> Iterator[str]:
    """Start an engine, fetched first where it was not yet; yields its DOCKER_HOST.

    Args:
        flags: further arguments of dockerd; {state} in them stands for the engine's state folder.
        programs: scripts, by their names, to be put on the engine's PATH, in {state}/bin.
        with_cgroup2: in a mount namespace of its own, where /sys/fs/cgroup is the v2 hierarchy.
        has_debian: it begins with images.PREPARED, where that can be made.

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
        if has_debian:
            with suppress(UnavailableError):
                _put_debian(state / "data")
        (state / "bin").mkdir()
        (state / "bin" / "ps").symlink_to(tool("ps", "procps"))  # `docker top` runs it
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


def _put_debian(data: Path) -> None:
    """Give an engine that is to start the image which others imported: that takes seconds of the processor each time.

    All have the same files of it, for an engine writes to none of an image's.
    """
    kept_image = kept(f"{images.debian_tar().parent.name}-imported", _import_debian)
    shutil.copytree(kept_image / "data", data, symlinks=True)
    for layer in data.glob("overlay2/*/link"):
        layer.with_name("diff").symlink_to(kept_image / "files")


def _import_debian(folder: Path) -> None:
    """Keep what an engine has of the image; nothing where it has no overlay2."""
    (folder / "data").mkdir()
    with private_engine(has_debian=False) as host:
        images.debian(docker.DockerClient(host), images.PREPARED)
        stop_engine(host)
        data = Path(host.removeprefix("unix://")).parent / "data"
        if (data / "overlay2").exists():
            subprocess.run(["cp", "-a", data / "image", data / "overlay2", folder / "data"], check=True)
    for files in (folder / "data").glob("overlay2/*/diff"):
        files.rename(folder / "files")


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
