"""`vgpurun build-in-docker`: the library comes out of a container, checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli import GPU_PROGRAM, WITH_PROGRAMS, Cli

pytestmark = pytest.mark.exhaustive


@pytest.mark.timeout(300)
def test_the_library_is_built_in_a_container(vgpurun: Cli, cuda_devel: str, debian: str, tmp_path: Path) -> None:
    output = tmp_path / "libvgpu.so"
    assert vgpurun("build-in-docker", "--base-image", cuda_devel, "--output", str(output), timeout_s=240).exit_code == 0
    assert b"vgpurun-library version=" in output.read_bytes()
    vgpurun.assert_nothing_left()
    vgpurun.environment["VGPURUN_LIBRARY"] = str(output)
    seen = vgpurun.run("--mem", "1g", *WITH_PROGRAMS, debian, *GPU_PROGRAM, "info").json()
    assert seen["devices"][0]["total"] == 1 << 30


def test_a_base_without_a_compiler_is_refused_and_nothing_is_written(
    vgpurun: Cli, busybox: str, tmp_path: Path
) -> None:
    output = tmp_path / "libvgpu.so"
    result = vgpurun("build-in-docker", "--base-image", busybox, "--output", str(output))
    assert result.exit_code == 125
    assert "gcc" in result.stderr
    assert not output.exists()


def test_a_base_image_that_is_not_there_is_refused(vgpurun: Cli) -> None:
    result = vgpurun("build-in-docker", "--base-image", "localhost:1/no-such-image:1")
    assert result.exit_code == 125
    assert "localhost:1/no-such-image:1" in result.stderr
    assert "Traceback" not in result.stderr
