"""`vgpurun suspend|resume` on a real engine: programs in PID namespaces of their own."""

from __future__ import annotations

import json
import re

from cli import WITH_PROGRAMS, Cli, guarding, wait_until

HOLD = ("python3", "-u", "/programs/gpu.py", "spin", "spin_1ms", "600")


def used_mib(vgpurun: Cli) -> int:
    shown = json.loads(vgpurun("smi", *vgpurun.driver, "--format", "json").stdout)
    return int(shown["gpus"][0]["memory_used_bytes"] >> 20)


def test_a_container_gives_its_gpu_back_and_goes_on(vgpurun: Cli, debian: str) -> None:
    assert vgpurun.run("-d", "--name", "busy", "--mem", "6g", *WITH_PROGRAMS, debian, *HOLD).exit_code == 0
    wait_until(lambda: used_mib(vgpurun) > 0, "work on the GPU")
    held_mib = used_mib(vgpurun)
    done = vgpurun("suspend", *vgpurun.driver, "--hold", "busy")
    assert (done.exit_code, done.stdout) == (0, f"busy: {held_mib} MiB in host memory\n"), done.stderr
    assert used_mib(vgpurun) == 0
    assert vgpurun.engine.containers.get("busy").status == "running"
    shown = vgpurun("ps", "-a", *vgpurun.driver).stdout
    assert re.search(r"Suspended, \d+ MiB in host memory", shown), shown
    (inspected,) = json.loads(vgpurun("inspect", *vgpurun.driver, "busy").stdout)
    assert inspected["devices"][0]["suspended"] is True

    other = vgpurun.run("-d", "--name", "other", "--mem", "6g", debian, "sleep", "600")
    assert other.exit_code == 0, "its memory is free for others"
    vgpurun("resume", *vgpurun.driver, "busy").assert_refused("is free")
    assert vgpurun("rm", "-f", "other").exit_code == 0
    back = vgpurun("resume", *vgpurun.driver, "busy")
    assert (back.exit_code, back.stdout) == (0, "busy\n"), back.stderr
    assert used_mib(vgpurun) == held_mib
    refused = vgpurun.run("-d", "--mem", "6g", debian, "sleep", "600")
    assert refused.exit_code == 125 and "2 GiB is free" in refused.stderr


def test_the_guard_wakes_a_notebook(vgpurun: Cli, debian: str) -> None:
    cells = ("python3", "-u", "/programs/gpu.py", "cells", "4")
    limits = ("--mem", "6g", "--idle", "500ms")
    said = vgpurun.state_dir.parent / "guard.log"
    with guarding(vgpurun):
        assert vgpurun.run("-d", "--name", "book", *limits, *WITH_PROGRAMS, debian, *cells).exit_code == 0
        for text in ("suspend book: idle for", "resume book: its program asks for its GPU"):
            wait_until(lambda text=text: text in said.read_text(), text)
        container = vgpurun.engine.containers.get("book")
        wait_until(lambda: container.logs().count(b"right") >= 2, "cells")
        assert b"wrong" not in container.logs()


def test_a_paused_container(vgpurun: Cli, debian: str) -> None:
    assert vgpurun.run("-d", "--name", "busy", "--mem", "6g", *WITH_PROGRAMS, debian, *HOLD).exit_code == 0
    wait_until(lambda: used_mib(vgpurun) > 0, "work on the GPU")
    assert vgpurun("pause", "busy").exit_code == 0
    vgpurun("suspend", *vgpurun.driver, "busy").assert_refused("is stopped", "vgpurun unpause")
    assert vgpurun("unpause", "busy").exit_code == 0
    assert vgpurun("suspend", *vgpurun.driver, "busy").exit_code == 0


def test_a_container_that_starts_again_has_its_gpu(vgpurun: Cli, debian: str) -> None:
    assert vgpurun.run("-d", "--name", "busy", "--mem", "6g", *WITH_PROGRAMS, debian, *HOLD).exit_code == 0
    wait_until(lambda: used_mib(vgpurun) > 0, "work on the GPU")
    assert vgpurun("suspend", *vgpurun.driver, "--hold", "busy").exit_code == 0
    refused = vgpurun("restart", *vgpurun.driver, "-t", "0", "busy")
    refused.assert_refused("busy is suspended, and others may have its place", "resume it first")
    assert vgpurun("stop", "-t", "0", "busy").exit_code == 0
    assert "Exited" in vgpurun("ps", "-a", *vgpurun.driver).stdout
    vgpurun("suspend", *vgpurun.driver, "busy").assert_refused("does not run")
    assert vgpurun("start", *vgpurun.driver, "busy").exit_code == 0
    wait_until(lambda: used_mib(vgpurun) > 0, "work on the GPU")
    refused = vgpurun.run("-d", "--mem", "6g", debian, "sleep", "600")
    assert refused.exit_code == 125 and "2 GiB is free" in refused.stderr


def test_a_container_that_is_removed_while_it_is_suspended(vgpurun: Cli, debian: str) -> None:
    assert vgpurun.run("-d", "--name", "busy", "--mem", "6g", *WITH_PROGRAMS, debian, *HOLD).exit_code == 0
    wait_until(lambda: used_mib(vgpurun) > 0, "work on the GPU")
    assert vgpurun("suspend", *vgpurun.driver, "busy").exit_code == 0
    assert vgpurun("rm", "-f", "busy").exit_code == 0
    assert vgpurun.run("-d", "--mem", "6g", debian, "sleep", "600").exit_code == 0


def test_a_suspended_container_that_is_paused_and_started(vgpurun: Cli, debian: str) -> None:
    """It does not start, for it has not ended; and what it holds in host memory is not forgotten."""
    assert vgpurun.run("-d", "--name", "busy", "--mem", "6g", *WITH_PROGRAMS, debian, *HOLD).exit_code == 0
    wait_until(lambda: used_mib(vgpurun) > 0, "work on the GPU")
    held_mib = used_mib(vgpurun)
    assert vgpurun("suspend", *vgpurun.driver, "--hold", "busy").exit_code == 0
    assert vgpurun("pause", "busy").exit_code == 0
    vgpurun("start", *vgpurun.driver, "busy")
    assert vgpurun("unpause", "busy").exit_code == 0
    assert vgpurun("resume", *vgpurun.driver, "busy").exit_code == 0
    assert used_mib(vgpurun) == held_mib
