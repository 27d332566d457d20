"""Images made of a container, and containers beside it, keep nothing of what its launch has set."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cli import GPU_PROGRAM, WITH_PROGRAMS, Cli, Result
from docker_command import docker_command

GIB = 1 << 30
LIMITS = ("--mem", "1g", "--sm", "30")
SCRIPT = "id -un; env -i /bin/ls /; /sbin/ldconfig; python3 -c 'print(1)'"
_numbers = itertools.count()


@pytest.fixture
def commit(own_gpu: Cli) -> Iterator[Callable[..., str]]:
    """Makes an image of a container, and removes it at the end."""
    tags: list[str] = []

    def make(container: str, changes: list[str] | None = None) -> str:
        tag = f"vgpurun-test/committed:{os.getpid()}-{next(_numbers)}"
        repository, _, version = tag.rpartition(":")
        own_gpu.engine.containers.get(container).commit(repository, version, changes=changes)
        tags.append(tag)
        return tag

    yield make
    own_gpu.remove_containers()
    for tag in reversed(tags):
        own_gpu.engine.images.remove(tag, force=True)


@pytest.fixture
def plain(own_gpu: Cli) -> Iterator[Callable[..., Result]]:
    """docker's own command line. The containers that it names with --name are removed at the end."""
    environment = {"PATH": os.environ["PATH"], "DOCKER_HOST": own_gpu.environment["DOCKER_HOST"], "HOME": "/nowhere"}
    names: list[str] = []

    def run(*arguments: str) -> Result:
        names.extend(arguments[place + 1] for place, each in enumerate(arguments) if each == "--name")
        done = subprocess.run([docker_command(), *arguments], env=environment, capture_output=True, text=True)
        noise = "WARNING: IPv4 forwarding is disabled. Networking will not work.\n"
        return Result(done.returncode, done.stdout, done.stderr.replace(noise, ""))

    yield run
    for name in names:
        run("rm", "-f", "-v", name)


def made(cli: Cli, image: str, *options: str) -> str:
    """Run a container under limits to its end; return its name."""
    name = f"vgpurun-test-commit-{os.getpid()}-{next(_numbers)}"
    assert cli("run", *cli.driver, "--name", name, *LIMITS, *options, image, "touch", "/work").exit_code == 0
    return name


def limits_in(cli: Cli, image: str, *options: str) -> tuple[int, int | None]:
    """The memory that a program of the image sees, and the compute limit that holds."""
    with cli.started("run", "-i", "--rm", *cli.driver, *options, *WITH_PROGRAMS, image, *GPU_PROGRAM, "hold", "1",
                     stdin=subprocess.PIPE) as process:  # fmt: skip
        process.stdout.readline()
        (tenant,) = json.loads(cli("smi", "--driver", "sim", "--format", "json").stdout)["containers"]
        process.communicate("")
    total = cli.run(*options, *WITH_PROGRAMS, image, *GPU_PROGRAM, "info").json()["devices"][0]["total"]
    return total, tenant["devices"][0]["sm_limit_percent"]


def test_the_limits_of_a_container_are_not_those_of_its_image(
    own_gpu: Cli, debian: str, commit: Callable[..., str]
) -> None:
    image = commit(made(own_gpu, debian))
    assert limits_in(own_gpu, image, "--mem", "4g", "--sm", "80") == (4 * GIB, 80)
    assert limits_in(own_gpu, image) == (16 * GIB, None)


def test_an_image_has_no_path_of_the_host(own_gpu: Cli, debian: str, commit: Callable[..., str]) -> None:
    config = own_gpu.engine.images.get(commit(made(own_gpu, debian))).attrs["Config"]
    assert str(own_gpu.state_dir.parent) not in json.dumps(config), config


def test_what_an_image_says_itself_stays(own_gpu: Cli, debian: str, commit: Callable[..., str]) -> None:
    says = commit(made(own_gpu, debian), ["ENV CUDA_DEVICE_MEMORY_LIMIT=3g CUDA_DEVICE_SM_LIMIT=40"])
    assert limits_in(own_gpu, says, "--mem", "8g") == (3 * GIB, 40)
    again = commit(made(own_gpu, says))
    assert limits_in(own_gpu, again, "--mem", "8g") == (3 * GIB, 40)


