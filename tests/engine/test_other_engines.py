"""Engines that are not the one of the system: an engine of an ordinary user's own, and Podman's socket."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

import images
from cli import GPU_PROGRAM, Cli, clean_environment
from private_engine import fetched_engine
from support import CHECKOUT, wait_until
from support.debian_packages import tool, with_packages

pytestmark = pytest.mark.exhaustive

USER = "nobody"
IMAGE = "vgpurun-test/rootless:1"
FIRST_SUBORDINATE, SUBORDINATES = 300_000, 65_536
DOCKERD = (
    "dockerd --rootless --storage-driver vfs --exec-opt native.cgroupdriver=cgroupfs --host unix://{0}/docker.sock "
    "--data-root {0}/data --exec-root {0}/exec --pidfile {0}/docker.pid --bridge=none --iptables=false "
    "--ip6tables=false --ip-forward=false --userland-proxy=false"
)


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder that everybody can enter, with a path that is short enough for a socket."""
    folder = Path(tempfile.mkdtemp(prefix="vgpurun-other-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def subordinate_ids() -> Iterator[None]:
    """Numbers for the users of the containers, as useradd gives them to whom it makes."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    lines = {path: path.read_text() if path.exists() else "" for path in map(Path, ("/etc/subuid", "/etc/subgid"))}
    for path, text in lines.items():
        path.write_text(f"{text}{USER}:{FIRST_SUBORDINATE}:{SUBORDINATES}\n")
    yield
    for path, text in lines.items():
        path.write_text(text)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and what it has started in its session."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def rootless(short_folder: Path, subordinate_ids: None) -> Iterator[docker.DockerClient]:
    engine = short_folder / "engine"  # the cache may be where others cannot enter
    shutil.copytree(fetched_engine(), engine)
    own = short_folder / "own"
    own.mkdir()
    owner = pwd.getpwnam(USER)
    os.chown(own, owner.pw_uid, owner.pw_gid)
    environment = {"HOME": str(own), "XDG_RUNTIME_DIR": str(own), "PATH": f"{engine}/bin:{os.environ['PATH']}:/sbin"}
    environment["LD_LIBRARY_PATH"] = str(engine / "lib")
    script = f"rm -f /run/docker /run/containerd; exec {DOCKERD.format(own)}"
    installed = shutil.which("rootlesskit") and shutil.which("newuidmap")
    command = [] if installed else [str(with_packages("rootlesskit", "uidmap"))]
    command += ["setpriv", f"--reuid={owner.pw_uid}", f"--regid={owner.pw_gid}", "--clear-groups"]
    command += ["rootlesskit", "--net=host", f"--state-dir={own}/kit", "--copy-up=/etc", "--copy-up=/run"]
    with (short_folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--", "sh", "-c", script], env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True, cwd=own,
        )  # fmt: skip
    try:
        wait_until(lambda: (own / "docker.sock").exists() or process.poll() is not None, "engine")
        if process.poll() is not None:
            pytest.skip("no rootless engine here: " + (short_folder / "log").read_text().strip().splitlines()[-1])
        client = docker.DockerClient(base_url=f"unix://{own}/docker.sock", version="1.45")
        wait_until(lambda: answers(client), "answer")
        yield client
        client.close()
    finally:
        if process.poll() is None:
            stop(process)


def answers(client: docker.DockerClient) -> bool:
    try:
        return bool(client.ping())
    except (docker.errors.DockerException, OSError):
        return False


def test_a_rootless_engine(rootless: docker.DockerClient, short_folder: Path, built_library: Path) -> None:
    """Its containers see what its user may see: vgpurun, its state and the programs lie where all can read them."""
    images.debian(rootless, IMAGE)
    for name in ("vgpurun", "lib"):
        shutil.copytree(CHECKOUT / name, short_folder / "checkout" / name)
    shutil.copytree(CHECKOUT / "tests/engine/programs", short_folder / "programs")
    host = f"unix://{short_folder}/own/docker.sock"
    environment = clean_environment(host, short_folder / "state", short_folder)
    command = ("env", f"--chdir={short_folder}/checkout", sys.executable, "-m", "vgpurun")
    cli = Cli(rootless, environment, short_folder / "state", command=command)
    programs = ("-v", f"{short_folder}/programs:/programs:ro")
    # A single container must do: this engine copies the whole image for each.
    assert cli.run("-d", "--name", "own", "--mem", "1g", *programs, IMAGE, "sleep", "600").exit_code == 0
    seen = cli("exec", "own", *GPU_PROGRAM, "info").json()
    assert [(gpu["total"], gpu["nvml_total"]) for gpu in seen["devices"]] == [(1 << 30, 1 << 30)]
    assert cli("exec", "-i", "--user", "1000", "own", "cat", stdin="typed").stdout == "typed"
    assert "1 GiB, 100 % -> 2 GiB, 100 %" in cli("update", *cli.driver, "--mem", "2g", "own").stdout
    assert cli("rm", "-f", "own").exit_code == 0
    cli.assert_nothing_left()


def test_podmans_socket_is_refused(built_library: Path, short_folder: Path, tmp_path: Path) -> None:
    podman = tool("podman", "podman")
    address = f"unix://{short_folder}/podman.sock"
    places = [f"--root={short_folder}/root", f"--runroot={short_folder}/run", f"--tmpdir={short_folder}/tmp"]
    drivers = ["--storage-driver=vfs", "--cgroup-manager=cgroupfs"]
    process = subprocess.Popen(
        [podman, *places, *drivers, "system", "service", "-t", "0", address],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        client = docker.DockerClient(base_url=address, version="1.40")
        wait_until(lambda: answers(client) or process.poll() is not None, "answer")
        assert process.poll() is None
        cli = Cli(client, clean_environment(address, tmp_path / "state", tmp_path), tmp_path / "state")
        cli.run("image", "true").assert_refused("Podman", "vgpurun cdi")
        cli("ps").assert_refused("Podman")
        client.close()
    finally:
        if process.poll() is None:
            stop(process)
