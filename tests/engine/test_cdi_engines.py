"""A slice's CDI device, used without vgpurun: by docker, podman, podman-compose and docker compose."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import docker
import jsonschema
import pytest
import yaml
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT7

from cli import GPU_PROGRAM, WITH_PROGRAMS, Cli
from docker_command import docker_command
from escapes import by_nix_loader
from support import CHECKOUT, wait_until
from support.debian_packages import unpacked
from vgpurun import abi
from vgpurun.cdi.of_slices import TMPFILES

pytestmark = pytest.mark.exhaustive

MIB, GIB = 1 << 20, 1 << 30
SIM = ("--driver", "sim")
SCHEMAS = "golang-github-container-orchestrated-devices-container-device-interface-dev"


@pytest.fixture
def cli(own_gpu: Cli, engine: docker.DockerClient) -> Cli:
    if not engine.info().get("CDISpecDirs"):
        pytest.skip("this engine has no CDI")
    return own_gpu


@pytest.fixture
def specification(engine: docker.DockerClient, tmp_path: Path) -> Iterator[Path]:
    """A file that the engine reads as a specification; podman reads the same folders."""
    if os.geteuid() != 0:
        pytest.skip("only root can write a CDI specification")
    path = Path("/etc/cdi") / f"vgpurun-test-{os.getpid()}.yaml"
    had_tmpfiles, had_folder = TMPFILES.exists(), TMPFILES.parent.exists()
    TMPFILES.parent.mkdir(exist_ok=True)
    yield path
    path.unlink(missing_ok=True)
    if not had_tmpfiles:
        TMPFILES.unlink(missing_ok=True)
    if not had_folder:
        TMPFILES.parent.rmdir()


@pytest.fixture
def name(cli: Cli, specification: Path) -> str:
    """A slice of 2 GiB with a CDI device. Every engine of this machine reads the folder: so its name is its own."""
    name = f"slice-{os.urandom(4).hex()}"
    for command in (
        ("slice", "create", *SIM, name, "--mem", "2g"),
        ("cdi", "generate", *SIM, "-o", str(specification)),
    ):
        assert cli(*command).exit_code == 0
    return name


def run(*command: object, cli: Cli, **popen: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)), env=cli.environment, capture_output=True, text=True, timeout=100, **popen
    )


def docker_run(cli: Cli, *arguments: str) -> str:
    """Return what a plain docker run prints; it must succeed."""
    done = run(docker_command(), "run", "--network=none", *arguments, cli=cli)
    assert done.returncode == 0, done
    return done.stdout


def device(name: str) -> tuple[str, ...]:
    return ("--device", f"vgpurun.io/gpu={name}", *WITH_PROGRAMS)


@pytest.mark.parametrize("prefix", [("env", "-i"), by_nix_loader()], ids=["env -i", "Nix's loader"])
def test_docker_run_gives_the_limits(cli: Cli, name: str, debian: str, prefix: Sequence[str]) -> None:
    info = (*prefix, "/usr/bin/python3", *GPU_PROGRAM[1:], "info")
    seen = json.loads(docker_run(cli, "--rm", *device(name), debian, *info))
    assert [each["total"] for each in seen["devices"]] == [2 * GIB]
    assert [each["nvml_total"] for each in seen["devices"]] == [2 * GIB]
    filled = json.loads(docker_run(cli, "--rm", *device(name), debian, *GPU_PROGRAM, "fill", str(20 * MIB)))
    assert filled["result"] == 2
    assert GIB < filled["granted_bytes"] <= 2 * GIB - 518 * MIB


def test_nothing_that_limits_can_be_written_in_the_container(cli: Cli, name: str, debian: str) -> None:
    files = "/.vgpurun/libvgpu.so /.vgpurun/etc/limits /etc/ld.so.preload"
    script = f"for file in {files}; do (echo x >> $file) 2>/dev/null; echo $?; done"
    assert "0" not in docker_run(cli, "--rm", *device(name), debian, "bash", "-c", script).split()


def test_containers_of_docker_and_vgpurun_share_a_slice_and_keep_it(cli: Cli, name: str, debian: str) -> None:
    holder = docker_run(cli, "-d", "-i", *device(name), debian, *GPU_PROGRAM, "hold", str(600 * MIB)).strip()
    try:
        cli.wait_for_output(holder, b"holding")
        filled = cli.run("--slice", name, *WITH_PROGRAMS, debian, *GPU_PROGRAM, "fill", str(20 * MIB)).json()
        assert 0 < filled["granted_bytes"] <= (2048 - 600 - 2 * 518) * MIB
        (shown,) = json.loads(cli("slice", "inspect", *SIM, name).stdout)
        assert [(each["id"], each["memory_used_bytes"]) for each in shown["members"]] == [(holder, [1118 * MIB])]
        cli("slice", "rm", *SIM, name).assert_refused(f"in use by container {holder[:12]}")
    finally:
        cli.engine.containers.get(holder).remove(force=True)
    assert cli("slice", "rm", *SIM, name).exit_code == 0


def test_what_containers_need_after_a_reboot_is_made_then(cli: Cli, name: str, tmp_path: Path) -> None:
    lines = [line.split() for line in TMPFILES.read_text().splitlines() if not line.startswith("#")]
    assert lines == [["d", abi.LOCK_DIR, "1777", "root", "root", "-"]]


def test_the_specification_follows_the_slices(cli: Cli, name: str, specification: Path) -> None:
    def shown() -> dict[str, str]:
        if not specification.exists():
            return {}
        devices = yaml.safe_load(specification.read_text())["devices"]
        return {each["name"]: each["containerEdits"]["env"][1] for each in devices}

    assert shown() == {name: f"CUDA_DEVICE_MEMORY_LIMIT_0={2 * GIB}"}
    assert cli("slice", "update", *SIM, "--mem", "1g", name).exit_code == 0
    assert shown() == {name: f"CUDA_DEVICE_MEMORY_LIMIT_0={GIB}"}
    assert cli("slice", "rm", *SIM, name).exit_code == 0
    assert not specification.exists(), "a specification without devices is none"
    assert cli("slice", "create", *SIM, "next", "--mem", "3g").exit_code == 0
    assert shown() == {"next": f"CUDA_DEVICE_MEMORY_LIMIT_0={3 * GIB}"}
    assert cli("cdi", "remove", *SIM).stdout == f"{specification}\n"
    assert cli("slice", "create", *SIM, "last", "--mem", "3g").exit_code == 0
    assert not specification.exists()


@pytest.fixture(scope="session")
def is_valid() -> Callable[[dict], bool]:
    """The JSON schema of the CDI project itself, as Debian has it."""
    (main,) = unpacked(SCHEMAS).rglob("schema/schema.json")
    definitions = json.loads((main.parent / "defs.json").read_text())
    resource = Resource.from_contents(definitions, default_specification=DRAFT7)
    schema = jsonschema.Draft7Validator(
        json.loads(main.read_text()), registry=Registry().with_resource("defs.json", resource)
    )
    return schema.is_valid


@pytest.mark.parametrize("output_format", ["yaml", "json"])
def test_the_specification_is_valid(cli: Cli, name: str, is_valid: Callable[[dict], bool], output_format: str) -> None:
    printed = cli("cdi", "generate", *SIM, "-o", "-", "--format", output_format, name).stdout
    described = json.loads(printed) if output_format == "json" else yaml.safe_load(printed)
    assert is_valid(described)
    del described["devices"][0]["containerEdits"]["mounts"][0]["hostPath"]
    assert not is_valid(described), "the schema sees what is wrong"


def test_an_image_with_musl_runs_and_nothing_is_limited_for_nothing_reaches_the_gpu(
    cli: Cli, name: str, musl: str
) -> None:
    assert docker_run(cli, "--rm", "--device", f"vgpurun.io/gpu={name}", musl, "/bin/hello")
    script = "ls /usr/lib/x86_64-linux-gnu/libcuda.so.1 && ls /lib64"
    done = run(docker_command(), "run", "--rm", "--network=none", *device(name), musl, "/bin/sh", "-c", script, cli=cli)
    assert "libcuda.so.1" in done.stdout and "ld-linux" not in done.stdout, "the driver has no loader there"


# ---- podman ------------------------------------------------------------------------------------------------------


def test_podman_run_gives_the_limits_and_shares_them_with_docker(
    cli: Cli, name: str, debian: str, podman: list[str]
) -> None:
    own = ("--network", "none", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1000:1000", *device(name))
    seen = run(*podman, "run", "--rm", *own, "vgpurun-test", *GPU_PROGRAM, "info", cli=cli)
    assert seen.returncode == 0, seen
    assert [each["total"] for each in json.loads(seen.stdout)["devices"]] == [2 * GIB]
    held = run(*podman, "run", "-d", "-i", *own, "vgpurun-test", *GPU_PROGRAM, "hold", 600 * MIB, cli=cli)
    assert held.returncode == 0, held
    holder = held.stdout.strip()
    try:
        wait_until(lambda: "holding" in run(*podman, "logs", holder, cli=cli).stdout, "memory")
        filled = json.loads(docker_run(cli, "--rm", *device(name), debian, *GPU_PROGRAM, "fill", str(20 * MIB)))
        assert 0 < filled["granted_bytes"] <= (2048 - 600 - 2 * 518) * MIB
        cli("slice", "rm", *SIM, name).assert_refused(f"in use by container {holder[:12]}")
    finally:
        run(*podman, "rm", "--force", "--time", "0", holder, cli=cli)


def test_podman_compose_gives_the_limits(cli: Cli, name: str, podman: list[str], tmp_path: Path) -> None:
    """By the service's `devices`, since it takes no notice of `deploy.resources.reservations`."""
    service = {
        "image": "vgpurun-test",
        "command": [*GPU_PROGRAM, "info"],
        "devices": [f"vgpurun.io/gpu={name}"],
        "volumes": [WITH_PROGRAMS[1]],
        "network_mode": "none",
        "ulimits": {"nofile": 1024, "nproc": 1000},
    }
    (tmp_path / "compose.yaml").write_text(yaml.safe_dump({"services": {"job": service}}))
    wrapper = tmp_path / "podman"  # podman-compose has no options for where Podman keeps things
    wrapper.write_text(f'#!/bin/sh\nexec {shlex.join(map(str, podman))} "$@"\n')
    wrapper.chmod(0o755)
    compose = (
        sys.executable,
        "-m",
        "podman_compose",
        "--podman-path",
        wrapper,
        "--project-name",
        name,
        "-f",
        tmp_path / "compose.yaml",
    )
    assert run(*compose, "up", "-d", cli=cli, cwd=tmp_path).returncode == 0

    def answer() -> str:
        made = run(*podman, "ps", "-aq", "--filter", f"label=com.docker.compose.project={name}", cli=cli).stdout.split()
        return run(*podman, "logs", *made, cli=cli).stdout if made else ""

    try:
        seen = json.loads(wait_until(answer, "answer of the service", 60))
        assert [each["total"] for each in seen["devices"]] == [2 * GIB]
    finally:
        run(*compose, "down", cli=cli, cwd=tmp_path)


