"""`vgpurun --profile DIR`: each process of the container leaves its profile in DIR."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from cli import GPU_PROGRAM, WITH_PROGRAMS, Cli
from vgpurun.profiles.reader import read_profiles


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "profile"


def test_the_profile_of_a_container(vgpurun: Cli, debian: str, folder: Path) -> None:
    vgpurun.run("--mem", "1g", "--profile", str(folder), *WITH_PROGRAMS, debian, *GPU_PROGRAM, "info").json()
    [profile] = read_profiles(folder)
    assert profile.command == " ".join((*GPU_PROGRAM, "info"))
    assert profile.ended_ns is not None
    assert {total.api: total.calls for total in profile.totals}["cuInit"] == 2
    [device] = profile.devices
    assert {sample.memory_limit_bytes for sample in profile.samples()} == {1 << 30}
    report = vgpurun("report", "--format", "json", str(folder))
    assert device in json.dumps(json.loads(report.stdout))


def test_any_user_of_the_container_may_write_there(vgpurun: Cli, debian: str, folder: Path) -> None:
    asked = ("--mem", "1g", "--profile", str(folder), "--user", "12345:23456")
    vgpurun.run(*asked, *WITH_PROGRAMS, debian, *GPU_PROGRAM, "info").json()
    [profile] = read_profiles(folder)
    status = profile.path.stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (12345, 23456, 0o644)
    assert folder.stat().st_uid == os.geteuid()


def test_containers_share_a_folder(vgpurun: Cli, debian: str, folder: Path) -> None:
    """Their first processes have the same number."""
    for _ in range(2):
        vgpurun.run("--mem", "1g", "--profile", str(folder), *WITH_PROGRAMS, debian, *GPU_PROGRAM, "info").json()
    profiles = read_profiles(folder)
    assert len(profiles) == 2
    assert len({profile.path.name.rsplit("-", 2)[0] for profile in profiles}) == 2


def test_a_folder_that_the_user_cannot_write_is_found_out_at_the_launch(
    vgpurun: Cli, debian: str, folder: Path
) -> None:
    folder.mkdir(mode=0o755)
    asked = ("--mem", "1g", "--profile", str(folder))
    for user in ("12345", "12345:6", "nobody", "www-data:www-data"):
        refused = vgpurun.run(*asked, "--user", user, debian, "true")
        refused.assert_refused(f"user {user} of the container may not write there", "chmod 1777")
    vgpurun.assert_nothing_left()
    made = vgpurun.run("-d", "--user", "nobody", "--name", "as-nobody", debian, "true").stdout.strip()
    vgpurun.engine.containers.get(made).commit("vgpurun-test/as-nobody", "1")
    try:
        vgpurun.run(*asked, "vgpurun-test/as-nobody:1", "true").assert_refused("user nobody of the container")
    finally:
        vgpurun("rm", "-f", "as-nobody")
        vgpurun.engine.images.remove("vgpurun-test/as-nobody:1", force=True)
    os.chown(folder, 0, 33)  # www-data, by its group
    folder.chmod(0o775)
    for may_write in (("--user", "12345", "--group-add", "33"), ("--user", "www-data"), ()):
        assert vgpurun.run(*asked, *may_write, debian, "true").exit_code == 0


def test_what_cannot_be_used_is_refused_before_anything_is_made(vgpurun: Cli, debian: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    vgpurun.run("--profile", str(tmp_path / "file"), debian, "true").assert_refused("--profile", "is not a folder")
    vgpurun.run("--profile-size", "8m", debian, "true").assert_refused("--profile-size", "without --profile DIR")
    vgpurun.assert_nothing_left()


def test_a_failed_start_leaves_no_folder(vgpurun: Cli, debian: str, folder: Path) -> None:
    vgpurun.run("--profile", str(folder), "--workdir", "relative", debian, "true")
    assert not folder.exists()
    vgpurun.assert_nothing_left()


def test_a_dry_run_shows_the_folder_and_makes_none(vgpurun: Cli, debian: str, folder: Path) -> None:
    shown = vgpurun.run("--profile", str(folder), "--dry-run", debian, "true").stdout
    assert f"{folder}:/.vgpurun/profile:rw" in shown
    assert "PFLOG: /.vgpurun/profile" in shown
    assert not folder.exists()


def test_the_profile_of_a_process_of_the_host(vgpurun: Cli, folder: Path) -> None:
    command = ("--driver", "sim", "--profile", str(folder), "--", shutil.which("true") or "true")
    assert vgpurun("local", *command).exit_code == 0
    assert folder.is_dir()  # the program did not use the GPU
    assert list(folder.iterdir()) == []