def test_a_plain_container_of_the_image_is_dockers(
    own_gpu: Cli, debian: str, commit: Callable[..., str], plain: Callable[..., Result]
) -> None:
    image = commit(made(own_gpu, debian))
    name = "vgpurun-test-plain-of-image"
    assert plain("run", "-d", "--name", name, image, "sleep", "300").exit_code == 0
    assert own_gpu("ps", "--driver", "sim", "-a", "--format", "{{.Names}}").stdout.splitlines().count(name) == 0
    assert name not in own_gpu("smi", "--driver", "sim").stdout
    assert own_gpu.run("--mem", "16g", debian, "true").exit_code == 0, "nothing is reserved for it"
    refused = own_gpu("rm", "-f", name)
    assert refused.exit_code == 1 and "was not made by vgpurun" in refused.stderr
    assert plain("inspect", "--format", "{{.State.Status}}", name).stdout == "running\n"


def test_a_plain_container_that_waits_to_be_started_is_not_swept(
    own_gpu: Cli, debian: str, commit: Callable[..., str], plain: Callable[..., Result]
) -> None:
    container = made(own_gpu, debian)
    image = commit(container)
    assert plain("rm", container).exit_code == 0
    name = "vgpurun-test-plain-created"
    assert plain("create", "--name", name, image, "true").exit_code == 0
    assert own_gpu.run(debian, "true").exit_code == 0
    assert plain("inspect", "--format", "{{.State.Status}}", name).stdout == "created\n"


def test_nothing_of_the_image_complains(
    own_gpu: Cli, debian: str, commit: Callable[..., str], plain: Callable[..., Result]
) -> None:
    before = plain("run", "--rm", debian, "sh", "-c", SCRIPT)
    after = plain("run", "--rm", commit(made(own_gpu, debian)), "sh", "-c", SCRIPT)
    assert (after.exit_code, after.stderr) == (0, "")
    assert set(after.stdout.split()) - set(before.stdout.split()) <= {"work"}


@pytest.mark.exhaustive
def test_generations_do_not_grow(own_gpu: Cli, debian: str, commit: Callable[..., str]) -> None:
    images = [debian]
    for _ in range(3):
        images.append(commit(made(own_gpu, images[-1])))
    configs = [own_gpu.engine.images.get(image).attrs["Config"] for image in images]
    of_image = set(configs[0]["Env"])
    for config in configs[1:]:
        assert not {each.partition("=")[0] for each in set(config["Env"]) - of_image} & {
            "LD_PRELOAD", "LD_LIBRARY_PATH", "PATH", "CUDA_DEVICE_MEMORY_SHARED_CACHE",
        }  # fmt: skip
        assert not [each for each in config["Env"] if "_LIMIT" in each or "/.vgpurun" in each]
    assert configs[1]["Env"] == configs[3]["Env"]
    assert set(configs[1]["Labels"]) == set(configs[3]["Labels"])


def as_committed_before(own_gpu: Cli, base: str, commit: Callable[..., str]) -> str:
    """An image as the version before left it, of an image with an LD_PRELOAD of its own."""
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    variables = {
        "LD_PRELOAD": "/.vgpurun/libvgpu.so:/.vgpurun/libvgpu.so:libm.so.6",
        "LD_LIBRARY_PATH": "/.vgpurun/driver:/.vgpurun/driver",
        "PATH": f"{path}:/.vgpurun/driver:/.vgpurun/driver",
        "CUDA_DEVICE_MEMORY_LIMIT_0": str(GIB),
        "CUDA_DEVICE_SM_LIMIT_0": "30",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/.vgpurun/run/usage",
    }
    quota = '[{"uuid": "GPU-x", "memory_bytes": 1073741824, "virtual_bytes": null, "sm_percent": 30}]'
    labels = {
        "vgpurun.version": "0.1.0", "vgpurun.user": "root", "vgpurun.quota": quota,
        "vgpurun.state": str(own_gpu.state_dir / "containers" / "gone"),
    }  # fmt: skip
    files = "/.vgpurun/libvgpu.so /etc/ld.so.preload /usr/lib64/libcuda.so.1 /usr/lib/x86_64-linux-gnu/libcuda.so.1"
    left = f"mkdir -p /.vgpurun/driver /.vgpurun/etc /.vgpurun/run /usr/lib64; touch {files}"
    client = own_gpu.engine
    container = client.containers.create(base, ["sh", "-c", left])
    container.start()
    container.wait()
    changes = [f"ENV {name}={value}" for name, value in variables.items()]
    try:
        return commit(container.id, [*changes, *(f"LABEL {name}='{value}'" for name, value in labels.items())])
    finally:
        container.remove()


