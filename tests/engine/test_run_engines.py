"""Which engine is used, and what is said of one that cannot be."""

from __future__ import annotations

import hashlib
import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli import Cli
from engine_relay import relayed


@pytest.fixture
def tcp_address(docker_host: str) -> Iterator[str]:
    """A TCP address of this host that leads to the engine's socket."""
    listener = socket.create_server(("127.0.0.1", 0))
    address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
    with relayed(docker_host, listener):
        yield address


def write_context(home: Path, host: str, name: str = "own", is_current: bool = True) -> None:
    """Make a context as `docker context create` does."""
    folder = home / ".docker/contexts/meta" / hashlib.sha256(name.encode()).hexdigest()
    folder.mkdir(parents=True)
    endpoints = {"docker": {"Host": host, "SkipTLSVerify": False}}
    (folder / "meta.json").write_text(json.dumps({"Name": name, "Metadata": {}, "Endpoints": endpoints}))
    if is_current:
        (home / ".docker/config.json").write_text(json.dumps({"currentContext": name}))


def test_a_tcp_address_of_this_host(vgpurun: Cli, debian: str, tcp_address: str) -> None:
    vgpurun.environment["DOCKER_HOST"] = tcp_address
    result = vgpurun.run("-i", "--mem", "1g", debian, "sh", "-c", "cat; exit 3", stdin="hello")
    assert (result.exit_code, result.stdout) == (3, "hello")
    vgpurun.assert_nothing_left()


def test_the_current_context(vgpurun: Cli, debian: str, docker_host: str) -> None:
    del vgpurun.environment["DOCKER_HOST"]
    write_context(Path(vgpurun.environment["HOME"]), docker_host)
    assert vgpurun.run(debian, "true").exit_code == 0


def test_a_context_by_its_name(vgpurun: Cli, debian: str, docker_host: str) -> None:
    del vgpurun.environment["DOCKER_HOST"]
    write_context(Path(vgpurun.environment["HOME"]), docker_host, is_current=False)
    vgpurun.environment["DOCKER_CONTEXT"] = "other"
    vgpurun.run("any", "true").assert_refused("DOCKER_CONTEXT=other does not exist", "docker context ls", exit_code=1)
    vgpurun.environment["DOCKER_CONTEXT"] = "own"
    assert vgpurun.run(debian, "true").exit_code == 0
    vgpurun.environment["DOCKER_CONTEXT"] = "default"
    assert "DOCKER_CONTEXT" not in vgpurun.run("any", "true").stderr, "docker's word for the engine of this host"


@pytest.mark.parametrize("address", ["tcp://192.0.2.1:2376", "ssh://somebody@gpu-box"])
def test_a_context_of_another_host(vgpurun: Cli, address: str) -> None:
    del vgpurun.environment["DOCKER_HOST"]
    write_context(Path(vgpurun.environment["HOME"]), address)
    vgpurun.run("any", "true").assert_refused(address, "not this host's", "Docker's current context own")


def test_an_engine_over_ssh(vgpurun: Cli) -> None:
    vgpurun.environment["DOCKER_HOST"] = "ssh://somebody@gpu-box:2222"
    vgpurun.run("any", "true").assert_refused("ssh://somebody@gpu-box:2222", "ssh gpu-box vgpurun")


def test_a_configuration_that_cannot_be_read(vgpurun: Cli) -> None:
    del vgpurun.environment["DOCKER_HOST"]
    folder = Path(vgpurun.environment["HOME"], ".docker")
    folder.mkdir()
    (folder / "config.json").write_text("{")
    result = vgpurun.run("any", "true")
    assert result.exit_code == 1
    assert "Traceback" not in result.stderr


def test_an_engine_that_does_not_see_this_hosts_files(vgpurun: Cli, debian: str, tmp_path: Path) -> None:
    """An engine in a virtual machine, or behind a tunnel, lacks what it is asked to mount."""
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed")
    # vgpurun, in a mount namespace of its own, has its state where the engine sees an empty folder.
    (tmp_path / "hidden").mkdir()
    vgpurun.environment["VGPURUN_STATE_DIR"] = str(tmp_path / "hidden")
    script = f'mount -t tmpfs none {tmp_path}/hidden && exec "$@"'
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
        pytest.skip("no mount namespace can be made here")
    vgpurun.command = ("unshare", "-m", "sh", "-c", script, "sh", *vgpurun.command)
    vgpurun.run(debian, "true").assert_refused("not this host's")
    assert vgpurun.containers() == []
