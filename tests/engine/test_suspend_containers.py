"""`vgpurun suspend|resume` on a real engine: programs in PID namespaces of their own."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from cli import WITH_PROGRAMS, Cli, guarding
from support import wait_until
from vgpurun.util.process_identity import boot_id
from vgpurun.util.times import boot_s

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


def test_root_in_a_container_lets_the_guard_suspend_no_other(vgpurun: Cli, debian: str) -> None:
    """Root there has the state folder mounted, and puts a link to the other's etc in the place of its own."""
    said = vgpurun.state_dir.parent / "guard.log"
    holds = ("python3", "-u", "/programs/gpu.py", "hold", str(1 << 20))
    assert vgpurun.run("-d", "-i", "--name", "holds", "--mem", "2g", *WITH_PROGRAMS, debian, *holds).exit_code == 0
    wait_until(lambda: used_mib(vgpurun) > 0, "memory on the GPU")
    (theirs,) = (vgpurun.state_dir / "containers").iterdir()
    limits = (theirs / "etc" / "limits").read_bytes()
    idle = ("--mem", "2g", "--idle", "300ms")
    assert vgpurun.run("-d", "--name", "links", *idle, debian, "sleep", "600").exit_code == 0
    (own,) = {*(vgpurun.state_dir / "containers").iterdir()} - {theirs}
    vgpurun.engine.containers.run(
        debian, ["sh", "-c", f"mv /state/etc /state/aside && ln -s {theirs}/etc /state/etc"], remove=True,
        network_mode="none", volumes=[f"{own}:/state"],
    )  # fmt: skip
    assert (own / "etc").is_symlink()
    with guarding(vgpurun):
        cells = ("python3", "-u", "/programs/gpu.py", "cells", "4")
        assert vgpurun.run("-d", "--name", "book", *idle, *WITH_PROGRAMS, debian, *cells).exit_code == 0
        wait_until(lambda: "suspend book: idle for" in said.read_text(), "a suspension of what idles since")
        assert "suspend links" not in said.read_text() and "suspend holds" not in said.read_text()
    assert (theirs / "etc" / "limits").read_bytes() == limits


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
    """The container does not start, for it has not ended; and its memory in the host is not forgotten."""
    assert vgpurun.run("-d", "--name", "busy", "--mem", "6g", *WITH_PROGRAMS, debian, *HOLD).exit_code == 0
    wait_until(lambda: used_mib(vgpurun) > 0, "work on the GPU")
    held_mib = used_mib(vgpurun)
    assert vgpurun("suspend", *vgpurun.driver, "--hold", "busy").exit_code == 0
    assert vgpurun("pause", "busy").exit_code == 0
    vgpurun("start", *vgpurun.driver, "busy")
    assert vgpurun("unpause", "busy").exit_code == 0
    assert vgpurun("resume", *vgpurun.driver, "busy").exit_code == 0
    assert used_mib(vgpurun) == held_mib


@pytest.fixture
def two_users(own_gpu: Cli, as_nobody: tuple[str, ...]) -> Iterator[tuple[Cli, Cli]]:
    """Root's command line and that of a user in the engine's group, on one host."""
    with TemporaryDirectory(prefix="vgpurun-", dir="/tmp") as folder:
        Path(folder, "state").mkdir()
        Path(folder, "state").chmod(0o777)
        Path(folder).chmod(0o755)
        shutil.copy(own_gpu.environment["VGPUSIM_CONFIG"], f"{folder}/sim.yaml")
        Path(folder, "sim.yaml").chmod(0o644)
        environment = {
            **own_gpu.environment, "VGPURUN_STATE_DIR": f"{folder}/state", "VGPUSIM_CONFIG": f"{folder}/sim.yaml",
        }  # fmt: skip
        Path(environment["DOCKER_HOST"].removeprefix("unix://")).chmod(0o660)
        root = replace(own_gpu, environment=environment, state_dir=Path(folder, "state"))
        yield root, replace(root, command=as_nobody, environment={**environment, "HOME": "/nonexistent"})
        root.remove_containers()


def test_the_user_who_started_it_may_suspend_it_where_a_guard_runs(two_users: tuple[Cli, Cli], debian: str) -> None:
    """Its programs are root's, and so is what the driver asks for."""
    root, user = two_users
    assert user.run("-d", "--name", "mine", "--mem", "6g", *WITH_PROGRAMS, debian, *HOLD).exit_code == 0
    wait_until(lambda: used_mib(root) > 0, "work on the GPU")
    held_mib = used_mib(root)
    refused = user("suspend", *user.driver, "mine")
    refused.assert_refused("use sudo, or let root run vgpurun guard")
    with guarding(root):
        done = user("suspend", *user.driver, "--hold", "mine")
        assert (done.exit_code, done.stdout, done.stderr) == (0, f"mine: {held_mib} MiB in host memory\n", "")
        assert used_mib(root) == 0
        back = user("resume", *user.driver, "mine")
        assert (back.exit_code, back.stdout, back.stderr) == (0, "mine\n", "") and used_mib(root) == held_mib
        assert user("suspend", *user.driver, "--hold", "mine").exit_code == 0
        assert root.run("-d", "--name", "beside", "--mem", "12g", debian, "sleep", "600").exit_code == 0
        full = user("resume", *user.driver, "mine")
        assert full.exit_code == 125 and "no room for --mem 6g" in full.stderr, "what the guard says is passed on"
        assert used_mib(root) == 0


def test_a_request_of_another_user_is_none(two_users: tuple[Cli, Cli], debian: str) -> None:
    """A request is in the folder of the user who started the container; the guard ignores another user's file there."""
    root, user = two_users
    assert user.run("-d", "--name", "mine", "--mem", "6g", *WITH_PROGRAMS, debian, *HOLD).exit_code == 0
    assert root.run("-d", "--name", "roots", "--mem", "6g", *WITH_PROGRAMS, debian, *HOLD).exit_code == 0
    wait_until(lambda: used_mib(root) > 1000, "work on the GPU")
    with guarding(root):
        user("suspend", *user.driver, "roots").assert_refused("give --others", exit_code=1)
        user("suspend", *user.driver, "--others", "roots").assert_refused("only the user who started roots, or root")
        folder = root.state_folder(root.engine.containers.get("mine"))
        asked = {"verb": "suspend", "token": "t", "is_held": True, "lock_timeout_ms": 1000, "boot": boot_id()}
        (folder / "request").write_text(json.dumps({**asked, "until_boot_s": boot_s() + 60}))  # root's own file
        stale = folder / "stale"
        stale.write_text(json.dumps({**asked, "until_boot_s": boot_s() - 1}))
        time.sleep(2.5)
        assert not (folder / "answer").exists()
        os.chown(stale, 65534, 65534)
        stale.rename(folder / "request")
        time.sleep(2.5)
        assert not (folder / "answer").exists(), "its time is over"
        assert used_mib(root) > 1000
