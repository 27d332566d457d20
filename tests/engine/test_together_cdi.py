"""The CDI device of a slice made with --together: engines start containers that join its MPS server, or none."""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import docker
import pytest

from cli import GPU_PROGRAM, PROGRAMS, WITH_PROGRAMS, Cli
from docker_command import docker_command
from support import CHECKOUT, python_for_all, wait_until
from vgpurun.host.mps import CONTROL
from vgpurun.together import server
from vgpurun.together.group import MEMBERS, PIPES, Group
from vgpurun.util.kernel_text import read_text
from vgpurun.util.locking import holder_of
from vgpurun.util.process_identity import identify, uid_of

MIB = 1 << 20
SIM = ("--driver", "sim")
HOLD = ("-d", "-i", "--ipc=host")
PYTHON = "/usr/bin/python3"
NOBODY = pwd.getpwnam("nobody")
STAYING = {MEMBERS, PIPES, "slice"}


@pytest.fixture
def specification() -> Iterator[Path]:
    """A file that Docker and Podman read as a specification, in a folder for which nothing else is made."""
    if os.geteuid() != 0:
        pytest.skip("only root can write a CDI specification")
    path = Path("/var/run/cdi") / f"vgpurun-test-{os.getpid()}.yaml"
    yield path
    path.unlink(missing_ok=True)


@pytest.fixture
def cli(own_gpu: Cli, engine: docker.DockerClient, specification: Path) -> Iterator[Cli]:
    """A command line with a slice, whose state is in a place that leaves room for a socket's path."""
    if not engine.info().get("CDISpecDirs"):
        pytest.skip("this engine has no CDI")
    with TemporaryDirectory(prefix="vgpurun-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        environment = own_gpu.environment | {"VGPURUN_STATE_DIR": folder}
        short = Cli(own_gpu.engine, environment, Path(folder), own_gpu.driver)
        assert short("slice", "create", *SIM, f"team-{os.urandom(4).hex()}", "--mem", "2g", "--together").exit_code == 0
        assert short("cdi", "generate", *SIM, "-o", str(specification)).exit_code == 0
        yield short
        for container in containers(short):
            container.remove(force=True)
        if slice_folder(short).exists():
            wait_until(lambda: is_at_rest(short), "the end of the server")


def slice_folder(cli: Cli) -> Path:
    return next((cli.state_dir / "slices").glob("team-*"), Path("/none"))


def group_folder(cli: Cli) -> Path:
    return cli.state_dir / "together" / Group.of(slice_folder(cli)).key


def daemons(cli: Cli) -> list[int]:
    return [each.pid for each in server.processes(group_folder(cli) / PIPES)]


def is_at_rest(cli: Cli) -> bool:
    """Whether nothing runs, and nothing is left but what containers join by."""
    folder = group_folder(cli)
    left = {each.name for each in folder.iterdir()}
    return not daemons(cli) and left == STAYING and not list((folder / PIPES).iterdir())


def keeper(cli: Cli) -> int:
    """Return the process that keeps the server."""
    folder = os.open(group_folder(cli), os.O_RDONLY)
    try:
        return int(holder_of(folder))
    finally:
        os.close(folder)


def containers(cli: Cli) -> list[docker.models.containers.Container]:
    made = cli.engine.containers.list(all=True, ignore_removed=True)
    device = f"vgpurun.io/gpu={slice_folder(cli).name}"
    return [each for each in made if device in json.dumps(each.attrs["HostConfig"]["DeviceRequests"])]


def docker_run(cli: Cli, *arguments: str) -> subprocess.CompletedProcess[str]:
    device = f"vgpurun.io/gpu={slice_folder(cli).name}"
    command = (docker_command(), "run", "--network=none", "--device", device, *WITH_PROGRAMS, *arguments)
    return subprocess.run(command, env=cli.environment, capture_output=True, text=True, timeout=100)


def held(cli: Cli, debian: str, *options: str) -> str:
    """Start a container whose program has memory, and return its id."""
    done = docker_run(cli, *HOLD, *options, debian, *GPU_PROGRAM, "hold", str(100 * MIB))
    assert done.returncode == 0, done
    container = cli.engine.containers.get(done.stdout.strip())
    wait_until(lambda: b"holding" in container.logs() or has_ended(container), "the program's word")
    assert b"holding" in container.logs(), container.logs()
    return str(container.id)


def has_ended(container: docker.models.containers.Container) -> bool:
    container.reload()
    return container.status == "exited"


def serving(cli: Cli) -> int | None:
    """Return the server, if any program has used it yet."""
    server_pid = json.loads((group_folder(cli) / "keeper").read_text())["server"]
    return None if server_pid is None else int(server_pid)


def clients(cli: Cli) -> list[str]:
    """Return the programs that are in the slice's server."""
    return (
        server.ask(CHECKOUT / "lib/build/sim" / CONTROL, group_folder(cli) / PIPES, f"get_client_list {serving(cli)}")
        or ""
    ).split()


def described(cli: Cli) -> dict:
    (found,) = json.loads(cli("slice", "inspect", *SIM, slice_folder(cli).name).stdout)
    return found


def test_containers_are_in_one_server_which_goes_with_the_last(cli: Cli, debian: str) -> None:
    assert is_at_rest(cli) and cli("prune", *SIM, "--dry-run").stdout.count("together") == 0
    first, other = (held(cli, debian) for _ in range(2))
    wait_until(lambda: serving(cli), "the server")
    wait_until(lambda: len(clients(cli)) == 2, "both in it")
    assert {each["id"] for each in described(cli)["members"]} == {first, other}
    assert described(cli)["together"]["runs"]
    joined = cli(
        "local", *SIM, "--slice", slice_folder(cli).name, "--", *GPU_PROGRAM[:1], str(PROGRAMS / "gpu.py"), "info"
    )
    assert joined.exit_code == 0, joined
    cli.engine.containers.get(first).kill()
    time.sleep(2)
    wait_until(lambda: len(clients(cli)) == 1, "the other one's place alone")
    cli("slice", "rm", *SIM, slice_folder(cli).name).assert_refused("in use by")
    cli.engine.containers.get(other).kill()
    wait_until(lambda: is_at_rest(cli), "the end of the server")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "MPS needs the host's IPC namespace: add --ipc host (Compose: ipc: host; Kubernetes: hostIPC: true)"),
        (("--ipc=host", "--user=1000"), "the container's programs would be user 1000's, and the MPS server"),
    ],
    ids=["an IPC namespace of its own", "another user"],
)
def test_what_cannot_join_does_not_start(cli: Cli, debian: str, options: tuple[str, ...], words: str) -> None:
    refused = docker_run(cli, "--rm", *options, debian, "true")
    assert refused.returncode not in (0, 1) and words in refused.stderr, refused
    assert is_at_rest(cli)


