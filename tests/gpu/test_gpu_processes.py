"""Several processes share a limit, and a limit does not depend on the environment."""

from __future__ import annotations

import json
import subprocess

import pytest
from runners import Container, Runner, answer

from support.programs import text_of


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


def print_totals() -> None:
    """Print the UUID of each device, in their order, and its memory in MiB."""
    import torch

    found = []
    for index in range(torch.cuda.device_count()):
        uuid = torch.cuda.get_device_properties(index).uuid
        found.append((f"GPU-{uuid}", torch.cuda.mem_get_info(index)[1] >> 20))
    print(json.dumps(found))


TOTALS = text_of(print_totals)


def host_uuids() -> list[str]:
    """The host's GPUs in the order of their PCI bus IDs."""
    query = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()


def shortest_prefix(uuid: str) -> str:
    """The shortest beginning that names this GPU alone."""
    others = [other for other in host_uuids() if other != uuid]
    return next(uuid[:end] for end in range(5, 41) if not any(other.startswith(uuid[:end]) for other in others))


@pytest.mark.parametrize(
    ("options", "visible", "totals_mib"),
    [
        (["--mem", "0=2g,1=4g"], None, [2048, 4096]),
        (["--mem", "0=2g,1=4g"], "1,0", [4096, 2048]),
        (["--mem", "0=2g,1=4g"], "{1}", [4096]),
        (["--mem", "0=2g,1=4g"], "{1},{0}", [4096, 2048]),
        (["--mem", "0=2g,1=4g"], "{1:short},{0}", [4096, 2048]),  # PyTorch counts no index after a UUID
        (["--mem", "0=2g,1=4g"], "1,-1,0", [4096]),
        (["--gpus", "device=1", "--mem", "1g"], None, [1024]),
    ],
)
def test_limits_go_with_the_device(
    runner: Runner, python: str, options: list[str], visible: str | None, totals_mib: list[int]
) -> None:
    uuids = host_uuids()
    if len(uuids) != 2:
        pytest.skip("needs a machine with two GPUs")
    environment = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if visible is not None:
        named = visible.replace("{1:short}", shortest_prefix(uuids[1]))
        environment["CUDA_VISIBLE_DEVICES"] = named.format(*uuids)
    options = ["--gpus", "device=0,1", *options] if "--gpus" not in options else options
    found = answer(runner.run(options, [python, "-c", TOTALS], environment))
    assert [total_mib for _, total_mib in found] == totals_mib


def test_either_order_of_devices(runner: Runner, python: str) -> None:
    """Whatever the driver makes of the order, each GPU has its own limit."""
    uuids = host_uuids()
    if len(uuids) != 2:
        pytest.skip("needs a machine with two GPUs")
    options = ["--gpus", "device=0,1", "--mem", "0=2g,1=4g"]
    for order in ("FASTEST_FIRST", "PCI_BUS_ID"):
        found = answer(runner.run(options, [python, "-c", TOTALS], {"CUDA_DEVICE_ORDER": order}))
        assert dict(found) == {uuids[0]: 2048, uuids[1]: 4096}
