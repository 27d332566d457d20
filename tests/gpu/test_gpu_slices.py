"""Two containers, or two processes, in one slice of a real GPU; and a real driver by a CDI device."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from runners import Container, Runner, answer, vgpurun

from support import unavailable
from vgpurun.limits import region

MIB, GIB = 1 << 20, 1 << 30
LIMIT_BYTES = 4 * GIB


@pytest.fixture
def slice_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if os.geteuid() != 0:
        unavailable("slices are made by root")
    monkeypatch.setenv("VGPURUN_STATE_DIR", str(tmp_path / "state"))
    name = f"test{os.getpid()}"
    made = vgpurun(["slice", "create", name, "--mem", "4g", "--sm", "50", "--gpus", "device=0"])
    assert made.returncode == 0, made
    yield name
    assert vgpurun(["slice", "rm", "--force", name]).returncode == 0


def wait_for(folder: Path, step: str, count: int) -> None:
    deadline = time.monotonic() + 90
    while len(list(folder.glob(f"{step}.*"))) < count:
        assert time.monotonic() < deadline, f"no {count} have {step}"
        time.sleep(0.05)


def begin_together(folder: Path) -> None:
    """The step is there only once it says when they measure: after each of them has begun to compute."""
    (folder / "spin.new").write_text(str(time.monotonic() + 2))
    (folder / "spin.new").rename(folder / "spin")


def test_two_share_the_memory_and_the_time(runner: Runner, slice_name: str, tmp_path: Path) -> None:
    alone = answer(runner.run(["--mem", "4g", "--gpus", "device=0"], runner.program("slice_member.py")))["rate"]
    folder = tmp_path / "steps"
    folder.mkdir()
    in_container = isinstance(runner, Container)
    options = ["--slice", slice_name, *([f"-v{folder}:/steps"] if in_container else [])]
    command = [*runner.program("slice_member.py"), "/steps" if in_container else str(folder)]
    (uuid,) = (device["uuid"] for device in described(slice_name)["devices"])
    usage = tmp_path / "state" / "slices" / slice_name / "run" / "usage"
    with ThreadPoolExecutor() as pool:
        members = [pool.submit(runner.run, options, command) for _ in range(2)]
        try:
            wait_for(folder, "ready", 2)
            (folder / "fill").touch()
            wait_for(folder, "filled", 2)
            (reading,) = region.read_usage(usage, [uuid]) or ()
            assert LIMIT_BYTES - 128 * MIB < reading.memory_used_bytes <= LIMIT_BYTES
            assert len(described(slice_name)["members"]) == 2
        finally:
            (folder / "free").touch()
            begin_together(folder)
        found = [answer(member.result()) for member in members]
    assert all(each["granted_bytes"] > 0 for each in found)
    assert sum(each["granted_bytes"] for each in found) <= reading.allocated_bytes
    rates = [each["rate"] / alone for each in found]
    print(f"shares of the {alone:.0f} a second that one does alone: {rates[0]:.3f} and {rates[1]:.3f}")
    assert 0.47 < sum(rates) < 0.53, (rates, alone)


def described(name: str) -> dict:
    (found,) = json.loads(vgpurun(["slice", "inspect", name]).stdout)
    return found


def test_a_cdi_device_brings_this_hosts_driver_and_the_limits(slice_name: str) -> None:
    """Into an image with nothing but a C library."""
    import docker

    try:
        client = docker.from_env()
        folders = client.info().get("CDISpecDirs")
    except docker.errors.DockerException:
        unavailable("no Docker Engine answers")
    if not folders:
        unavailable("this engine has no CDI")
    path = Path(folders[0]) / f"vgpurun-{slice_name}.yaml"
    image = "vgpurun-test/glibc:1"
    repository, tag = image.split(":")
    client.api.import_image_from_data(c_library(), repository=repository, tag=tag)
    try:
        assert vgpurun(["cdi", "generate", "-o", str(path), slice_name]).returncode == 0
        seen = client.containers.run(
            image,
            ["/usr/bin/nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"],
            device_requests=[docker.types.DeviceRequest(driver="cdi", device_ids=[f"vgpurun.io/gpu={slice_name}"])],
            network_mode="none",
            remove=True,
        )
        assert seen.split() == [b"4096"]
    finally:
        path.unlink(missing_ok=True)
        client.images.remove(image, force=True)


def c_library() -> bytes:
    """This machine's glibc at the paths that it has, as a tar file."""
    listed = subprocess.run(["ldd", "/usr/bin/env"], capture_output=True, text=True, check=True).stdout
    folder = next(Path(word).parent for word in listed.split() if word.startswith("/") and "libc.so.6" in word)
    loader = next(word for word in listed.split() if word.startswith("/") and "ld-linux" in word)
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name in ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1"):
            place = f"{folder}/{name}".lstrip("/")
            tar.add((folder / name).resolve(), arcname=place if place.startswith("usr/") else f"usr/{place}")
        tar.add(Path(loader).resolve(), arcname=f"usr{loader}")
        for link in ("lib", "lib64"):
            member = tarfile.TarInfo(link)
            member.type, member.linkname = tarfile.SYMTYPE, f"usr/{link}"
            tar.addfile(member)
    return archive.getvalue()
