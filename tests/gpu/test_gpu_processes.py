"""One limit over several processes, and a limit that does not depend on the environment."""

from __future__ import annotations

import json

import pytest
from runners import Container, Runner, answer


def test_processes_share_the_limit(runner: Runner) -> None:
    found = answer(runner.run(["--mem", "3g"], runner.program("two_processes.py")))
    assert found["processes"] == 2
    assert found["driver_holds_mib"] <= 3072
    assert found["driver_holds_mib"] > 3072 - 96  # nothing that fits was refused
    assert found["free_after_child_mib"] > found["free_mib"] + found["child_granted_mib"]


def test_the_limit_stays_without_the_environment(runner: Runner) -> None:
    if not isinstance(runner, Container):
        pytest.skip("outside a container the limit is in the environment")
    command = ["env", "-i", "HOME=/tmp", "PATH=/usr/bin:/bin", *runner.program("torch_memory.py")]
    found = answer(runner.run(["--mem", "2g"], command))
    assert found["total_mib"] == 2048 and found["refusal"] == "OutOfMemoryError"


TOTALS = """
import json, torch
print(json.dumps([torch.cuda.mem_get_info(index)[1] >> 20 for index in range(torch.cuda.device_count())]))
"""


@pytest.mark.parametrize(
    ("options", "environment", "totals_mib"),
    [
        (["--mem", "0=2g,1=4g"], {}, [2048, 4096]),
        (["--mem", "0=2g,1=4g"], {"CUDA_VISIBLE_DEVICES": "1,0"}, [4096, 2048]),
        (["--gpus", "device=1", "--mem", "1g"], {}, [1024]),
    ],
)
def test_limits_go_with_the_device(
    runner: Runner, python: str, options: list[str], environment: dict[str, str], totals_mib: list[int]
) -> None:
    count = json.loads(runner.run([], [python, "-c", "import torch; print(torch.cuda.device_count())"]).stdout)
    if count < 2:
        pytest.skip("needs two GPUs")
    assert answer(runner.run(options, [python, "-c", TOTALS], environment)) == totals_mib
