"""Docker's options do in `vgpurun run` what they do in `docker run`."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from cli import GPU_PROGRAM, WITH_PROGRAMS, Cli, wait_until


def attributes(vgpurun: Cli, name: str) -> dict:
    return vgpurun.engine.containers.get(name).attrs


def test_environment_variables(vgpurun: Cli, debian: str, tmp_path: Path) -> None:
    env_file = tmp_path / "variables"
    env_file.write_text("# a comment\n\nFROM_FILE=a b # c\nTAKEN=file\nINHERITED\n")
    vgpurun.environment["INHERITED"] = "from the host"
    vgpurun.environment["ALSO"] = "from the host too"
    options = ["--env-file", str(env_file), "-e", "EMPTY=", "-e", "TAKEN=option", "-e", "ALSO", "--env", "NOT_SET"]
    script = "import json, os; print(json.dumps(dict(os.environ)))"
    seen = vgpurun.run(*options, debian, "python3", "-c", script).json()
    assert seen["FROM_FILE"] == "a b # c"
    assert seen["EMPTY"] == ""
    assert seen["TAKEN"] == "option"
    assert seen["INHERITED"] == "from the host"
    assert seen["ALSO"] == "from the host too"
    assert "NOT_SET" not in seen


def test_the_users_own_preload_stays_and_the_limit_holds(vgpurun: Cli, debian: str) -> None:
    options = ("--mem", "1g", "-e", "LD_PRELOAD=libm.so.6")
    script = "echo $LD_PRELOAD; exec python3 /programs/gpu.py info"
    result = vgpurun.run(*options, *WITH_PROGRAMS, debian, "sh", "-c", script)
    assert result.stdout.startswith("libm.so.6\n")
    assert result.json()["devices"][0]["total"] == 1 << 30


def test_volumes_and_mounts(vgpurun: Cli, debian: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_text("content")
    script = "cat /rw/file /ro/file /bound/file; echo new > /rw/new; touch /ro/new 2>/dev/null || echo refused"
    mounts = ["-v", f"{tmp_path}/data:/rw", "--volume", f"{tmp_path}/data:/ro:ro"]
    mounts += ["--mount", f"type=bind,source={tmp_path}/data,target=/bound,readonly"]
    mounts += ["--mount", "type=tmpfs,target=/scratch"]
    result = vgpurun.run(*mounts, debian, "sh", "-c", f"{script}; stat -f -c %T /scratch")
    assert result.stdout == "contentcontentcontentrefused\ntmpfs\n"
    assert (tmp_path / "data" / "new").read_text() == "new\n"


def test_a_missing_mount_source_is_refused(vgpurun: Cli, debian: str, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    vgpurun.run("--mount", f"type=bind,source={missing},target=/data", debian, "true").assert_refused(str(missing))
    assert not missing.exists()
    vgpurun.assert_nothing_left()


def test_working_directory(vgpurun: Cli, debian: str) -> None:
    result = vgpurun.run("-w", "/usr/lib", debian, "pwd")
    assert result.exit_code == 0 and result.stdout == "/usr/lib\n", result


@pytest.mark.parametrize("user", ["1000", "nobody", "1234:5678"])
def test_any_user_in_the_container_is_limited(vgpurun: Cli, debian: str, user: str) -> None:
    options = ["--mem", "1g", "-u", user, *WITH_PROGRAMS]
    seen = vgpurun.run(*options, debian, *GPU_PROGRAM, "info").json()
    assert seen["uid"] != 0
    assert seen["devices"][0]["total"] == 1 << 30


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


def test_name_label_and_ports(vgpurun: Cli, debian: str) -> None:
    options = ["-d", "--name", "named", "--label", "team=vision", "-p", "8080:80", "-p", "127.0.0.1:53:53/udp"]
    result = vgpurun.run(*options, debian, "sleep", "60")
    container = vgpurun.engine.containers.get("named")
    assert result.stdout.strip() == container.id
    assert container.labels["team"] == "vision"
    assert vgpurun.state_folder(container).is_relative_to(vgpurun.state_dir)
    assert vgpurun.owner("named")["container"] == container.id
    bindings = container.attrs["HostConfig"]["PortBindings"]
    assert bindings["80/tcp"][0]["HostPort"] == "8080"
    assert bindings["53/udp"] == [{"HostIp": "127.0.0.1", "HostPort": "53"}]


def test_entrypoint(vgpurun: Cli, debian: str) -> None:
    result = vgpurun.run("--entrypoint", "/bin/echo", debian, "-n", "--name", "hello")
    assert result.stdout == "--name hello"


def test_options_after_the_image_belong_to_the_command(vgpurun: Cli, debian: str) -> None:
    result = vgpurun.run(debian, "echo", "--mem", "1g", "-d", "--help", "--", "x")
    assert result.stdout == "--mem 1g -d --help -- x\n"


def test_run_may_be_left_out(vgpurun: Cli, debian: str) -> None:
    result = vgpurun(*vgpurun.driver, "--mem", "1g", debian, "echo", "hello")
    assert (result.exit_code, result.stdout) == (0, "hello\n")


def test_network_ipc_and_shared_memory(vgpurun: Cli, debian: str) -> None:
    options = ["--network", "none", "--ipc", "private", "--shm-size", "128m"]
    result = vgpurun.run(*options, debian, "sh", "-c", "ls /sys/class/net; df --output=size -B1M /dev/shm | tail -1")
    assert result.stdout.split() == ["lo", "128"]
    options = ["-d", "--name", "shared", "--network", "host", "--ipc", "host"]
    assert vgpurun.run(*options, debian, "sleep", "60").exit_code == 0
    host_config = attributes(vgpurun, "shared")["HostConfig"]
    assert (host_config["NetworkMode"], host_config["IpcMode"]) == ("host", "host")


def test_a_mount_over_tmp_is_the_users_own(vgpurun: Cli, debian: str, tmp_path: Path) -> None:
    """Nothing is created in it."""
    (tmp_path / "scratch").mkdir()
    result = vgpurun.run("--mem", "1g", "-v", f"{tmp_path}/scratch:/tmp", debian, "ls", "/tmp")
    assert (result.exit_code, result.stdout) == (0, "")
    assert list((tmp_path / "scratch").iterdir()) == []


def test_an_unlimited_run_still_reaches_the_gpu(vgpurun: Cli, debian: str) -> None:
    seen = vgpurun.run(*WITH_PROGRAMS, debian, *GPU_PROGRAM, "info").json()
    assert seen["devices"][0]["total"] > 1 << 30


def test_detached_and_removed_at_its_end(vgpurun: Cli, debian: str) -> None:
    result = vgpurun.run("-d", "--rm", debian, "sleep", "0.2")
    assert result.exit_code == 0
    wait_until(lambda: not vgpurun.containers(), "removal of the container")
    # Its state folder is swept by whatever vgpurun command comes next.
    assert vgpurun.run(debian, "true").exit_code == 0
    vgpurun.assert_nothing_left()


def test_a_detached_container_is_kept_until_it_is_removed(vgpurun: Cli, debian: str) -> None:
    container_id = vgpurun.run("-d", "--mem", "1g", debian, "sh", "-c", "exit 4").stdout.strip()
    container = vgpurun.engine.containers.get(container_id)
    assert container.wait()["StatusCode"] == 4
    assert len(vgpurun.states()) == 1
    assert vgpurun.run(debian, "true").exit_code == 0
    assert len(vgpurun.states()) == 1, "a stopped container may be started again: its state stays"
    container.remove()
    assert vgpurun.run(debian, "true").exit_code == 0
    vgpurun.assert_nothing_left()