def test_no_container_starts_with_what_a_link_in_place_of_the_folder_leads_to(cli: Cli, debian: str) -> None:
    """The folder is its user's, and engines follow links as root."""
    pipes, other = group_folder(cli) / PIPES, cli.state_dir / "other"
    pipes.rename(pipes.with_name("away"))
    other.mkdir()
    (other / "kept").touch()
    pipes.symlink_to(other)
    refused = docker_run(cli, "--rm", "--ipc=host", debian, "true")
    assert refused.returncode not in (0, 1) and "the CDI device is not slice team-" in refused.stderr, refused
    assert (other / "kept").exists()
    pipes.unlink()
    pipes.with_name("away").rename(pipes)
    assert is_at_rest(cli) and not containers(cli)


def test_without_a_server_no_container_starts(cli: Cli, debian: str) -> None:
    (group_folder(cli) / "log").touch()
    refused = docker_run(cli, "--rm", "--ipc=host", debian, "true")
    assert refused.returncode not in (0, 1) and "vgpurun: no MPS server for slice team-" in refused.stderr, refused
    assert is_at_rest(cli) and not containers(cli)


def test_a_server_that_was_killed_is_there_again_for_the_next_and_after_a_restart(cli: Cli, debian: str) -> None:
    name = held(cli, debian)
    for killed in (daemons(cli)[0], keeper(cli)):
        os.kill(killed, signal.SIGKILL)
        assert docker_run(cli, "--rm", "--ipc=host", debian, *GPU_PROGRAM, "info").returncode == 0
    cli.engine.containers.get(name).restart(timeout=0)
    wait_until(lambda: cli.engine.containers.get(name).logs().count(b"holding") == 2, "memory after the restart")
    cli.engine.containers.get(name).kill()
    wait_until(lambda: is_at_rest(cli), "the end of the server")
    cli.engine.containers.get(name).start()
    wait_until(lambda: cli.engine.containers.get(name).logs().count(b"holding") == 3, "memory after the start")


def test_a_fault_is_said_and_the_next_has_a_new_server(cli: Cli, debian: str) -> None:
    other = held(cli, debian)
    wait_until(lambda: serving(cli), "the server")
    os.kill(serving(cli), signal.SIGUSR1)  # a fault for the simulated one
    wait_until(lambda: "a fault of one" in json.dumps(described(cli)["together"]["incidents"]), "a word of it")
    assert docker_run(cli, "--rm", "--ipc=host", debian, *GPU_PROGRAM, "info").returncode == 0
    assert cli.engine.containers.get(other).status == "running"


def test_a_container_that_is_killed_in_the_middle_of_its_work_leaves_nothing(cli: Cli, debian: str) -> None:
    busy = docker_run(cli, *HOLD, debian, *GPU_PROGRAM, "spin", "spin_500s", "1").stdout.strip()
    wait_until(lambda: serving(cli) and clients(cli), "work in the server")
    cli.engine.containers.get(busy).kill()
    wait_until(lambda: is_at_rest(cli), "the end of the server")


