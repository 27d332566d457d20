"""`vgpurun move` on a real engine: a container goes on on another GPU, and starts again there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cli import GPU_PROGRAM, WITH_PROGRAMS, Cli
from support import own_gpu_config, wait_until

CELLS = ("python3", "-u", "/programs/gpu.py", "cells", "0.1")
INFO = ("info",)


@pytest.fixture
def two_gpus(vgpurun: Cli, tmp_path: Path) -> Cli:
    """The command line with two GPUs of 16 GiB that no other test knows."""
    vgpurun.environment["VGPUSIM_CONFIG"] = own_gpu_config(tmp_path, count=2)
    return vgpurun


def used_mib(vgpurun: Cli) -> list[int]:
    shown = json.loads(vgpurun("smi", *vgpurun.driver, "--format", "json").stdout)
    return [int(gpu["memory_used_bytes"] >> 20) for gpu in shown["gpus"]]


def cells_go_on(vgpurun: Cli, name: str) -> None:
    container = vgpurun.engine.containers.get(name)
    before = container.logs().count(b"right")
    wait_until(lambda: container.logs().count(b"right") > before + 2, "cells")
    assert b"wrong" not in container.logs()


def test_a_container_goes_on_on_another_gpu(two_gpus: Cli, debian: str) -> None:
    vgpurun = two_gpus
    options = ("-d", "--name", "book", "--mem", "6g", "--gpus", "device=0", "--movable", *WITH_PROGRAMS)
    assert vgpurun.run(*options, debian, *CELLS).exit_code == 0
    cells_go_on(vgpurun, "book")
    held_mib, nothing = used_mib(vgpurun)
    assert nothing == 0
    done = vgpurun("move", *vgpurun.driver, "--gpus", "1", "book")
    assert (done.exit_code, done.stdout) == (0, f"book: GPU 0 -> GPU 1, {held_mib} MiB moved\n"), done.stderr
    assert used_mib(vgpurun) == [0, held_mib]
    cells_go_on(vgpurun, "book")
    _, other_uuid = re.findall("uuid: (.*)", Path(vgpurun.environment["VGPUSIM_CONFIG"]).read_text())
    (inspected,) = json.loads(vgpurun("inspect", *vgpurun.driver, "book").stdout)
    assert [device["uuid"] for device in inspected["devices"]] == [other_uuid]
    shown = vgpurun("ps", *vgpurun.driver, "--format", "{{.GPUs}} {{.MemoryLimit}}")
    assert shown.stdout.strip() == "1 6 GiB"

    for prefix in ((), ("env", "-i", "PATH=/usr/bin:/bin"), ("env", "CUDA_VISIBLE_DEVICES=0")):
        new = vgpurun("exec", "book", *prefix, *GPU_PROGRAM, *INFO)
        assert [device["total"] >> 30 for device in new.json()["devices"]] == [6], new

    fits = vgpurun.run("--mem", "11g", "--gpus", "device=1", debian, "true")
    assert fits.exit_code == 125 and "10 GiB is free" in fits.stderr
    assert vgpurun.run("--mem", "16g", "--gpus", "device=0", debian, "true").exit_code == 0

    vgpurun.engine.containers.get("book").restart(timeout=0)  # docker's own: it knows nothing of the move
    cells_go_on(vgpurun, "book")
    assert used_mib(vgpurun) == [0, held_mib]
    assert vgpurun("stop", "-t", "0", "book").exit_code == 0
    assert vgpurun("start", *vgpurun.driver, "book").exit_code == 0
    cells_go_on(vgpurun, "book")
    assert used_mib(vgpurun) == [0, held_mib]


def test_a_container_without_the_nodes_of_another_gpu(two_gpus: Cli, debian: str) -> None:
    vgpurun = two_gpus
    options = ("-d", "--name", "book", "--mem", "6g", "--gpus", "device=0", *WITH_PROGRAMS)
    assert vgpurun.run(*options, debian, *CELLS).exit_code == 0
    cells_go_on(vgpurun, "book")
    refused = vgpurun("move", *vgpurun.driver, "--gpus", "1", "book")
    refused.assert_refused("has the nodes of its own GPUs alone", "make it with --movable")
    cells_go_on(vgpurun, "book")


def test_a_slice_with_its_containers(two_gpus: Cli, debian: str) -> None:
    vgpurun = two_gpus
    made = vgpurun("slice", "create", "team", *vgpurun.driver, "--mem", "6g", "--gpus", "device=0", "--movable")
    assert made.exit_code == 0, made.stderr
    for name in ("one", "two"):
        assert vgpurun.run("-d", "--name", name, "--slice", "team", *WITH_PROGRAMS, debian, *CELLS).exit_code == 0
        cells_go_on(vgpurun, name)
    alone = vgpurun("move", *vgpurun.driver, "--gpus", "1", "one")
    alone.assert_refused("is in slice team")
    held_mib, _ = used_mib(vgpurun)
    done = vgpurun("move", *vgpurun.driver, "--gpus", "1", "--slice", "team")
    assert (done.exit_code, done.stdout) == (0, "slice team: GPU 0 -> GPU 1, 1.02 GiB moved\n"), done.stderr
    assert used_mib(vgpurun) == [0, held_mib]
    for name in ("one", "two"):
        cells_go_on(vgpurun, name)
    assert vgpurun("slice", "rm", *vgpurun.driver, "--force", "team").exit_code == 0
