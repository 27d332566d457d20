"""Ray's parts of a real GPU, where Ray is installed beside PyTorch."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import CHECKOUT, LIBRARY, unavailable

PROGRAM = Path(__file__).parent / "programs" / "ray_halves.py"


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short, as Ray's sockets need it."""
    with tempfile.TemporaryDirectory(prefix="vr-", dir="/tmp", ignore_cleanup_errors=True) as made:
        yield Path(made)


def test_halves_of_a_gpu_have_half_of_its_memory_and_time(python: str, folder: Path) -> None:
    if subprocess.run([python, "-c", "import ray"], capture_output=True, check=False).returncode:
        unavailable("Ray is not installed beside PyTorch: pip install 'vgpurun[ray]'")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(CHECKOUT), os.environ.get("PYTHONPATH", "")))),
        "RAY_AUTH_MODE": "disabled",
        "RAY_TMPDIR": str(folder),
        "RAY_RUNTIME_ENV_PLUGINS": '[{"class": "vgpurun.ray.plugin.LimitsPlugin"}]',
        "RAY_RUNTIME_ENV_HOOK": "vgpurun.ray.job.with_limits",
        "VGPURUN_LIBRARY": str(LIBRARY),
        "VGPURUN_STATE_DIR": str(folder / "state"),
    }
    done = subprocess.run([python, PROGRAM], env=environment, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    for half in found["halves"]:
        assert half["total_bytes"] == found["alone"]["total_bytes"] // 2
        assert half["refused"]
        assert half["rate"] / found["alone"]["rate"] == pytest.approx(0.5, abs=0.05)
