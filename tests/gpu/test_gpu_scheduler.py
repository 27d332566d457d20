"""The questions that the driver lets any process ask of the GPU's own scheduler, and how exactly it holds a limit.

A trial: `programs/scheduler` takes a program's channels off the GPU and counts by the driver's records. Nothing of the
library is used.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "bench" / "compute"))
from runs import Bench, Launch, Programs, gpus

SOURCES = Path(__file__).parent / "programs" / "scheduler"
SECONDS = 6.0
POINTS = 1.5


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(Programs(tmp_path_factory.mktemp("programs")), tuple(gpus()[:1]), {})


@pytest.fixture(scope="module")
def governor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("governor") / "libgovernor.so"
    options = ["-std=c11", "-D_GNU_SOURCE", "-O2", "-shared", "-fPIC", "-o", library]
    subprocess.run(["gcc", *options, *SOURCES.glob("*.c"), "-lpthread"], check=True)
    return library


def governed(bench: Bench, governor: Path, percent: int) -> Launch:
    variables = {"LD_PRELOAD": str(governor), "CUDA_DEVICE_SM_LIMIT": str(percent), "GOVERNOR_TRACE": "1"}
    return Launch((), {**bench.native().environment, **variables})


@pytest.mark.parametrize("percent", [20, 50])
@pytest.mark.parametrize("program", ["50us", "5ms", "300ms"])
def test_a_program_is_held_in_the_middle_of_its_kernels(
    bench: Bench, governor: Path, program: str, percent: int
) -> None:
    alone = bench.run(program, SECONDS, bench.native()).per_second
    share = 100 * bench.run(program, SECONDS, governed(bench, governor, percent)).per_second / alone
    print(f"{program} at {percent}: {share:.2f}")
    assert share == pytest.approx(percent, abs=POINTS)


@pytest.mark.parametrize(("program", "limits"), [("1ms", (30, 70)), ("300ms", (30, 70)), ("50us", (25, 25, 25, 25))])
def test_tenants_have_their_limits(bench: Bench, governor: Path, program: str, limits: tuple[int, ...]) -> None:
    alone = bench.run(program, SECONDS, bench.native()).per_second
    runs = bench.together(program, [governed(bench, governor, percent) for percent in limits], SECONDS)
    shares = [100 * run.per_second / alone for run in runs]
    print(f"{program} at {limits}: {', '.join(f'{share:.2f}' for share in shares)}, together {sum(shares):.1f}")
    assert all(share < limit + POINTS for share, limit in zip(shares, limits, strict=True))
    assert sum(shares) > 94
