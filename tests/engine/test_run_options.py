"""Docker's options do in `vgpurun run` what they do in `docker run`."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from cli import GPU_PROGRAM, WITH_PROGRAMS, Cli
from support import wait_until


def test_the_users_own_preload_stays_and_the_limit_holds(vgpurun: Cli, debian: str) -> None:
    options = ("--mem", "1g", "-e", "LD_PRELOAD=libm.so.6")
    script = "echo $LD_PRELOAD; exec python3 /programs/gpu.py info"
    result = vgpurun.run(*options, *WITH_PROGRAMS, debian, "sh", "-c", script)
    assert result.stdout.startswith("libm.so.6\n")
    assert result.json()["devices"][0]["total"] == 1 << 30


def test_an_ordinary_user_who_may_use_docker(vgpurun: Cli, debian: str, as_nobody: tuple[str, ...]) -> None:
    """Somebody in the group of the engine's socket; the state is in their home."""
    with tempfile.TemporaryDirectory() as home:
        shutil.chown(home, 65534, 65534)
        environment = {**vgpurun.environment, "HOME": home}
        del environment["VGPURUN_STATE_DIR"]
        user = Cli(vgpurun.engine, environment, Path(home, ".local/state/vgpurun"), command=as_nobody)
        seen = user.run("--mem", "1g", *WITH_PROGRAMS, debian, *GPU_PROGRAM, "info").json()
        assert seen["devices"][0]["total"] == 1 << 30
        assert user.state_dir.is_dir()
        user.assert_nothing_left()


def test_run_may_be_left_out(vgpurun: Cli, debian: str) -> None:
    result = vgpurun(*vgpurun.driver, "--mem", "1g", debian, "echo", "hello")
    assert (result.exit_code, result.stdout) == (0, "hello\n")


def test_a_mount_over_tmp_is_the_users_own(vgpurun: Cli, debian: str, tmp_path: Path) -> None:
    """Nothing is created in it."""
    (tmp_path / "scratch").mkdir()
    result = vgpurun.run("--mem", "1g", "-v", f"{tmp_path}/scratch:/tmp", debian, "ls", "/tmp")
    assert (result.exit_code, result.stdout) == (0, "")
    assert list((tmp_path / "scratch").iterdir()) == []


def test_detached_and_removed_at_its_end(vgpurun: Cli, debian: str) -> None:
    result = vgpurun.run("-d", "--rm", debian, "sleep", "0.2")
    assert result.exit_code == 0
    wait_until(lambda: not vgpurun.containers(), "removal of the container")
    # Its state folder is swept by whatever vgpurun command comes next.
    assert vgpurun.run(debian, "true").exit_code == 0
    vgpurun.assert_nothing_left()


def test_a_detached_container_is_kept_until_it_is_removed(vgpurun: Cli, debian: str) -> None:
    container_id = vgpurun.run("-d", "--mem", "1g", debian, "sh", "-c", "exit 4").stdout.strip()
    assert vgpurun.owner(container_id)["container"] == container_id
    container = vgpurun.engine.containers.get(container_id)
    assert container.wait()["StatusCode"] == 4
    assert len(vgpurun.states()) == 1
    assert vgpurun.run(debian, "true").exit_code == 0
    assert len(vgpurun.states()) == 1, "a stopped container may be started again: its state stays"
    container.remove()
    assert vgpurun.run(debian, "true").exit_code == 0
    vgpurun.assert_nothing_left()