# ---- docker compose ----------------------------------------------------------------------------------------------


def test_compose_takes_and_refuses_what_convert_says(cli: Cli, compose: Path, tmp_path: Path) -> None:
    def config(text: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "compose.yaml").write_text(text)
        return run(compose, "-f", tmp_path / "compose.yaml", "config", cli=cli)

    invented = (CHECKOUT / "examples" / "compose-invented.yaml").read_text()
    assert config(invented).returncode == 0, "it looks right"
    (tmp_path / "compose.yaml").write_text(invented)
    assert cli("convert", str(tmp_path / "compose.yaml"), "--write").exit_code == 0
    described = yaml.safe_load(config((tmp_path / "compose.yaml").read_text()).stdout)
    devices = [each["deploy"]["resources"]["reservations"]["devices"] for each in described["services"].values()]
    assert [[device["driver"] for device in of_service] for of_service in devices] == [["cdi"], ["cdi"]]
    service = "services:\n  a:\n    image: x\n"
    for refused in (
        "    gpu_memory: 2g\n",
        "    deploy:\n      resources:\n        limits:\n          gpu_memory: 2g\n",
        "    deploy:\n      resources:\n        reservations:\n          devices:\n            - capabilities: [gpu]\n"
        "              memory: 2g\n",
    ):
        assert config(service).returncode == 0
        assert config(service + refused).returncode != 0, refused
        (tmp_path / "compose.yaml").write_text(service + refused)
        shown = cli("convert", str(tmp_path / "compose.yaml"))
        assert shown.exit_code == 1 and "docker compose refuses the file" in shown.stdout


