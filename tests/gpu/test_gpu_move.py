"""Programs that are moved between two real GPUs: the same bits afterwards, and nothing left behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from runners import PROGRAMS
from test_gpu_suspend import number, read_step, running, suspended

from support import unavailable
from vgpurun.host import gpus
from vgpurun.host.gpu_names import of_same_kind
from vgpurun.host.gpus import Gpu

TIMES = 4
MIB = 1 << 20


@pytest.fixture
def alike() -> tuple[Gpu, Gpu]:
    """Two GPUs of one kind, on a driver that takes programs off them."""
    found = gpus.list_gpus()
    version = gpus.read_driver(found).version
    if int(version.split(".")[0]) < 570:
        unavailable(f"driver {version} takes nothing off a GPU: that came with 570")
    kinds = (of_same_kind([gpu], found) for gpu in found if gpu.mig_index is None)
    pair = next((kind for kind in kinds if len(kind) > 1), None)
    if pair is None:
        unavailable("a move takes two GPUs of the same kind")
    return pair[0], pair[1]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("work", ["train", "infer"])
def test_the_same_bits_on_the_other_gpu(python: str, alike: tuple[Gpu, Gpu], work: str, tmp_path: Path) -> None:
    program, out = str(PROGRAMS / "torch_suspended.py"), tmp_path / "steps"
    with out.open("w") as file, running(
        python, program, work, "1000000", gpus_wanted=f"device={alike[0].index}", out=file
    ) as process:  # fmt: skip
        step = read_step(out, 0)
        for turn in range(TIMES):
            here, there = alike[turn % 2], alike[(turn + 1) % 2]
            before = [use.memory_used_bytes for use in gpus.read_use([here, there])]
            done = suspended(process, "move", "--gpus", there.number)
            assert done.returncode == 0, done.stderr
            after = [use.memory_used_bytes for use in gpus.read_use([here, there])]
            print(done.stdout.strip(), [(now - then) // MIB for now, then in zip(after, before, strict=True)], "MiB")
            step = read_step(out, step)
            assert number(process) in gpus.read_processes(there) and number(process) not in gpus.read_processes(here)
    seen = out.read_text().split("\n")[:step]
    with running(python, program, work, str(step)) as process:
        assert process.stdout.read().splitlines() == seen
