"""Launches that cannot work are refused before anything is made: one line, exit code 125, nothing left."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli import Cli
from escapes import past_programs


@pytest.fixture(autouse=True)
def nothing_left(vgpurun: Cli) -> Iterator[None]:
    yield
    vgpurun.assert_nothing_left()


def test_an_image_with_musl(vgpurun: Cli, musl: str) -> None:
    vgpurun.run("--mem", "1g", musl, "/bin/hello").assert_refused("musl", musl)


def test_a_static_program_is_warned_of(vgpurun: Cli, busybox: str) -> None:
    for _ in range(2):  # the second time by what is remembered
        result = vgpurun.run("--mem", "1g", busybox, "echo", "hello")
        assert (result.exit_code, result.stdout) == (0, "hello\n")
        (warning,) = result.stderr.strip().splitlines()
        assert "/bin/echo is statically linked: libvgpu.so is not loaded into it, and no limit holds" in warning


def test_a_program_that_the_library_is_not_in_is_warned_of(vgpurun: Cli, debian: str) -> None:
    """In an image with glibc, and in a folder of the user's: of musl, static, and a script that is run by either."""
    past = past_programs()
    mounts = ("-v", f"{past}:/past:ro", "-v", f"{past}/ld-musl:/lib/ld-musl-x86_64.so.1:ro")
    for program, words in (
        ("/past/static", "/past/static is statically linked"),
        ("/past/musl", "/past/musl has the loader /lib/ld-musl-x86_64.so.1, which preloads nothing"),
    ):
        for entry in ((), ("--init",)):
            result = vgpurun.run("--mem", "1g", *entry, *mounts, debian, program, "nothing")
            assert f"{words}: libvgpu.so is not loaded into it" in result.stderr, result
    for command in (("sh", "-c", "true"), ("/usr/bin/env", "true"), ("/lib64/ld-linux-x86-64.so.2", "/bin/true")):
        result = vgpurun.run("--mem", "1g", "--init", *mounts, debian, *command)
        assert (result.exit_code, result.stderr) == (0, ""), result


def test_no_permission_on_the_engines_socket(vgpurun: Cli, tmp_path: Path) -> None:
    path = tmp_path / "docker.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        path.chmod(0)
        if os.geteuid() == 0:
            # Root without its capabilities, facing a socket of somebody else's, is an ordinary user.
            shutil.chown(path, "nobody")
            vgpurun.command = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--", *vgpurun.command)
        vgpurun.environment["DOCKER_HOST"] = f"unix://{path}"
        vgpurun.run("any", "true").assert_refused(str(path), "permission", exit_code=1)


@pytest.mark.parametrize("arguments", [(b"im\xff",), (b"-e", b"A=\xff", b"any"), (b"any", b"\xff")])
def test_an_argument_that_is_not_utf_8(vgpurun: Cli, arguments: tuple[bytes, ...]) -> None:
    vgpurun.run(*map(os.fsdecode, arguments)).assert_refused("\\xff", "UTF-8")


@pytest.mark.parametrize("address", ["garbage", "unix://", "tcp://127.0.0.1:1", "tcp://127.0.0.1:port"])
def test_an_engine_address_that_leads_nowhere(vgpurun: Cli, address: str) -> None:
    vgpurun.environment["DOCKER_HOST"] = address
    vgpurun.run("any", "true").assert_refused(address.removeprefix("tcp://"), "DOCKER_HOST", exit_code=1)


def test_an_engine_on_another_host(vgpurun: Cli) -> None:
    vgpurun.environment["DOCKER_HOST"] = "tcp://192.0.2.1:2375"
    vgpurun.run("any", "true").assert_refused("192.0.2.1")
