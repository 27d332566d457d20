"""The limit parser and the usage file under mutated inputs, with sanitizers. VGPURUN_FUZZ_SECONDS says for how long."""

import os
import random
import subprocess
from pathlib import Path

import pytest

from support.programs_of_c import built

SECONDS = os.environ.get("VGPURUN_FUZZ_SECONDS", "2")


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [1, random.randrange(1 << 40)], ids=["fixed", "random"])
@pytest.mark.parametrize("target", ["limits", "usage"])
def test_fuzz(target: str, seed: int, tmp_path: Path) -> None:
    result = subprocess.run(
        [built(f"fuzz_{target}", "address-undefined"), SECONDS, str(seed)],
        env={"ASAN_OPTIONS": "detect_leaks=0", "LIBCUDA_LOG_LEVEL": "0"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    print(f"seed {seed}: {result.stdout.strip()}")
    assert result.returncode == 0, f"seed {seed}: {result.stderr[-3000:]}"
