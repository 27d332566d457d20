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


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--mem", "2x"), ("2x",)),
        (("--mem", "0"), ("0",)),
        (("--mem", "4"), ("4 bytes", "4g")),
        (("--mem", "-1g"), ("-1g",)),
        (("--mem", "900g"), ("900g",)),
        (("--mem", "101%"), ("101%",)),
        (("--mem", "7=1g"), ("7",)),
        (("--sm", "101"), ("101",)),
        (("--sm", "-5"), ("-5",)),
        (("--sm", "fast"), ("fast",)),
        (("--gpus", "device=77", "--mem", "1g"), ("77",)),
        (("--gpus", "device=GPU-00000000-1111-2222-3333-444444444444"), ("GPU-00000000-1111-2222-3333-444444444444",)),
        (("--gpus", "99"), ("99",)),
    ],
    ids=" ".join,
)
def test_a_limit_that_makes_no_sense(
    vgpurun: Cli, debian: str, options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    vgpurun.run(*options, debian, "true").assert_refused(*words)


def test_an_image_with_musl(vgpurun: Cli, musl: str) -> None:
    vgpurun.run("--mem", "1g", musl, "/bin/hello").assert_refused("musl", musl)


def test_musl_without_limits_is_no_reason_to_refuse_docker(vgpurun: Cli, musl: str) -> None:
    """The image itself works: what is refused above is the limit that could not hold."""
    output = vgpurun.engine.containers.run(musl, "/bin/hello", network="none", remove=True)
    assert output == b"hello\n"


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


def test_no_engine(vgpurun: Cli, tmp_path: Path) -> None:
    socket = tmp_path / "no.sock"
    vgpurun.environment["DOCKER_HOST"] = f"unix://{socket}"
    vgpurun.run("any", "true").assert_refused(str(socket), exit_code=1)


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


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("-u", "no-such-user"), ("no-such-user",)),
        (("-w", "relative/folder"), ("relative/folder",)),
        (("--network", "no-such-network"), ("no-such-network",)),
        (("-p", "99999:80"), ("99999",)),
        (("--shm-size", "much"), ("much",)),
        (("-v", "a:b:c:d"), ("a:b:c:d",)),
        (("-v", "/tmp:/.vgpurun"), ("/.vgpurun",)),
        (("--mount", "type=floppy"), ("floppy",)),
        (("--name", "two words"), ("two words",)),
        (("--ipc", "strange"), ("strange",)),
    ],
    ids=" ".join,
)
def test_an_option_that_the_engine_cannot_carry_out(
    vgpurun: Cli, debian: str, options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    vgpurun.run(*options, debian, "true").assert_refused(*words)


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


def test_an_environment_file_that_is_not_there(vgpurun: Cli, debian: str, tmp_path: Path) -> None:
    missing = tmp_path / "missing.env"
    vgpurun.run("--env-file", str(missing), debian, "true").assert_refused(str(missing))


def test_an_unknown_option(vgpurun: Cli, debian: str) -> None:
    result = vgpurun.run("--memory-of-the-gpu", "1g", debian, "true")
    assert result.exit_code == 125
    assert "--memory-of-the-gpu" in result.stderr


def test_no_image(vgpurun: Cli) -> None:
    assert vgpurun.run("--mem", "1g").exit_code == 1
