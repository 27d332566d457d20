"""Programs that are moved between two real GPUs: the same bits afterwards, and nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from runners import PROGRAMS, vgpurun
from test_gpu_suspend import DETERMINISTIC, STEPS

from support import CHECKOUT, unavailable
from vgpurun.host import gpus
from vgpurun.host.gpus import Gpu, of_same_kind

TIMES = 10
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


def start(python: str, gpu: Gpu, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "vgpurun", "local", "--mem", "8g", "--gpus", f"device={gpu.index}", "--", python]
    return subprocess.Popen(
        [*command, *words], cwd=CHECKOUT, env={**os.environ, **DETERMINISTIC}, stdout=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("work", ["train", "infer"])
def test_the_same_bits_on_the_other_gpu(python: str, alike: tuple[Gpu, Gpu], work: str) -> None:
    program = [str(PROGRAMS / "torch_suspended.py"), work, str(STEPS)]
    with start(python, alike[0], *program) as process:
        assert process.stdout
        expected = process.stdout.readlines()
    assert len(expected) == STEPS
    with start(python, alike[0], *program) as process:
        assert process.stdout
        seen = [process.stdout.readline()]
        for turn in range(TIMES):
            here, there = alike[turn % 2], alike[(turn + 1) % 2]
            before = [use.memory_used_bytes for use in gpus.read_use([here, there])]
            done = vgpurun(["move", "--gpus", there.number, "--process", str(process.pid)])
            assert done.returncode == 0, done.stderr
            after = [use.memory_used_bytes for use in gpus.read_use([here, there])]
            print(done.stdout.strip(), [(now - then) // MIB for now, then in zip(after, before, strict=True)], "MiB")
            seen.append(process.stdout.readline())
            assert gpus.read_processes(here) == {}
        seen += process.stdout.readlines()
    assert seen == expected