def test_an_image_that_was_committed_before_is_healed(own_gpu: Cli, debian: str, commit: Callable[..., str]) -> None:
    old = as_committed_before(own_gpu, debian, commit)
    assert limits_in(own_gpu, old, "--mem", "4g", "--sm", "80") == (4 * GIB, 80)
    assert limits_in(own_gpu, old) == (16 * GIB, None)
    script = "import json, os; print(json.dumps(dict(os.environ)))"
    seen = own_gpu.run(*LIMITS, old, "python3", "-c", script)
    assert seen.stderr == ""
    variables = seen.json()
    assert variables["LD_PRELOAD"] == "libm.so.6"
    assert variables["PATH"] == "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    assert not {"LD_LIBRARY_PATH", "CUDA_DEVICE_MEMORY_LIMIT_0", "CUDA_DEVICE_SM_LIMIT_0"} & set(variables)
    assert not [value for value in variables.values() if "/.vgpurun" in value]


@pytest.mark.exhaustive
def test_a_users_own_variables_are_not_healed(own_gpu: Cli, debian: str, commit: Callable[..., str]) -> None:
    old = as_committed_before(own_gpu, debian, commit)
    given = ("-e", "CUDA_DEVICE_MEMORY_LIMIT_0=2g", "-e", "PATH=/bin:/usr/bin")
    assert limits_in(own_gpu, old, *given, "--mem", "4g") == (2 * GIB, None)


@pytest.mark.exhaustive
def test_an_exported_file_system_is_harmless(
    own_gpu: Cli, debian: str, plain: Callable[..., Result], tmp_path: Path
) -> None:
    tar, tag = tmp_path / "exported.tar", f"vgpurun-test/imported:{os.getpid()}"
    assert plain("export", "-o", str(tar), made(own_gpu, debian)).exit_code == 0
    assert plain("import", str(tar), tag).exit_code == 0
    try:
        done = plain("run", "--rm", tag, "/bin/sh", "-c", SCRIPT)
        assert (done.exit_code, done.stderr) == (0, "")
        assert limits_in(own_gpu, tag, "--mem", "4g")[0] == 4 * GIB
    finally:
        own_gpu.remove_containers()
        own_gpu.engine.images.remove(tag, force=True)


def test_volumes_from_a_container_of_ours_make_no_container_ours(
    own_gpu: Cli, debian: str, commit: Callable[..., str], plain: Callable[..., Result]
) -> None:
    container = made(own_gpu, debian)
    name = "vgpurun-test-volumes-from"
    for image in (debian, commit(container)):
        done = plain("run", "-d", "--name", name, "--volumes-from", container, image, "sleep", "300")
        assert (done.exit_code, done.stderr) == (0, "")
        assert name not in own_gpu("ps", "--driver", "sim", "-a").stdout
        assert name not in own_gpu("smi", "--driver", "sim").stdout
        assert "was not made by vgpurun" in own_gpu("rm", "-f", name).stderr
        assert plain("exec", name, "sh", "-c", SCRIPT).stderr == ""
        assert plain("rm", "-f", name).exit_code == 0


def test_ours_takes_volumes_from_ours(own_gpu: Cli, debian: str) -> None:
    container = made(own_gpu, debian)
    assert limits_in(own_gpu, debian, "--volumes-from", container, "--mem", "4g")[0] == 4 * GIB


def test_an_images_own_preload_file_is_kept(own_gpu: Cli, debian: str, commit: Callable[..., str]) -> None:
    container = own_gpu.engine.containers.create(debian, ["sh", "-c", "echo libm.so.6 >/etc/ld.so.preload"])
    container.start()
    container.wait()
    image = commit(container.id)
    container.remove()
    seen = own_gpu.run(*LIMITS, image, "cat", "/proc/self/maps").stdout
    assert "libm.so.6" in seen and "libvgpu.so" in seen
    again = commit(made(own_gpu, image))
    assert "libvgpu" not in own_gpu.engine.containers.run(again, ["cat", "/etc/ld.so.preload"], remove=True).decode()
