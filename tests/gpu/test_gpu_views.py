"""One view: CUDA, every page of nvidia-smi, gpustat and nvitop show the container's GPU, and nobody else's programs."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from runners import Runner, answer

LIMIT_MIB = 4096
HOLD = (
    "import torch\nheld = torch.empty(512 << 20, dtype=torch.uint8, device='cuda')\nprint('ready', flush=True)\ninput()"
)


@pytest.fixture
def another_program(python: str) -> Iterator[int]:
    """The PID of a program on the same GPU, without limits."""
    with subprocess.Popen([python, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield process.pid
        process.kill()


def test_one_small_gpu_everywhere(runner: Runner, another_program: int) -> None:
    found = answer(runner.run(["--mem", f"{LIMIT_MIB}m"], runner.program("views.py")))
    print(found)
    total, used, free = found["nvml"]
    assert (total, used + free) == (LIMIT_MIB, LIMIT_MIB)
    assert found["cuda"] == [total, free]
    rounded = [round(size) for size in (total, used, free)]
    assert [int(size) for size in found["gpu_query"]] == pytest.approx(rounded, abs=1)
    page = found["xml"]
    assert [int(page[name].split()[0]) for name in ("total", "used", "free")] == pytest.approx(rounded, abs=1)
    assert f"{LIMIT_MIB}MiB" in found["table"]

    pids = {str(pid) for pid in found["pids"]}
    applications = {pid: int(size) for pid, size in found["application_query"]}
    assert set(applications) == pids and set(page["processes"]) == pids
    assert sum(applications.values()) == pytest.approx(used, abs=2)
    for pid in pids:
        assert int(page["processes"][pid].split()[0]) == applications[pid]
        # Modules may have been loaded since the process asked last.
        assert applications[pid] == pytest.approx(found["driver"][pid], abs=64)
        assert f" {pid} " in found["table"]
    assert str(another_program) not in applications


@pytest.mark.parametrize("page", ["gpustat", "nvitop"])
def test_programs_that_read_nvml(runner: Runner, python: str, page: str, another_program: int) -> None:
    if subprocess.run([python, "-c", f"import {page}"], capture_output=True, check=False).returncode != 0:
        pytest.skip(f"{page} is not installed")
    found = answer(runner.run(["--mem", f"{LIMIT_MIB}m"], runner.program("views.py")))
    shown = found[page]
    assert shown is not None and shown["total"] == LIMIT_MIB
    assert shown["used"] == pytest.approx(found["nvml"][1], abs=1)
    assert set(shown["processes"]) == {str(pid) for pid in found["pids"]}
    assert sum(shown["processes"].values()) == pytest.approx(shown["used"], abs=2)


@pytest.mark.parametrize(("percent", "least"), [(50, 85), (20, 80)])
def test_full_use_of_a_compute_limit_is_100_percent(runner: Runner, percent: int, least: int) -> None:
    options = ["--mem", f"{LIMIT_MIB}m", "--sm", str(percent)]
    busy = answer(runner.run(options, [*runner.program("views.py"), "5"]))
    print(busy["utilization"], busy["xml"]["utilization"])
    assert least <= int(busy["utilization"][0]) <= 100
    idle = answer(runner.run(options, runner.program("views.py")))
    assert int(idle["utilization"][0]) < 20


def test_without_a_compute_limit_it_is_the_containers_share(runner: Runner) -> None:
    busy = answer(runner.run(["--mem", f"{LIMIT_MIB}m"], [*runner.program("views.py"), "5"]))
    assert int(busy["utilization"][0]) >= 80
