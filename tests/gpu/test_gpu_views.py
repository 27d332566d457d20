"""CUDA, every page of nvidia-smi, gpustat and nvitop show the container's GPU, and nobody else's programs."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from runners import PROGRAMS, Container, Runner, answer

LIMIT_MIB = 4096


@pytest.fixture
def another_program(python: str) -> Iterator[int]:
    """The PID of a program on the same GPU, without limits."""
    command = [python, PROGRAMS / "torch_held.py", "512"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield process.pid
        process.kill()


def test_one_small_gpu_everywhere(runner: Runner, another_program: int) -> None:
    found = answer(runner.run(["--mem", f"{LIMIT_MIB}m", "--gpus", "device=0"], runner.program("views.py")))
    print(found)
    total, used, free = found["nvml"]
    assert (total, used + free) == (LIMIT_MIB, LIMIT_MIB)
    assert found["cuda"] == [total, free]
    rounded = [round(size) for size in (total, used, free)]
    assert [int(size) for size in found["gpu_query"]] == pytest.approx(rounded, abs=1)
    log = found["xml"]
    assert [int(log[name].split()[0]) for name in ("total", "used", "free")] == pytest.approx(rounded, abs=1)
    assert f"{LIMIT_MIB}MiB" in found["table"]

    pids = {str(pid) for pid in found["pids"]}
    applications = {pid: int(size) for pid, size in found["application_query"]}
    if isinstance(runner, Container):
        assert set(applications) == pids and set(log["processes"]) == pids
        assert str(another_program) not in applications
    else:
        # nvidia-smi has its list by another way than NVML's exported functions: only a PID namespace narrows that.
        assert set(applications) >= pids and set(log["processes"]) >= pids
    assert sum(applications[pid] for pid in pids) == pytest.approx(used, abs=2)
    for pid in pids:
        assert int(log["processes"][pid].split()[0]) == applications[pid]
        # Modules may have been loaded since the process asked last.
        assert applications[pid] == pytest.approx(found["driver"][pid], abs=64)
        assert f" {pid} " in found["table"]

    for page in filter(None, (found["gpustat"], found["nvitop"])):
        assert page["total"] == LIMIT_MIB and page["used"] == pytest.approx(used, abs=1)
        assert set(page["processes"]) == pids
        assert sum(page["processes"].values()) == pytest.approx(used, abs=2)


@pytest.mark.parametrize(("options", "least"), [(["--sm", "50"], 85), (["--sm", "20"], 80), ([], 80)])
def test_full_use_of_what_it_may_have_is_100_percent(runner: Runner, options: list[str], least: int) -> None:
    limits = ["--mem", f"{LIMIT_MIB}m", "--gpus", "device=0", *options]
    found = answer(runner.run(limits, [*runner.program("views.py"), "6"]))
    print(found["utilization"])
    assert found["utilization"]["idle"] < 20
    assert least <= found["utilization"]["busy"] <= 100
