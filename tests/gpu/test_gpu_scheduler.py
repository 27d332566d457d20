"""How exactly the limits hold where the GPU's own scheduler holds them, and that it does here."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from runners import Runner, answer

from support import LIBRARY

sys.path.insert(0, str(Path(__file__).parents[1] / "bench" / "compute"))
from runs import Bench, Launch, Programs, gpus

SECONDS = 6.0
POINTS = 1.5


@pytest.fixture(scope="module")
def bench(built_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(Programs(tmp_path_factory.mktemp("programs")), tuple(gpus()[:1]), {})


def limited(bench: Bench, folder: Path, percent: int, tenant: int = 0) -> Launch:
    """Programs with the same usage file are one tenant."""
    variables = {
        "LD_PRELOAD": str(LIBRARY),
        "CUDA_DEVICE_SM_LIMIT": str(percent),
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(folder / f"usage{tenant}"),
    }
    return Launch((), {**bench.native().environment, **variables})


def test_the_driver_lets_programs_be_governed(bench: Bench, tmp_path: Path) -> None:
    process = bench.start("1ms", 5, limited(bench, tmp_path, 50))
    try:
        time.sleep(3)
        tasks = Path(f"/proc/{process.pid}/task").glob("*/comm")
        assert "vgpu-governor" in [task.read_text().strip() for task in tasks]
    finally:
        bench.programs.end(process)


@pytest.mark.parametrize("percent", [20, 50])
@pytest.mark.parametrize("program", ["50us", "5ms", "300ms"])
def test_a_program_is_held_in_the_middle_of_its_kernels(
    bench: Bench, tmp_path: Path, program: str, percent: int
) -> None:
    alone = bench.run(program, SECONDS, bench.native()).per_second
    share = 100 * bench.run(program, SECONDS, limited(bench, tmp_path, percent)).per_second / alone
    print(f"{program} at {percent}: {share:.2f}")
    assert share == pytest.approx(percent, abs=POINTS)


@pytest.mark.parametrize(("program", "limits"), [("1ms", (30, 70)), ("300ms", (30, 70)), ("50us", (25, 25, 25, 25))])
def test_tenants_have_their_limits(bench: Bench, tmp_path: Path, program: str, limits: tuple[int, ...]) -> None:
    alone = bench.run(program, SECONDS, bench.native()).per_second
    launches = [limited(bench, tmp_path, percent, tenant) for tenant, percent in enumerate(limits)]
    runs = bench.together([program] * len(launches), launches, SECONDS)
    shares = [100 * run.per_second / alone for run in runs]
    print(f"{program} at {limits}: {', '.join(f'{share:.2f}' for share in shares)}, together {sum(shares):.1f}")
    assert all(share < limit + POINTS for share, limit in zip(shares, limits, strict=True))
    assert sum(shares) > 94


def test_contexts_that_come_while_a_program_is_off_leave_nothing_off(runner: Runner) -> None:
    """The driver counts how often it took a channel off: one that is taken off twice would stay off."""
    done = runner.run(["--mem", "8g", "--sm", "30"], [*runner.program("torch_contexts.py"), "6"])
    found = answer(done)
    print(found)
    assert found["second"] > found["first"] / 2 > 5
