"""How the GPU's nodes and the driver's files come into a container: by CDI, by NVIDIA's toolkit, or by vgpurun itself.

These machines have no GPU, so what is tested is what the engine is asked for and what it does with that.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cli import Cli

CDI_SPEC = {
    "cdiVersion": "0.5.0",
    "kind": "nvidia.com/gpu",
    "devices": [{"name": "0", "containerEdits": {"env": ["FROM_CDI=0"]}}],
}


@pytest.fixture
def cdi_dir(docker_host: str) -> Iterator[Path]:
    """A folder that the engine reads CDI specifications from."""
    folder = Path(docker_host.removeprefix("unix://")).parent / "cdi"
    if not folder.is_dir():
        pytest.skip("the engine is not the tests' own: its CDI folder is left alone")
    yield folder
    (folder / "vgpurun-test.json").unlink(missing_ok=True)


def test_the_simulated_driver_is_mounted_read_only(vgpurun: Cli, debian: str) -> None:
    script = "ls /.vgpurun/driver; touch /.vgpurun/driver/x 2>/dev/null; echo $?"
    result = vgpurun.run("--mem", "1g", debian, "sh", "-c", script)
    lines = result.stdout.split()
    assert "libcuda.so.1" in lines
    assert "libnvidia-ml.so.1" in lines
    assert lines[-1] != "0"


def test_the_simulated_driver_gets_no_device_nodes(vgpurun: Cli, debian: str) -> None:
    assert vgpurun.run("--mem", "1g", debian, "sh", "-c", "ls /dev | grep nvidia").stdout == ""


def test_no_gpu_on_this_machine_is_said_in_one_line(vgpurun: Cli, debian: str) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a GPU")
    for driver in ("auto", "mount", "toolkit", "cdi"):
        vgpurun("run", "--driver", driver, "--mem", "1g", debian, "true").assert_refused("GPU")
    vgpurun.assert_nothing_left()