def test_what_everything_killed_leaves_prune_removes(cli: Cli, debian: str) -> None:
    name = held(cli, debian)
    guards = read_text(Path(f"/proc/{keeper(cli)}/task/{keeper(cli)}/children")).split()
    ends = [*map(int, guards), keeper(cli)]
    for each in ends:
        os.kill(each, signal.SIGKILL)
    wait_until(lambda: not any(map(identify, ends)), "their end")
    cli.engine.containers.get(name).kill()
    assert not is_at_rest(cli), "the keeper's record is there"
    pruned = cli("prune", *SIM, "--force")
    assert pruned.exit_code == 0 and is_at_rest(cli), pruned


def test_a_slice_takes_its_folder_with_it(cli: Cli, specification: Path) -> None:
    group = group_folder(cli)
    assert group.exists()
    assert cli("slice", "rm", *SIM, slice_folder(cli).name).exit_code == 0
    assert not group.exists() and not specification.exists()


# Podman and Compose are needed below: test_cdi_engines.py tells more of them.


@pytest.fixture
def open_cli(cli: Cli) -> Cli:
    """The command line by a Python that every user can run: the tests' own may lie in root's home."""
    python = python_for_all(cli.state_dir / "python", NOBODY.pw_uid)
    return replace(cli, command=(python, "-m", "vgpurun"))


@pytest.mark.exhaustive
def test_the_server_is_that_of_the_slice_s_user(open_cli: Cli, debian: str, podman: list[str]) -> None:
    """Root's engine starts it as that user, whose containers alone join."""
    cli, name = open_cli, slice_folder(open_cli).name
    assert cli("slice", "rm", *SIM, name).exit_code == 0
    (cli.state_dir / "together").chmod(0o1777)
    made = cli("slice", "create", *SIM, name, "--mem", "2g", "--together", "--users", NOBODY.pw_name)
    assert (made.exit_code, made.stderr) == (0, "")
    refused = docker_run(cli, "--rm", "--ipc=host", debian, "true")
    assert f"add --user {NOBODY.pw_uid} " in refused.stderr, refused
    held(cli, debian, f"--user={NOBODY.pw_uid}")
    assert {uid_of(each) for each in (keeper(cli), *daemons(cli))} == {NOBODY.pw_uid}
    for container in containers(cli):
        container.remove(force=True)
    wait_until(lambda: is_at_rest(cli), "the end of the server")
    _init_and_start(cli, podman)


def _init_and_start(cli: Cli, podman: list[str]) -> None:
    """Podman's container is there, as root's, some time before its program is, as the user's."""

    def run(*words: str) -> str:
        done = subprocess.run([*podman, *words], env=cli.environment, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done
        return done.stdout.strip()

    device = ("--device", f"vgpurun.io/gpu={slice_folder(cli).name}", "--ipc=host", f"--user={NOBODY.pw_uid}")
    limits = ("--network=none", "--ulimit=nofile=1024:1024", "--ulimit=nproc=1000:1000")
    made = run("create", *device, *limits, *WITH_PROGRAMS, "vgpurun-test", *GPU_PROGRAM, "info")
    run("init", made)
    time.sleep(2)
    assert daemons(cli), "four looks of the keeper later"
    run("start", made)
    wait_until(lambda: '"devices"' in run("logs", made), "the program's word")
    wait_until(lambda: is_at_rest(cli), "the end of the server")


@pytest.mark.exhaustive
def test_services_of_compose_are_in_one_server(cli: Cli, debian: str, compose: Path, tmp_path: Path) -> None:
    name = slice_folder(cli).name
    device = {"driver": "cdi", "device_ids": [f"vgpurun.io/gpu={name}"], "capabilities": ["gpu"]}
    service = {
        "image": debian,
        "command": [*GPU_PROGRAM, "hold", str(100 * MIB)],
        "stdin_open": True,
        "ipc": "host",
        "network_mode": "none",
        "volumes": [WITH_PROGRAMS[1]],
        "deploy": {"resources": {"reservations": {"devices": [device]}}},
    }
    (tmp_path / "compose.yaml").write_text(json.dumps({"services": {"serve": service, "embed": service}}))
    command = [compose, "-p", name, "-f", tmp_path / "compose.yaml"]
    done = subprocess.run([*command, "up", "-d"], env=cli.environment, capture_output=True, text=True, timeout=100)
    try:
        assert done.returncode == 0, done
        wait_until(lambda: serving(cli) and len(clients(cli)) == 2, "both in the server")
    finally:
        subprocess.run([*command, "down", "-t", "0"], env=cli.environment, capture_output=True, timeout=100)
    wait_until(lambda: is_at_rest(cli), "the end of the server")
