"""Images for the engine tests, made from Debian's packages: no registry is asked for anything."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import docker

from support.debian_packages import UnavailableError, kept, tool, unpacked

PROGRAMS = Path(__file__).parent / "programs"
DEBIAN_SUITE = "bookworm"
PYTHON = "python3"  # has ctypes, for the test programs
BUILD = "python3,gcc,make,libc6-dev"  # builds the library in a container; twice as large, and each engine imports it
LEFT_OUT = (
    "/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*",
    "/usr/lib/*/gconv/*", "/usr/bin/*-lto-dump-*", "/usr/lib/gcc/*/lto1", "/usr/lib/*san.*",
)  # fmt: skip
# A third of it, which only the making needs. Each engine imports an image, which takes seconds.
PERL = "usr/share/perl usr/lib/*/perl usr/lib/*/libperl.so*"
PREPARED = "vgpurun-prepared/debian:1"  # has PYTHON; on a private engine from its start
# Images have it that are imported from now on: PREPARED is kept as it is (private_engine.py).
COMMAND_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def debian(client: docker.DockerClient, tag: str, packages: str = PYTHON) -> None:
    """A Debian with glibc and these packages."""
    if packages == PYTHON:
        with suppress(docker.errors.ImageNotFound):
            client.api.tag(PREPARED, *tag.rsplit(":", 1))
            return
    _import(client, debian_tar(packages), tag)


def busybox(client: docker.DockerClient, tag: str) -> None:
    """Make an image with a static program and no C library."""
    with new_root() as root:
        _add_busybox(root)
        _import_folder(client, root, tag)


def musl(client: docker.DockerClient, tag: str) -> None:
    """Laid out as Alpine is: musl is the only C library, and /bin/hello is linked with it."""
    compiler = tool("musl-gcc", "musl-tools")
    with new_root() as root:
        _add_busybox(root)
        subprocess.run([compiler, "-o", root / "bin/hello", PROGRAMS / "hello.c"], check=True)
        (root / "lib").mkdir()
        shutil.copy(unpacked("musl") / "lib/ld-musl-x86_64.so.1", root / "lib/ld-musl-x86_64.so.1")
        (root / "lib/libc.musl-x86_64.so.1").symlink_to("ld-musl-x86_64.so.1")
        _import_folder(client, root, tag)


def cuda_devel(client: docker.DockerClient, tag: str, base_tag: str, include_dirs: list[Path]) -> None:
    """An image with the CUDA headers where NVIDIA's devel images have them."""
    with new_root() as context:
        for folder in include_dirs:
            shutil.copytree(folder, context / "include", dirs_exist_ok=True)
        (context / "Dockerfile").write_text(f"FROM {base_tag}\nCOPY include /usr/local/cuda/include\n")
        client.images.build(path=str(context), tag=tag, rm=True, forcerm=True)


def debian_tar(packages: str = PYTHON) -> Path:
    recipe = hashlib.sha256(repr((DEBIAN_SUITE, packages, LEFT_OUT, PERL)).encode()).hexdigest()[:12]
    return kept(f"debian-{DEBIAN_SUITE}-{recipe}", partial(_make_debian, packages)) / "root.tar"


def _make_debian(packages: str, folder: Path) -> None:
    options = [f"--dpkgopt=path-exclude={pattern}" for pattern in LEFT_OUT]
    options += ["--quiet", "--variant=minbase", f"--include={packages}"]
    options += [f'--customize-hook=cd "$1" && rm -rf {PERL}']
    try:
        subprocess.run([tool("mmdebstrap", "mmdebstrap"), *options, DEBIAN_SUITE, folder / "root.tar"], check=True)
    except subprocess.CalledProcessError as error:
        raise UnavailableError(f"mmdebstrap failed with exit code {error.returncode}") from error


def _add_busybox(root: Path) -> None:
    program = unpacked("busybox-static") / "bin/busybox"
    (root / "bin").mkdir()
    (root / "etc").mkdir()
    shutil.copy(program, root / "bin/busybox")
    applets = subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout.split()
    for applet in applets:
        if applet != "busybox":
            (root / "bin" / applet).symlink_to("busybox")
    (root / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n")


@contextmanager
def new_root() -> Iterator[Path]:
    """An empty folder for an image's files or a build's context."""
    with tempfile.TemporaryDirectory(prefix="vgpurun-image-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def _import_folder(client: docker.DockerClient, root: Path, tag: str) -> None:
    with tempfile.NamedTemporaryFile(suffix=".tar") as file:
        with tarfile.open(fileobj=file, mode="w") as tar:
            tar.add(root, arcname=".")
        file.flush()
        _import(client, Path(file.name), tag)


def _import(client: docker.DockerClient, tar: Path, tag: str) -> None:
    repository, _, version = tag.rpartition(":")
    client.api.import_image_from_file(str(tar), repository=repository, tag=version, changes=[f"ENV {COMMAND_PATH}"])
    client.images.get(tag)