def test_the_compose_example(cli: Cli, specification: Path, debian: str, compose: Path, tmp_path: Path) -> None:
    """Its services as they are, but for the image and command, and the network, of which the tests' engine has none."""
    described = yaml.safe_load((CHECKOUT / "examples" / "compose.yaml").read_text())
    for service in described["services"].values():
        service |= {
            "image": debian,
            "command": [*GPU_PROGRAM, "info"],
            "volumes": [WITH_PROGRAMS[1]],
            "network_mode": "none",
        }
    (tmp_path / "compose.yaml").write_text(yaml.safe_dump(described))
    text = (CHECKOUT / "examples" / "compose.yaml").read_text()
    commands = [line.split("vgpurun ", 1)[1].split() for line in text.splitlines() if "   vgpurun slice" in line]
    assert len(commands) == 2
    for command in commands:
        assert cli(*command, *SIM).exit_code == 0
    assert cli("cdi", "generate", *SIM, "-o", str(specification)).exit_code == 0
    project = f"vgpurun{os.getpid()}"
    done = run(compose, "-p", project, "up", "--no-color", cli=cli, cwd=tmp_path)
    try:
        assert done.returncode == 0, done
        for service, limit_bytes in (("small", 2 * GIB), ("large", 8 * GIB)):
            logs = run(compose, "-p", project, "logs", "--no-log-prefix", service, cli=cli, cwd=tmp_path)
            assert f'"total": {limit_bytes},' in logs.stdout, logs
    finally:
        run(compose, "-p", project, "down", "-t", "0", cli=cli, cwd=tmp_path)
