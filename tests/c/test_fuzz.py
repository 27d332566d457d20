"""The limit parser and the usage file under mutated inputs, with sanitizers. VGPURUN_FUZZ_SECONDS says for how long."""

import os
import random
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
SECONDS = os.environ.get("VGPURUN_FUZZ_SECONDS", "2")
SOURCES = {
    "limits": ["limits", "log"],
    "usage": ["claim", "device_state", "ledger", "log", "region", "shared_file"],
}


@pytest.mark.parametrize("seed", [1, random.randrange(1 << 40)], ids=["fixed", "random"])
@pytest.mark.parametrize("target", SOURCES)
def test_fuzz(target: str, seed: int, tmp_path: Path) -> None:
    sources = [
        HERE / f"fuzz_{target}.c",
        HERE / "fuzz_main.c",
        *(ROOT / "lib" / f"{name}.c" for name in SOURCES[target]),
    ]
    flags = ["-std=c11", "-D_GNU_SOURCE", "-g", "-O1", "-Wall", "-Wextra", "-Werror"]
    flags += ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", f"-I{ROOT / 'lib'}", f"-I{HERE}"]
    program = tmp_path / "fuzz"
    subprocess.run(["gcc", *flags, *sources, "-lpthread", "-o", program], check=True)
    result = subprocess.run(
        [program, SECONDS, str(seed)],
        env={"ASAN_OPTIONS": "detect_leaks=0", "LIBCUDA_LOG_LEVEL": "0"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    print(f"seed {seed}: {result.stdout.strip()}")
    assert result.returncode == 0, f"seed {seed}: {result.stderr[-3000:]}"
