"""Signals that vgpurun gets belong to the command in the container."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack, closing
from pathlib import Path

import docker
import pytest

import images
from cli import Cli, clean_environment
from engine_relay import held_up
from private_engine import private_engine, stop_engine

SCRIPT = "trap 'echo caught {name}; exit 9' {name}; echo ready; while :; do sleep 0.1; done"


@pytest.mark.parametrize("name", ["INT", "TERM", "HUP", "USR1", "WINCH"])
def test_a_signal_is_forwarded(vgpurun: Cli, debian: str, name: str) -> None:
    command = ("run", "--rm", *vgpurun.driver, "--mem", "1g", debian, "sh", "-c", SCRIPT.format(name=name))
    with vgpurun.started(*command) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.Signals[f"SIG{name}"])
        stdout, _ = process.communicate(timeout=60)
        assert (stdout, process.returncode) == (f"caught {name}\n", 9)
    vgpurun.assert_nothing_left()


def test_the_third_signal_ends_the_client_alone(vgpurun: Cli, debian: str) -> None:
    """A job that ignores them goes on, as with docker run."""
    command = ("run", "--name", "deaf", *vgpurun.driver, "--mem", "1g", debian)
    with vgpurun.started(*command, "sh", "-c", "trap '' INT TERM; echo ready; exec sleep 60") as process:
        assert process.stdout.readline() == "ready\n"
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
            process.send_signal(number)
            time.sleep(0.1)  # two of the same at once are one
        _, said = process.communicate(timeout=60)
    assert (process.returncode, "goes on" in said) == (1, True), said
    assert vgpurun.engine.containers.get("deaf").status == "running"
    assert len(vgpurun.states()) == 1


def test_without_proxy_a_signal_is_not_the_commands(vgpurun: Cli, debian: str) -> None:
    options = ("--name", "alone", "--sig-proxy=false", *vgpurun.driver, "--mem", "1g")
    command = ("run", *options, debian, "sh", "-c", SCRIPT.format(name="TERM"))
    with vgpurun.started(*command) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        stdout, _ = process.communicate(timeout=60)
        assert (stdout, process.returncode) == ("", 128 + signal.SIGTERM)
    assert vgpurun.engine.containers.get("alone").status == "running", "as with docker run"


@pytest.mark.parametrize(
    ("request_path", "is_answered"),
    [
        ("/info", False),
        ("/containers/create", False),
        ("/containers/create", True),
        ("/archive", False),
        ("/archive", True),
        ("/attach", False),
        ("/wait", False),
        ("/start", False),
        ("/start", True),
    ],
)
def test_a_signal_before_the_start_leaves_nothing_behind(
    vgpurun: Cli, debian: str, docker_host: str, tmp_path: Path, request_path: str, is_answered: bool
) -> None:
    """A signal comes while the engine is asked for something. A container that starts then gets it, and ends itself."""
    with held_up(docker_host, tmp_path, request_path, is_answered) as (address, held):
        vgpurun.environment["DOCKER_HOST"] = address
        command = ("run", "--rm", *vgpurun.driver, "--mem", "1g", debian, "sleep", "0.5")
        with vgpurun.started(*command) as process:
            held.wait()
            process.send_signal(signal.SIGINT)
            held.release()
            _, said = process.communicate(timeout=60)
    assert process.returncode == (0 if request_path == "/start" else 128 + signal.SIGINT), said
    vgpurun.assert_nothing_left()


def test_an_engine_that_stops_under_a_running_container(vgpurun: Cli, tmp_path: Path) -> None:
    """The engine ends the command; vgpurun ends with the command's exit code, or says that the engine was lost."""
    with ExitStack() as stack:
        host = stack.enter_context(private_engine())
        client = stack.enter_context(closing(docker.DockerClient(base_url=host)))
        images.busybox(client, "vgpurun-test/busybox:1")
        environment = clean_environment(host, tmp_path / "state", tmp_path)
        cli = Cli(client, environment, tmp_path / "state")
        command = ("run", *cli.driver, "vgpurun-test/busybox:1", "sh", "-c", SCRIPT.format(name="TERM"))
        process = stack.enter_context(cli.started(*command))
        assert process.stdout.readline() == "ready\n"
        stop_engine(host)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 9 or (process.returncode == 125 and "engine" in stderr), (process.returncode, stderr)
    assert "Traceback" not in stderr
