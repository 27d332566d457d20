"""Standard streams without a terminal: much data, slow and missing readers, and -a."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cli import OF_ENGINE, Cli
from support import wait_until
from support.programs import text_of

MIB = 1 << 20
MUCH = 100 * MIB


def make_bytes() -> None:
    """Write such as no text decoding survives, and as do not repeat within a buffer's length."""
    block = b"".join(hashlib.sha256(bytes([n & 255, n >> 8])).digest() for n in range(32768 + 1))
    for _ in range(MUCH // len(block) + 1):
        sys.stdout.buffer.write(block)


MAKE_BYTES = text_of(make_bytes)


def test_much_binary_output_arrives_unharmed(vgpurun: Cli, debian: str, tmp_path: Path) -> None:
    """Without the engine's own copy of it, which takes most of the time."""
    expected = subprocess.run(["python3", "-c", MAKE_BYTES], stdout=subprocess.PIPE, check=True).stdout
    output = tmp_path / "output"
    command = ("run", "--rm", "--log-driver", "none", *vgpurun.driver, debian, "python3", "-c", MAKE_BYTES)
    with output.open("wb") as file, vgpurun.started(*command, stdout=file) as process:
        assert process.wait(timeout=100) == 0
    assert output.stat().st_size == len(expected) > MUCH
    assert hashlib.sha256(output.read_bytes()).digest() == hashlib.sha256(expected).digest()


def test_much_binary_input_arrives_unharmed(vgpurun: Cli, debian: str, tmp_path: Path) -> None:
    given = tmp_path / "input"
    with given.open("wb") as file:
        subprocess.run(["python3", "-c", MAKE_BYTES], stdout=file, check=True)
    with (
        given.open("rb") as file,
        vgpurun.started("run", "--rm", "-i", *vgpurun.driver, debian, "sha256sum", stdin=file) as process,
    ):
        stdout, stderr = process.communicate(timeout=100)
    assert (process.returncode, stderr.replace(OF_ENGINE, "")) == (0, "")
    assert stdout.split()[0] == hashlib.sha256(given.read_bytes()).hexdigest()


def test_a_slow_reader_gets_all_of_it(vgpurun: Cli, debian: str) -> None:
    script = "i=0; while [ $i -lt 20000 ]; do echo line $i of many; i=$((i+1)); done"
    with vgpurun.started("run", "--rm", *vgpurun.driver, debian, "sh", "-c", script) as process:
        first = process.stdout.readline()
        time.sleep(2)  # the pipe and all buffers fill up meanwhile
        rest = process.stdout.read()
        assert process.wait(timeout=60) == 0
    assert (first + rest).splitlines() == [f"line {number} of many" for number in range(20000)]


@pytest.mark.parametrize("reader", ["head -n1", "true"])
def test_a_reader_that_is_gone_ends_the_container(vgpurun: Cli, debian: str, reader: str) -> None:
    """But nobody waits for that: `yes`, as process 1, heeds only SIGKILL, which comes two seconds after SIGTERM.

    Meanwhile the engine's own copy of its output would keep the processors busy.
    """
    shell = Cli(vgpurun.engine, vgpurun.environment, vgpurun.state_dir)
    shell.command = ("bash", "-c", f'"$@" | {reader}; exit ${{PIPESTATUS[0]}}', "bash", *vgpurun.command)
    result = shell.run("--log-driver", "none", debian, "yes")
    assert len(vgpurun.containers()) == 1
    assert (result.exit_code, result.stderr) == (141, "")
    wait_until(lambda: not vgpurun.containers(), "end of the container")


def test_attached_input_alone_reaches_the_command(vgpurun: Cli, debian: str, tmp_path: Path) -> None:
    options = ["-i", "-a", "stdin", "-v", f"{tmp_path}:/there"]
    result = vgpurun.run(*options, debian, "sh", "-c", "cat > /there/received; exit 4", stdin="hello")
    assert (result.exit_code, result.stdout, result.stderr) == (4, "", "")
    assert (tmp_path / "received").read_text() == "hello"


def test_the_id_is_written_to_a_file(vgpurun: Cli, debian: str, tmp_path: Path) -> None:
    id_file = tmp_path / "id"
    result = vgpurun.run("-d", "--cidfile", str(id_file), debian, "sleep", "60")
    assert id_file.read_text() == result.stdout.strip()
    vgpurun.run("--cidfile", str(id_file), debian, "true").assert_refused("container ID file found", str(id_file))
    assert id_file.read_text() == result.stdout.strip()


def test_a_failed_start_leaves_no_id_file(vgpurun: Cli, debian: str, tmp_path: Path) -> None:
    id_file = tmp_path / "id"
    assert vgpurun.run("--cidfile", str(id_file), debian, "no-such-command").exit_code == 127
    assert not id_file.exists()
    vgpurun.run("--cidfile", f"{tmp_path}/none/id", debian, "true").assert_refused("none/id", exit_code=127)
    vgpurun.assert_nothing_left()
