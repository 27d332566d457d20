"""Signals that vgpurun gets belong to the command in the container."""

from __future__ import annotations

import signal
import subprocess
import time

import pytest

from cli import Cli, wait_until

SCRIPT = "trap 'echo caught {name}; exit 9' {name}; echo ready; while :; do sleep 0.1; done"


@pytest.mark.parametrize("name", ["INT", "TERM", "HUP", "USR1"])
def test_a_signal_is_forwarded(vgpurun: Cli, debian: str, name: str) -> None:
    command = ("run", "--rm", *vgpurun.driver, "--mem", "1g", debian, "sh", "-c", SCRIPT.format(name=name))
    with vgpurun.started(*command) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.Signals[f"SIG{name}"])
        stdout, _ = process.communicate(timeout=20)
        assert (stdout, process.returncode) == (f"caught {name}\n", 9)
    vgpurun.assert_nothing_left()


def test_a_signal_before_the_start_leaves_nothing_behind(vgpurun: Cli, debian: str) -> None:
    for delay_s in (0.1, 0.3, 0.5, 0.7, 0.9):
        command = ("run", "--rm", *vgpurun.driver, "--mem", "1g", debian, "sleep", "1")
        with vgpurun.started(*command) as process:
            time.sleep(delay_s)
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=30)
        wait_until(lambda: not vgpurun.containers(), "removal of the container")
        assert vgpurun.states() == []


def test_a_killed_vgpurun_leaves_what_the_next_one_sweeps(vgpurun: Cli, debian: str) -> None:
    with vgpurun.started(
        "run", "--rm", *vgpurun.driver, "--mem", "1g", debian, "sh", "-c", "echo ready; sleep 2"
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.kill()
        process.wait()
    wait_until(lambda: not vgpurun.containers(), "removal of the container")
    assert vgpurun.run(debian, "true").exit_code == 0
    vgpurun.assert_nothing_left()


def test_output_to_a_reader_that_is_gone_ends_quietly(vgpurun: Cli, debian: str) -> None:
    with vgpurun.started(
        "run", "--rm", *vgpurun.driver, debian, "sh", "-c", "while echo y; do sleep 0.05; done"
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            pytest.fail("vgpurun runs on although nobody reads its output")
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
        process.stdout = None
